//! The pool against others under the same patterns: what it costs to get an object and to put it.
//!
//! In the alien pattern the passing between the threads is in every figure; what it costs alone is
//! shown, and DPDK is measured once with its own ring and once with one that is built as ours is.

use std::path::PathBuf;

use frames::FramePool;
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::patterns::{self, Pattern};
use super::pools::{QueuePool, frame_pool, queue_pool};
use crate::bench::peer::{Builder, Peer, Program};

/// Objects of every pool.
const OBJECTS: u32 = 8192;
/// Measurements of a round, if no peer is absent.
pub(super) const STEPS: usize = 24;

/// Bars that the pool is held to against DPDK's default.
const BARS: [(Pattern, f64); 3] =
    [(Pattern::Single, 0.5), (Pattern::Bulk, 1.0), (Pattern::Alien, 0.6)];
const DPDK: &str = "dpdk";
const EQUAL_RING: &str = "dpdk, equal ring";

/// Something that is measured under the patterns.
pub(super) enum Subject {
    Frames(FramePool),
    Queue(QueuePool),
    Peer(Peer),
}

/// All subjects under all patterns, by turns.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let cpus = bench.places.near().to_vec();
    let mut subjects = vec![
        ("frames", Subject::Frames(frame_pool(OBJECTS, &cpus, &vec![0; cpus.len()])?)),
        ("crossbeam", Subject::Queue(queue_pool(OBJECTS))),
    ];
    for (name, peer) in peers(&bench.builder, &cpus) {
        match peer {
            Ok(peer) => subjects.push((name, Subject::Peer(peer))),
            Err(reason) => bench.output.absent.push(format!("{name}: {reason}")),
        }
    }
    let mut order: Vec<_> = subjects
        .iter()
        .enumerate()
        .flat_map(|(which, (name, _))| patterns_of(name).iter().map(move |each| (which, *each)))
        .collect();
    order.sort_by_key(|(_, pattern)| *pattern);
    for (which, pattern) in &order {
        bench.series.expect(&case(*pattern, subjects[*which].0), "s");
    }
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for &(which, pattern) in &order {
            let (name, subject) = &mut subjects[which];
            let case = case(pattern, name);
            bench.step(&case)?;
            let window = bench.plan.window;
            let measure = || subject.measure(pattern, pattern.threads(), &cpus, window);
            let seconds = bench.counting(&case, |seconds| 1.0 / seconds, measure)?;
            bench.series.add(&case, "s", seconds);
        }
    }
    ratios(bench)
}

/// What a subject is measured under.
fn patterns_of(subject: &str) -> &'static [Pattern] {
    use Pattern::{Alien, Bulk, Pass, Single};
    match subject {
        // The passing is no pool's: it is measured where its ring is.
        "frames" | DPDK | EQUAL_RING => &[Single, Bulk, Alien, Pass],
        _ => &[Single, Bulk, Alien],
    }
}

/// The peers in C, or why they are absent.
fn peers(builder: &Builder, cpus: &[usize]) -> Vec<(&'static str, Result<Peer, String>)> {
    let mempool = builder.build(Program::Mempool { equal_ring: false });
    let equal = builder.build(Program::Mempool { equal_ring: true });
    let mimalloc = builder.build(Program::Mimalloc);
    let start = |binary: &Result<PathBuf, String>, handler| match binary {
        Ok(binary) => Peer::start(binary, &mempool_args(handler, OBJECTS, cpus)),
        Err(reason) => Err(reason.clone()),
    };
    vec![
        (DPDK, start(&mempool, "ring_mp_mc")),
        (EQUAL_RING, start(&equal, "ring_mp_mc")),
        ("dpdk, stack handler", start(&mempool, "stack")),
        ("dpdk, lock-free stack handler", start(&mempool, "lf_stack")),
        ("mimalloc", mimalloc.and_then(|binary| Peer::start(&binary, &[list(cpus)]))),
    ]
}

/// Arguments of DPDK's mempool.
pub(super) fn mempool_args(handler: &str, objects: u32, cpus: &[usize]) -> Vec<String> {
    vec![handler.into(), objects.to_string(), list(cpus)]
}

/// CPUs as the peers take them.
fn list(cpus: &[usize]) -> String {
    let texts: Vec<_> = cpus.iter().map(usize::to_string).collect();
    texts.join(",")
}

fn case(pattern: Pattern, subject: &str) -> String {
    format!("{}, {subject}", pattern.name())
}

fn ratios(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for (pattern, bar) in BARS {
        for peer in [DPDK, EQUAL_RING, "crossbeam", "mimalloc"] {
            if peer == EQUAL_RING && pattern != Pattern::Alien {
                continue;
            }
            let bar = (peer == DPDK).then_some(Bar::AtMost(bar));
            let name = format!("{}: frames / {peer}", pattern.name());
            let (of, to) = (case(pattern, "frames"), case(pattern, peer));
            bench.series.ratio(&mut bench.output, &name, (&of, &to), bar)?;
        }
    }
    Ok(())
}

impl Subject {
    /// Seconds an object.
    pub(super) fn measure(
        &mut self,
        pattern: Pattern,
        threads: usize,
        cpus: &[usize],
        window: std::time::Duration,
    ) -> anyhow::Result<f64> {
        match self {
            Subject::Frames(pool) => patterns::measure(pool, pattern, threads, cpus, window),
            Subject::Queue(pool) => patterns::measure(pool, pattern, threads, cpus, window),
            Subject::Peer(peer) => peer.run(pattern.request(), threads, window),
        }
    }
}
