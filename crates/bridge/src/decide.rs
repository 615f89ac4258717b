//! What may be taken from and sent to which port: a pure function of what was read of the host.

mod plan;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::Lease;
use crate::state::{
    Bridge, GsoLimits, Mac, Peer, PeerDetails, Port, State, StpState, VlanProtocol, Vlans, Xdp,
};

/// The length of an Ethernet header in bytes.
const HEADER: u32 = 14;

/// What the fast path may do on a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Why nothing at all may take the fast path. Empty: nothing stands in the way.
    pub obstacles: Vec<Obstacle>,
    /// Protocols that take the kernel path on every port.
    pub left: Vec<Protocol>,
    /// The tags that the bridge goes by; none if it looks at none.
    pub vlans: Option<VlanProtocol>,
    /// How often the kernel has to see an entry's packets so that it does not forget it. Zero:
    /// every time.
    pub refresh: Duration,
    /// For how long the packet path goes by a look at the host.
    pub lease: Lease,
    /// Each port, in the order of their numbers.
    pub ports: Vec<PortPlan>,
}

/// What the fast path may do on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Interface index.
    pub index: u32,
    /// Device name.
    pub name: String,
    /// The bridge's number for it, 1 to 1023.
    pub number: u16,
    /// The ids of the tcx programs that see its packets before ours does, in their order.
    pub before: Vec<u32>,
    /// Why nothing may be taken from it. Empty: packets may be taken.
    pub receive: Vec<Obstacle>,
    /// How the kernel's entries for stations on it are kept fresh.
    pub refresh: Refresh,
    /// How packets may be sent to it.
    pub send: Way,
    /// Why not in a better way than `send`.
    pub limits: Vec<Obstacle>,
    /// The longest frame that may be sent to it with its Ethernet header, in bytes, if it is not a
    /// GSO packet.
    pub max_len: u32,
    /// The GSO packets that may be sent to it straight; its queue cuts up others.
    pub gso: GsoLimits,
    /// Whether it exchanges nothing with other isolated ports.
    pub isolated: bool,
    /// The address of its peer, which packets must have to be sent straight.
    pub peer: Option<Mac>,
    /// The VLANs that it is in, where the bridge looks at them.
    pub vlans: Option<Arc<Vlans>>,
}

/// How the kernel is shown that a station is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// Not at all: it learns nothing from what this port receives.
    Never,
    /// By a packet that takes the kernel path, and may be overtaken.
    Packet,
    /// By a copy of a packet.
    Copy,
}

/// How packets are sent to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Way {
    /// By the bridge alone.
    Kernel,
    /// Through the port's own queue discipline and egress filters.
    Queue,
    /// Packets for the peer's own address straight into its namespace, others as by `Queue`.
    Straight,
}

/// Protocols that may be the kernel's on every port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum Protocol {
    /// IPv4.
    #[strum(serialize = "IPv4")]
    Ipv4,
    /// IPv6.
    #[strum(serialize = "IPv6")]
    Ipv6,
    /// ARP and RARP.
    #[strum(serialize = "ARP")]
    Arp,
    /// PPPoE sessions, which carry either.
    #[strum(serialize = "PPPoE")]
    Pppoe,
    /// Neighbour discovery, and whatever else is ICMPv6.
    #[strum(serialize = "neighbour discovery")]
    Nd,
}

/// Declares the obstacles: each has a stable name, and what it is, as people read it.
macro_rules! obstacles {
    ($($variant:ident $(($field:ident: $ty:ty))? = $id:literal, $text:literal $(, $arg:expr)?;)+) => {
        /// Something that the kernel has to do itself.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Obstacle { $(#[doc = $text] $variant $(($ty))?,)+ }

        impl Obstacle {
            /// A stable name of its sort.
            pub fn id(&self) -> &'static str {
                match self { $(obstacles!(@pattern $variant $($field)?) => $id,)+ }
            }
        }

        impl fmt::Display for Obstacle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Obstacle::$variant $(($field))? => write!(f, $text $(, $arg)?),)+
                }
            }
        }
    };
    (@pattern $variant:ident) => { Obstacle::$variant };
    (@pattern $variant:ident $field:ident) => { Obstacle::$variant(_) };
}

