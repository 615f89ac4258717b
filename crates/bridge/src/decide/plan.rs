//! What a plan comes to, and what it says to people.

use super::{Obstacle, Plan, PortPlan, Protocol, Way};

impl Plan {
    /// Whether a packet may be forwarded at all: nothing forbids it, and there are a port to take
    /// it from and another to send it to, in one VLAN where the bridge looks at VLANs.
    pub fn can_forward(&self) -> bool {
        let from = |port: &PortPlan| port.receive.is_empty();
        let to = |other: &PortPlan| other.send > Way::Kernel;
        let meet = |port: &PortPlan, other: &PortPlan| match (&port.vlans, &other.vlans) {
            (Some(ours), Some(theirs)) => ours.meets(theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        self.obstacles.is_empty()
            && self.ports.iter().any(|port| {
                let reaches =
                    |other: &PortPlan| other.index != port.index && to(other) && meet(port, other);
                from(port) && self.ports.iter().any(reaches)
            })
    }

    /// What concerns every port, in sentences: what is left to the kernel path, and why.
    pub fn remarks(&self) -> Vec<String> {
        let whole = self.obstacles.iter().map(|o| format!("all is left to the kernel path: {o}"));
        let answers = |port: &&PortPlan| port.receive.contains(&Obstacle::Answers);
        let answering: Vec<&str> =
            self.ports.iter().filter(answers).map(|port| port.name.as_str()).collect();
        let asked = (!answering.is_empty()).then(|| {
            format!(
                "ARP and neighbour discovery left to the kernel path on every port: {} answers for \
                 others (neigh_suppress, proxy_arp)",
                answering.join(", ")
            )
        });
        let by_ports = |protocol: &Protocol| {
            *protocol == Protocol::Nd || *protocol == Protocol::Arp && asked.is_some()
        };
        let left: Vec<String> =
            self.left.iter().filter(|left| !by_ports(left)).map(ToString::to_string).collect();
        let protocols = (!left.is_empty()).then(|| {
            format!(
                "{} left to the kernel path: br_netfilter hands it to the IP tables (sysctl \
                 net.bridge.bridge-nf-call-iptables, -ip6tables, -arptables)",
                left.join(", ")
            )
        });
        whole.chain(protocols).chain(asked).collect()
    }
}
