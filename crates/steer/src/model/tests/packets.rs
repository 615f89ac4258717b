//! Packets that are mostly right.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use crate::model::{Protocol, Tuple};

/// What is done to a flow's packet.
#[derive(Clone, Debug)]
pub(super) struct Dress {
    /// VLAN tags' types.
    tags: Vec<u16>,
    /// IPv4 header length in words.
    words: u8,
    /// IPv4 fragment flags and offset.
    fragment: u16,
    /// Other than it should be.
    version: Option<u8>,
    /// Instead of TCP or UDP.
    next: Option<u8>,
    /// Instead of IPv4 or IPv6.
    kind: Option<u16>,
    /// Bytes that are left.
    cut: usize,
}

pub(super) fn tuples() -> impl Strategy<Value = Tuple> {
    let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    // On a wire nobody has any business with these, but they may be there.
    let mapped = any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| {
        let map = |bytes| IpAddr::from(std::net::Ipv4Addr::from(bytes).to_ipv6_mapped());
        (map(a), map(b))
    });
    let addresses = prop_oneof![4 => v4, 4 => v6, 1 => mapped];
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    (addresses, any::<(u16, u16)>(), protocol).prop_map(
        |((source, destination), ports, protocol)| {
            let source = SocketAddr::new(source, ports.0);
            Tuple { source, destination: SocketAddr::new(destination, ports.1), protocol }
        },
    )
}

pub(super) fn dresses() -> impl Strategy<Value = Dress> {
    let tag = prop_oneof![Just(0x8100_u16), Just(0x88a8)];
    let tags = prop_oneof![6 => Just(vec![]), 4 => prop::collection::vec(tag, 1..=3)];
    let words = prop_oneof![8 => Just(5_u8), 3 => 6_u8..16, 1 => 0_u8..5];
    let fragment = prop_oneof![
        8 => Just(0_u16), 4 => Just(0x4000), 1 => Just(0x2000), 1 => 1_u16..0x2000, 1 => any::<u16>()
    ];
    let version = prop_oneof![20 => Just(None), 1 => (0_u8..16).prop_map(Some)];
    let known = prop::sample::select(vec![0_u8, 1, 4, 41, 43, 44, 47, 50, 51, 58, 60, 132]);
    let next =
        prop_oneof![12 => Just(None), 2 => known.prop_map(Some), 1 => any::<u8>().prop_map(Some)];
    let arp_or_swapped = prop::sample::select(vec![0x0806_u16, 0x0800, 0x86dd, 0x8100, 0x8864]);
    let kind = prop_oneof![
        16 => Just(None), 1 => arp_or_swapped.prop_map(Some), 1 => any::<u16>().prop_map(Some)
    ];
    // The kernel tests no program on less than an Ethernet header.
    let cut = prop_oneof![6 => Just(usize::MAX), 2 => 14_usize..100];
    let any = (tags, words, fragment, version, next, kind, cut).prop_map(
        |(tags, words, fragment, version, next, kind, cut)| Dress {
            tags,
            words,
            fragment,
            version,
            next,
            kind,
            cut,
        },
    );
    let plain = Dress {
        tags: vec![],
        words: 5,
        fragment: 0,
        version: None,
        next: None,
        kind: None,
        cut: usize::MAX,
    };
    prop_oneof![2 => Just(plain), 3 => any]
}

/// A packet of the flow, so dressed.
pub(super) fn frame(tuple: &Tuple, dress: &Dress) -> Vec<u8> {
    let (source, destination) = (tuple.source, tuple.destination);
    let protocol = dress.next.unwrap_or(tuple.protocol.number());
    let (kind, ip) = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = vec![0_u8; 4 * usize::from(dress.words.max(5))];
            ip[0] = dress.version.unwrap_or(4) << 4 | dress.words;
            ip[6..8].copy_from_slice(&dress.fragment.to_be_bytes());
            ip[9] = protocol;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&destination.octets());
            (0x0800, ip)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut ip = vec![0_u8; 40];
            ip[0] = dress.version.unwrap_or(6) << 4;
            ip[6] = protocol;
            ip[8..24].copy_from_slice(&source.octets());
            ip[24..40].copy_from_slice(&destination.octets());
            if dress.next.is_some() {
                // An extension header of eight bytes.
                ip.extend([tuple.protocol.number(), 0, 0, 0, 0, 0, 0, 0]);
            }
            (0x86dd, ip)
        }
        _ => unreachable!("both are of one family"),
    };
    let mut frame = vec![0x02; 12];
    for tag in &dress.tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 7]);
    }
    frame.extend(dress.kind.unwrap_or(kind).to_be_bytes());
    frame.extend(ip);
    frame.extend(source.port().to_be_bytes());
    frame.extend(destination.port().to_be_bytes());
    frame.extend([0; 16]);
    frame.truncate(dress.cut);
    frame
}
