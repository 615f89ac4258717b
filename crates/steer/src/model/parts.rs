//! What the model's tables consist of.

use super::rules::{Lane, WAYS};
use crate::Reason;

/// The CPUs that there can be at most.
pub const CPUS_MAX: u32 = crate::program::CPUS_MAX as u32;

/// A CPU that flows can be sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Whether flows may be sent there.
    pub active: bool,
    /// The lane that it is in.
    pub lane: Lane,
    /// Whether it has a queue for packets of other CPUs.
    pub entry: bool,
    /// Whether the thread that serves that queue is known, and there.
    pub thread: bool,
    /// Whether that sleeps.
    pub asleep: bool,
}

/// Packets of one receive queue at one CPU, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Sent to the CPU, without those that it is known to have had no room for.
    pub sent: u32,
    /// Taken by it.
    pub taken: u32,
}

/// The NAPI poll that a CPU is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// The queue of the packet that was last sent to another CPU, with several queues.
    pub queue: u32,
    /// The queue of the flow that last took the kernel path in it.
    pub passed: Option<u32>,
    /// Its number on this CPU, modulo 2^32.
    pub number: u32,
}

/// The end of a NAPI poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Packets that it handled.
    pub work: i32,
    /// Packets that it might have handled.
    pub budget: i32,
    /// The budget of a poll that is not a busy poll.
    pub weight: i32,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes up where it is.
    Kernel(Reason),
    /// It is sent to this CPU.
    Cpu(u32),
}

/// A set of the flows of one queue whose packets go to a CPU; all others take the kernel path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSet {
    /// Who they are, and the CPU.
    pub words: [u32; WAYS],
    /// The last packet's number among those of its queue sent there, from 1, modulo 2^32.
    pub tails: [u32; WAYS],
}

/// Flows of one queue of which a packet may wait in GRO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// A bit for each of 256 groups: a packet took the kernel path.
    pub bits: [u64; 4],
    /// The last poll in which one did.
    pub last: u32,
    /// A poll that has left nothing in GRO.
    pub done: u32,
}

impl FlowSet {
    /// The last one takes the place.
    pub(super) fn forget(&mut self, way: usize) {
        let end = self.words.iter().position(|word| *word == 0).unwrap_or(WAYS);
        self.words.swap(way, end - 1);
        self.tails[way] = self.tails[end - 1];
        self.words[end - 1] = 0;
    }
}

impl Passed {
    /// Whether the bits are of a poll that has left nothing in GRO, and not of this one.
    pub(super) fn is_over(&self, poll: u32) -> bool {
        self.last != poll && self.last == self.done
    }
}

/// Where a flow's bit is in [`Passed`].
pub(super) fn passed_bit(hash: u32) -> (usize, u64) {
    ((hash >> 28 & 3) as usize, 1 << (hash >> 22 & 63))
}
