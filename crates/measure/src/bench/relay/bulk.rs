//! Bulk: how much one stream carries, and at what cost in CPU time of the whole machine, sender
//! and receiver included.

use std::net::SocketAddr;
use std::time::Duration;

use lab::traffic::{BulkOptions, BulkServer, BulkSession};
use lab::usage::SystemCpu;
use trial::bench::Bar;

use super::targets::{Target, Targets};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Now, Part, Step, Time};

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
pub(super) fn part() -> Part<Targets> {
    let claim = |(of, to, bar): (&str, &str, _)| {
        let [of_case, to_case] = [of, to].map(|target| format!("bulk/cpu {target}"));
        Claim::ratio(format!("{of} / {to}"), of_case, to_case).bar(bar)
    };
    let claims = [
        ("relay", "haproxy-splice", Some(Bar::AtLeast(2.0))),
        ("relay", "haproxy", None),
        ("relay", "nginx-256k", Some(Bar::AtLeast(1.25))),
        ("relay", "nginx", None),
        ("relay", "direct", None),
        ("relay-splice", "relay-copy", None),
        ("relay-sockmap", "relay-copy", None),
    ];
    let time = Time { once: 0.0, steps: 9, windows: 1.0, more: 0.35 };
    Part::new("bulk", "One bulk stream through each relay", time).claims(claims.map(claim)).stage(
        |targets, _| {
            let case = |target: &Target| Case {
                name: format!("bulk {}", target.name),
                per_cpu: format!("bulk/cpu {}", target.name),
                to: target.addr,
                write: 64 << 10,
            };
            Ok(Box::new(Bulk { targets, cases: targets.bulk().iter().map(case).collect() }))
        },
    )
}

/// Every engine with every size of write.
pub(super) fn engines_part() -> Part<Targets> {
    let claim = |size: usize, other: &str| {
        let [of, to] = [other, "relay-copy"].map(|who| format!("{size} B writes/cpu {who}"));
        Claim::ratio(format!("{size} B writes: {other} / relay-copy"), of, to)
    };
    let claims = SIZES.map(|size| ["relay-splice", "relay-sockmap"].map(|who| claim(size, who)));
    let steps = SIZES.len() * ENGINES.len();
    let time = Time { once: 0.0, steps, windows: 1.0, more: 0.35 };
    Part::new("engines", "Which engine wins for which size of write", time)
        .claims(claims.into_iter().flatten())
        // The table has many cases.
        .rounds(|rounds| rounds.div_ceil(2))
        .stage(|targets: &Targets, _| {
            let chosen = targets.bulk().iter().filter(|target| ENGINES.contains(&target.name));
            let case = |size: usize, target: &Target| Case {
                name: format!("{size} B writes {}", target.name),
                per_cpu: format!("{size} B writes/cpu {}", target.name),
                to: target.addr,
                write: size,
            };
            let sizes = |target| SIZES.map(|size| case(size, target));
            Ok(Box::new(Bulk { targets, cases: chosen.flat_map(sizes).collect() }))
        })
}

/// Streams, one at a time.
struct Bulk<'a> {
    targets: &'a Targets,
    cases: Vec<Case>,
}

struct Case {
    /// Of what it carries.
    name: String,
    /// Of what it carries for the CPU time.
    per_cpu: String,
    to: SocketAddr,
    /// Bytes of a write.
    write: usize,
}

impl Measure for Bulk<'_> {
    fn steps(&self) -> Vec<Step> {
        let step = |case: &Case| Step {
            name: case.name.clone(),
            gives: vec![(case.name.clone(), "B/s"), (case.per_cpu.clone(), "B/CPU-s")],
        };
        self.cases.iter().map(step).collect()
    }

    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        let Case { to, write, .. } = self.cases[step];
        let options = BulkOptions { write_size: write, ..BulkOptions::default() };
        let server = &self.targets.bulk_server;
        let session = BulkSession::start(&self.targets.host, to, &options)?;
        session.measure(server, WARM)?;
        // The session is then reset rather than drained: the next case starts with empty queues.
        let carried = carried(&session, server, now.window)?;
        Ok(vec![carried.rate, carried.per_cpu])
    }
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
