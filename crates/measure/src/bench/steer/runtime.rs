//! What the programs cost, from the kernel's own statistics of BPF programs, against the least that
//! programs at these places can do.
//!
//! The programs of the record side run for the sockets of the whole machine, also the clients',
//! which are another namespace's. What those cost is measured by itself and taken off.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bpf::{RunTime, Statistics};
use lab::End;
use rand::seq::SliceRandom as _;
use steer::RunTimes;
use trial::bench::Bar;
use xsk::Device;

use super::arms::{self, Arm, Kernel, Switch};
use super::hosts::{Behaviour, CONNECTIONS, Lanes, Rpc, THREADS};
use super::least::{Least, Sockets};
use super::rpc::STAY;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time, Turns};
use crate::bench::found::Found;
use crate::pmu::Pmu;

/// Times that a measurement is tried.
const AGAIN: usize = 10;

/// Whose programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Programs {
    Cachelane,
    Least,
    /// The least, which finds that no socket is its namespace's.
    Strangers,
}

const PROGRAMS: [Programs; 3] = [Programs::Cachelane, Programs::Least, Programs::Strangers];
/// Whose cycles are counted.
const CYCLES: [Arm; 2] = [Arm::Steer, Arm::Kernel(Kernel::Rfs, arms::Device::Passing)];

/// Cases that are compared, and what is claimed of them.
const COMPARED: [(&str, [&str; 2], Option<f64>); 4] = [
    ("run time: steer / parse and redirect only", [STEER, REDIRECT], Some(1.5)),
    ("run time: record / tuple and hash only", [RECORD, HASH], Some(1.3)),
    (
        "run time, 64 connections: steer / parse and redirect only",
        ["run time, 64 connections, steer", "run time, 64 connections, parse and redirect only"],
        None,
    ),
    (
        "run time, 64 connections: record / tuple and hash only",
        ["run time, 64 connections, record", "run time, 64 connections, tuple and hash only"],
        None,
    ),
];
const STEER: &str = "run time, steer";
const REDIRECT: &str = "run time, parse and redirect only";
const RECORD: &str = "run time, record";
const HASH: &str = "run time, tuple and hash only";

pub(super) fn part() -> Part<()> {
    let claims =
        COMPARED.map(|(name, [of, to], bar)| Claim::ratio(name, of, to).bar(bar.map(Bar::AtMost)));
    let [of, to] = CYCLES.map(cycles_case);
    let cycles = Claim::ratio("cycles per packet: steer / kernel rfs", of, to);
    // The programs of both stages, each there and back, make one step.
    let steps = 2 + 2 * CYCLES.len();
    let slices = (4 * PROGRAMS.len() + 2 * CYCLES.len()) as f64 / steps as f64;
    let time = Time { once: 2.0, steps, windows: slices / 2.0, more: slices * 1.5 };
    let about = "How long the programs run, against the least that such programs can do";
    Part::new("runtime", about, time)
        .claims(claims)
        .claims([cycles])
        // With few, all that the programs look at stays in the CPU's own caches.
        .stage(|(), _| Ok(Box::new(RunTimesOf::start("run time, 64 connections", THREADS)?)))
        .stage(|(), _| Ok(Box::new(RunTimesOf::start("run time", CONNECTIONS)?)))
        .stage(|(), found| Ok(Box::new(Cycles::start(found)?)))
}

/// What one kind of programs did in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    times: RunTimes,
    /// Of the runs of the record side, those for the server's sockets.
    receives: u64,
}

/// What a round gives.
const FIGURES: [&str; 8] = [
    "steer",
    "parse and redirect only",
    "record",
    "tuple and hash only",
    "record, stranger",
    "at the consumer's CPU",
    "end of a poll",
    "queue",
];

/// All kinds, under the same connections.
struct RunTimesOf {
    rpc: Rpc,
    name: &'static str,
    _statistics: Statistics,
}

impl RunTimesOf {
    fn start(name: &'static str, connections: usize) -> anyhow::Result<RunTimesOf> {
        let rpc = Rpc::start(Behaviour { stay: STAY, look: false, connections })?;
        let statistics = Statistics::enable().context("the statistics of BPF programs")?;
        Ok(RunTimesOf { rpc, name, _statistics: statistics })
    }
}

impl Measure for RunTimesOf {
    /// One: the kinds are put together.
    fn steps(&self) -> Vec<Step> {
        let gives = FIGURES.map(|what| (format!("{}, {what}", self.name), "s"));
        vec![Step { name: self.name.into(), gives: gives.into() }]
    }

