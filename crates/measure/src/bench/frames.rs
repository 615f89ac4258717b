//! `cachelane bench frames`: the frame pool against DPDK's mempool, crossbeam's queue and
//! mimalloc, and its knob's values against each other: memory only, without privileges. And
//! `cachelane xsk`, which is built on it, against a plain AF_XDP loop.
//!
//! A part that needs sockets is a module and a [`Part`] of its own.
//!
//! Every part uses two CPUs, whatever the host has: what a frame costs when it changes hands is a
//! matter between two of them.

mod homes;
mod memory;
mod passing;
mod patterns;
mod pools;
mod threads;
mod tradeoff;
mod xsk;

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use trial::bench::{BenchOutput, Host};

use super::peer::Builder;
use super::places::Places;
use super::{Plan, Progress, Series, Stop};
use crate::pmu::Pmu;
pub(crate) use passing::Passing;
pub(super) use pools::frame_pool;
pub(crate) use xsk::Sending;

/// The experiment's parts, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The pool against other pools and an allocator, memory only
    Memory,
    /// The pool with many homes against the pool with few, memory only
    Homes,
    /// The knob's values against each other, under patterns of traffic
    Tradeoff,
    /// The pool against DPDK's with more threads than CPUs
    Threads,
    /// cachelane xsk on a veth against a plain AF_XDP loop (needs root)
    Xsk,
}

/// What the parts share.
struct Bench<'a> {
    plan: &'a Plan<Part>,
    stop: Stop,
    places: Places,
    builder: Builder,
    series: Series,
    output: BenchOutput,
    rng: StdRng,
    progress: Progress,
    pmu: Result<Pmu, String>,
}

/// Runs the experiment.
pub fn run(plan: &Plan<Part>, stop: Stop) -> anyhow::Result<BenchOutput> {
    let steps = plan.parts.iter().map(|part| part.steps() * plan.rounds).sum();
    let mut bench = Bench {
        plan,
        stop,
        places: Places::detect()?,
        builder: Builder::new()?,
        series: Series::default(),
        output: BenchOutput::new("frames", Host::detect()),
        rng: StdRng::seed_from_u64(plan.seed),
        progress: Progress::new(steps, plan.quiet),
        pmu: Pmu::detect(),
    };
    if let Err(reason) = &bench.pmu {
        bench.output.absent.push(format!("cache-to-cache fills: {reason}"));
    }
    for part in &plan.parts {
        bench.stop.check()?;
        match part {
            Part::Memory => memory::run(&mut bench)?,
            Part::Homes => homes::run(&mut bench)?,
            Part::Tradeoff => tradeoff::run(&mut bench)?,
            Part::Threads => threads::run(&mut bench)?,
            Part::Xsk => xsk::run(&mut bench)?,
        }
    }
    let seed = plan.seed;
    bench.output.notes.push(format!("The cases ran in random order in every round, seed {seed}."));
    bench.output.notes.extend(bench.places.notes());
    bench.output.cases = bench.series.cases();
    Ok(bench.output)
}

impl Part {
    /// Steps of the progress line in a round.
    fn steps(self) -> usize {
        match self {
            Part::Memory => memory::STEPS,
            Part::Homes => homes::STEPS,
            Part::Tradeoff => tradeoff::steps(),
            Part::Threads => threads::STEPS,
            Part::Xsk => xsk::STEPS,
        }
    }
}

impl Bench<'_> {
    /// Measures a case that takes a second for `of(result)` objects or packets, and adds what the
    /// CPUs fetched from each other's caches meanwhile, for each of them, where they count that.
    /// What starts and ends a measurement is counted as well.
    fn counting(
        &mut self,
        case: &str,
        rate: impl Fn(f64) -> f64,
        measure: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<f64> {
        let pmu = self.pmu.as_ref().ok();
        let counting = pmu.map(Pmu::start).transpose().context("the CPUs' counters")?;
        let measured = measure()?;
        if let Some(counting) = counting {
            let fills = counting.stop().context("the CPUs' counters")?.fills;
            let count = rate(measured) * self.plan.window.as_secs_f64();
            self.series.add(&format!("{case}, fills from another cache"), "1", fills / count);
        }
        Ok(measured)
    }

    /// A measurement is about to begin.
    fn step(&self, what: &str) -> anyhow::Result<()> {
        self.progress.step(what);
        self.stop.check()
    }
}
