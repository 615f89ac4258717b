//! What the packet path counts.

use crate::program::{Counts, constants};

kit::counters! {
    /// What the packet path has done since it started, over all CPUs.
    pub struct Counters from Counts {
        straight: "packets", "Packets sent straight into the peer's namespace.";
        redirected: "packets", "Packets sent through the port's own queue.";
        bytes: "bytes", "Bytes forwarded by the fast path.";
        copies: "packets", "Copies that keep the kernel's entries fresh.";
    }
    by {
        kernel: Reason;
    }
}

kit::reasons! {
    /// Why a packet was left to the kernel path; each has a counter.
    pub enum Reason: "packets" {
        Off = constants::REASON_OFF, "off",
            "The fast path is off, by knob or because something about the bridge needs the kernel.";
        Lease = constants::REASON_LEASE, "lease",
            "The process has not looked at the host for too long: it is stopped, or gets no CPU.";
        Short = constants::REASON_SHORT, "short", "No whole Ethernet header in the packet's linear part.";
        Vlan = constants::REASON_VLAN, "vlan", "A VLAN tag that the kernel has to deal with.";
        Group = constants::REASON_GROUP, "group", "To a multicast, broadcast or reserved address.";
        Protocol = constants::REASON_PROTOCOL, "protocol", "A protocol that the kernel has to look at on this bridge.";
        UnknownDestination = constants::REASON_UNKNOWN_DST, "unknown_destination",
            "The destination is not in the table, or is the bridge's own.";
        UnknownSource = constants::REASON_UNKNOWN_SRC, "unknown_source",
            "The source is not in the table, or no station can have its address.";
        Moved = constants::REASON_MOVED, "moved", "The source is known on another port.";
        Unsettled = constants::REASON_UNSETTLED, "unsettled", "Source or destination is new, or has moved, a moment ago.";
        SamePort = constants::REASON_SAME_PORT, "same_port", "The destination is on the port that the packet came from.";
        PortIn = constants::REASON_PORT_IN, "port_in", "Something about the port that the packet came from needs the kernel.";
        PortOut = constants::REASON_PORT_OUT, "port_out", "Something about the destination's port needs the kernel.";
        Isolated = constants::REASON_ISOLATED, "isolated", "Both ports are isolated.";
        NotMember = constants::REASON_NOT_MEMBER, "not_member",
            "The VLAN does not forward on both ports, or the packet is in none.";
        TooLong = constants::REASON_TOO_LONG, "too_long", "Longer than the destination's port or its peer takes.";
        Rules = constants::REASON_RULES, "rules",
            "A rule of netfilter's came, or went, that the process has not looked at yet.";
        Refresh = constants::REASON_REFRESH, "refresh",
            "Sent by the kernel path to keep the kernel's own entry fresh, where no copy can do it.";
    }
}

const _: () = assert!(Reason::ALL.len() == constants::REASONS as usize, "each has a name");

impl Counters {
    /// Packets forwarded by the fast path.
    pub fn forwarded(&self) -> u64 {
        self.straight.wrapping_add(self.redirected)
    }

    /// Packets left to the kernel path, for whatever reason.
    pub fn left_to_kernel(&self) -> u64 {
        self.kernel.iter().fold(0, |sum, one| sum.wrapping_add(*one))
    }
}