    fn measure(&mut self, _: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        let mut sums = [Sum::default(); PROGRAMS.len()];
        let mut order: Vec<usize> = (0..PROGRAMS.len()).collect();
        order.shuffle(now.rng);
        for number in order.iter().chain(order.iter().rev()) {
            now.stop.check()?;
            let (rpc, host) = (&self.rpc, &self.rpc.end().host);
            let programs = PROGRAMS[*number];
            let measured = host.run(|| measure(rpc, rpc.end(), programs, now.window / 2))??;
            let sum = &mut sums[*number];
            sum.times = sum.times + measured.times;
            sum.receives += measured.receives;
        }
        let [cachelane, least, strangers] = sums;
        let none = |what: &str| Absent(format!("{what}: no run"));
        let stranger = strangers.times.record.mean().ok_or_else(|| none("record, stranger"))?;
        // Both see the same: what share of all runs the server's are is known of one.
        let share = cachelane.receives as f64 / cachelane.times.record.runs as f64;
        ensure!(share > 0.0, Absent("the programs saw no receive".into()));
        let ours = |record: RunTime| Some((record.mean()? - (1.0 - share) * stranger) / share);
        let times = cachelane.times;
        let means = [
            times.steer.mean(),
            least.times.steer.mean(),
            ours(times.record),
            ours(least.times.record),
            Some(stranger),
            times.taken.mean(),
            times.polled.mean(),
            times.queued.mean(),
        ];
        let seconds = |(mean, what): (Option<f64>, &str)| Ok(mean.ok_or_else(|| none(what))? / 1e9);
        means.into_iter().zip(FIGURES).map(seconds).collect()
    }

    fn notes(&self) -> Vec<String> {
        let note = "Run times are the kernel's statistics of BPF programs, some 60 ns of which are \
                    the clock's where the programs do nothing ('queue'). The record side runs for \
                    the clients' sockets as well, which are another namespace's ('stranger'): \
                    these runs are taken off.";
        // Once, of both.
        (self.name == "run time").then(|| note.into()).into_iter().collect()
    }
}

fn measure(rpc: &Rpc, end: &End, programs: Programs, slice: Duration) -> anyhow::Result<Sum> {
    let device = Device::find(&end.device)?;
    let lanes = rpc.lanes(Lanes::PerCpu)?;
    let during = |look: &dyn Fn() -> anyhow::Result<Sum>| {
        rpc.settle();
        let before = look()?;
        thread::sleep(slice);
        let after = look()?;
        anyhow::Ok(Sum {
            times: after.times - before.times,
            receives: after.receives.wrapping_sub(before.receives),
        })
    };
    let sockets = match programs {
        Programs::Cachelane => {
            let steering = rpc.steer(Lanes::PerCpu, true)?;
            let look = || {
                let receives = steering.counters()?.receives;
                Ok(Sum { times: steering.run_times()?, receives })
            };
            // Where the hypervisor takes a CPU away for some milliseconds, it is no target for a
            // second. What runs then is not what is measured here.
            for _ in 0..AGAIN {
                let before = steering.counters()?.stalls;
                let sum = during(&look)?;
                if steering.counters()?.stalls == before && sum.times.taken.runs > 0 {
                    return Ok(sum);
                }
            }
            bail!(Absent(format!("CPUs stood still in {AGAIN} measurements in a row")));
        }
        Programs::Least => Sockets::Ours,
        Programs::Strangers => Sockets::Nobodys,
    };
    let least = Least::attach(&device, &lanes, sockets)?;
    during(&|| Ok(Sum { times: least.run_times()?, receives: 0 }))
}

fn cycles_case(arm: Arm) -> String {
    format!("cycles per packet, {}", arm.name())
}

/// Cycles of all CPUs for each packet, where they can be counted.
struct Cycles {
    switch: Switch<Rpc>,
    pmu: Pmu,
    arms: Vec<Arm>,
    /// By arm, of this round: cycles, and packets.
    sums: Vec<(f64, u64)>,
}

impl Cycles {
    fn start(found: &mut Found) -> anyhow::Result<Cycles> {
        let pmu = Pmu::detect().map_err(|reason| {
            found.absent("cycles per packet", &reason);
            Absent(reason)
        })?;
        let rpc = Rpc::start(Behaviour { stay: STAY, look: false, connections: CONNECTIONS })?;
        let switch = Switch::new(rpc, found)?;
        let there = switch.arms();
        let arms: Vec<Arm> = CYCLES.into_iter().filter(|arm| there.contains(arm)).collect();
        let sums = vec![(0.0, 0); arms.len()];
        Ok(Cycles { switch, pmu, arms, sums })
    }
}

impl Measure for Cycles {
    fn steps(&self) -> Vec<Step> {
        self.arms.iter().map(|arm| Step::of(cycles_case(*arm), "")).collect()
    }

    fn turns(&self) -> Turns {
        Turns::ThereAndBack
    }

    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        self.switch.set(self.arms[step])?;
        let rpc = self.switch.hosts();
        rpc.settle();
        let (packets, counting) = (rpc.end().counters()?.rx_packets, self.pmu.start()?);
        thread::sleep(now.window / 2);
        let sum = &mut self.sums[step];
        sum.0 += counting.stop()?.cycles;
        sum.1 += rpc.end().counters()?.rx_packets.wrapping_sub(packets);
        if !now.is_last_turn {
            return Ok(Vec::new());
        }
        let (cycles, packets) = std::mem::take(sum);
        ensure!(packets > 0, Absent("no packet arrived".into()));
        Ok(vec![cycles / packets as f64])
    }
}
