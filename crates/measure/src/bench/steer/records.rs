//! Records written, with `steer.llc_affinity` on and off, while the consumers move.
//!
//! Once each flow has a record, one is written because its consumer moved, or because another
//! flow's was in its place. Counted for each receive and send of the server, so that it does not
//! matter how many there are in a second.

use std::time::Duration;

use anyhow::ensure;
use steer::Counters;
use trial::bench::Bar;

use super::hosts::{CONNECTIONS, Lanes, Rpc, THREADS};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};

/// After each switch: all flows have been received of since.
const SETTLE: Duration = Duration::from_millis(60);
/// Answers of a thread between two of its moves.
const STAY: u64 = 32;

/// The case that is compared.
const PER_RECEIVE: &str = "records per receive";
const ARMS: [(Lanes, bool); 4] =
    [(Lanes::One, true), (Lanes::One, false), (Lanes::PerCpu, true), (Lanes::PerCpu, false)];

pub(super) fn part() -> Part<()> {
    let claims = [
        ("records: llc_affinity on / off", Lanes::One, Bar::AtMost(0.07)),
        ("records, a lane per cpu: on / off", Lanes::PerCpu, Bar::Between(0.95, 1.05)),
    ];
    let claim = |(name, lanes, bar)| {
        let [on, off] = [true, false].map(|on| case(PER_RECEIVE, lanes, on));
        Claim::ratio(name, on, off).bar(bar)
    };
    let time = Time { once: 2.0, steps: 2 * ARMS.len(), windows: 0.5, more: 0.07 };
    Part::new("records", "Records written, with the knob on and off", time)
        .claims(claims.map(claim))
        .stage(|(), _| measure())
}

/// Both values of the knob, in both sorts of lanes, under the same connections.
fn measure() -> anyhow::Result<Measure<'static>> {
    let rpc = Rpc::start(STAY, false, CONNECTIONS)?;
    let steering = rpc.steer(Lanes::PerCpu, false)?;
    rpc.settle();
    // Whole, so that the steering is dropped before the hosts.
    let there = (steering, rpc);
    let what = [(PER_RECEIVE, ""), ("records written", "1/s"), ("displaced per receive", "")];
    let step = |&(lanes, on): &(Lanes, bool)| Step {
        name: case("records", lanes, on),
        gives: what.map(|(what, unit)| (case(what, lanes, on), unit)).into(),
    };
    let slice = move |&(lanes, on): &(Lanes, bool), sum: &mut Sum, now: &mut Now<'_>| {
        let (steering, rpc) = &there;
        steering.follow(&rpc.lanes(lanes)?)?;
        steering.set_llc_affinity(on)?;
        std::thread::sleep(SETTLE);
        let before = steering.counters()?;
        let window = rpc.measure(now.window / 2)?;
        sum.add(&before, &steering.counters()?, window.elapsed);
        Ok(())
    };
    let figures = |_: &_, sum: Sum| {
        ensure!(sum.receives > 0, Absent("the programs saw no receive".into()));
        let [receives, written, evicted] =
            [sum.receives, sum.written, sum.evicted].map(|count| count as f64);
        Ok(vec![written / receives, written / sum.seconds, evicted / receives])
    };
    Ok(Measure::there_and_back(ARMS, step, slice, figures).note(format!(
        "Records were counted per receive and send of {THREADS} threads with {CONNECTIONS} \
         connections, once each had a record; 'displaced' are those that took another flow's \
         place. A thread moved to the next CPU after {STAY} answers, and was pinned there until \
         then. Lanes were overridden: all CPUs in one, and a lane per CPU."
    )))
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
