//! Bulk: how much one stream carries, and at what cost in CPU time of the whole machine, sender
//! and receiver included.

use std::time::Duration;

use lab::traffic::{BulkOptions, BulkServer, BulkSession};
use lab::usage::SystemCpu;
use trial::bench::Bar;

use super::targets::{LEAST, Target, Targets};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// Before each measurement, for buffers and windows to find their size.
pub(super) const WARM: Duration = Duration::from_millis(300);
/// Sizes of writes in the table of engines, bytes.
pub(super) const SIZES: [usize; 8] =
    [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Engines in that table.
const ENGINES: [&str; 5] = ["direct", "relay", "relay-copy", "relay-splice", "relay-sockmap"];
/// What auto should reach of the better of the two engines that it chooses from.
const AUTO: Bar = Bar::AtLeast(0.97);

/// One stream of 64 KiB writes through every target.
pub(super) fn part() -> Part<Targets> {
    let claim = |(of, to, bar): (&str, &str, _)| {
        let [of_case, to_case] = [of, to].map(|target| format!("bulk/cpu {target}"));
        Claim::ratio(format!("{of} / {to}"), of_case, to_case).bar(bar)
    };
    let claims = [
        ("relay", "haproxy-splice", Some(Bar::AtLeast(2.0))),
        ("relay", "haproxy", None),
        ("relay", "nginx-256k", Some(Bar::AtLeast(1.3))),
        ("relay", "nginx", None),
        ("relay", "direct", Some(Bar::AtLeast(0.75))),
        ("relay", LEAST, None),
        ("relay-splice", "relay-copy", None),
        ("relay-sockmap", "relay-copy", None),
    ];
    let time = Time { once: 0.0, steps: 10, windows: 1.0, more: 0.35 };
    Part::new("bulk", "One bulk stream through each relay", time).claims(claims.map(claim)).stage(
        |targets, _| {
            let case = |to: &Target| ("bulk".to_owned(), 64 << 10, *to);
            Ok(streams(targets, targets.bulk.iter().map(case)))
        },
    )
}

/// Every engine with every size of write.
pub(super) fn engines_part() -> Part<Targets> {
    let claim = |size: usize, other: &str| {
        let [of, to] = [other, "relay-copy"].map(|who| format!("{size} B writes/cpu {who}"));
        Claim::ratio(format!("{size} B writes: {other} / relay-copy"), of, to)
    };
    let claims = SIZES.map(|size| {
        let [splice, sockmap] = ["relay-splice", "relay-sockmap"].map(|who| claim(size, who));
        [auto(&format!("{size} B writes"), "/cpu"), splice, sockmap]
    });
    let steps = SIZES.len() * ENGINES.len();
    let time = Time { once: 0.0, steps, windows: 1.0, more: 0.35 };
    Part::new("engines", "Which engine wins for which size of write", time)
        .claims(claims.into_iter().flatten())
        // The table has many cases.
        .rounds(|rounds| rounds.div_ceil(2))
        .stage(|targets: &Targets, _| {
            let chosen = targets.bulk.iter().filter(|target| ENGINES.contains(&target.name));
            let sizes = |to: &Target| SIZES.map(|size| (format!("{size} B writes"), size, *to));
            Ok(streams(targets, chosen.flat_map(sizes)))
        })
}

/// Auto against the better of the engines that it chooses from, by this figure of these streams.
pub(super) fn auto(what: &str, figure: &str) -> Claim {
    let [auto, copy, splice] =
        ["relay", "relay-copy", "relay-splice"].map(|who| format!("{what}{figure} {who}"));
    let name = format!("{what}: auto / better of copy and splice");
    Claim::ratio(name, auto, copy).or_to(splice).bar(AUTO)
}

/// What is written, in writes of how many bytes, and to whom.
pub(super) type Case = (String, usize, Target);

/// Streams, one at a time.
pub(super) fn streams(targets: &Targets, cases: impl Iterator<Item = Case>) -> Measure<'_> {
    let step = |(what, _, Target { name, .. }): &Case| {
        let of_cpu = (format!("{what}/cpu {name}"), "B/CPU-s");
        let name = format!("{what} {name}");
        Step { gives: vec![(name.clone(), "B/s"), of_cpu], name }
    };
    Measure::new(cases, step, |(_, write, to), now| {
        let options = BulkOptions { write_size: *write, ..BulkOptions::default() };
        let session = BulkSession::start(&targets.host, to.addr, &options)?;
        session.measure(&targets.bulk_server, WARM)?;
        // The session is then reset rather than drained: the next case starts with empty queues.
        Ok(carried(&session, &targets.bulk_server, now.window)?.into())
    })
}

/// What a session carries in a window: bytes a second, and bytes a second of CPU time.
pub(crate) fn carried(
    session: &BulkSession,
    server: &BulkServer,
    window: Duration,
) -> anyhow::Result<[f64; 2]> {
    let before = SystemCpu::now()?;
    let carried = session.measure(server, window)?;
    let cpu = SystemCpu::now()?.since(&before);
    Ok([carried.rate(), carried.received as f64 / cpu.busy.as_secs_f64().max(1e-3)])
}
