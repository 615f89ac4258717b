//! `cachelane bench steer --simulate`: what the model of the tables gives on machines that are not
//! there, if threads move as the arguments say.
//!
//! Nothing of it is measured, and all that is printed says so.

use std::time::Duration;

use anyhow::Context as _;
use trial::Better;

pub use crate::simulation::{Machine, Simulation, Threads};
use crate::simulation::{Outcome, WARM_UP};

use crate::bench::claim::Claim;
use crate::bench::experiment::{Experiment, Measure, Part, Plan, Step, Time};
use crate::bench::found::Found;

/// Seconds that a simulated receive takes.
const RECEIVE: f64 = 1.5e-7;

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

impl Experiment for Simulated {
    type Ground = ();
    const NAME: &'static str = "steer simulation";
    const EXTENT: (usize, Duration) = (8, Duration::from_secs(1));
    const GROUND_TIME: f64 = 0.0;

    fn parts(&self) -> Vec<Part<()>> {
        let claim = |simulation: &Simulation, (name, count): (&str, &str)| {
            let [on, off] = ARMS.map(|(_, arm)| case(simulation, count, arm));
            let name = format!("simulation {}: {name}, on / off", simulation.machine);
            Claim::ratio(name, on, off).better(Better::Lower)
        };
        let of = |simulation| RATIOS.map(|ratio| claim(simulation, ratio));
        let connections = |one: &Simulation| u64::from(one.threads.connections);
        let most = self.simulations.iter().map(connections).max().unwrap_or(0);
        let receives = (self.receives + WARM_UP * most) as f64;
        let steps = self.simulations.len() * ARMS.len();
        let time = Time { once: 0.0, steps, windows: 0.0, more: receives * RECEIVE };
        let simulated = self.clone();
        vec![
            Part::new(
                "simulation",
                "What the tables would do on machines that are not there",
                time,
            )
            .claims(self.simulations.iter().flat_map(of))
            .stage(move |(), _| Ok(simulated.clone().measure())),
        ]
    }

    fn ground(&self, _found: &mut Found) -> anyhow::Result<()> {
        Ok(())
    }

    fn notes(&self, (): &(), plan: &Plan) -> Vec<String> {
        let Simulated { simulations, receives_per_second, receives } = self;
        let said = "This is a simulation: nothing was measured, and the host only computed it. \
                    What it assumes is in docs/mechanisms/steer.md. On and off are the values of \
                    llc_affinity.";
        let runs = format!(
            "Each run of the simulation is {receives} receives, at {receives_per_second} per \
             second; seeds from {}, the same for on and off.",
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
        [said.into(), runs].into_iter().chain(simulations.iter().map(of)).collect()
    }
}

impl Simulated {
    /// Every machine with both values of the knob.
    fn measure(self) -> Measure<'static> {
        let Simulated { simulations, receives_per_second, receives } = self;
        type Case = (Simulation, (bool, &'static str));
        let step = |(simulation, (_, arm)): &Case| {
            let counts = COUNTS.map(|(name, _)| (case(simulation, name, arm), "/s"));
            let in_lane = (case(simulation, "in consumer's lane", arm), "%");
            Step {
                name: format!("simulation {}", simulation.machine),
                gives: counts.into_iter().chain([in_lane]).collect(),
            }
        };
        let with_arms = |one: Simulation| ARMS.map(|arm| (one.clone(), arm));
        let cases = simulations.into_iter().flat_map(with_arms);
        Measure::new(cases, step, move |(simulation, (llc_affinity, _)), now| {
            // The same for both.
            let seed = now.seed.wrapping_add(now.round as u64);
            let outcome = simulation.run(*llc_affinity, seed, receives).context("simulation")?;
            let share = |count: u64| count as f64 / outcome.receives as f64;
            let counts = COUNTS.map(|(_, count)| share(count(&outcome)) * receives_per_second);
            Ok(counts.into_iter().chain([100.0 * share(outcome.in_lane)]).collect())
        })
    }
}

fn case(simulation: &Simulation, what: &str, arm: &str) -> String {
    format!("simulation {}, {arm}: {what}", simulation.machine)
}
