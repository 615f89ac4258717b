//! What is read of the host about one bridge: plain data, everything that [`decide`](crate::decide)
//! needs and nothing else.

use std::sync::Arc;
use std::time::Duration;

pub use kit::Mac;

pub use crate::vlans::{Membership, VlanProtocol, Vlans};

/// A bridge, its ports, and what else the kernel does to packets between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The bridge device.
    pub bridge: Bridge,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<Port>,
    /// Netfilter in this namespace, as far as it can touch bridged packets.
    pub netfilter: Netfilter,
    /// The devices of the packet sockets (`tcpdump` and its kind) that see what a port sends or
    /// receives; 0 for all.
    pub taps: Vec<u32>,
    /// The longest that a look at the host has taken of late; zero where none was measured.
    pub longest_look: Duration,
}

/// The bridge device and its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Interface index.
    pub index: u32,
    /// Device name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is promiscuous (`IFF_PROMISC`): the host then gets a copy of every packet.
    pub promiscuous: bool,
    /// The tags that it goes by; none if it looks at none (`vlan_filtering 0`).
    pub vlans: Option<VlanProtocol>,
    /// Whether it counts packets by their VLANs (`vlan_stats_enabled`).
    pub vlan_stats: bool,
    /// Whether VLANs have spanning trees of their own (`mst_enabled`), whose states are announced
    /// to nobody.
    pub mst: bool,
    /// Whether it speaks a spanning tree protocol.
    pub stp: bool,
    /// How long an address that is not seen stays known; zero learns nothing.
    pub ageing: Duration,
    /// That time while the topology changes, which happens only with STP.
    pub forward_delay: Duration,
    /// Whether it learns from what is sent to the reserved addresses (not with
    /// `no_linklocal_learn`).
    pub link_local_learning: bool,
    /// What it forwards of what is sent to the reserved addresses, a bit for each
    /// (`group_fwd_mask`).
    pub group_forward: u16,
    /// What `br_netfilter` hands to the IP tables: of the namespace or of the bridge itself,
    /// whichever is on. All off where `br_netfilter` is not there.
    pub calls: Calls,
}

/// The protocols of bridged packets that `br_netfilter` passes through the IP tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// IPv4 (`bridge-nf-call-iptables`).
    pub iptables: bool,
    /// IPv6 (`bridge-nf-call-ip6tables`).
    pub ip6tables: bool,
    /// ARP (`bridge-nf-call-arptables`).
    pub arptables: bool,
}

/// A port of the bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Interface index.
    pub index: u32,
    /// Device name.
    pub name: String,
    /// The bridge's number for it, 1 to 1023.
    pub number: u16,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it is an Ethernet device (`ARPHRD_ETHER`).
    pub ethernet: bool,
    /// Largest packet without the Ethernet header, in bytes.
    pub mtu: u32,
    /// The GSO packets that its driver takes in one piece.
    pub gso: GsoLimits,
    /// Where it stands in the spanning tree.
    pub stp: StpState,
    /// The bridge's settings of this port.
    pub flags: PortFlags,
    /// Whether a switch forwards for it (`IFLA_PHYS_SWITCH_ID`).
    pub switch: bool,
    /// Whether its root queue discipline is `noqueue`: nothing waits there and nothing counts.
    pub noqueue: bool,
    /// Whether a tc filter (not tcx) is attached to its ingress.
    pub ingress_filters: bool,
    /// Whether a tc filter (not tcx) is attached to its egress.
    pub egress_filters: bool,
    /// The XDP program on it.
    pub xdp: Xdp,
    /// The tcx programs on its ingress, by program id, in the order in which they run.
    pub tcx_ingress: Vec<u32>,
    /// The tcx programs on its egress, by program id, in the order in which they run.
    pub tcx_egress: Vec<u32>,
    /// Whether its driver takes GSO packets and packets without a checksum as they are; where it
    /// does not, the kernel cuts and sums them on the way out.
    pub takes_unfinished: bool,
    /// The other end, where it is a veth.
    pub peer: Option<Peer>,
    /// Why our program cannot be attached to it, where that was tried.
    pub refused: Option<String>,
    /// Whether it receives packets of which none gets to our program, behind others.
    pub unseen: bool,
    /// The VLANs that it is in; none if they were not read, as nobody looks at them.
    pub vlans: Option<Arc<Vlans>>,
    /// Whether the packet path has no room for its VLANs.
    pub no_vlan_room: bool,
}

/// The GSO packets that a device takes in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoLimits {
    /// They are shorter than this, with their Ethernet header, in bytes.
    pub size: u32,
    /// As `size`, for those that are not IPv6.
    pub ipv4_size: u32,
    /// The most packets that one comes to.
    pub segments: u32,
}

