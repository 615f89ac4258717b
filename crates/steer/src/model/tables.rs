//! What others set and see of the model's tables.

use super::Model;
use super::Shape;
use super::parts::{Count, FlowSet, Passed, Polling, Target};
use super::rules::{Sight, WAYS};
use crate::Counters;

impl Model {
    /// Where flows can be sent from now on.
    pub fn set_target(&mut self, cpu: u32, target: Target) {
        self.targets[cpu as usize] = target;
    }

    /// Whether a record is rewritten only when its flow's consumer left the lane.
    pub fn set_llc_affinity(&mut self, on: bool) {
        self.llc_affinity = on;
    }

    /// What time it is, in ticks.
    pub fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// The process has looked after the host.
    pub fn renew(&mut self) {
        self.renewed = self.now;
    }

    /// Sets the counts of a queue's packets at a CPU.
    pub fn set_count(&mut self, cpu: u32, queue: u32, count: Count) {
        *self.count_mut(cpu, queue) = count;
    }

    /// Sets a word of a set of records: 0, or one with its highest bit set and the next not.
    pub fn set_record(&mut self, set: u32, way: usize, word: u32) {
        self.records[set as usize][way] = word;
    }

    /// What flows can be sent to.
    pub fn target(&self, cpu: u32) -> Target {
        self.targets[cpu as usize]
    }

    /// The counts of a queue's packets at a CPU.
    pub fn count(&self, cpu: u32, queue: u32) -> Count {
        self.counts[self.row(cpu, queue)]
    }

    /// What a queue has seen of a CPU.
    pub fn sight(&self, cpu: u32, queue: u32) -> Sight {
        self.sights[self.row(cpu, queue)]
    }

    /// A set of the records.
    pub fn records(&self, set: u32) -> [u32; WAYS] {
        self.records[set as usize]
    }

    /// A set of a queue's states.
    pub fn flows(&self, set: u32, queue: u32) -> FlowSet {
        self.flows[(queue * self.words.sets() + set) as usize]
    }

    /// The queue's flows of which a packet may wait in GRO.
    pub fn passed(&self, queue: u32) -> Passed {
        self.passed[queue as usize]
    }

    /// The poll that a CPU is in.
    pub fn polling(&self, cpu: u32) -> Polling {
        self.polling[cpu as usize]
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What it was made with.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}
