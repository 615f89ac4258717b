//! Bulk: how much one stream carries, and at what cost in CPU time of the whole machine, sender
//! and receiver included.

use std::net::SocketAddr;
use std::time::Duration;

use lab::traffic::{BulkOptions, BulkServer, BulkSession};
use lab::usage::SystemCpu;
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::{Bench, Plan};

/// Before each measurement, for buffers and windows to find their size.
const WARM: Duration = Duration::from_millis(300);
/// Sizes of writes in the table of engines, bytes.
const SIZES: [usize; 8] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Engines in that table.
const ENGINES: [&str; 4] = ["direct", "relay-copy", "relay-splice", "relay-sockmap"];

/// One measurement.
pub(crate) struct Carried {
    /// Bytes a second.
    pub(crate) rate: f64,
    /// Bytes a second of CPU time.
    pub(crate) per_cpu: f64,
}

/// One stream of 64 KiB writes through every target.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut order = bench.targets.bulk().to_vec();
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for target in &order {
            bench.step(&format!("bulk {}", target.name))?;
            let carried = measure(bench, target.addr, 64 << 10)?;
            bench.series.add(&format!("bulk {}", target.name), "B/s", carried.rate);
            let case = format!("bulk/cpu {}", target.name);
            bench.series.add(&case, "B/CPU-s", carried.per_cpu);
        }
    }
    for (of, to, bar) in [
        ("relay", "haproxy-splice", Some(Bar::AtLeast(2.0))),
        ("relay", "haproxy", None),
        ("relay", "nginx-256k", Some(Bar::AtLeast(1.25))),
        ("relay", "nginx", None),
        ("relay", "direct", None),
        ("relay-splice", "relay-copy", None),
        ("relay-sockmap", "relay-copy", None),
    ] {
        let name = format!("{of} / {to}");
        let (of, to) = (format!("bulk/cpu {of}"), format!("bulk/cpu {to}"));
        bench.series.ratio(&mut bench.output, &name, (&of, &to), bar)?;
    }
    Ok(())
}

/// Every engine with every size of write.
pub(super) fn engines(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let chosen: Vec<_> =
        bench.targets.bulk().iter().filter(|t| ENGINES.contains(&t.name)).cloned().collect();
    let mut order: Vec<_> =
        SIZES.iter().flat_map(|&size| chosen.iter().map(move |t| (size, t.clone()))).collect();
    for _ in 0..engine_rounds(bench.plan) {
        order.shuffle(&mut bench.rng);
        for (size, target) in &order {
            bench.step(&format!("{size}-byte writes, {}", target.name))?;
            let carried = measure(bench, target.addr, *size)?;
            let case = format!("{size} B writes {}", target.name);
            bench.series.add(&case, "B/s", carried.rate);
            let case = format!("{size} B writes/cpu {}", target.name);
            bench.series.add(&case, "B/CPU-s", carried.per_cpu);
        }
    }
    for size in SIZES {
        for other in ["relay-splice", "relay-sockmap"] {
            let case = |target: &str| format!("{size} B writes/cpu {target}");
            let name = format!("{size} B writes: {other} / relay-copy");
            let (of, to) = (case(other), case("relay-copy"));
            bench.series.ratio(&mut bench.output, &name, (&of, &to), None)?;
        }
    }
    Ok(())
}

pub(super) fn engine_cases(plan: &Plan) -> usize {
    engine_rounds(plan) * SIZES.len() * ENGINES.len()
}

/// The table has many cases: half the rounds, for half the time.
fn engine_rounds(plan: &Plan) -> usize {
    plan.rounds.div_ceil(2)
}

fn measure(bench: &Bench<'_>, target: SocketAddr, write: usize) -> anyhow::Result<Carried> {
    let options = BulkOptions { write_size: write, ..BulkOptions::default() };
    let server = &bench.targets.bulk_server;
    let session = BulkSession::start(&bench.targets.host, target, &options)?;
    session.measure(server, WARM)?;
    // The session is then reset rather than drained: the next case starts with empty queues.
    carried(&session, server, bench.plan.window)
}

/// What a session carries in a window, and what that costs.
pub(crate) fn carried(
    session: &BulkSession,
    server: &BulkServer,
    window: Duration,
) -> anyhow::Result<Carried> {
    let before = SystemCpu::now()?;
    let carried = session.measure(server, window)?;
    let cpu = SystemCpu::now()?.since(&before);
    let per_cpu = carried.received as f64 / cpu.busy.as_secs_f64().max(1e-3);
    Ok(Carried { rate: carried.rate(), per_cpu })
}
