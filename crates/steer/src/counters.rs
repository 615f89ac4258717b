//! What the programs count.

use crate::program::{Counts, constants};

/// What happened so far, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets sent to a CPU.
    pub steered: u64,
    /// Of them, those that went to another CPU than the flow's packet before.
    pub moves: u64,
    /// Packets that stayed where the one before went, because that might not be delivered yet.
    pub held: u64,
    /// Packets left to the kernel path, by [`Reason`].
    pub kernel: [u64; Reason::ALL.len()],
    /// Receives and sends of local sockets whose flow can be steered.
    pub receives: u64,
    /// Of them, those of which the record was right.
    pub unchanged: u64,
    /// Those after which it was left alone because the consumer had stayed in its lane.
    pub same_lane: u64,
    /// Those after which it was written.
    pub written: u64,
    /// Of these, those that were put into a set where another flow's was.
    pub collisions: u64,
    /// Of these, those that took another flow's place, because the set was full.
    pub evicted: u64,
    /// Packets lost because a CPU's queue was full.
    pub overflows: u64,
    /// Times that a CPU was seen to take nothing of what was sent to it.
    pub stalls: u64,
    /// Packets that left such a CPU before what their flow had there was delivered.
    pub released: u64,
}

/// Why a packet took the kernel path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Neither IPv4 nor IPv6.
    Other = constants::REASON_OTHER as isize,
    /// A header is cut short or makes no sense.
    Short = constants::REASON_SHORT as isize,
    /// An IP fragment, of which ports are not known.
    Fragment = constants::REASON_FRAGMENT as isize,
    /// Neither TCP nor UDP, or below IPv6 extension headers: tunnels, ICMP.
    Protocol = constants::REASON_PROTOCOL as isize,
    /// No local socket has received of this flow yet, or another flow has its record.
    Unknown = constants::REASON_UNKNOWN as isize,
    /// Its consumer runs on a CPU that is no target.
    Target = constants::REASON_TARGET as isize,
    /// Its flow may not leave the kernel path yet, or has no place in the table.
    Order = constants::REASON_ORDER as isize,
    /// Its consumer runs on the CPU that it arrived on.
    Here = constants::REASON_HERE as isize,
    /// The driver leaves no room in front of it for its queue's number, or the CPU has no queue.
    Unsent = constants::REASON_UNSENT as isize,
    /// It came by a receive queue that was not there at the start.
    Queue = constants::REASON_QUEUE as isize,
    /// Its consumer's CPU does not take its packets, or has too many waiting.
    Busy = constants::REASON_BUSY as isize,
    /// The process has not looked after the host for too long: it is stopped, or gets no CPU.
    Lease = constants::REASON_LEASE as isize,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 12] = [
        Reason::Other,
        Reason::Short,
        Reason::Fragment,
        Reason::Protocol,
        Reason::Unknown,
        Reason::Target,
        Reason::Order,
        Reason::Here,
        Reason::Unsent,
        Reason::Queue,
        Reason::Busy,
        Reason::Lease,
    ];
}

const _: () = assert!(Reason::ALL.len() == constants::REASONS as usize, "each has a name");

impl Reason {
    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Other => "other",
            Reason::Short => "short",
            Reason::Fragment => "fragment",
            Reason::Protocol => "protocol",
            Reason::Unknown => "unknown",
            Reason::Target => "target",
            Reason::Order => "order",
            Reason::Here => "here",
            Reason::Unsent => "unsent",
            Reason::Queue => "queue",
            Reason::Busy => "busy",
            Reason::Lease => "lease",
        }
    }

    /// What it means for packets, in a sentence.
    pub fn help(self) -> &'static str {
        match self {
            Reason::Other => "Packets that are neither IPv4 nor IPv6.",
            Reason::Short => "Packets with a header that is cut short or makes no sense.",
            Reason::Fragment => "Fragments, of which ports are not known.",
            Reason::Protocol => {
                "Packets neither of TCP nor of UDP, or behind IPv6 extension headers: tunnels, \
                 ICMP."
            }
            Reason::Unknown => "Packets of which no local socket has received yet.",
            Reason::Target => "Packets whose consumer runs on a CPU that is no target.",
            Reason::Order => {
                "Packets whose flow may not leave the kernel path yet, or has no place."
            }
            Reason::Here => "Packets that arrived on their consumer's CPU.",
            Reason::Unsent => "Packets that the driver or the CPU's queue could not take.",
            Reason::Queue => "Packets of receive queues that were not there at the start.",
            Reason::Busy => {
                "Packets whose consumer's CPU does not take them, or has too many waiting."
            }
            Reason::Lease => "Packets while the process was stopped or got no CPU for too long.",
        }
    }
}

/// A counter: its name, its unit, what it means, and its value.
pub(crate) type Named = (&'static str, &'static str, &'static str, fn(&Counters) -> u64);

/// All but those by reason.
pub(crate) const NAMED: [Named; 12] = [
    (
        "steered",
        "packets",
        "Packets sent to their consumer's CPU, or where their flow is held.",
        |c| c.steered,
    ),
    ("moves", "packets", "Of them, those that went elsewhere than the one before.", |c| c.moves),
    ("held", "packets", "Packets that stayed where the one before went, for order.", |c| c.held),
    ("receives", "times", "Receives and sends of sockets whose flows can be steered.", |c| {
        c.receives
    }),
    ("unchanged", "times", "Of them, those that found the record right.", |c| c.unchanged),
    ("same_lane", "times", "Records left alone as the consumer stayed in its lane.", |c| {
        c.same_lane
    }),
    ("written", "records", "Records written.", |c| c.written),
    ("collisions", "records", "Of them, those put beside another flow's.", |c| c.collisions),
    ("evicted", "records", "Of them, those that took another flow's place.", |c| c.evicted),
    ("overflows", "packets", "Packets lost as a CPU's queue was full.", |c| c.overflows),
    ("stalls", "times", "Times that a CPU took nothing of what was sent to it.", |c| c.stalls),
    ("released", "packets", "Packets that left such a CPU before those sent there.", |c| {
        c.released
    }),
];

impl Counters {
    /// Packets left to the kernel path for this reason.
    pub fn kernel(&self, reason: Reason) -> u64 {
        self.kernel[reason as usize]
    }

    /// Packets left to the kernel path, for whatever reason.
    pub fn left_alone(&self) -> u64 {
        self.kernel.iter().fold(0, |sum, one| sum.wrapping_add(*one))
    }

    /// All of them but those by reason, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMED.iter().map(|(name, _, _, read)| (*name, read(self)))
    }
}

impl From<&Counts> for Counters {
    fn from(counts: &Counts) -> Self {
        let mut kernel = [0; Reason::ALL.len()];
        // The program has room for more.
        kernel.copy_from_slice(&counts.kernel[..Reason::ALL.len()]);
        Self {
            steered: counts.steered,
            moves: counts.moves,
            held: counts.held,
            kernel,
            receives: counts.receives,
            unchanged: counts.unchanged,
            same_lane: counts.same_lane,
            written: counts.written,
            collisions: counts.collisions,
            evicted: counts.evicted,
            overflows: counts.overflows,
            stalls: counts.stalls,
            released: counts.released,
        }
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
    fn counters_are_known_by_their_names() {
        let counters = Counters {
            steered: u64::MAX,
            kernel: [2; Reason::ALL.len()],
            written: 6,
            ..Counters::default()
        };
        assert_eq!(counters.left_alone(), 24);
        let named: Vec<_> = counters.named().filter(|(_, value)| *value > 0).collect();
        assert_eq!(named, [("steered", u64::MAX), ("written", 6)]);
    }
}
