//! Where forwarding runs: the relay is told one CPU, the clients run on another, and the kernel
//! counts each worker's time on each CPU.

use std::fs;

use anyhow::{Context as _, ensure};
use lab::traffic::{BulkOptions, BulkSession};
use perf_event::events::Software;
use perf_event::{Builder, Counter};
use trial::bench::Bar;

use super::targets::Targets;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};
use crate::bench::relay_process::RelayProcess;

const ALL: &str = "forwarding, all cpus";
const CHOSEN: &str = "forwarding, chosen cpus";

pub(super) fn part() -> Part<Targets> {
    let claim = Claim::part("forwarding on chosen cpus", CHOSEN, ALL);
    let time = Time { once: 0.2, steps: 1, windows: 1.0, more: 0.0 };
    Part::new("place", "Where forwarding runs", time)
        .claims([claim.bar(Bar::AtLeast(0.99))])
        .stage(|targets, _| measure(targets))
}

/// Bulk traffic through a relay on the last CPU, from a client on the first.
fn measure(targets: &Targets) -> anyhow::Result<Measure<'_>> {
    let online = lanes::LaneMap::detect()?.allowed().iter().collect::<Vec<_>>();
    let (Some(&client), Some(&chosen)) = (online.first(), online.last()) else {
        anyhow::bail!("no CPU is open to this process");
    };
    let to = targets.bulk_server.address();
    let listen = ([127, 0, 0, 1], 999).into();
    let more = format!("--engine auto --cpus {chosen}");
    let relay = RelayProcess::start(&targets.lab, &targets.host, listen, to, &more)?;
    let options = BulkOptions { client_cpus: vec![client], ..BulkOptions::default() };
    let session = BulkSession::start(&targets.host, relay.addr, &options)?;
    let gives = [ALL, CHOSEN].map(|case| (case.into(), "s"));
    let step =
        |(): &()| Step { name: "forwarding on chosen CPUs".into(), gives: gives.clone().into() };
    Ok(Measure::new([()], step, move |(), now| {
        let mut counters = count(relay.pid(), &online)?;
        session.measure(&targets.bulk_server, now.window)?;
        let (mut on_chosen, mut all) = (0, 0);
        for (cpu, time) in &mut counters {
            let nanoseconds = time.read()?;
            all += nanoseconds;
            on_chosen += if *cpu == chosen { nanoseconds } else { 0 };
        }
        ensure!(all > 0, Absent("the relay's workers used no CPU time".into()));
        Ok([all, on_chosen].map(|nanoseconds| nanoseconds as f64 / 1e9).into())
    }))
}

/// A counter of CPU time for every worker of the relay on every CPU, which it comes with,
/// running.
fn count(pid: u32, cpus: &[usize]) -> anyhow::Result<Vec<(usize, Counter)>> {
    let mut counters = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?;
        if !fs::read_to_string(thread.path().join("comm"))?.starts_with("relay-") {
            continue;
        }
        let tid: i32 = thread.file_name().to_string_lossy().parse()?;
        for &cpu in cpus {
            let mut time = Builder::new(Software::TASK_CLOCK)
                .observe_pid(tid)
                .one_cpu(cpu)
                .build()
                .context("perf_event_open(2) for a worker's CPU time")?;
            time.enable()?;
            counters.push((cpu, time));
        }
    }
    anyhow::ensure!(!counters.is_empty(), "the relay has no worker threads");
    Ok(counters)
}
