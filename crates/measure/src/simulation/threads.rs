//! Threads that receive, and how they move.

use anyhow::ensure;
use rand::{Rng, RngExt as _};

use super::Machine;

/// Who receives, and how often they move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threads {
    /// Threads: 1 or more. They start evenly spread over the CPUs.
    pub threads: u32,
    /// Connections, of which each thread has as many as any other, or one more: at least as many
    /// as threads.
    pub connections: u32,
    /// The probability that a thread has moved since its receive before: 0 to 1.
    pub moves: f64,
    /// The probability that it moved inside its lane, if it moved: 0 to 1. With one lane all moves
    /// are; with one CPU in a lane none can be, and a thread that should stays where it is.
    pub in_lane: f64,
}

impl Threads {
    /// Checks that there can be such threads.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let Self { threads, connections, .. } = *self;
        ensure!(threads > 0, "0 threads: expected 1 or more");
        ensure!(
            connections >= threads,
            "{connections} connections: expected at least one for each of {threads} threads"
        );
        for (name, value) in [("moves", self.moves), ("in_lane", self.in_lane)] {
            ensure!((0.0..=1.0).contains(&value), "{name} {value}: expected 0 to 1");
        }
        Ok(())
    }

    /// The CPU that a thread is on that was on `cpu` at its receive before.
    pub(super) fn moved(&self, machine: &Machine, cpu: u32, rng: &mut impl Rng) -> u32 {
        if !rng.random_bool(self.moves) {
            return cpu;
        }
        let size = machine.cpus_of_lane();
        let first = machine.lane_of(cpu) * size;
        if machine.lanes() == 1 || rng.random_bool(self.in_lane) {
            return match size {
                1 => cpu,
                // Any but its own.
                _ => first + (cpu - first + rng.random_range(1..size)) % size,
            };
        }
        // Any behind the lane, around the end.
        (first + size + rng.random_range(0..machine.cpus() - size)) % machine.cpus()
    }
}
