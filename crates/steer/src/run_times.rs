//! What the programs cost, by the kernel's own count.

use std::ops::{Add, Sub};

use bpf::RunTime;

/// What each side costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// The program that chooses where a packet goes: once a packet.
    pub steer: RunTime,
    /// The record side: once a receive or send.
    pub record: RunTime,
    /// The program at the CPU that a packet was sent to: once a packet.
    pub taken: RunTime,
    /// The program after NAPI polls: once a poll, on any device.
    pub polled: RunTime,
    /// The program that counts what had no room: once for up to eight packets.
    pub queued: RunTime,
}

impl RunTimes {
    /// Each of them made of both.
    fn with(self, other: Self, of: fn(RunTime, RunTime) -> RunTime) -> Self {
        Self {
            steer: of(self.steer, other.steer),
            record: of(self.record, other.record),
            taken: of(self.taken, other.taken),
            polled: of(self.polled, other.polled),
            queued: of(self.queued, other.queued),
        }
    }
}

impl Add for RunTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, Add::add)
    }
}

impl Sub for RunTimes {
    type Output = Self;

    /// What came since `before`.
    fn sub(self, before: Self) -> Self {
        self.with(before, Sub::sub)
    }
}
