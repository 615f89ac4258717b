//! More threads than CPUs: a thread can lose its CPU at any point, also between two steps of a
//! pool's work that others wait for.

use frames::FramePool;
use rand::seq::SliceRandom as _;

use super::Bench;
use super::memory::{Subject, mempool_args};
use super::patterns::Pattern;
use super::pools::{frame_pool, queue_pool};
use crate::bench::peer::{Peer, Program};

/// Threads on each of two CPUs.
const PER_CPU: [usize; 3] = [1, 4, 8];
const PATTERNS: [Pattern; 3] = [Pattern::Single, Pattern::Alien, Pattern::All];
/// Measurements of a round, if no peer is absent.
pub(super) const STEPS: usize = PER_CPU.len() * PATTERNS.len() * 4;
/// Objects of every pool: as many as all rings and caches hold, so that nobody waits for want of
/// objects.
const OBJECTS: u32 = 65_536;

/// Every pool under every pattern, by turns.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let cpus = bench.places.near().to_vec();
    let mut subjects: Vec<(&str, Subject)> = vec![
        ("frames", Subject::Frames(pool(&cpus)?)),
        ("crossbeam", Subject::Queue(queue_pool(OBJECTS))),
    ];
    let binary = bench.builder.build(Program::Mempool { equal_ring: false });
    for (name, handler) in [("dpdk", "ring_mp_mc"), ("dpdk, stack handler", "stack")] {
        let args = mempool_args(handler, OBJECTS, &cpus);
        match binary.clone().and_then(|binary| Peer::start(&binary, &args)) {
            Ok(peer) => subjects.push((name, Subject::Peer(peer))),
            Err(reason) => bench.output.absent.push(format!("{name}: {reason}")),
        }
    }
    let mut order = Vec::new();
    for pattern in PATTERNS {
        for which in 0..subjects.len() {
            order.extend(PER_CPU.map(|per_cpu| (which, pattern, per_cpu)));
        }
    }
    for (which, pattern, per_cpu) in &order {
        bench.series.expect(&case(*pattern, subjects[*which].0, *per_cpu), "s");
    }
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for &(which, pattern, per_cpu) in &order {
            let (name, subject) = &mut subjects[which];
            let case = case(pattern, name, per_cpu);
            bench.step(&case)?;
            let threads = per_cpu * 2;
            let seconds = subject.measure(pattern, threads, &cpus, bench.plan.window)?;
            bench.series.add(&case, "s", seconds);
        }
    }
    ratios(bench)
}

fn pool(cpus: &[usize]) -> anyhow::Result<FramePool> {
    frame_pool(OBJECTS, cpus, &vec![0; cpus.len()])
}

fn case(pattern: Pattern, subject: &str, per_cpu: usize) -> String {
    let plural = if per_cpu == 1 { "" } else { "s" };
    format!("{}, {subject}, {per_cpu} thread{plural} per cpu", pattern.name())
}

/// Against the peers, and against itself with a thread for each CPU.
fn ratios(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for pattern in PATTERNS {
        for per_cpu in &PER_CPU[1..] {
            let plain = case(pattern, "frames", *per_cpu);
            let what = format!("{}, {per_cpu} threads per cpu", pattern.name());
            for peer in ["dpdk", "dpdk, stack handler", "crossbeam"] {
                let name = format!("{what}: frames / {peer}");
                let to = case(pattern, peer, *per_cpu);
                bench.series.ratio(&mut bench.output, &name, (&plain, &to), None)?;
            }
            for subject in ["frames", "dpdk", "dpdk, stack handler", "crossbeam"] {
                let name = format!("{what} / 1 thread per cpu: {subject}");
                let [of, to] = [*per_cpu, 1].map(|per_cpu| case(pattern, subject, per_cpu));
                bench.series.ratio(&mut bench.output, &name, (&of, &to), None)?;
            }
        }
    }
    Ok(())
}
