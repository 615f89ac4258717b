//! Devices: the bridge, its ports and their peers.

use std::io;

use kit::netlink::{Socket, emitted};
use libc::RTM_GETLINK;
use netlink_packet_core::Parseable as _;
use netlink_packet_route::link::{
    BridgePortState, BridgeStpState, InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData,
    LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
    XdpAttached,
};

use crate::state::{GsoLimits, Mac, PortFlags, StpState, Xdp};

/// What is used of a device.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) kind: Option<InfoKind>,
    pub(super) ethernet: bool,
    pub(super) up: bool,
    pub(super) carrier: bool,
    /// How many want it promiscuous. Not the flag: that tells of `ip link set promisc` alone.
    pub(super) promiscuity: u32,
    pub(super) mtu: u32,
    pub(super) gso: GsoLimits,
    pub(super) mac: Option<Mac>,
    pub(super) master: Option<u32>,
    /// The kind of its root queue discipline.
    pub(super) qdisc: Option<String>,
    pub(super) switch: bool,
    /// The device that it belongs to: a veth's peer.
    pub(super) link: Option<u32>,
    /// The namespace of that device; none if it is this one.
    pub(super) link_namespace: Option<i32>,
    pub(super) xdp: Option<Xdp>,
    /// Settings, if it is a bridge.
    pub(super) bridge: Vec<InfoBridge>,
    /// Settings, if it is the port of a bridge.
    pub(super) port: Option<Settings>,
}

/// How a device is asked for.
pub(super) enum Which<'a> {
    Name(&'a str),
    Index(u32),
    /// By index in the namespace with this id.
    Elsewhere(u32, i32),
}

/// One device.
pub(super) fn link(socket: &mut Socket, which: Which<'_>) -> io::Result<Link> {
    let mut request = request();
    match which {
        Which::Name(name) => request.attributes.push(LinkAttribute::IfName(name.to_owned())),
        Which::Index(index) => request.header.index = index,
        Which::Elsewhere(index, namespace) => {
            request.header.index = index;
            request.attributes.push(LinkAttribute::IfNetnsId(namespace));
        }
    }
    socket.one(RTM_GETLINK, &emitted(&request), parse)
}

/// How many packets a device has received.
pub(super) fn received(socket: &mut Socket, index: u32) -> io::Result<u64> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    socket.one(RTM_GETLINK, &emitted(&request), |message| {
        let count = |attribute| match attribute {
            LinkAttribute::Stats64(stats) => Some(stats.rx_packets),
            _ => None,
        };
        message_of(message)?
            .attributes
            .into_iter()
            .find_map(count)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a device without counters"))
    })
}

/// The ports of a bridge, by their numbers.
pub(super) fn ports(socket: &mut Socket, bridge: u32) -> io::Result<Vec<Link>> {
    let mut request = request();
    request.attributes.push(LinkAttribute::Controller(bridge));
    let mut links = socket.dump(RTM_GETLINK, &emitted(&request), |message| {
        // Kernels may pass over the filter.
        Ok(Some(parse(message)?).filter(|link| link.master == Some(bridge) && link.port.is_some()))
    })?;
    links.sort_by_key(|link| link.port.as_ref().map(|port| port.number));
    Ok(links)
}

/// The indexes and names of all bridges, by name.
pub(super) fn bridges(socket: &mut Socket) -> io::Result<Vec<(u32, String)>> {
    let mut request = request();
    request.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
    let mut bridges = socket.dump(RTM_GETLINK, &emitted(&request), |message| {
        let link = parse(message)?;
        Ok((link.kind == Some(InfoKind::Bridge)).then_some((link.index, link.name)))
    })?;
    bridges.sort_by(|(_, a), (_, b)| a.cmp(b));
    Ok(bridges)
}

/// What a bridge says of a port.
#[derive(Debug)]
pub(super) struct Settings {
    /// The bridge's number for it.
    pub(super) number: u16,
    /// Where it stands in the spanning tree.
    pub(super) stp: StpState,
    pub(super) flags: PortFlags,
}

