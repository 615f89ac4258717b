//! How often a packet was processed in the lane of who receives it.
//!
//! After each receive the server compares the CPU that it runs on with the one that processed the
//! connection's last packet (`SO_INCOMING_CPU`). A lane is one CPU, so that they are in one lane
//! only if they are the same: that is the most that steering can be asked for.

use anyhow::ensure;
use lab::PassProgram;
use rand::seq::SliceRandom as _;
use trial::bench::{Bar, RatioOut};
use trial::paired_ratio;

use super::Bench;
use super::hosts::{self, Behaviour, CONNECTIONS, Lanes, Rpc};

/// Steps of a round.
pub(super) const STEPS: usize = 2;
/// Answers of a thread between two of its moves: a few seconds on a host that is busy with 512
/// connections.
const STAY: u64 = 4096;

const NAME: &str = "softirq and consumer in one lane";

/// With steering and without, by turns, under the same connections.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if let Some(reason) = hosts::obstacle()? {
        bench.output.absent.push(format!("{NAME}: {reason}"));
        return Ok(());
    }
    let rpc = Rpc::start(Behaviour { stay: STAY, look: true, connections: CONNECTIONS })?;
    let program = PassProgram::load()?;
    let mut arms = [true, false];
    for _ in 0..bench.plan.rounds {
        arms.shuffle(&mut bench.rng);
        for steered in arms {
            bench.step(&format!("{NAME}{}", ending(steered)))?;
            if steered {
                let _steering = rpc.steer(Lanes::PerCpu, true)?;
                look(bench, &rpc, steered)?;
            } else {
                let _hook = rpc.pass(&program)?;
                look(bench, &rpc, steered)?;
            }
        }
    }
    for (steered, bar) in [(true, Some(Bar::AtLeast(0.99))), (false, None)] {
        let [all, same] = cases(steered).map(|case| bench.series.runs(&case).to_vec());
        let ratio =
            RatioOut::new(format!("{NAME}{}", ending(steered)), &paired_ratio(&all, &same)?);
        bench.output.ratios.push(match bar {
            Some(bar) => ratio.with_bar(bar),
            None => ratio,
        });
    }
    bench.output.notes.push(format!(
        "{NAME}: of all receives, the share whose connection's last packet had been processed on \
         the CPU that received, with a lane per CPU. A thread moved to the next CPU after {STAY} \
         answers on 8 connections; the first receives after a move, which tell the steering of it, \
         count as well."
    ));
    Ok(())
}

fn look(bench: &mut Bench<'_>, rpc: &Rpc, steered: bool) -> anyhow::Result<()> {
    rpc.settle();
    let before = rpc.counters();
    let window = rpc.measure(bench.plan.window)?;
    let after = rpc.counters();
    ensure!(after.looked_at > before.looked_at, "the server received nothing");
    let [all, same] = cases(steered);
    bench.series.add(&all, "receives", (after.looked_at - before.looked_at) as f64);
    bench.series.add(&same, "receives", (after.same_cpu - before.same_cpu) as f64);
    let moves = (after.moves - before.moves) as f64 / window.elapsed.as_secs_f64();
    bench.series.add(&format!("moves of threads{}", ending(steered)), "1/s", moves);
    Ok(())
}

/// All receives, and those in the softirq's lane.
fn cases(steered: bool) -> [String; 2] {
    ["receives", "receives in the softirq's lane"].map(|case| format!("{case}{}", ending(steered)))
}

fn ending(steered: bool) -> &'static str {
    if steered { "" } else { ", no steering" }
}
