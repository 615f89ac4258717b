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

impl Add for RunTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            steer: self.steer + other.steer,
            record: self.record + other.record,
            taken: self.taken + other.taken,
            polled: self.polled + other.polled,
            queued: self.queued + other.queued,
        }
    }
}

impl Sub for RunTimes {
    type Output = Self;

    /// What came since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            steer: self.steer - before.steer,
            record: self.record - before.record,
            taken: self.taken - before.taken,
            polled: self.polled - before.polled,
            queued: self.queued - before.queued,
        }
    }
}