impl Settings {
    fn of(infos: Vec<InfoBridgePort>) -> Self {
        let (number, stp) = (0, StpState::Disabled);
        let mut found = Self { number, stp, flags: PortFlags::default() };
        let flags = &mut found.flags;
        for info in infos {
            match info {
                InfoBridgePort::PortNumber(number) => found.number = number,
                InfoBridgePort::State(state) => found.stp = stp_state(state),
                InfoBridgePort::Learning(on) => flags.learning = on,
                InfoBridgePort::HairpinMode(on) => flags.hairpin = on,
                InfoBridgePort::Isolated(on) => flags.isolated = on,
                InfoBridgePort::Locked(on) => flags.locked = on,
                InfoBridgePort::Mab(on) => flags.mab = on,
                InfoBridgePort::NeighSupress(on) | InfoBridgePort::NeighVlanSuppress(on) => {
                    flags.neigh_suppress |= on;
                }
                InfoBridgePort::ProxyARP(on) | InfoBridgePort::ProxyARPWifi(on) => {
                    flags.proxy_arp |= on;
                }
                InfoBridgePort::VlanTunnel(on) => flags.vlan_tunnel = on,
                InfoBridgePort::BackupPort(id) | InfoBridgePort::BackupNextHopId(id) => {
                    flags.backup |= id != 0;
                }
                InfoBridgePort::GroupFwdMask(mask) => flags.group_forward = mask,
                _ => {}
            }
        }
        found
    }
}

fn stp_state(state: BridgePortState) -> StpState {
    match state {
        BridgePortState::Listening => StpState::Listening,
        BridgePortState::Learning => StpState::Learning,
        BridgePortState::Forwarding => StpState::Forwarding,
        BridgePortState::Blocking => StpState::Blocking,
        // With what a kernel may come to have.
        _ => StpState::Disabled,
    }
}

/// Whether the spanning tree is on, in the kernel or in a daemon.
pub(super) fn stp_on(state: BridgeStpState) -> bool {
    !matches!(state, BridgeStpState::Disabled)
}

/// A request that leaves out the counters, which are most of an answer.
fn request() -> LinkMessage {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    request
}

fn message_of(bytes: &[u8]) -> io::Result<LinkMessage> {
    LinkMessage::parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn parse(message: &[u8]) -> io::Result<Link> {
    let message = message_of(message)?;
    let header = message.header;
    let mut link = Link {
        index: header.index,
        ethernet: header.link_layer_type == LinkLayerType::Ether,
        up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        ..Link::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::GsoMaxSize(size) => link.gso.size = size,
            LinkAttribute::GsoIpv4MaxSize(size) => link.gso.ipv4_size = size,
            LinkAttribute::GsoMaxSegs(segments) => link.gso.segments = segments,
            LinkAttribute::Address(bytes) => link.mac = bytes.try_into().ok().map(Mac),
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::Qdisc(kind) => link.qdisc = Some(kind),
            LinkAttribute::Promiscuity(count) => link.promiscuity = count,
            LinkAttribute::PhysSwitchId(_) => link.switch = true,
            LinkAttribute::Link(index) => link.link = Some(index),
            LinkAttribute::LinkNetNsId(id) => link.link_namespace = Some(id),
            LinkAttribute::Xdp(xdp) => link.xdp = Some(xdp_mode(&xdp)),
            LinkAttribute::LinkInfo(infos) => infos.into_iter().for_each(|info| link.learn(info)),
            _ => {}
        }
    }
    Ok(link)
}

impl Link {
    /// Whether it is a bridge that looks at VLANs.
    pub(super) fn looks_at_vlans(&self) -> bool {
        self.bridge.contains(&InfoBridge::VlanFiltering(true))
    }

    fn learn(&mut self, info: LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = Some(kind),
            LinkInfo::Data(InfoData::Bridge(settings)) => self.bridge = settings,
            LinkInfo::PortData(InfoPortData::BridgePort(infos)) => {
                self.port = Some(Settings::of(infos));
            }
            _ => {}
        }
    }
}

fn xdp_mode(xdp: &[LinkXdp]) -> Xdp {
    let attached = |xdp: &LinkXdp| match xdp {
        LinkXdp::Attached(attached) => Some(*attached),
        _ => None,
    };
    match xdp.iter().find_map(attached) {
        None | Some(XdpAttached::None) => Xdp::None,
        Some(XdpAttached::SocketBuffer) => Xdp::Generic,
        // With several, one of them is in the driver.
        Some(_) => Xdp::Native,
    }
}
