//! What the programs cost, from the kernel's own statistics of BPF programs, against the least that
//! programs at these places can do.
//!
//! The programs of the record side run for the sockets of the whole machine, also the clients',
//! which are another namespace's. What those cost is measured by itself and taken off.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use lab::End;
use steer::cost::{Least, RunTime, RunTimes, Sockets, Statistics};
use trial::bench::Bar;
use xsk::Device;

use super::Bench;
use super::arms::{self, Arm, Kernel, Switch};
use super::hosts::{self, Behaviour, CONNECTIONS, Lanes, Rpc, THREADS, turns};
use super::rpc::STAY;
use crate::pmu::Pmu;

/// Steps of a round.
pub(super) const STEPS: usize = (2 * PROGRAMS.len() + CYCLES.len()) * 2;

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

/// What one kind of programs did in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    times: RunTimes,
    /// Of the runs of the record side, those for the server's sockets.
    receives: u64,
}

/// All kinds, by turns, under the same connections.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if let Some(reason) = hosts::obstacle()? {
        bench.output.absent.push(format!("run time: {reason}"));
        return Ok(());
    }
    for (_, cases, _) in COMPARED {
        cases.iter().for_each(|case| bench.series.expect(case, "s"));
    }
    let start = |connections| Rpc::start(Behaviour { stay: STAY, look: false, connections });
    let measure = |bench: &mut Bench<'_>, rpc: &Rpc, name: &str| {
        let _statistics = Statistics::enable()?;
        (0..bench.plan.rounds).try_for_each(|_| round(bench, rpc, name))
    };
    // With few, all that the programs look at stays in the CPU's own caches.
    measure(bench, &start(THREADS)?, "run time, 64 connections")?;
    let rpc = start(CONNECTIONS)?;
    measure(bench, &rpc, "run time")?;
    for (name, [of, to], bar) in COMPARED {
        bench.series.ratio(&mut bench.output, name, (of, to), bar.map(Bar::AtMost))?;
    }
    bench.output.notes.push(
        "Run times are the kernel's statistics of BPF programs, some 60 ns of which are the \
         clock's where the programs do nothing ('queue'). The record side runs for the clients' \
         sockets as well, which are another namespace's ('stranger'): these runs are taken off."
            .into(),
    );
    cycles(bench, &rpc)
}

fn round(bench: &mut Bench<'_>, rpc: &Rpc, name: &str) -> anyhow::Result<()> {
    let slice = bench.plan.window / 2;
    let mut sums = [Sum::default(); PROGRAMS.len()];
    for number in turns(PROGRAMS.len(), 1, &mut bench.rng) {
        bench.step("run time")?;
        let host = &rpc.end().host;
        let measured = host.run(|| measure(rpc, rpc.end(), PROGRAMS[number], slice))??;
        sums[number].times = sums[number].times + measured.times;
        sums[number].receives += measured.receives;
    }
    let [cachelane, least, strangers] = sums;
    let stranger = strangers.times.record.mean().context("no socket received anything")?;
    // Both see the same: what share of all runs the server's are is known of one.
    let share = cachelane.receives as f64 / cachelane.times.record.runs as f64;
    ensure!(share > 0.0, "the programs saw no receive");
    let ours = |record: RunTime| Some((record.mean()? - (1.0 - share) * stranger) / share);
    let times = cachelane.times;
    for (what, nanoseconds) in [
        ("steer", times.steer.mean()),
        ("parse and redirect only", least.times.steer.mean()),
        ("record", ours(times.record)),
        ("tuple and hash only", ours(least.times.record)),
        ("record, stranger", Some(stranger)),
        ("at the consumer's CPU", times.taken.mean()),
        ("end of a poll", times.polled.mean()),
        ("queue", times.queued.mean()),
    ] {
        let case = format!("{name}, {what}");
        let nanoseconds = nanoseconds.with_context(|| format!("{case}: no run"))?;
        bench.series.add(&case, "s", nanoseconds / 1e9);
    }
    Ok(())
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
            bail!("CPUs stood still in {AGAIN} measurements in a row");
        }
        Programs::Least => Sockets::Ours,
        Programs::Strangers => Sockets::Nobodys,
    };
    let least = Least::attach(&device, &lanes, sockets)?;
    during(&|| Ok(Sum { times: least.run_times()?, receives: 0 }))
}

/// Cycles of all CPUs for each packet, where they can be counted.
fn cycles(bench: &mut Bench<'_>, rpc: &Rpc) -> anyhow::Result<()> {
    let pmu = match Pmu::detect() {
        Ok(pmu) => pmu,
        Err(reason) => {
            bench.output.absent.push(format!("cycles per packet: {reason}"));
            return Ok(());
        }
    };
    let mut switch = Switch::new(rpc, &mut bench.output.absent)?;
    let arms: Vec<Arm> = switch.arms().into_iter().filter(|arm| CYCLES.contains(arm)).collect();
    let case = |arm: Arm| format!("cycles per packet, {}", arm.name());
    for _ in 0..bench.plan.rounds {
        let mut sums = vec![(0.0, 0); arms.len()];
        for number in turns(arms.len(), 1, &mut bench.rng) {
            bench.step(&case(arms[number]))?;
            switch.set(arms[number])?;
            rpc.settle();
            let (packets, counting) = (rpc.end().counters()?.rx_packets, pmu.start()?);
            thread::sleep(bench.plan.window / 2);
            sums[number].0 += counting.stop()?.cycles;
            sums[number].1 += rpc.end().counters()?.rx_packets.wrapping_sub(packets);
        }
        for (arm, (cycles, packets)) in arms.iter().zip(sums) {
            ensure!(packets > 0, "{}: no packet arrived", arm.name());
            bench.series.add(&case(*arm), "", cycles / packets as f64);
        }
    }
    let (of, to) = (case(CYCLES[0]), case(CYCLES[1]));
    let name = "cycles per packet: steer / kernel rfs";
    bench.series.ratio(&mut bench.output, name, (&of, &to), None)
}