obstacles! {
    BridgeDown = "bridge-down", "the bridge is down";
    Promiscuous = "promiscuous",
        "the bridge is promiscuous, so the host gets a copy of every packet (a capture on it?)";
    VlanStats = "vlan-stats", "counts packets by VLAN (bridge vlan_stats_enabled 1)";
    BridgeHooks(what: Vec<String>) = "bridge-hooks",
        "netfilter rules of the bridge family: {}", what.join(", ");
    SlowLooks(time: Duration) = "slow-looks",
        "a look at the host takes {:.1?}, too long to go by it", time;
    NotRunning = "not-running", "down or without a carrier";
    NotEthernet = "not-ethernet", "not an Ethernet device";
    Switch = "switch", "a hardware switch forwards for it";
    Stp(state: StpState) = "stp-state", "spanning tree state {}", state;
    Locked = "locked", "locked: only known addresses may send (bridge link locked, mab)";
    Answers = "answers-for-others",
        "answers ARP or neighbour discovery for others (neigh_suppress, proxy_arp)";
    VlanTunnel = "vlan-tunnel", "maps VLANs to tunnels (vlan_tunnel)";
    VlansUnread = "vlans-unread", "its VLANs have not been read yet";
    VlanRoom = "vlan-room",
        "no room for its VLANs, as many ports have come since cachelane started (restart it)";
    Backup = "backup-port", "another port stands in for it (backup_port)";
    IngressFilters = "ingress-filters", "tc filters on its ingress";
    IngressHooks(what: Vec<String>) = "ingress-hooks",
        "netfilter rules on its ingress: {}", what.join(", ");
    Refused(why: String) = "not-attached", "our program cannot be attached: {}", why;
    Behind(ids: Vec<u32>) = "tcx-behind",
        "tcx programs attached after ours: {}",
        ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    Unseen = "tcx-keeps-all", "the tcx programs before ours let nothing through of what it receives";
    PeerUnknown = "peer-unknown", "its peer's namespace cannot be asked about the peer";
    PeerGenericXdp = "peer-generic-xdp",
        "a generic XDP program on its peer, which redirected packets would pass by";
    NoPeer = "no-peer", "not a veth";
    PeerHere = "peer-here", "its peer is in the same namespace";
    PeerDown = "peer-down", "its peer is down";
    PeerXdp = "peer-xdp", "an XDP program on its peer";
    QueueDiscipline = "queue-discipline", "a queue discipline on it";
    EgressFilters = "egress-filters", "tc filters on its egress";
    EgressHooks(what: Vec<String>) = "egress-hooks",
        "netfilter rules on its egress: {}", what.join(", ");
    Offloads = "offloads-off", "checksum or segmentation offload is off (ethtool -k)";
    Taps = "taps", "packet sockets watch what it sends (a capture?)";
}

/// Decides what the fast path may do. `ours` is the id of our own tcx program, where it is
/// attached already.
pub fn decide(state: &State, ours: Option<u32>) -> Plan {
    Plan {
        obstacles: of_bridge(state),
        left: left(state),
        vlans: state.bridge.vlans,
        refresh: refresh(&state.bridge),
        lease: Lease::of(state.longest_look),
        ports: state.ports.iter().map(|port| of_port(state, port, ours)).collect(),
    }
}

/// Those that are there.
fn those<T, const N: usize>(found: [Option<T>; N]) -> Vec<T> {
    found.into_iter().flatten().collect()
}

fn of_bridge(state: &State) -> Vec<Obstacle> {
    let hooks = &state.netfilter.bridge;
    let slow = Lease::of(state.longest_look).length.is_none();
    those([
        (!state.bridge.up).then_some(Obstacle::BridgeDown),
        state.bridge.promiscuous.then_some(Obstacle::Promiscuous),
        (state.bridge.vlans.is_some() && state.bridge.vlan_stats).then_some(Obstacle::VlanStats),
        (!hooks.is_empty()).then(|| Obstacle::BridgeHooks(hooks.clone())),
        slow.then_some(Obstacle::SlowLooks(state.longest_look)),
    ])
}

/// What `br_netfilter` claims, and what a port that answers for others may answer: the bridge asks
/// for the answer wherever the question comes from, and wherever it goes.
fn left(state: &State) -> Vec<Protocol> {
    let calls = state.bridge.calls;
    let answers = state.ports.iter().any(answers);
    those([
        calls.iptables.then_some(Protocol::Ipv4),
        calls.ip6tables.then_some(Protocol::Ipv6),
        (calls.arptables || answers).then_some(Protocol::Arp),
        (calls.iptables || calls.ip6tables).then_some(Protocol::Pppoe),
        answers.then_some(Protocol::Nd),
    ])
}

/// A quarter of the shortest time after which the kernel may forget an address.
fn refresh(bridge: &Bridge) -> Duration {
    if bridge.stp { bridge.ageing.min(bridge.forward_delay) / 4 } else { bridge.ageing / 4 }
}

fn of_port(state: &State, port: &Port, ours: Option<u32>) -> PortPlan {
    let common = in_both_directions(state, port);
    let mut receive = common.clone();
    receive.extend(against_receiving(state, port, ours));
    let mut kernel = common;
    kernel.extend(against_sending(state, port));
    let queue = against_straight(state, port);
    let (send, limits) = match (kernel.is_empty(), queue.is_empty()) {
        (false, _) => (Way::Kernel, kernel),
        (true, false) => (Way::Queue, queue),
        (true, true) => (Way::Straight, Vec::new()),
    };
    let details = port.peer.as_ref().and_then(|peer| peer.details);
    let mtu = details.map_or(port.mtu, |peer| peer.mtu.min(port.mtu));
    PortPlan {
        index: port.index,
        name: port.name.clone(),
        number: port.number,
        before: port.tcx_ingress[..place(port, ours)].to_vec(),
        receive,
        refresh: how_to_refresh(state, port, ours),
        send,
        limits,
        max_len: mtu.saturating_add(HEADER),
        gso: port.gso,
        isolated: port.flags.isolated,
        peer: details.filter(|_| send == Way::Straight).map(|peer| peer.mac),
        vlans: port.vlans.clone().filter(|_| state.bridge.vlans.is_some()),
    }
}

