//! What the program costs a packet as there are more and more flows, against the least program. With all
//! CPUs in one lane, so that flows stay where they are.

use anyhow::Context as _;
use bpf::Statistics;
use rustix::process::{Resource, getrlimit};
use trial::Better;

use super::hosts::{Lanes, Rpc};
use super::least::Sockets;
use super::rpc::STAY;
use super::runtime::{self, Programs};
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};
use crate::bench::growth::Growth;

const ARMS: [(&str, Programs); 2] =
    [("steer", Programs::Cachelane), ("parse and redirect only", Programs::Least(Sockets::Ours))];
/// The last need more open files than most machines allow a process: both ends are in this one.
const FLOWS: [usize; 5] = [64, 512, 4096, 8192, 49_152];
/// Open files besides.
const OTHERS: usize = 1024;

pub(super) fn part() -> Part<()> {
    let growth = growth();
    let steps = growth.cases().len();
    let time = Time { once: 4.0, steps, windows: 1.0, more: 1.5 };
    let about = "The program's run time as there are more flows";
    let part = Part::new("growth", about, time).growth(&growth);
    growth.counts.clone().into_iter().fold(part, |part, flows| {
        let growth = growth.clone();
        part.stage(move |(), _| {
            let rpc = Rpc::start(STAY, false, flows)?;
            let statistics = Statistics::enable().context("the statistics of BPF programs")?;
            let step = |(name, _): &(&str, Programs)| Step::of(growth.case(name, flows), "s");
            Ok(Measure::new(ARMS, step, move |(name, programs), now| {
                let _statistics = &statistics;
                let measure = || runtime::measure(&rpc, Lanes::One, *programs, now.window);
                let mean = rpc.end.host.run(measure)??.times.steer.mean();
                let none = || Absent(format!("{name}: no run"));
                Ok(vec![mean.ok_or_else(none)? / 1e9])
            }))
        })
    })
}

/// With as many flows as this process may have.
fn growth() -> Growth {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let fits = |flows: &usize| (2 * flows + OTHERS) as u64 <= most;
    Growth {
        figure: "run time",
        along: "flows",
        arms: ARMS.map(|(name, _)| name).into(),
        counts: FLOWS.into_iter().filter(fits).collect(),
        better: Better::Lower,
    }
}
