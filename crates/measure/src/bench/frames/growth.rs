//! How the cost of an object changes with the number of threads, on all CPUs that are at hand.

use lanes::LaneMap;
use trial::Better;

use super::Ground;
use super::memory::{Subjects, mempool_args};
use super::patterns::Pattern;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};
use crate::bench::growth::Growth;
use crate::bench::peer::{MEMPOOL, Peer};

const ARMS: [&str; 3] = ["frames", "dpdk", "crossbeam"];
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const PATTERNS: [Pattern; 2] = [Pattern::Single, Pattern::Alien];
/// Objects of every pool: as many as all rings and caches hold, so that nobody waits for want of
/// objects.
const OBJECTS: u32 = 65_536;

pub(super) fn part() -> Part<Ground> {
    let growths = PATTERNS.map(growth);
    let steps = growths.iter().map(|growth| growth.cases().len()).sum();
    let time = Time { once: 1.0, steps, windows: 1.0, more: 0.03 };
    let about = "The pool against DPDK's and a queue, with more and more threads";
    let part = Part::new("growth", about, time);
    growths.iter().fold(part, Part::growth).stage(|ground: &Ground, found| {
        let cpus: Vec<usize> = LaneMap::detect()?.allowed().iter().collect();
        let binary = ground.builder.build(&MEMPOOL);
        let args = mempool_args("ring_mp_mc", OBJECTS, &cpus);
        let dpdk = binary.and_then(|binary| Peer::start(&binary, &args));
        let mut subjects = Subjects::new(OBJECTS, cpus, vec![("dpdk", dpdk)], found)?;
        let there = subjects.names();
        let of_pattern = |pattern| {
            let growth = growth(pattern);
            let cases = growth.cases().into_iter();
            cases.map(move |(arm, threads)| (arm, pattern, threads, growth.case(arm, threads)))
        };
        let cases = PATTERNS.into_iter().flat_map(of_pattern);
        let cases: Vec<_> = cases.filter(|(arm, ..)| there.contains(arm)).collect();
        let step = |(.., case): &(&str, Pattern, usize, String)| Step::of(case.clone(), "s");
        Ok(Measure::new(cases, step, move |(arm, pattern, threads, _), now| {
            let which = there.iter().position(|name| name == arm);
            let which = which.ok_or_else(|| Absent((*arm).into()))?;
            Ok(vec![subjects.measure(which, *pattern, *threads, now.window)?])
        }))
    })
}

/// A pattern's cost, by threads.
fn growth(pattern: Pattern) -> Growth {
    let counts = THREADS.into_iter().filter(|count| *count >= pattern.threads()).collect();
    let figure = pattern.name();
    Growth { figure, along: "threads", arms: ARMS.into(), counts, better: Better::Lower }
}
