//! The pool against others under the same patterns: what it costs to get an object and to put it.
//!
//! In the alien pattern the passing between the threads is in every figure; what it costs alone is
//! shown, and DPDK is measured once with its own ring and once with one that is built as ours is.

use std::path::PathBuf;
use std::time::Duration;

use frames::FramePool;
use trial::bench::Bar;

use super::Ground;
use super::patterns::{self, Pattern};
use super::pools::{QueuePool, frame_pool, queue_pool};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Time};
use crate::bench::found::Found;
use crate::bench::peer::{Builder, MEMPOOL, MEMPOOL_EQUAL_RING, MIMALLOC, Peer};

/// Objects of every pool.
const OBJECTS: u32 = 8192;

/// Bars that the pool is held to against DPDK's default.
const BARS: [(Pattern, f64); 3] =
    [(Pattern::Single, 0.5), (Pattern::Bulk, 0.9), (Pattern::Alien, 0.6)];
/// The same for whole magazines that go from thread to thread.
const BATCHES_BAR: f64 = 0.25;
const BATCHES: &str = "batches";
const DPDK: &str = "dpdk";
const EQUAL_RING: &str = "dpdk, equal ring";

/// Something that is measured under the patterns.
enum Subject {
    Frames(FramePool),
    /// The same, by its own batches.
    Batches(FramePool),
    Queue(QueuePool),
    Peer(Peer),
}

pub(super) fn part() -> Part<Ground> {
    let mut claims = Vec::new();
    for (pattern, bar) in BARS {
        for peer in [DPDK, EQUAL_RING, "crossbeam", "mimalloc"] {
            if peer == EQUAL_RING && pattern != Pattern::Alien {
                continue;
            }
            let bar = (peer == DPDK).then_some(Bar::AtMost(bar));
            let name = format!("{}: frames / {peer}", pattern.name());
            claims.push(Claim::ratio(name, case(pattern, "frames"), case(pattern, peer)).bar(bar));
        }
    }
    let alien = |subject| case(Pattern::Alien, subject);
    let name = format!("{}: {BATCHES} / {DPDK}", Pattern::Alien.name());
    let batches = Claim::ratio(name, alien(BATCHES), alien(DPDK));
    claims.push(batches.bar(Some(Bar::AtMost(BATCHES_BAR))));
    let time = Time { once: 8.0, steps: 25, windows: 1.0, more: 0.01 };
    Part::new("memory", "The pool against other pools and an allocator, memory only", time)
        .claims(claims)
        .stage(|ground: &Ground, found| {
            let cpus = ground.places.near();
            let mut subjects =
                Subjects::new(OBJECTS, cpus.to_vec(), peers(&ground.builder, cpus), found)?;
            subjects.add_batches()?;
            let numbered = subjects.names().into_iter().enumerate();
            let mut cases: Vec<_> = numbered
                .flat_map(|(which, name)| {
                    patterns_of(name).iter().map(move |of| (which, name, *of))
                })
                .collect();
            cases.sort_by_key(|(.., pattern)| *pattern);
            let step = |(_, name, pattern): &(usize, &str, Pattern)| {
                ground.step(case(*pattern, name), "s")
            };
            Ok(Measure::new(cases, step, move |(which, _, pattern), now| {
                let measure = || subjects.measure(*which, *pattern, pattern.threads(), now.window);
                ground.counting(now.window, |seconds| 1.0 / seconds, measure)
            }))
        })
}

/// What a subject is measured under. The passing is no pool's: it is measured where its ring is.
fn patterns_of(subject: &str) -> &'static [Pattern] {
    use Pattern::{Alien, Bulk, Pass, Single};
    if subject == BATCHES {
        return &[Alien];
    }
    let has_ring = ["frames", DPDK, EQUAL_RING].contains(&subject);
    if has_ring { &[Single, Bulk, Alien, Pass] } else { &[Single, Bulk, Alien] }
}

/// The peers in C, or why they are absent.
fn peers(builder: &Builder, cpus: &[usize]) -> Vec<(&'static str, Result<Peer, String>)> {
    let mempool = builder.build(&MEMPOOL);
    let equal = builder.build(&MEMPOOL_EQUAL_RING);
    let mimalloc = builder.build(&MIMALLOC);
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

/// What is measured under the patterns.
pub(super) struct Subjects {
    all: Vec<(&'static str, Subject)>,
    cpus: Vec<usize>,
}

impl Subjects {
    /// Pools of so many objects, and the peers that there are.
    pub(super) fn new(
        objects: u32,
        cpus: Vec<usize>,
        peers: Vec<(&'static str, Result<Peer, String>)>,
        found: &mut Found,
    ) -> anyhow::Result<Subjects> {
        let mut all = vec![
            ("frames", Subject::Frames(frame_pool(objects, &cpus, &vec![0; cpus.len()])?)),
            ("crossbeam", Subject::Queue(queue_pool(objects))),
        ];
        for (name, peer) in peers {
            match peer {
                Ok(peer) => all.push((name, Subject::Peer(peer))),
                Err(reason) => found.absent(name, reason),
            }
        }
        Ok(Subjects { all, cpus })
    }

    /// The frame pool once more, by its own batches.
    fn add_batches(&mut self) -> anyhow::Result<()> {
        let pool = frame_pool(OBJECTS, &self.cpus, &vec![0; self.cpus.len()])?;
        self.all.push((BATCHES, Subject::Batches(pool)));
        Ok(())
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|(name, _)| *name).collect()
    }

    /// Seconds an object.
    pub(super) fn measure(
        &mut self,
        which: usize,
        pattern: Pattern,
        threads: usize,
        window: Duration,
    ) -> anyhow::Result<f64> {
        let cpus = &self.cpus;
        match &mut self.all[which].1 {
            Subject::Frames(pool) => patterns::measure(pool, pattern, threads, cpus, window),
            Subject::Batches(pool) => patterns::alien_batches(pool, threads, cpus, window),
            Subject::Queue(pool) => patterns::measure(pool, pattern, threads, cpus, window),
            Subject::Peer(peer) => peer.run(pattern.request(), threads, window),
        }
    }
}
