//! What the program costs a packet as there are more and more flows, against the least program, with all
//! CPUs in one lane, so that flows stay where they are; and what a server exchanges as it has more and
//! more threads, against kernel RFS.

use anyhow::Context as _;
use bpf::Statistics;
use rustix::process::{Resource, getrlimit};
use trial::Better;

use super::arms::{Arm, Device, Kernel, Switch};
use super::hosts::{CONNECTIONS, Lanes, Rpc};
use super::least::Sockets;
use super::rpc::STAY;
use super::runtime::{self, Programs};
use crate::bench::exchanges::check;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};
use crate::bench::growth::Growth;

const ARMS: [(&str, Programs); 2] =
    [("steer", Programs::Cachelane), ("parse and redirect only", Programs::Least(Sockets::Ours))];
/// The last need more open files than most machines allow a process: both ends are in this one.
const FLOWS: [usize; 5] = [64, 512, 4096, 8192, 49_152];
/// Open files besides.
const OTHERS: usize = 1024;

const STEERED: [(&str, Arm); 2] =
    [("steer", Arm::Steer), ("kernel rfs", Arm::Kernel(Kernel::Rfs, Device::Passing))];
/// Each divides the connections evenly.
const THREADS: [usize; 5] = [1, 4, 16, 64, 256];

pub(super) fn part() -> Part<()> {
    let (by_flows, by_threads) = (by_flows(), by_threads());
    let steps = by_flows.cases().len() + by_threads.cases().len();
    let time = Time { once: 8.0, steps, windows: 1.0, more: 1.5 };
    let about = "The program's run time by flows, and what a server exchanges by its threads";
    let part = Part::new("growth", about, time).growth(&by_flows).growth(&by_threads);
    let part = by_flows.counts.clone().into_iter().fold(part, |part, flows| {
        let growth = by_flows.clone();
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
    });
    by_threads.counts.clone().into_iter().fold(part, |part, threads| {
        let growth = by_threads.clone();
        part.stage(move |(), found| {
            let rpc = Rpc::with_threads(threads, STAY, false, CONNECTIONS)?;
            let mut switch = Switch::new(rpc, found)?;
            let there = switch.those_of(STEERED.map(|(_, arm)| arm));
            let arms = STEERED.into_iter().filter(|(_, arm)| there.contains(arm));
            let step = |(name, _): &(&str, Arm)| Step::of(growth.case(name, threads), "1/s");
            Ok(Measure::new(arms, step, move |(name, arm), now| {
                switch.set(*arm)?;
                let rpc = switch.hosts();
                rpc.settle();
                Ok(vec![check(rpc.measure(now.window)?, name)?.rate()])
            }))
        })
    })
}

/// What a server exchanges, by its threads.
fn by_threads() -> Growth {
    Growth {
        figure: "rpc throughput",
        along: "threads",
        arms: STEERED.map(|(name, _)| name).into(),
        counts: THREADS.into(),
        better: Better::Higher,
    }
}

/// What a packet costs, with as many flows as this process may have.
fn by_flows() -> Growth {
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
