//! `cachelane bench steer --simulate`: what the model of the tables gives on machines that are not
//! there, if threads move as the arguments say.
//!
//! Nothing of it is measured, and all that is printed says so.

use anyhow::Context as _;
use steer::simulate::Outcome;
pub use steer::simulate::{Machine, Simulation, Threads};
use trial::bench::{BenchOutput, Host};

use crate::bench::{Progress, Series, Stop};

/// What stands above the tables.
pub const HEADING: &str =
    "simulation: what the tables would do if threads moved as said below; nothing was measured";

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Machines and threads.
    pub simulations: Vec<Simulation>,
    /// Of all threads together.
    pub receives_per_second: f64,
    /// Receives of each run.
    pub receives: u64,
}

/// How often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is simulated.
    pub simulated: Simulated,
    /// Runs of each case.
    pub rounds: usize,
    /// Seed of the first.
    pub seed: u64,
    /// No progress line.
    pub quiet: bool,
}

/// What is shown of an outcome: the name, and how often it happened.
type Count = (&'static str, fn(&Outcome) -> u64);

const COUNTS: [Count; 4] = [
    ("records written", |outcome| outcome.written),
    ("evictions", |outcome| outcome.evicted),
    ("filtered, same lane", |outcome| outcome.filtered),
    ("flow moves", |outcome| outcome.moves),
];
const RATIOS: [(&str, &str); 2] = [("records", COUNTS[0].0), ("flow moves", COUNTS[3].0)];
/// Values of `llc_affinity`.
const ARMS: [(bool, &str); 2] = [(true, "on"), (false, "off")];

/// Runs the simulation.
pub fn run(plan: &Plan, stop: &Stop) -> anyhow::Result<BenchOutput> {
    let Simulated { simulations, receives_per_second, receives } = &plan.simulated;
    let progress = Progress::new(plan.rounds * simulations.len() * ARMS.len(), plan.quiet);
    let (mut series, mut output) =
        (Series::default(), BenchOutput::new("steer simulation", Host::detect()));
    for (seed, simulation) in
        (0..plan.rounds as u64).flat_map(|round| simulations.iter().map(move |one| (round, one)))
    {
        for (llc_affinity, arm) in ARMS {
            stop.check()?;
            progress.step(&format!("simulation {}", simulation.machine));
            let seed = plan.seed.wrapping_add(seed);
            let outcome = simulation.run(llc_affinity, seed, *receives).context("simulation")?;
            let share = |count: u64| count as f64 / outcome.receives as f64;
            for (name, count) in COUNTS {
                let per_second = share(count(&outcome)) * receives_per_second;
                series.add(&case(simulation, name, arm), "/s", per_second);
            }
            let in_lane = case(simulation, "in consumer's lane", arm);
            series.add(&in_lane, "%", 100.0 * share(outcome.in_lane));
        }
    }
    for simulation in simulations {
        for (name, count) in RATIOS {
            let [on, off] = ARMS.map(|(_, arm)| case(simulation, count, arm));
            let name = format!("simulation {}: {name}, on / off", simulation.machine);
            series.ratio(&mut output, &name, (&on, &off), None)?;
        }
    }
    output.cases = series.cases();
    output.notes = notes(plan);
    Ok(output)
}

fn case(simulation: &Simulation, what: &str, arm: &str) -> String {
    format!("simulation {}, {arm}: {what}", simulation.machine)
}

fn notes(plan: &Plan) -> Vec<String> {
    let Simulated { simulations, receives_per_second, receives } = &plan.simulated;
    let said =
        "This is a simulation: nothing was measured, and the host only computed it. What it \
                assumes is in docs/mechanisms/steer.md. On and off are the values of llc_affinity."
            .to_owned();
    let runs = format!(
        "Each run of the simulation is {receives} receives, at {receives_per_second} per second; \
         seeds from {}, the same for on and off.",
        plan.seed
    );
    let of = |simulation: &Simulation| {
        let Simulation { machine, threads, records, queues } = simulation;
        format!(
            "simulation {machine}: {} CPUs in {} lanes, {} threads, {} connections, {records} \
             records, {queues} queues; at each receive a thread has moved with probability {}, \
             inside its lane with probability {:.3}.",
            machine.cpus(),
            machine.lanes(),
            threads.threads,
            threads.connections,
            threads.moves,
            threads.in_lane
        )
    };
    [said, runs].into_iter().chain(simulations.iter().map(of)).collect()
}
