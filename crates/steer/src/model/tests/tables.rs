//! What tests set and see of the model's tables.

use super::*;

impl Model {
    /// What time it is, in ticks.
    pub(super) fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// The process has looked after the host.
    pub(super) fn renew(&mut self) {
        self.renewed = self.now;
    }

    /// Sets the counts of a queue's packets at a CPU.
    pub(super) fn set_count(&mut self, cpu: u32, queue: u32, count: Count) {
        *self.count_mut(cpu, queue) = count;
    }

    /// Sets a word of a set of records: 0, or one with its highest bit set and the next not.
    pub(super) fn set_record(&mut self, set: u32, way: usize, word: u32) {
        self.records[set as usize][way] = word;
    }

    /// What a queue has seen of a CPU.
    pub(super) fn sight(&self, cpu: u32, queue: u32) -> Sight {
        self.sights[self.row(cpu, queue)]
    }

    /// A set of the records.
    pub(super) fn records(&self, set: u32) -> [u32; WAYS] {
        self.records[set as usize]
    }

    /// A set of a queue's states.
    pub(super) fn flows(&self, set: u32, queue: u32) -> FlowSet {
        self.flows[(queue * self.words.sets + set) as usize]
    }

    /// The queue's flows of which a packet may wait in GRO.
    pub(super) fn passed(&self, queue: u32) -> Passed {
        self.passed[queue as usize]
    }

    /// The poll that a CPU is in.
    pub(super) fn polling(&self, cpu: u32) -> Polling {
        self.polling[cpu as usize]
    }

    /// What it was made with.
    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }
}