fn in_both_directions(state: &State, port: &Port) -> Vec<Obstacle> {
    let forwarding = port.stp == StpState::Forwarding;
    let by_vlan = state.bridge.vlans.is_some();
    let flags = port.flags;
    those([
        (!port.running).then_some(Obstacle::NotRunning),
        (!port.ethernet).then_some(Obstacle::NotEthernet),
        port.switch.then_some(Obstacle::Switch),
        (!forwarding).then_some(Obstacle::Stp(port.stp)),
        answers(port).then_some(Obstacle::Answers),
        flags.vlan_tunnel.then_some(Obstacle::VlanTunnel),
        (by_vlan && port.vlans.is_none()).then_some(Obstacle::VlansUnread),
        (by_vlan && port.no_vlan_room).then_some(Obstacle::VlanRoom),
    ])
}

/// Whether it answers ARP or neighbour discovery for others.
fn answers(port: &Port) -> bool {
    port.flags.neigh_suppress || port.flags.proxy_arp
}

fn against_receiving(state: &State, port: &Port, ours: Option<u32>) -> Vec<Obstacle> {
    let hooks: Vec<String> = on(&state.netfilter.ingress, &port.name);
    let behind = port.tcx_ingress.get(place(port, ours) + 1..).unwrap_or_default();
    those([
        (port.flags.locked || port.flags.mab).then_some(Obstacle::Locked),
        port.ingress_filters.then_some(Obstacle::IngressFilters),
        (!hooks.is_empty()).then_some(Obstacle::IngressHooks(hooks)),
        (!behind.is_empty()).then(|| Obstacle::Behind(behind.to_vec())),
        port.refused.clone().map(Obstacle::Refused),
        port.unseen.then_some(Obstacle::Unseen),
    ])
}

/// A copy goes to the reserved address for LLDP, and comes in at the port a second time: the bridge
/// has to learn from it and to forward it nowhere, and nobody else may see it.
fn how_to_refresh(state: &State, port: &Port, ours: Option<u32>) -> Refresh {
    const LLDP: u16 = 1 << 0x0e;
    let forwarded = (state.bridge.group_forward | port.flags.group_forward) & LLDP != 0;
    let seen = tapped(state, port) || port.xdp == Xdp::Generic || place(port, ours) > 0;
    match port.flags.learning {
        false => Refresh::Never,
        true if state.bridge.link_local_learning && !forwarded && !seen => Refresh::Copy,
        true => Refresh::Packet,
    }
}

/// Our place among the tcx programs on a port's ingress. Before we are attached it is behind them.
fn place(port: &Port, ours: Option<u32>) -> usize {
    let programs = &port.tcx_ingress;
    let found = ours.and_then(|id| programs.iter().position(|program| *program == id));
    found.unwrap_or(programs.len())
}

fn against_sending(state: &State, port: &Port) -> Vec<Obstacle> {
    // They do not see what a tc program has redirected.
    let hooks: Vec<String> = on(&state.netfilter.egress, &port.name);
    let unknown = port.peer.as_ref().is_some_and(|peer| peer.details.is_none());
    let generic = details(port).is_some_and(|peer| peer.xdp == Xdp::Generic);
    those([
        port.flags.backup.then_some(Obstacle::Backup),
        unknown.then_some(Obstacle::PeerUnknown),
        generic.then_some(Obstacle::PeerGenericXdp),
        (!hooks.is_empty()).then_some(Obstacle::EgressHooks(hooks)),
    ])
}

/// What only the port's own queue does, or shows.
fn against_straight(state: &State, port: &Port) -> Vec<Obstacle> {
    let filters = port.egress_filters || !port.tcx_egress.is_empty();
    those([
        port.peer.is_none().then_some(Obstacle::NoPeer),
        port.peer.as_ref().is_some_and(|peer: &Peer| peer.here).then_some(Obstacle::PeerHere),
        details(port).is_some_and(|peer| !peer.up).then_some(Obstacle::PeerDown),
        details(port).is_some_and(|peer| peer.xdp != Xdp::None).then_some(Obstacle::PeerXdp),
        (!port.noqueue).then_some(Obstacle::QueueDiscipline),
        filters.then_some(Obstacle::EgressFilters),
        (!port.takes_unfinished).then_some(Obstacle::Offloads),
        // What a port receives, its packet sockets have seen before any tcx program has.
        tapped(state, port).then_some(Obstacle::Taps),
    ])
}

fn tapped(state: &State, port: &Port) -> bool {
    state.taps.iter().any(|tap| *tap == 0 || *tap == port.index)
}

fn details(port: &Port) -> Option<PeerDetails> {
    port.peer.as_ref().and_then(|peer| peer.details)
}

fn on(hooks: &[crate::state::DeviceHook], device: &str) -> Vec<String> {
    hooks.iter().filter(|hook| hook.is_on(device)).map(|hook| hook.what.clone()).collect()
}

impl Way {
    /// Its name in output.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests;
