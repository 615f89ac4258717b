//! Where forwarding runs: the relay is told one CPU, the clients run on another, and the kernel
//! counts each worker's time on each CPU.

use std::fs;

use anyhow::Context as _;
use lab::traffic::{BulkOptions, BulkSession};
use perf_event::events::Software;
use perf_event::{Builder, Counter};
use trial::bench::{Bar, RatioOut};
use trial::paired_ratio;

use super::Bench;
use crate::bench::relay_process::RelayProcess;

/// A worker's time on one CPU.
struct OnCpu {
    cpu: usize,
    time: Counter,
}

/// Bulk traffic through a relay on the last CPU, from a client on the first.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let online = lanes::LaneMap::detect()?.allowed().iter().collect::<Vec<_>>();
    let (Some(&client), Some(&chosen)) = (online.first(), online.last()) else {
        anyhow::bail!("no CPU is open to this process");
    };
    let to = bench.targets.bulk_server.address();
    let listen = ([127, 0, 0, 1], 999).into();
    let cpus = chosen.to_string();
    let more = ["--engine", "auto", "--cpus", cpus.as_str()];
    let relay = RelayProcess::start(&bench.targets.lab, &bench.targets.host, listen, to, &more)?;
    let options = BulkOptions { client_cpus: vec![client], ..BulkOptions::default() };
    let session = BulkSession::start(&bench.targets.host, relay.addr(), &options)?;
    for _ in 0..bench.plan.rounds {
        bench.step("forwarding on chosen CPUs")?;
        let mut counters = count(relay.pid(), &online)?;
        session.measure(&bench.targets.bulk_server, bench.plan.window)?;
        let (mut on_chosen, mut all) = (0, 0);
        for counter in &mut counters {
            let nanoseconds = counter.time.read()?;
            all += nanoseconds;
            on_chosen += if counter.cpu == chosen { nanoseconds } else { 0 };
        }
        anyhow::ensure!(all > 0, "the relay's workers used no CPU time");
        bench.series.add("forwarding, all cpus", "s", all as f64 / 1e9);
        bench.series.add("forwarding, chosen cpus", "s", on_chosen as f64 / 1e9);
    }
    let (all, on) = ("forwarding, all cpus", "forwarding, chosen cpus");
    let share = paired_ratio(bench.series.runs(all), bench.series.runs(on))?;
    let ratio = RatioOut::new("forwarding on chosen cpus", &share);
    bench.output.ratios.push(ratio.with_bar(Bar::AtLeast(0.99)));
    Ok(())
}

/// A counter of CPU time for every worker of the relay on every CPU, running.
fn count(pid: u32, cpus: &[usize]) -> anyhow::Result<Vec<OnCpu>> {
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
            counters.push(OnCpu { cpu, time });
        }
    }
    anyhow::ensure!(!counters.is_empty(), "the relay has no worker threads");
    Ok(counters)
}
