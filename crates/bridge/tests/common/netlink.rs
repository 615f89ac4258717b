//! Settings that the `bridge` program of some distributions does not know yet.

use std::io;

use lab::Host;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, LinkAttribute,
    LinkInfo, LinkMessage,
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
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    let payload = NetlinkPayload::from(RouteNetlinkMessage::NewLink(link));
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut request = vec![0; message.buffer_len()];
    message.serialize(&mut request);
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
