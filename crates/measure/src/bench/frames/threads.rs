//! More threads than CPUs: a thread can lose its CPU at any point, also between two steps of a
//! pool's work that others wait for.

use super::Ground;
use super::memory::{Subjects, mempool_args};
use super::patterns::Pattern;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};
use crate::bench::peer::{MEMPOOL, Peer};

/// Threads on each of two CPUs.
const PER_CPU: [usize; 3] = [1, 4, 8];
const PATTERNS: [Pattern; 3] = [Pattern::Single, Pattern::Alien, Pattern::All];
/// Objects of every pool: as many as all rings and caches hold, so that nobody waits for want of
/// objects.
const OBJECTS: u32 = 65_536;

pub(super) fn part() -> Part<Ground> {
    let steps = PER_CPU.len() * PATTERNS.len() * 4;
    let time = Time { once: 1.0, steps, windows: 1.0, more: 0.02 };
    Part::new("threads", "The pool against DPDK's with more threads than CPUs", time)
        .claims(PATTERNS.into_iter().flat_map(claims))
        .stage(|ground: &Ground, found| {
            let cpus = ground.places.near();
            let binary = ground.builder.build(&MEMPOOL);
            let peers = [("dpdk", "ring_mp_mc"), ("dpdk, stack handler", "stack")];
            let start = |(name, handler)| {
                let args = mempool_args(handler, OBJECTS, cpus);
                (name, binary.clone().and_then(|binary| Peer::start(&binary, &args)))
            };
            let mut subjects =
                Subjects::new(OBJECTS, cpus.to_vec(), peers.map(start).into(), found)?;
            let mut cases = Vec::new();
            for pattern in PATTERNS {
                for (which, name) in subjects.names().into_iter().enumerate() {
                    cases.extend(PER_CPU.map(|per_cpu| (which, name, pattern, per_cpu)));
                }
            }
            let step = |(_, name, pattern, per_cpu): &(usize, &str, Pattern, usize)| {
                Step::of(case(*pattern, name, *per_cpu), "s")
            };
            Ok(Measure::new(cases, step, move |(which, _, pattern, per_cpu), now| {
                Ok(vec![subjects.measure(*which, *pattern, per_cpu * 2, now.window)?])
            }))
        })
}

fn case(pattern: Pattern, subject: &str, per_cpu: usize) -> String {
    let plural = if per_cpu == 1 { "" } else { "s" };
    format!("{}, {subject}, {per_cpu} thread{plural} per cpu", pattern.name())
}

/// Against the peers, and against itself with a thread for each CPU.
fn claims(pattern: Pattern) -> Vec<Claim> {
    let mut claims = Vec::new();
    for per_cpu in &PER_CPU[1..] {
        let what = format!("{}, {per_cpu} threads per cpu", pattern.name());
        let of = case(pattern, "frames", *per_cpu);
        for peer in ["dpdk", "dpdk, stack handler", "crossbeam"] {
            let name = format!("{what}: frames / {peer}");
            claims.push(Claim::ratio(name, &of, case(pattern, peer, *per_cpu)));
        }
        for subject in ["frames", "dpdk", "dpdk, stack handler", "crossbeam"] {
            let name = format!("{what} / 1 thread per cpu: {subject}");
            let [of, to] = [*per_cpu, 1].map(|per_cpu| case(pattern, subject, per_cpu));
            claims.push(Claim::ratio(name, of, to));
        }
    }
    claims
}
