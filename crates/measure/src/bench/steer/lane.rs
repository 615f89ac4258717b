//! How often a packet was processed in the lane of who receives it.
//!
//! After each receive the server compares the CPU that it runs on with the one that processed the
//! connection's last packet (`SO_INCOMING_CPU`). A lane is one CPU, so that they are in one lane
//! only if they are the same: that is the most that steering can be asked for.

use std::time::Duration;

use anyhow::ensure;
use lab::PassProgram;
use trial::bench::Bar;

use super::hosts::{CONNECTIONS, Lanes, Rpc};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};

/// Answers of a thread between two of its moves: a few seconds on a host that is busy with 512
/// connections.
const STAY: u64 = 4096;

/// With steering, and without.
const ARMS: [bool; 2] = [true, false];
const NAME: &str = "softirq and consumer in one lane";

pub(super) fn part() -> Part<()> {
    let claim = |steered| {
        let [all, same] = cases(steered);
        let bar = steered.then_some(Bar::AtLeast(0.99));
        Claim::part(format!("{NAME}{}", ending(steered)), same, all).bar(bar)
    };
    let time = Time { once: 1.0, steps: 2, windows: 1.0, more: 0.6 };
    let about = "How often the packet was processed in its consumer's lane";
    Part::new("lane", about, time).claims(ARMS.map(claim)).stage(|(), _| {
        let rpc = Rpc::start(STAY, true, CONNECTIONS)?;
        let program = PassProgram::load()?;
        let step = |steered: &bool| {
            let counts = cases(*steered).map(|case| (case, "receives"));
            let moves = (format!("moves of threads{}", ending(*steered)), "1/s");
            Step {
                name: format!("{NAME}{}", ending(*steered)),
                gives: counts.into_iter().chain([moves]).collect(),
            }
        };
        let measure = Measure::new(ARMS, step, move |steered, now| {
            if *steered {
                let _steering = rpc.steer(Lanes::PerCpu, true)?;
                look(&rpc, now.window)
            } else {
                let _hook = rpc.pass(&program)?;
                look(&rpc, now.window)
            }
        });
        Ok(measure.note(format!(
            "{NAME}: of all receives, the share whose connection's last packet had been processed \
             on the CPU that received, with a lane per CPU. A thread moved to the next CPU after \
             {STAY} answers on 8 connections; the first receives after a move, which tell the \
             steering of it, count as well."
        )))
    })
}

fn look(rpc: &Rpc, window: Duration) -> anyhow::Result<Vec<f64>> {
    rpc.settle();
    let before = rpc.counters();
    let window = rpc.measure(window)?;
    let after = rpc.counters();
    let all = after.looked_at - before.looked_at;
    ensure!(all > 0, Absent("the server received nothing".into()));
    let moves = (after.moves - before.moves) as f64 / window.elapsed.as_secs_f64();
    Ok(vec![all as f64, (after.same_cpu - before.same_cpu) as f64, moves])
}

/// All receives, and those in the softirq's lane.
fn cases(steered: bool) -> [String; 2] {
    ["receives", "receives in the softirq's lane"].map(|case| format!("{case}{}", ending(steered)))
}

fn ending(steered: bool) -> &'static str {
    if steered { "" } else { ", no steering" }
}
