//! What `cachelane bench steer --simulate` takes.

use std::time::Duration;

use measure::bench::steer::simulate::{Machine, Simulated, Simulation, Threads};

use crate::exit::usage;

/// Receives of one run at most: some minutes of work.
const RECEIVES_MAX: f64 = 1e9;
/// How long a run is in the simulation's time where nothing else is said.
const WINDOW: Duration = Duration::from_secs(1);
/// Connections of each thread where nothing else is said.
const CONNECTIONS_OF_THREAD: u32 = 8;

/// What is simulated, as it is written on the command line.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Simulate instead of measuring; --window is then the simulated time of each run [default: 1s]
    #[arg(long, conflicts_with = "only")]
    pub(super) simulate: bool,
    /// Machines to simulate, separated by commas: number of sockets x CPUs of a socket / CPUs of a
    /// lane (CPUs that share a last-level cache)
    #[arg(
        long,
        requires = "simulate",
        value_delimiter = ',',
        value_name = "MACHINES",
        default_value = "2x128/16,1x64/8,2x64/64"
    )]
    machine: Vec<Machine>,
    /// Number of threads that receive [default: one for each CPU]
    #[arg(long, requires = "simulate", value_name = "N")]
    threads: Option<u32>,
    /// Number of connections, over all threads [default: 8 for each thread]
    #[arg(long, requires = "simulate", value_name = "N")]
    connections: Option<u32>,
    /// Receives a second, over all threads
    #[arg(long, requires = "simulate", value_name = "N", default_value_t = 1_000_000)]
    receives: u32,
    /// Probability, from 0 to 1, that a thread has moved to another CPU since its last receive
    #[arg(
        long,
        requires = "simulate",
        value_name = "P",
        default_value_t = 0.1,
        allow_negative_numbers = true
    )]
    moves: f64,
    /// Probability, from 0 to 1, that a thread that moves stays inside its lane [default: from how
    /// often Linux balances lanes, sockets and the whole machine]
    #[arg(long, requires = "simulate", value_name = "P", allow_negative_numbers = true)]
    in_lane: Option<f64>,
    /// Number of records of flows, a power of two [default: four for each connection, and at least
    /// 2048]
    #[arg(long, requires = "simulate", value_name = "N")]
    records: Option<u32>,
    /// Number of receive queues [default: one for each lane]
    #[arg(long, requires = "simulate", value_name = "N")]
    queues: Option<u32>,
}

impl Args {
    /// What these arguments mean, with runs of `window`.
    pub(super) fn simulated(&self, window: Option<Duration>) -> anyhow::Result<Simulated> {
        let window = window.unwrap_or(WINDOW);
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
