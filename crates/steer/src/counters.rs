//! What the programs count.

use crate::program::Counts;

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

// In the order of `enum reason` in steer.h.
kit::reasons! {
    /// Why a packet took the kernel path.
    pub enum Reason: "packets" {
        Other = "other", "Packets that are neither IPv4 nor IPv6.";
        Short = "short", "Packets with a header that is cut short or makes no sense.";
        Fragment = "fragment", "Fragments, of which ports are not known.";
        Protocol = "protocol",
            "Packets neither of TCP nor of UDP, or behind IPv6 extension headers: tunnels, ICMP.";
        Unknown = "unknown", "Packets of which no local socket has received yet.";
        Target = "target", "Packets whose consumer runs on a CPU that is no target.";
        Order = "order", "Packets whose flow may not leave the kernel path yet, or has no place.";
        Here = "here", "Packets that arrived on their consumer's CPU.";
        Unsent = "unsent", "Packets that the driver or the CPU's queue could not take.";
        Queue = "queue", "Packets of receive queues that were not there at the start.";
        Busy = "busy", "Packets whose consumer's CPU does not take them, or has too many waiting.";
        Lease = "lease", "Packets while the process was stopped or got no CPU for too long.";
    }
}

impl Counters {
    /// Packets left to the kernel path for this reason.
    pub fn kernel(&self, reason: Reason) -> u64 {
        self.kernel[reason as usize]
    }

    /// Packets left to the kernel path, for whatever reason.
    pub fn left_alone(&self) -> u64 {
        self.kernel.iter().fold(0, |sum, one| sum.wrapping_add(*one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place_and_a_name_of_its_own() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
            assert!(reason.help().ends_with('.'));
            let same = Reason::ALL.iter().filter(|other| other.name() == reason.name());
            assert_eq!(same.count(), 1, "{reason:?}");
        }
    }

    #[test]
    fn counts_of_cpus_are_added_up() {
        let one = Counters {
            steered: u64::MAX,
            kernel: [1; Reason::ALL.len()],
            written: 3,
            ..Counters::default()
        };
        let mut sum = one;
        sum.add(&one);
        assert_eq!((sum.steered, sum.written, sum.left_alone()), (u64::MAX - 1, 6, 24));
    }
}
