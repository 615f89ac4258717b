//! What the programs cost, from the kernel's own statistics of BPF programs, against the least that
//! programs at these places can do.
//!
//! The programs of the record side run for the sockets of the whole machine, also the clients',
//! which are another namespace's. What those cost is measured by itself and taken off.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bpf::{RunTime, Statistics};
use rand::seq::SliceRandom as _;
use sources::pmu::Pmu;
use steer::RunTimes;
use trial::Better;
use trial::bench::Bar;
use xsk::Device;

use super::arms::{self, Arm, Kernel, Switch};
use super::hosts::{CONNECTIONS, Lanes, Rpc, THREADS};
use super::least::{Least, Sockets};
use super::rpc::STAY;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};
use crate::bench::found::Found;

/// Times that a measurement is tried.
const AGAIN: usize = 10;

/// Whose programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Programs {
    Cachelane,
    Least(Sockets),
}

/// The last find that no socket is their namespace's.
const PROGRAMS: [Programs; 3] =
    [Programs::Cachelane, Programs::Least(Sockets::Ours), Programs::Least(Sockets::Nobodys)];
/// Whose cycles are counted.
const CYCLES: [Arm; 2] = [Arm::Steer, Arm::Kernel(Kernel::Rfs, arms::Device::Passing)];

/// Figures that are compared, and what is claimed of them with many connections.
const COMPARED: [([&str; 2], f64); 2] =
    [(["steer", "parse and redirect only"], 1.5), (["record", "tuple and hash only"], 1.3)];

pub(super) fn part() -> Part<()> {
    let claims = ["run time", "run time, one lane", "run time, 64 connections"].map(|which| {
        COMPARED.map(|([of, to], most)| {
            let [of_case, to_case] = [of, to].map(|what| format!("{which}, {what}"));
            let bar = (which == "run time").then_some(Bar::AtMost(most));
            Claim::ratio(format!("{which}: {of} / {to}"), of_case, to_case).bar(bar)
        })
    });
    let [of, to] = CYCLES.map(cycles_case);
    let per_packet =
        Claim::ratio("cycles per packet: steer / kernel rfs", of, to).better(Better::Lower);
    // The programs of all three stages, each there and back, make one step.
    let steps = 3 + 2 * CYCLES.len();
    let slices = (6 * PROGRAMS.len() + 2 * CYCLES.len()) as f64 / steps as f64;
    let time = Time { once: 2.0, steps, windows: slices / 2.0, more: slices * 1.5 };
    let about = "How long the programs run, against the least that such programs can do";
    Part::new("runtime", about, time)
        .claims(claims.into_iter().flatten())
        .claims([per_packet])
        // With few, all that the programs look at stays in the CPU's own caches.
        .stage(|(), _| run_times("run time, 64 connections", THREADS, Lanes::PerCpu))
        // Consumers move as often, and their flows stay.
        .stage(|(), _| run_times("run time, one lane", CONNECTIONS, Lanes::One))
        .stage(|(), _| run_times("run time", CONNECTIONS, Lanes::PerCpu))
        .stage(|(), found| cycles(found))
}

/// What one kind of programs did in a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) times: RunTimes,
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

/// All kinds, under the same connections. They are put together in one step.
fn run_times(
    name: &'static str,
    connections: usize,
    lanes: Lanes,
) -> anyhow::Result<Measure<'static>> {
    let rpc = Rpc::start(STAY, false, connections)?;
    let statistics = Statistics::enable().context("the statistics of BPF programs")?;
    let step = |(): &()| {
        let gives = FIGURES.map(|what| (format!("{name}, {what}"), "s"));
        Step { name: name.into(), gives: gives.into() }
    };
    let measure = Measure::new([()], step, move |(), now| {
        let _statistics = &statistics;
        let mut sums = [Sum::default(); PROGRAMS.len()];
        let mut order: Vec<usize> = (0..PROGRAMS.len()).collect();
        order.shuffle(now.rng);
        for number in order.iter().chain(order.iter().rev()) {
            now.stop.check()?;
            let (rpc, slice) = (&rpc, now.window / 2);
            let measured = rpc.end.host.run(|| measure(rpc, lanes, PROGRAMS[*number], slice))??;
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
    });
    // Once, of both.
    Ok(match name {
        "run time" => measure.note(
            "Run times are the kernel's statistics of BPF programs, some 60 ns of which are the \
             clock's where the programs do nothing ('queue'). The record side runs for the \
             clients' sockets as well, which are another namespace's ('stranger'): these runs are \
             taken off.",
        ),
        _ => measure,
    })
}

pub(super) fn measure(
    rpc: &Rpc,
    lanes: Lanes,
    programs: Programs,
    slice: Duration,
) -> anyhow::Result<Sum> {
    let device = Device::find(&rpc.end.device)?;
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
            let steering = rpc.steer(lanes, true)?;
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
        Programs::Least(sockets) => sockets,
    };
    let least = Least::attach(&device, &rpc.lanes(lanes)?, sockets)?;
    during(&|| Ok(Sum { times: least.run_times()?, receives: 0 }))
}

fn cycles_case(arm: Arm) -> String {
    format!("cycles per packet, {}", arm.name())
}

/// Cycles of all CPUs for each packet, where they can be counted.
fn cycles(found: &mut Found) -> anyhow::Result<Measure<'static>> {
    let pmu = Pmu::detect().map_err(|reason| {
        found.absent("cycles per packet", &reason);
        Absent(reason)
    })?;
    let rpc = Rpc::start(STAY, false, CONNECTIONS)?;
    let mut switch = Switch::new(rpc, found)?;
    let arms = switch.those_of(CYCLES);
    let step = |arm: &Arm| Step::of(cycles_case(*arm), "");
    let slice = move |arm: &Arm, (cycles, all): &mut (f64, u64), now: &mut Now<'_>| {
        switch.set(*arm)?;
        let rpc = switch.hosts();
        rpc.settle();
        let (packets, counting) = (rpc.end.counters()?.rx_packets, pmu.start()?);
        thread::sleep(now.window / 2);
        *cycles += counting.stop()?.cycles;
        *all += rpc.end.counters()?.rx_packets.wrapping_sub(packets);
        Ok(())
    };
    let figures = |_: &Arm, (cycles, packets): (f64, u64)| {
        ensure!(packets > 0, Absent("no packet arrived".into()));
        Ok(vec![cycles / packets as f64])
    };
    Ok(Measure::there_and_back(arms, step, slice, figures))
}
