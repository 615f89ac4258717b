//! Why a packet was left to the kernel path.

use crate::program::constants;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $number:ident;)+) => {
        /// Why a packet was left to the kernel path; each has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[doc = $doc])+ $variant = constants::$number as isize,)+ }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)+];

            /// Its name in counters.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)+ }
            }

            /// What it means, in a sentence.
            pub fn help(self) -> &'static str {
                match self { $(Reason::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

// With their numbers in bridge.h, which are those of their counters.
reasons! {
    /// The fast path is off, by knob or because something about the bridge needs the kernel.
    Off = "off", REASON_OFF;
    /// The process has not looked at the host for too long: it is stopped, or gets no CPU.
    Lease = "lease", REASON_LEASE;
    /// No whole Ethernet header in the packet's linear part.
    Short = "short", REASON_SHORT;
    /// A VLAN tag.
    Vlan = "vlan", REASON_VLAN;
    /// To a multicast, broadcast or reserved address.
    Group = "group", REASON_GROUP;
    /// A protocol that the kernel has to look at on this bridge.
    Protocol = "protocol", REASON_PROTOCOL;
    /// The destination is not in the table, or is the bridge's own.
    UnknownDestination = "unknown_destination", REASON_UNKNOWN_DST;
    /// The source is not in the table, or no station can have its address.
    UnknownSource = "unknown_source", REASON_UNKNOWN_SRC;
    /// The source is known on another port.
    Moved = "moved", REASON_MOVED;
    /// Source or destination is new, or has moved, a moment ago.
    Unsettled = "unsettled", REASON_UNSETTLED;
    /// The destination is on the port that the packet came from.
    SamePort = "same_port", REASON_SAME_PORT;
    /// Something about the port that the packet came from needs the kernel.
    PortIn = "port_in", REASON_PORT_IN;
    /// Something about the destination's port needs the kernel.
    PortOut = "port_out", REASON_PORT_OUT;
    /// Both ports are isolated.
    Isolated = "isolated", REASON_ISOLATED;
    /// Longer than the destination's port or its peer takes.
    TooLong = "too_long", REASON_TOO_LONG;
    /// A rule of netfilter's came, or went, that the process has not looked at yet.
    Rules = "rules", REASON_RULES;
    /// Sent by the kernel path to keep the kernel's own entry fresh, where no copy can do it.
    Refresh = "refresh", REASON_REFRESH;
}

const _: () = assert!(Reason::ALL.len() == constants::REASONS as usize, "each has a name");
