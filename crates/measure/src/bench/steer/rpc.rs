//! Requests and responses, against kernel RFS, kernel RPS and no steering.
//!
//! All arms steer the same connections, by turns. A veth is no network card: without an XDP program
//! it hands over the sender's socket buffer as it is, and with one it makes a frame of it first,
//! which is where a card's driver begins. So what cachelane is compared with has a program too, one
//! that does nothing; how it does without is shown beside it.

use std::time::Duration;

use anyhow::Context as _;
use lab::traffic::ExchangeWindow;
use lab::usage::SystemCpu;
use trial::bench::Bar;

use super::Bench;
use super::arms::{Arm, Device, Kernel, Switch};
use super::hosts::{self, Behaviour, CONNECTIONS, Rpc, THREADS, turns};

/// Steps of a round.
pub(super) const STEPS: usize = Arm::ALL.len() * 2 * TIMES;
/// Of the order of the arms in a round; each has two slices in one.
const TIMES: usize = 1;
/// Answers of a thread between two of its moves: some 200 moves a second, about as many as the
/// scheduler makes where it places such threads.
pub(super) const STAY: u64 = 256;

/// What is compared, and its unit.
const MEASURES: [(&str, &str); 3] =
    [("rpc throughput", "1/s"), ("rpc p99", "s"), ("rpc cpu time per exchange", "s")];

/// Each arm's slices of a round.
#[derive(Debug, Default)]
struct Slices {
    window: Option<ExchangeWindow>,
    busy: Duration,
}

/// All arms, by turns, under the same connections.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if let Some(reason) = hosts::obstacle()? {
        bench.output.absent.push(format!("rpc: {reason}"));
        return Ok(());
    }
    let rpc = Rpc::start(Behaviour { stay: STAY, look: false, connections: CONNECTIONS })?;
    let mut switch = Switch::new(&rpc, &mut bench.output.absent)?;
    let arms = switch.arms();
    for (measure, unit) in MEASURES {
        for arm in &arms {
            bench.series.expect(&case(measure, *arm), unit);
        }
    }
    for _ in 0..bench.plan.rounds {
        round(bench, &rpc, &mut switch, &arms)?;
    }
    compare(bench, &arms)?;
    bench.output.notes.extend(switch.note());
    bench.output.notes.push(format!(
        "rpc: {CONNECTIONS} connections, a request of 64 bytes in flight on each; a server with \
         {THREADS} threads, each of which moved to the next CPU after {STAY} answers and was pinned \
         there until then. The clients ran on the CPU to which the device's packets come. steer had \
         a lane per CPU."
    ));
    bench.output.notes.push(
        "rpc: a veth with an XDP program handles packets as a network card's driver does, which \
         costs what it does not cost without. So the other arms had a program as well, one that \
         lets everything pass, except where it says 'no program on the veth'."
            .into(),
    );
    Ok(())
}

fn round(
    bench: &mut Bench<'_>,
    rpc: &Rpc,
    switch: &mut Switch<'_>,
    arms: &[Arm],
) -> anyhow::Result<()> {
    let slice = bench.plan.window / (2 * TIMES) as u32;
    let mut slices: Vec<Slices> = arms.iter().map(|_| Slices::default()).collect();
    for arm in turns(arms.len(), TIMES, &mut bench.rng) {
        bench.step(&format!("rpc, {}", arms[arm].name()))?;
        switch.set(arms[arm]).with_context(|| arms[arm].name())?;
        rpc.settle();
        let before = SystemCpu::now()?;
        let window = rpc.measure(slice).with_context(|| arms[arm].name())?;
        slices[arm].add(window, SystemCpu::now()?.since(&before).busy);
    }
    for (arm, Slices { window, busy }) in arms.iter().zip(slices) {
        let window = window.filter(|window| window.exchanges > 0);
        let window = window.with_context(|| format!("{}: no exchange completed", arm.name()))?;
        let per_exchange = busy.as_secs_f64() / window.exchanges as f64;
        let values = [window.rate(), window.latency.p99().as_secs_f64(), per_exchange];
        for ((measure, unit), value) in MEASURES.into_iter().zip(values) {
            bench.series.add(&case(measure, *arm), unit, value);
        }
    }
    Ok(())
}

/// cachelane against each other arm, and the claims.
fn compare(bench: &mut Bench<'_>, arms: &[Arm]) -> anyhow::Result<()> {
    for arm in arms.iter().filter(|arm| **arm != Arm::Steer) {
        let claimed = *arm == Arm::Kernel(Kernel::Rfs, Device::Passing);
        let bars = [Some(Bar::AtLeast(0.98)), Some(Bar::AtMost(1.02)), None];
        for ((measure, _), bar) in MEASURES.into_iter().zip(bars) {
            let name = format!("{measure}: steer / {}", arm.name());
            let (of, to) = (case(measure, Arm::Steer), case(measure, *arm));
            let bar = bar.filter(|_| claimed);
            bench.series.ratio(&mut bench.output, &name, (&of, &to), bar)?;
        }
    }
    Ok(())
}

fn case(measure: &str, arm: Arm) -> String {
    format!("{measure}, {}", arm.name())
}

impl Slices {
    fn add(&mut self, window: ExchangeWindow, busy: Duration) {
        self.busy += busy;
        match &mut self.window {
            None => self.window = Some(window),
            Some(sum) => {
                sum.elapsed += window.elapsed;
                sum.exchanges += window.exchanges;
                sum.latency.merge(&window.latency);
            }
        }
    }
}
