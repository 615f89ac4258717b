//! `cachelane bench relay`: the relay against direct connections, HAProxy, nginx and sockmap as
//! it comes. Everything runs in one test host, over its loopback, as a sidecar would.

pub(crate) mod bulk;
pub(crate) mod exchange;
mod flood;
mod idle;
pub(crate) mod jiffy;
mod memory;
mod place;
pub(crate) mod targets;

use std::time::Duration;

use lab::Lab;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use trial::bench::{BenchOutput, Host};

use super::{Progress, Series, Stop};
use targets::Targets;

/// The experiment's parts, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The proposal's experiment: sockmap's ingress redirect, stock and with a sized buffer
    Jiffy,
    /// One bulk stream through each relay
    Bulk,
    /// Request and response of 256 bytes
    Rr,
    /// Short connections
    Connect,
    /// Where forwarding runs
    Place,
    /// Which engine wins for which size of write
    Engines,
    /// Memory behind a slow receiver
    Memory,
    /// Memory of idle connections
    Idle,
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Parts to run.
    pub parts: Vec<Part>,
    /// Times that each case is measured.
    pub rounds: usize,
    /// Length of one measurement.
    pub window: Duration,
    /// How long the slow receiver is watched.
    pub memory: Duration,
    /// Idle connections.
    pub idle: usize,
    /// Seed of the order of the cases.
    pub seed: u64,
    /// No progress line.
    pub quiet: bool,
}

/// What the parts share.
struct Bench<'a> {
    plan: &'a Plan,
    stop: Stop,
    targets: Targets,
    series: Series,
    output: BenchOutput,
    rng: StdRng,
    progress: Progress,
}

/// Runs the experiment.
pub fn run(plan: &Plan, stop: Stop) -> anyhow::Result<BenchOutput> {
    let lab = Lab::new("bench-relay")?;
    let mut output = BenchOutput::new("relay", Host::detect());
    let targets = Targets::start(lab, &mut output)?;
    let steps = plan.parts.iter().map(|part| part.steps(plan, &targets)).sum();
    let mut bench = Bench {
        plan,
        stop,
        targets,
        series: Series::default(),
        output,
        rng: StdRng::seed_from_u64(plan.seed),
        progress: Progress::new(steps, plan.quiet),
    };
    for part in &plan.parts {
        bench.stop.check()?;
        match part {
            Part::Jiffy => jiffy::run(&mut bench)?,
            Part::Bulk => bulk::run(&mut bench)?,
            Part::Rr => exchange::rr(&mut bench)?,
            Part::Connect => exchange::connect(&mut bench)?,
            Part::Place => place::run(&mut bench)?,
            Part::Engines => bulk::engines(&mut bench)?,
            Part::Memory => memory::run(&mut bench)?,
            Part::Idle => idle::run(&mut bench)?,
        }
    }
    let seed = plan.seed;
    bench.output.notes.push(format!("The cases ran in random order in every round, seed {seed}."));
    bench.output.cases = bench.series.cases();
    Ok(bench.output)
}

impl Part {
    /// Steps of the progress line.
    fn steps(self, plan: &Plan, targets: &Targets) -> usize {
        match self {
            Part::Jiffy => 2 * plan.rounds,
            Part::Bulk => targets.bulk().len() * plan.rounds,
            Part::Rr | Part::Connect => targets.exchange().len() * plan.rounds,
            Part::Place => plan.rounds,
            Part::Engines => bulk::engine_cases(plan),
            Part::Memory => memory::CASES,
            Part::Idle => 2,
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
