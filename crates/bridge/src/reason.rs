//! Why a packet was left to the kernel path.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a packet was left to the kernel path; each has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[doc = $doc])+ $variant,)+ }

        impl Reason {
            /// All of them, in the order of the packet path's counters.
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

// In the order of `enum reason` in bridge.h.
reasons! {
    /// The fast path is off, by knob or because something about the bridge needs the kernel.
    Off = "off",
    /// The process has not looked at the host for too long: it is stopped, or gets no CPU.
    Lease = "lease",
    /// No whole Ethernet header in the packet's linear part.
    Short = "short",
    /// A VLAN tag.
    Vlan = "vlan",
    /// To a multicast, broadcast or reserved address.
    Group = "group",
    /// A protocol that the kernel has to look at on this bridge.
    Protocol = "protocol",
    /// The destination is not in the table, or is the bridge's own.
    UnknownDestination = "unknown_destination",
    /// The source is not in the table, or no station can have its address.
    UnknownSource = "unknown_source",
    /// The source is known on another port.
    Moved = "moved",
    /// Source or destination is new, or has moved, a moment ago.
    Unsettled = "unsettled",
    /// The destination is on the port that the packet came from.
    SamePort = "same_port",
    /// Something about the port that the packet came from needs the kernel.
    PortIn = "port_in",
    /// Something about the destination's port needs the kernel.
    PortOut = "port_out",
    /// Both ports are isolated.
    Isolated = "isolated",
    /// Longer than the destination's port or its peer takes.
    TooLong = "too_long",
    /// A rule of netfilter's came, or went, that the process has not looked at yet.
    Rules = "rules",
    /// Sent by the kernel path to keep the kernel's own entry fresh, where no copy can do it.
    Refresh = "refresh",
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in bridge.h, in its order, as far as they can be compared: `UNKNOWN_DST` is
    /// `unknown_destination` here.
    #[test]
    fn reasons_stand_in_the_order_of_the_header() {
        let header = include_str!("bpf/bridge.h");
        let start = header.find("enum reason {").expect("the enum is there");
        let names: Vec<String> = header[start..]
            .lines()
            .skip(1)
            .map(str::trim)
            .take_while(|line| !line.starts_with("REASONS"))
            .filter_map(|line| line.strip_prefix("REASON_")?.split(',').next())
            .map(|name| {
                name.to_lowercase().replace("_dst", "_destination").replace("_src", "_source")
            })
            .collect();
        let ours: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names, ours);
    }
}
