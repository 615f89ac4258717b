//! Why a packet was left to the kernel path.

// In the order of `enum reason` in bridge.h.
kit::reasons! {
    /// Why a packet was left to the kernel path; each has a counter.
    pub enum Reason: "packets" {
        Off = "off",
            "The fast path is off, by knob or because something about the bridge needs the kernel.";
        Lease = "lease",
            "The process has not looked at the host for too long: it is stopped, or gets no CPU.";
        Short = "short", "No whole Ethernet header in the packet's linear part.";
        Vlan = "vlan", "A VLAN tag.";
        Group = "group", "To a multicast, broadcast or reserved address.";
        Protocol = "protocol", "A protocol that the kernel has to look at on this bridge.";
        UnknownDestination = "unknown_destination",
            "The destination is not in the table, or is the bridge's own.";
        UnknownSource = "unknown_source",
            "The source is not in the table, or no station can have its address.";
        Moved = "moved", "The source is known on another port.";
        Unsettled = "unsettled", "Source or destination is new, or has moved, a moment ago.";
        SamePort = "same_port", "The destination is on the port that the packet came from.";
        PortIn = "port_in", "Something about the port that the packet came from needs the kernel.";
        PortOut = "port_out", "Something about the destination's port needs the kernel.";
        Isolated = "isolated", "Both ports are isolated.";
        TooLong = "too_long", "Longer than the destination's port or its peer takes.";
        Rules = "rules",
            "A rule of netfilter's came, or went, that the process has not looked at yet.";
        Refresh = "refresh",
            "Sent by the kernel path to keep the kernel's own entry fresh, where no copy can do it.";
    }
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