impl Default for GsoLimits {
    /// What a device has that nobody has set anything of.
    fn default() -> Self {
        Self { size: 65_536, ipv4_size: 65_536, segments: 65_535 }
    }
}

/// The spanning tree's states of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum StpState {
    /// Down, or taken out of service.
    Disabled,
    /// Listens to BPDUs alone.
    Listening,
    /// Learns addresses and forwards nothing.
    Learning,
    /// Forwards.
    Forwarding,
    /// Drops, to break a loop.
    Blocking,
}

/// The bridge's settings of a port, as `bridge -d link` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFlags {
    /// Learns addresses from what it receives.
    pub learning: bool,
    /// Sends packets back out where they came in.
    pub hairpin: bool,
    /// Exchanges nothing with other isolated ports.
    pub isolated: bool,
    /// Takes packets from known addresses alone.
    pub locked: bool,
    /// Makes locked entries of unknown addresses (MAC authentication bypass).
    pub mab: bool,
    /// Answers ARP and neighbour discovery for others, in whole or by VLAN.
    pub neigh_suppress: bool,
    /// Answers ARP for others, the older way (`proxy_arp`, `proxy_arp_wifi`).
    pub proxy_arp: bool,
    /// Maps VLANs to tunnels.
    pub vlan_tunnel: bool,
    /// Hands its packets to another port while it is down.
    pub backup: bool,
    /// What is forwarded from it of what is sent to the reserved addresses, beside the bridge's
    /// own (`group_fwd_mask`).
    pub group_forward: u16,
}

/// The other end of a veth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Interface index in its own namespace.
    pub index: u32,
    /// Whether it is in this namespace as well.
    pub here: bool,
    /// What is known of it; none where its namespace cannot be asked.
    pub details: Option<PeerDetails>,
}

/// What is known of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDetails {
    /// Hardware address.
    pub mac: Mac,
    /// Whether it is up.
    pub up: bool,
    /// Largest packet without the Ethernet header, in bytes.
    pub mtu: u32,
    /// The XDP program on it.
    pub xdp: Xdp,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Xdp {
    /// There is none.
    None,
    /// In the driver, or in the device.
    Native,
    /// In the stack, on packets of any driver.
    Generic,
}

/// Netfilter hooks that see bridged packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netfilter {
    /// What is hooked into the bridge family (nft tables, ebtables), `br_netfilter` left out:
    /// names for people. Not empty: every packet has to take the kernel path.
    pub bridge: Vec<String>,
    /// Hooks on the ingress of a device.
    pub ingress: Vec<DeviceHook>,
    /// Hooks on the egress of a device.
    pub egress: Vec<DeviceHook>,
}

/// A netfilter hook on a device, or on every device whose name starts so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHook {
    /// Device name, or the start of it if `prefix` is set.
    pub device: String,
    /// Whether `device` is the start of a name.
    pub prefix: bool,
    /// What is hooked, for people: an nft table and chain.
    pub what: String,
}

impl DeviceHook {
    /// Whether it is on the device of this name.
    pub fn is_on(&self, device: &str) -> bool {
        if self.prefix { device.starts_with(&self.device) } else { device == self.device }
    }
}

/// What the kernel's forwarding table has an entry by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The station's address.
    pub mac: Mac,
    /// The VLAN in which it is that station's; 0 where the bridge looked at no VLANs.
    pub vlan: u16,
}

impl From<Mac> for Key {
    fn from(mac: Mac) -> Self {
        Self { mac, vlan: 0 }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.vlan {
            0 => write!(f, "{}", self.mac),
            vlan => write!(f, "{} in VLAN {vlan}", self.mac),
        }
    }
}

/// An entry of the kernel's forwarding table, as a dump or a notification has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The station's address and VLAN.
    pub key: Key,
    /// The port's interface index; the bridge's own for entries of the bridge itself.
    pub port: u32,
    /// What it is.
    pub kind: EntryKind,
    /// The kernel would not move it to another port (`sticky`).
    pub sticky: bool,
    /// Only the kernel may use it: a locked entry, one of a tunnel, or one whose activity is
    /// watched.
    pub kernel_only: bool,
}

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Learned, or added as if it were: forgotten after the ageing time.
    Ageing,
    /// Stays until it is removed.
    Static,
    /// The bridge's own: packets to it go up to the host.
    Local,
}

/// What a notification says about the forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entry is there now, or has changed.
    Set(Entry),
    /// The entry is gone.
    Removed(Key),
}
