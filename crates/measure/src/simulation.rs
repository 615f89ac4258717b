//! A simulation of the record side's work, and of where packets go, on machines that are not there.
//!
//! It runs the [model](steer::model) of the programs, which is checked against them, under made-up
//! threads. It says how often records are written and how well packets find their consumers' lanes
//! *if* threads move as the migration model says. It knows nothing of time: not what a write costs,
//! nor what an avoided one gains. Nothing that it says is measured.
//!
//! # The migration model
//!
//! Receives come one after another, each on a random connection. A connection belongs to one thread
//! for ever. Before each of its receives a thread has moved with the probability `moves`: with the
//! probability `in_lane` to another CPU of its lane, else to a CPU of another lane; which one is as
//! likely as any other. The packet of a receive comes first and goes where the tables send it; it is
//! delivered before the next one comes, so that the order never holds a flow back.
//!
//! What is in no table is which CPUs are busy: any number of threads can be on one.

mod machine;
#[cfg(test)]
mod tests;
mod threads;

pub use machine::Machine;
pub use threads::Threads;

use anyhow::ensure;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use steer::SteerOptions;
use steer::model::{Limits, Model, Poll, RecordAction, Shape, Target, Verdict};

/// Receives of each connection, on average, before anything is counted: until then records are
/// missing, and threads are where they started.
pub(crate) const WARM_UP: u64 = 20;

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// The machine.
    pub machine: Machine,
    /// Who receives.
    pub threads: Threads,
    /// Records of flows: a power of two from 2^8 to 2^24.
    pub records: u32,
    /// Receive queues, among which connections are spread by their hash. Their CPUs are spread
    /// evenly over the machine. 1 to the number of CPUs.
    pub queues: u32,
}

/// What happened in so many receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Receives.
    pub receives: u64,
    /// After which the record was written.
    pub written: u64,
    /// Of them, those where it was another connection's.
    pub evicted: u64,
    /// After which it was left alone although its CPU was another one, because the lane was the
    /// same.
    pub filtered: u64,
    /// Packets that were handled on another CPU than their connection's one before.
    pub moves: u64,
    /// Receives of which the packet was handled in the lane that the thread was in.
    pub in_lane: u64,
}

impl Simulation {
    /// Checks that there can be such a thing.
    ///
    /// # Errors
    /// The value that cannot be, and what was expected.
    pub fn check(&self) -> anyhow::Result<()> {
        let (queues, cpus) = (self.queues, self.machine.cpus());
        SteerOptions { records: self.records, ..SteerOptions::default() }.check()?;
        ensure!(
            (1..=cpus).contains(&queues),
            "{queues} queues: expected 1 to {cpus}, the CPUs of {}",
            self.machine
        );
        self.threads.check()
    }

    /// Simulates so many receives. The same `seed` gives the same threads and connections, moving
    /// and receiving alike, whatever `llc_affinity` is; and the same outcome every time.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn run(&self, llc_affinity: bool, seed: u64, receives: u64) -> anyhow::Result<Outcome> {
        self.check()?;
        let mut run = Run::new(self, llc_affinity, seed);
        for _ in 0..WARM_UP * u64::from(self.threads.connections) {
            run.receive();
        }
        run.outcome = Outcome::default();
        for _ in 0..receives {
            run.receive();
        }
        Ok(run.outcome)
    }
}

struct Run<'a> {
    simulation: &'a Simulation,
    model: Model,
    rng: Xoshiro256PlusPlus,
    /// By connection.
    hashes: Vec<u32>,
    /// By thread, the CPU that it is on.
    places: Vec<u32>,
    /// By connection, the CPU that handled its last packet.
    handled: Vec<u32>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(simulation: &'a Simulation, llc_affinity: bool, seed: u64) -> Self {
        let Simulation { machine, threads, records, queues } = simulation;
        let mut model = Model::new(Shape {
            records: *records,
            cpus: machine.cpus(),
            queues: *queues,
            // Hashes are drawn.
            hash_keys: [1; 5],
            keep_order: true,
            gro_outlasts_poll: true,
            // It has no time, and nothing waits.
            limits: Limits { room: 1024, stall: 1, away: 1, patience: 1, lease: 0 },
        });
        for cpu in 0..machine.cpus() {
            let lane = machine.lane_of(cpu);
            model.set_target(
                cpu,
                Target { active: true, lane, entry: true, thread: true, asleep: true },
            );
        }
        model.set_llc_affinity(llc_affinity);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let hashes = (0..threads.connections).map(|_| rng.random_range(1..=u32::MAX)).collect();
        let places = (0..threads.threads).map(|thread| thread % machine.cpus()).collect();
        let handled = vec![0; threads.connections as usize];
        Self { simulation, model, rng, hashes, places, handled, outcome: Outcome::default() }
    }

    fn receive(&mut self) {
        let Simulation { machine, threads, .. } = self.simulation;
        let connection = self.rng.random_range(0..threads.connections);
        let thread = (connection % threads.threads) as usize;
        self.places[thread] = threads.moved(machine, self.places[thread], &mut self.rng);
        let (hash, cpu) = (self.hashes[connection as usize], self.places[thread]);
        let before = self.model.counters();
        let handled = self.packet(hash);
        let action = self.model.record_hash(hash, cpu);
        let after = self.model.counters();
        let outcome = &mut self.outcome;
        outcome.receives += 1;
        outcome.written += after.written - before.written;
        outcome.evicted += after.evicted - before.evicted;
        outcome.filtered += u64::from(action == RecordAction::SameLane);
        let last = std::mem::replace(&mut self.handled[connection as usize], handled);
        outcome.moves += u64::from(last != handled);
        outcome.in_lane += u64::from(machine.lane_of(handled) == machine.lane_of(cpu));
    }

    /// A packet comes and is delivered. Returns the CPU that handled it.
    fn packet(&mut self, hash: u32) -> u32 {
        let Simulation { machine, queues, .. } = self.simulation;
        // Of bits that say neither the set nor the CPU of small tables.
        let queue = (hash >> 8) % queues;
        let here = queue * machine.cpus() / queues;
        match self.model.steer(hash, queue, here) {
            Verdict::Cpu(cpu) => {
                self.model.taken(cpu, queue);
                let target = self.model.target(cpu);
                self.model.set_target(cpu, Target { asleep: true, ..target });
                cpu
            }
            Verdict::Kernel(_) => {
                self.model.polled(here, Poll { work: 1, budget: 64, weight: 64 });
                here
            }
        }
    }
}
