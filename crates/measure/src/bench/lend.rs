//! `cachelane bench lend`: frames lent to other processes, against what programs do without: an
//! allocator of ids under a lock to keep account, as kernels do, and an AF_PACKET ring with a copy
//! of every packet.

mod accounting;
mod books;
mod clients;
mod crossover;
mod delivered;
mod idle;
mod lending;
mod wire;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use trial::bench::{BenchOutput, Host};

use super::peer::Builder;
use super::places::Places;
use super::{Plan, Progress, Series, Stop};
pub(crate) use accounting::Keeping;

/// The experiment's parts, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Keeping account of frames, memory only
    Accounting,
    /// How idle workers are at a fixed rate
    Idle,
    /// Packets that reach workers, against AF_PACKET rings, and borrowers in C and Python (needs
    /// root)
    Delivered,
    /// Where copying is better: sizes and rates (needs root)
    Crossover,
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
        output: BenchOutput::new("lend", Host::detect()),
        rng: StdRng::seed_from_u64(plan.seed),
        progress: Progress::new(steps, plan.quiet),
    };
    for part in &plan.parts {
        bench.stop.check()?;
        match part {
            Part::Accounting => accounting::run(&mut bench)?,
            Part::Idle => idle::run(&mut bench)?,
            Part::Delivered => delivered::run(&mut bench)?,
            Part::Crossover => crossover::run(&mut bench)?,
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
            Part::Accounting => accounting::STEPS,
            Part::Idle => idle::STEPS,
            Part::Delivered => delivered::STEPS,
            Part::Crossover => crossover::STEPS,
        }
    }
}

impl Bench<'_> {
    /// A measurement is about to begin.
    fn step(&self, what: &str) -> anyhow::Result<()> {
        self.progress.step(what);
        self.stop.check()
    }
}
