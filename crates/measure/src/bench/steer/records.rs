//! Records written, with `steer.llc_affinity` on and off, while the consumers move.
//!
//! Once each flow has a record, one is written because its consumer moved, or because another
//! flow's was in its place. Counted for each receive and send of the server, so that it does not
//! matter how many there are in a second.

use std::time::Duration;

use anyhow::ensure;
use steer::Counters;
use trial::bench::Bar;

use super::Bench;
use super::hosts::{self, Attended, Behaviour, CONNECTIONS, Lanes, Rpc, THREADS, turns};

/// Steps of a round.
pub(super) const STEPS: usize = ARMS.len() * 2 * TIMES;
/// Of the order of the arms in a round; each has two slices in one.
const TIMES: usize = 2;
/// After each switch: all flows have been received of since.
const SETTLE: Duration = Duration::from_millis(60);
/// Answers of a thread between two of its moves.
const STAY: u64 = 32;

/// The case that is compared.
const PER_RECEIVE: &str = "records per receive";
const ARMS: [(Lanes, bool); 4] =
    [(Lanes::One, true), (Lanes::One, false), (Lanes::PerCpu, true), (Lanes::PerCpu, false)];

/// Both values of the knob, by turns, under the same connections.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if let Some(reason) = hosts::obstacle()? {
        bench.output.absent.push(format!("records: {reason}"));
        return Ok(());
    }
    let rpc = Rpc::start(Behaviour { stay: STAY, look: false, connections: CONNECTIONS })?;
    let mut steering = rpc.steer(Lanes::PerCpu, false)?;
    rpc.settle();
    for (lanes, on) in ARMS {
        bench.series.expect(&case(PER_RECEIVE, lanes, on), "");
    }
    for _ in 0..bench.plan.rounds {
        round(bench, &rpc, &mut steering)?;
    }
    for (name, lanes, bar) in [
        ("records: llc_affinity on / off", Lanes::One, Bar::AtMost(0.07)),
        ("records, a lane per cpu: on / off", Lanes::PerCpu, Bar::Between(0.95, 1.05)),
    ] {
        let (on, off) = (case(PER_RECEIVE, lanes, true), case(PER_RECEIVE, lanes, false));
        bench.series.ratio(&mut bench.output, name, (&on, &off), Some(bar))?;
    }
    bench.output.notes.push(format!(
        "Records were counted per receive and send of {THREADS} threads with {CONNECTIONS} \
         connections, once each had a record; 'displaced' are those that took \
         another flow's place. A thread moved to the next CPU after {STAY} answers, \
         and was pinned there until then. Lanes were overridden: all CPUs in one, and a lane per \
         CPU."
    ));
    Ok(())
}

fn round(bench: &mut Bench<'_>, rpc: &Rpc, steering: &mut Attended) -> anyhow::Result<()> {
    let slice = bench.plan.window / (2 * TIMES) as u32;
    let mut sums = [Sum::default(); ARMS.len()];
    for arm in turns(ARMS.len(), TIMES, &mut bench.rng) {
        let (lanes, on) = ARMS[arm];
        bench.step(&case("records", lanes, on))?;
        steering.follow(&rpc.lanes(lanes)?)?;
        steering.set_llc_affinity(on)?;
        std::thread::sleep(SETTLE);
        let before = steering.counters()?;
        let window = rpc.measure(slice)?;
        sums[arm].add(&before, &steering.counters()?, window.elapsed);
    }
    for ((lanes, on), sum) in ARMS.into_iter().zip(sums) {
        ensure!(sum.receives > 0, "the programs saw no receive");
        let receives = sum.receives as f64;
        for (what, unit, value) in [
            (PER_RECEIVE, "", sum.written as f64 / receives),
            ("records written", "1/s", sum.written as f64 / sum.seconds),
            ("displaced per receive", "", sum.evicted as f64 / receives),
        ] {
            bench.series.add(&case(what, lanes, on), unit, value);
        }
    }
    Ok(())
}

fn case(what: &str, lanes: Lanes, on: bool) -> String {
    format!("{what}, {}, {}", lanes.name(), if on { "on" } else { "off" })
}

/// What was counted in an arm's slices.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    receives: u64,
    written: u64,
    evicted: u64,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, before: &Counters, after: &Counters, elapsed: Duration) {
        self.receives += after.receives.wrapping_sub(before.receives);
        self.written += after.written.wrapping_sub(before.written);
        self.evicted += after.evicted.wrapping_sub(before.evicted);
        self.seconds += elapsed.as_secs_f64();
    }
}
