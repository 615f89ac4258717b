//! What the programs count.

use crate::program::{Counts, constants};

kit::counters! {
    /// What happened so far, over all CPUs.
    pub struct Counters from Counts {
        steered: "packets", "Packets sent to their consumer's CPU, or where their flow is held.";
        moves: "packets", "Of them, those that went elsewhere than the one before.";
        held: "packets", "Packets that stayed where the one before went, for order.";
        receives: "times", "Receives and sends of sockets whose flows can be steered.";
        unchanged: "times", "Of them, those that found the record right.";
        same_lane: "times", "Records left alone as the consumer stayed in its lane.";
        written: "records", "Records written.";
        collisions: "records", "Of them, those put beside another flow's.";
        evicted: "records", "Of them, those that took another flow's place.";
        overflows: "packets", "Packets lost as a CPU's queue was full.";
        stalls: "times", "Times that a CPU took nothing of what was sent to it.";
        released: "packets", "Packets that left such a CPU before those sent there.";
    }
    by {
        kernel: Reason;
    }
}

kit::reasons! {
    /// Why a packet took the kernel path.
    pub enum Reason: "packets" {
        Other = constants::REASON_OTHER, "other", "Packets that are neither IPv4 nor IPv6.";
        Short = constants::REASON_SHORT, "short", "Packets with a header that is cut short or makes no sense.";
        Fragment = constants::REASON_FRAGMENT, "fragment", "Fragments, of which ports are not known.";
        Protocol = constants::REASON_PROTOCOL, "protocol",
            "Packets neither of TCP nor of UDP, or behind IPv6 extension headers: tunnels, ICMP.";
        Unknown = constants::REASON_UNKNOWN, "unknown", "Packets of which no local socket has received yet.";
        Target = constants::REASON_TARGET, "target", "Packets whose consumer runs on a CPU that is no target.";
        Order = constants::REASON_ORDER, "order", "Packets whose flow may not leave the kernel path yet, or has no place.";
        Here = constants::REASON_HERE, "here", "Packets that arrived on their consumer's CPU.";
        Unsent = constants::REASON_UNSENT, "unsent", "Packets that the driver or the CPU's queue could not take.";
        Queue = constants::REASON_QUEUE, "queue", "Packets of receive queues that were not there at the start.";
        Busy = constants::REASON_BUSY, "busy", "Packets whose consumer's CPU does not take them, or has too many waiting.";
        Lease = constants::REASON_LEASE, "lease", "Packets while the process was stopped or got no CPU for too long.";
    }
}

const _: () = assert!(Reason::ALL.len() == constants::REASONS as usize, "each has a name");

impl Counters {
    /// Packets left to the kernel path, for whatever reason.
    pub fn left_alone(&self) -> u64 {
        self.kernel.iter().fold(0, |sum, one| sum.wrapping_add(*one))
    }
}
