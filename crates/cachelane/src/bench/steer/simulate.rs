//! `cachelane bench steer --simulate`: what the model of the tables gives on machines that are not
//! there, if threads move as the arguments say.
//!
//! Nothing of it is measured, and all that is printed says so.

use std::time::Duration;

use anyhow::Context as _;
use steer::simulate::{Machine, Outcome, Simulation, Threads};
use trial::bench::{BenchOutput, Host};

use crate::bench::{Progress, Series, Stop};
use crate::exit::usage;

/// What stands above the tables.
pub(crate) const HEADING: &str =
    "simulation: what the tables would do if threads moved as said below; nothing was measured";

/// Receives of one run at most: some minutes of work.
const RECEIVES_MAX: f64 = 1e9;
/// Connections of each thread where nothing else is said.
const CONNECTIONS_OF_THREAD: u32 = 8;

/// What is simulated, as it is written on the command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Simulate; --window is then how long each run is in the simulation's time
    #[arg(long)]
    pub(crate) simulate: bool,
    /// Machines, separated by commas: sockets x CPUs of each / CPUs of a lane
    #[arg(
        long,
        requires = "simulate",
        value_delimiter = ',',
        value_name = "MACHINES",
        default_value = "2x128/16,1x64/8,2x64/64"
    )]
    machine: Vec<Machine>,
    /// Threads that receive [default: one per CPU]
    #[arg(long, requires = "simulate", value_name = "N")]
    threads: Option<u32>,
    /// Connections of all threads together [default: 8 per thread]
    #[arg(long, requires = "simulate", value_name = "N")]
    connections: Option<u32>,
    /// Receives per second of all threads together
    #[arg(long, requires = "simulate", value_name = "N", default_value_t = 1_000_000)]
    receives: u32,
    /// Probability that a thread has moved since its receive before
    #[arg(
        long,
        requires = "simulate",
        value_name = "P",
        default_value_t = 0.1,
        allow_negative_numbers = true
    )]
    moves: f64,
    /// Probability that a move stays inside the lane [default: by how often Linux balances lanes,
    /// sockets and the whole machine]
    #[arg(long, requires = "simulate", value_name = "P", allow_negative_numbers = true)]
    in_lane: Option<f64>,
    /// Records of flows: a power of two [default: four per connection, and at least 2048]
    #[arg(long, requires = "simulate", value_name = "N")]
    records: Option<u32>,
    /// Receive queues [default: one per lane]
    #[arg(long, requires = "simulate", value_name = "N")]
    queues: Option<u32>,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    simulations: Vec<Simulation>,
    receives_per_second: f64,
    /// Receives of each run.
    receives: u64,
}

/// How often.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What is simulated.
    pub(crate) simulated: Simulated,
    /// Runs of each case.
    pub(crate) rounds: usize,
    /// Seed of the first.
    pub(crate) seed: u64,
    /// No progress line.
    pub(crate) quiet: bool,
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

impl Args {
    /// What these arguments mean, with runs of `window`.
    pub(crate) fn simulated(&self, window: Duration) -> anyhow::Result<Simulated> {
        let receives_per_second = f64::from(self.receives);
        let receives = receives_per_second * window.as_secs_f64();
        if !(1.0..=RECEIVES_MAX).contains(&receives) {
            return Err(usage(format!(
                "simulation: --receives {} in a --window of {window:?} are {receives} receives a \
                 run: expected 1 to {RECEIVES_MAX}",
                self.receives
            )));
        }
        let simulations: Vec<_> = self.machine.iter().map(|one| self.simulation(*one)).collect();
        for simulation in &simulations {
            simulation.check().map_err(|error| usage(format!("simulation: {error}")))?;
        }
        Ok(Simulated { simulations, receives_per_second, receives: receives as u64 })
    }

    fn simulation(&self, machine: Machine) -> Simulation {
        let threads = self.threads.unwrap_or(machine.cpus());
        let connections = self.connections.unwrap_or(threads.saturating_mul(CONNECTIONS_OF_THREAD));
        let in_lane = self.in_lane.unwrap_or(machine.balanced_in_lane());
        Simulation {
            machine,
            threads: Threads { threads, connections, moves: self.moves, in_lane },
            records: self.records.unwrap_or_else(|| steer::records_for(connections.into())),
            queues: self.queues.unwrap_or(machine.lanes()),
        }
    }
}

/// Runs the simulation.
pub(crate) fn run(plan: &Plan, stop: &Stop) -> anyhow::Result<BenchOutput> {
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
