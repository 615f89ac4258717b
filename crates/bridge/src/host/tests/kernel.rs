//! Changes that the installed commands cannot make, told to the kernel in its own words.

use netlink_packet_core::{DefaultNla, Emitable as _, NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST};
use netlink_packet_core::{NLMSG_ERROR, NetlinkHeader};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{
    InfoBridgePort, InfoPortData, InfoPortKind, LinkAttribute, LinkInfo, LinkMessage,
};
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::{self, SocketFlags, SocketType};

use crate::state::Mac;
use kit::netlink::{
    emitted, message, messages, nested_attribute, number_attribute, receive, string_attribute,
};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWNEIGH: u16 = 28;
const NUD_NOARP: u16 = 0x40;
const NTF_MASTER: u8 = 4;

const NFT: u16 = 10 << 8;
const NFT_MSG_NEWTABLE: u16 = NFT;
const NFT_MSG_DELTABLE: u16 = NFT | 2;
const NFT_MSG_NEWCHAIN: u16 = NFT | 3;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;

/// Sets a port's setting.
pub(super) fn set_port(port: &str, setting: &str, on: bool) {
    let setting = match setting {
        "mab" => InfoBridgePort::Mab(on),
        "neigh_vlan_suppress" => InfoBridgePort::NeighVlanSuppress(on),
        _ => panic!("no setting {setting}"),
    };
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(port.to_owned()));
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(vec![setting])),
    ]));
    tell(NETLINK_ROUTE, &[(RTM_NEWLINK, emitted(&link))]);
}

/// Adds a static entry whose activity is watched.
pub(super) fn add_watched(port: u32, mac: Mac) {
    const NDA_LLADDR: u16 = 2;
    const NDA_FDB_EXT_ATTRS: u16 = 14;
    const NFEA_ACTIVITY_NOTIFY: u16 = 1;
    let mut header = vec![u8::from(AddressFamily::Bridge), 0, 0, 0];
    header.extend(port.to_ne_bytes());
    header.extend(NUD_NOARP.to_ne_bytes());
    header.extend([NTF_MASTER, 0]);
    let attributes = [
        DefaultNla::new(NDA_LLADDR, mac.0.to_vec()),
        nested_attribute(NDA_FDB_EXT_ATTRS, &[DefaultNla::new(NFEA_ACTIVITY_NOTIFY, vec![1])]),
    ];
    tell(NETLINK_ROUTE, &[(RTM_NEWNEIGH, message(&header, &attributes))]);
}

/// Makes an nft table with one base chain, `c`, that accepts everything.
pub(super) fn chain(family: &str, table: &str, hook: &str, device: Option<&str>) {
    let hook = match (family, hook) {
        ("netdev", "ingress") => 0_u32,
        ("netdev", "egress") => 1,
        ("bridge" | "inet", "forward") => 2,
        ("inet", "ingress") => 5,
        _ => panic!("no hook {hook} of {family}"),
    };
    let be = |kind, value: u32| number_attribute(kind, value.to_be());
    let mut place = vec![be(1, hook), be(2, 0)];
    place.extend(device.map(|device| string_attribute(3, device)));
    let chain = [
        string_attribute(1, table),
        string_attribute(3, "c"),
        nested_attribute(4, &place),
        string_attribute(7, "filter"),
    ];
    batch(&[
        (NFT_MSG_NEWTABLE, message(&nfgen(family), &[string_attribute(1, table)])),
        (NFT_MSG_NEWCHAIN, message(&nfgen(family), &chain)),
    ]);
}

pub(super) fn drop_table(family: &str, table: &str) {
    batch(&[(NFT_MSG_DELTABLE, message(&nfgen(family), &[string_attribute(1, table)]))]);
}

/// A socket for packets of every protocol on every device.
pub(super) fn packet_socket() -> std::os::fd::OwnedFd {
    let every = net::RawProtocol::new(u32::from(3_u16.to_be())).map(net::Protocol::from_raw);
    net::socket_with(net::AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, every)
        .expect("a packet socket")
}

fn nfgen(family: &str) -> [u8; 4] {
    let family = match family {
        "inet" => 1,
        "netdev" => 5,
        "bridge" => 7,
        _ => panic!("no family {family}"),
    };
    [family, 0, 0, 0]
}

fn batch(changes: &[(u16, Vec<u8>)]) {
    // The number of nft's subsystem, in network byte order.
    let frame = vec![0, 0, 0, 10];
    let begin = [(NFNL_MSG_BATCH_BEGIN, frame.clone())];
    let end = [(NFNL_MSG_BATCH_END, frame)];
    tell(NETLINK_NETFILTER, &[&begin, changes, &end].concat());
}

/// Sends messages in one go and waits for the answer to each; the frame of a batch has none.
fn tell(protocol: isize, requests: &[(u16, Vec<u8>)]) {
    let mut socket = Socket::new(protocol).expect("a netlink socket");
    socket.bind_auto().expect("binding");
    let (mut bytes, mut waiting) = (Vec::new(), 0);
    for (kind, body) in requests {
        let framing = [NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END].contains(kind)
            && protocol == NETLINK_NETFILTER;
        let mut header = NetlinkHeader::default();
        header.length = u32::try_from(header.buffer_len() + body.len()).expect("it is short");
        header.message_type = *kind;
        header.flags = NLM_F_REQUEST;
        if !framing {
            header.flags |= NLM_F_ACK;
            waiting += 1;
        }
        if ![NFT_MSG_DELTABLE, RTM_NEWLINK].contains(kind) {
            header.flags |= NLM_F_CREATE;
        }
        bytes.extend(emitted_header(&header));
        bytes.extend(body);
    }
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).expect("sending");
    let mut buffer = vec![0; 16 << 10];
    while waiting > 0 {
        let length = receive(&socket, &mut buffer).expect("an answer");
        for answer in messages(&buffer[..length]).filter(|answer| answer.kind == NLMSG_ERROR) {
            let code = answer.payload.first_chunk().map(|code| i32::from_ne_bytes(*code));
            assert_eq!(code, Some(0), "the kernel refuses one of {requests:?}");
            waiting -= 1;
        }
    }
}

fn emitted_header(header: &NetlinkHeader) -> Vec<u8> {
    let mut bytes = vec![0; header.buffer_len()];
    header.emit(&mut bytes);
    bytes
}
