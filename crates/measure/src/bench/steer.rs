//! `cachelane bench steer`: receive flow steering against the kernel's own, against none, and with
//! its knob on and off; and, of machines that are not there, a simulation.

mod arms;
mod busy;
mod flow_entries;
pub(crate) mod hosts;
mod lane;
mod records;
mod rpc;
mod runtime;
pub mod simulate;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use trial::bench::{BenchOutput, Host};

use super::{Plan, Progress, Series, Stop};

/// The experiment's parts, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Records written, with the knob on and off
    Records,
    /// Requests and responses, against kernel RFS, kernel RPS and no steering
    Rpc,
    /// How long the programs run, against the least that such programs can do
    Runtime,
    /// How often the packet was processed in its consumer's lane
    Lane,
    /// Datagrams lost and late beside programs that spin, against kernel RFS
    Busy,
}

/// What the parts share.
struct Bench<'a> {
    plan: &'a Plan<Part>,
    stop: Stop,
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
        series: Series::default(),
        output: BenchOutput::new("steer", Host::detect()),
        rng: StdRng::seed_from_u64(plan.seed),
        progress: Progress::new(steps, plan.quiet),
    };
    for part in &plan.parts {
        bench.stop.check()?;
        match part {
            Part::Records => records::run(&mut bench)?,
            Part::Rpc => rpc::run(&mut bench)?,
            Part::Runtime => runtime::run(&mut bench)?,
            Part::Lane => lane::run(&mut bench)?,
            Part::Busy => busy::run(&mut bench)?,
        }
    }
    let seed = plan.seed;
    bench.output.notes.push(format!("The cases ran in random order in every round, seed {seed}."));
    bench.output.cases = bench.series.cases();
    Ok(bench.output)
}

impl Part {
    /// Steps of the progress line in a round.
    fn steps(self) -> usize {
        match self {
            Part::Records => records::STEPS,
            Part::Rpc => rpc::STEPS,
            Part::Runtime => runtime::STEPS,
            Part::Lane => lane::STEPS,
            Part::Busy => busy::STEPS,
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
