//! `cachelane bench bridge`: the fast path of a bridge against the bridge itself.
//!
//! Every comparison is made on one running bridge whose knobs are flipped, so that all else stays
//! as it is. Small frames are made inside the kernel and dropped by a filter where they arrive,
//! so that most of what is measured is the way between; what that costs by itself is in both arms.

mod changes;
mod entries;
pub(crate) mod net;
mod pps;
mod rules;
mod scaling;
pub(crate) mod tcp;

use std::time::Duration;

use lab::Lab;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use trial::bench::{BenchOutput, Host};

use super::{Progress, Series, Stop};
use crate::pmu::Pmu;
use net::Rate;

/// The experiment's parts, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Small frames, forwarded by one CPU
    Pps,
    /// Small frames between two stations, forwarded by one CPU and by more
    Scaling,
    /// TCP between two hosts: a bulk stream, and request and response
    Tcp,
    /// A bridge that knows many stations
    Entries,
    /// A bridge with many ports, one of which is told something
    Changes,
    /// A rule of netfilter's, set while all CPUs are busy
    Rules,
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
    /// Stations that the big bridge knows.
    pub entries: u32,
    /// Seed of the order of the cases.
    pub seed: u64,
    /// No progress line.
    pub quiet: bool,
}

/// What the parts share.
struct Bench<'a> {
    plan: &'a Plan,
    stop: Stop,
    lab: Lab,
    /// The CPUs' counters, or why there are none.
    pmu: Result<Pmu, String>,
    series: Series,
    output: BenchOutput,
    rng: StdRng,
    progress: Progress,
}

/// Runs the experiment.
pub fn run(plan: &Plan, stop: Stop) -> anyhow::Result<BenchOutput> {
    let steps = plan.parts.iter().map(|part| part.steps(plan)).sum();
    let mut bench = Bench {
        plan,
        stop,
        lab: Lab::new("bench-bridge")?,
        pmu: Pmu::detect(),
        series: Series::default(),
        output: BenchOutput::new("bridge", Host::detect()),
        rng: StdRng::seed_from_u64(plan.seed),
        progress: Progress::new(steps, plan.quiet),
    };
    for part in &plan.parts {
        bench.stop.check()?;
        match part {
            Part::Pps => pps::run(&mut bench)?,
            Part::Scaling => scaling::run(&mut bench)?,
            Part::Tcp => tcp::run(&mut bench)?,
            Part::Entries => entries::run(&mut bench)?,
            Part::Changes => changes::run(&mut bench)?,
            Part::Rules => rules::run(&mut bench)?,
        }
    }
    let seed = plan.seed;
    bench.output.notes.extend([
        format!("The cases ran in random order in every round, seed {seed}."),
        "br_netfilter's calls were off in the bridge's namespace, for both sides.".into(),
        "All packet rates include making and dropping the frames: the case 'frames alone'.".into(),
    ]);
    bench.output.cases = bench.series.cases();
    Ok(bench.output)
}

impl Part {
    /// Steps of the progress line.
    fn steps(self, plan: &Plan) -> usize {
        plan.rounds
            * match self {
                Part::Pps => pps::CASES,
                Part::Scaling => scaling::cases().len(),
                Part::Tcp => tcp::CASES,
                Part::Entries => entries::CASES,
                Part::Changes => changes::CASES,
                Part::Rules => rules::CASES,
            }
    }
}

impl Bench<'_> {
    /// A measurement is about to begin.
    fn step(&self, what: &str) -> anyhow::Result<()> {
        self.progress.step(what);
        self.stop.check()
    }

    /// Adds a run of a case of small frames, with what the CPUs counted.
    fn add(&mut self, case: &str, rate: &Rate) {
        self.series.add(&format!("pps {case}"), "pps", rate.pps);
        for (what, value) in [
            ("fills/packet", rate.per_packet.map(|counts| counts.fills)),
            ("cycles/packet", rate.per_packet.map(|counts| counts.cycles)),
            ("instructions/packet", rate.per_packet.map(|counts| counts.instructions)),
        ] {
            if let Some(value) = value {
                self.series.add(&format!("{what} {case}"), "", value);
            }
        }
    }
}
