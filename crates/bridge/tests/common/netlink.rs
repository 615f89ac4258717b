//! Settings that the `bridge` program of some distributions does not know yet.

use std::io;

use kit::netlink::{message, nested_attribute};
use lab::Host;
use netlink_packet_core::{
    DefaultNla, Emitable as _, NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgeBooleanOptionFlags, BridgeBooleanOptions, InfoBridge, InfoBridgePort, InfoData, InfoKind,
    InfoPortData, InfoPortKind, LinkAttribute, LinkInfo, LinkMessage,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Sets the most addresses that the bridge learns.
///
/// # Errors
/// Those of the kernel: it knows this setting from 6.7 on.
pub fn set_max_learned(host: &Host, most: u32) -> io::Result<()> {
    let data = InfoData::Bridge(vec![InfoBridge::FdbMaxLearned(most)]);
    change(host, "br0", vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(data)])
}

/// Turns an option of the bridge on or off that is one of its bits.
///
/// # Errors
/// Those of the kernel: `EOPNOTSUPP`, or `EINVAL`, for options that it does not know.
pub fn set_option(host: &Host, option: BridgeBooleanOptionFlags, on: bool) -> io::Result<()> {
    let value = if on { option } else { BridgeBooleanOptionFlags::empty() };
    let options = BridgeBooleanOptions { value, mask: option };
    let data = InfoData::Bridge(vec![InfoBridge::MultiBoolOpt(options)]);
    change(host, "br0", vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(data)])
}

/// Puts a VLAN into a spanning tree of its own.
///
/// # Errors
/// Those of the kernel: the bridge has to have `mst_enabled`, and the VLAN.
pub fn set_tree(host: &Host, bridge: u32, vlan: u16, tree: u16) -> io::Result<()> {
    const RTM_NEWVLAN: u16 = 112;
    const BRIDGE_VLANDB_GLOBAL_OPTIONS: u16 = 2;
    const BRIDGE_VLANDB_GOPTS_ID: u16 = 1;
    const BRIDGE_VLANDB_GOPTS_MSTI: u16 = 18;
    let header = [&[libc::AF_BRIDGE as u8, 0, 0, 0][..], &bridge.to_ne_bytes()].concat();
    let number = |kind, value: u16| DefaultNla::new(kind, value.to_ne_bytes().to_vec());
    let options = [number(BRIDGE_VLANDB_GOPTS_ID, vlan), number(BRIDGE_VLANDB_GOPTS_MSTI, tree)];
    let options = nested_attribute(BRIDGE_VLANDB_GLOBAL_OPTIONS, &options);
    tell(host, RTM_NEWVLAN, &message(&header, &[options]))
}

/// Sets a port's state in a spanning tree of some VLANs.
///
/// # Errors
/// Those of the kernel, as above.
pub fn set_tree_state(host: &Host, port: u32, tree: u16, state: u8) -> io::Result<()> {
    const IFLA_AF_SPEC: u16 = 26;
    const IFLA_BRIDGE_MST: u16 = 6;
    const IFLA_BRIDGE_MST_ENTRY: u16 = 1;
    // struct ifinfomsg
    let family = [libc::AF_BRIDGE as u8, 0, 0, 0];
    let header = [&family[..], &port.to_ne_bytes(), &[0; 8]].concat();
    let of = DefaultNla::new(1, tree.to_ne_bytes().to_vec());
    let entry = nested_attribute(IFLA_BRIDGE_MST_ENTRY, &[of, DefaultNla::new(2, vec![state])]);
    let trees = nested_attribute(IFLA_BRIDGE_MST, &[entry]);
    let spec = nested_attribute(IFLA_AF_SPEC, &[trees]);
    tell(host, libc::RTM_SETLINK, &message(&header, &[spec]))
}

/// Turns MAC authentication bypass on a port on or off.
///
/// # Errors
/// Those of the kernel: the port has to be locked and to learn.
pub fn set_mab(host: &Host, port: &str, on: bool) -> io::Result<()> {
    let data = InfoPortData::BridgePort(vec![InfoBridgePort::Mab(on)]);
    change(host, port, vec![LinkInfo::PortKind(InfoPortKind::Bridge), LinkInfo::PortData(data)])
}

fn change(host: &Host, device: &str, info: Vec<LinkInfo>) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.attributes = vec![LinkAttribute::IfName(device.to_owned()), LinkAttribute::LinkInfo(info)];
    let mut body = vec![0; link.buffer_len()];
    link.emit(&mut body);
    tell(host, libc::RTM_NEWLINK, &body)
}

/// Sends a request of this kind in a host, and waits for what the kernel says.
fn tell(host: &Host, kind: u16, body: &[u8]) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    (header.message_type, header.flags) = (kind, NLM_F_REQUEST | NLM_F_ACK);
    header.length = (header.buffer_len() + body.len()) as u32;
    let mut request = vec![0; header.buffer_len()];
    header.emit(&mut request);
    request.extend(body);
    let answer = host.run(|| -> io::Result<Vec<u8>> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
        Ok(socket.recv_from_full()?.0)
    });
    let answer = answer.map_err(io::Error::other)??;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
    match answer.map_err(io::Error::other)?.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(()),
    }
}
