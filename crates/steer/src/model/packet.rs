//! Reading a packet's flow.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Protocol, Tuple};
use crate::Reason;

const ETHERNET: usize = 14;
const VLAN_TAG: usize = 4;
/// The VLAN tags that are looked through.
const VLAN_TAGS: usize = 2;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;
const IPV6_FRAGMENT: u8 = 44;

/// Reads the flow of an Ethernet frame, or why it has none that can be steered.
pub fn parse(frame: &[u8]) -> Result<Tuple, Reason> {
    let (kind, packet) = network(frame).ok_or(Reason::Short)?;
    match kind {
        TYPE_IPV4 => ipv4(packet),
        TYPE_IPV6 => ipv6(packet),
        _ => Err(Reason::Other),
    }
}

/// The type and what comes behind the Ethernet header and VLAN tags.
fn network(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut packet = frame.get(ETHERNET..)?;
    let mut kind = be16(frame, 12)?;
    for _ in 0..VLAN_TAGS {
        if TYPES_VLAN.contains(&kind) {
            kind = be16(packet, 2)?;
            packet = packet.get(VLAN_TAG..)?;
        }
    }
    Some((kind, packet))
}

fn ipv4(packet: &[u8]) -> Result<Tuple, Reason> {
    let header = packet.first_chunk::<20>().ok_or(Reason::Short)?;
    let (version, words) = (header[0] >> 4, usize::from(header[0] & 15));
    if version != 4 || words < 5 {
        return Err(Reason::Short);
    }
    let fragment = be16(header, 6).unwrap_or_default();
    if fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
        return Err(Reason::Fragment);
    }
    let address = |at: usize| {
        let bytes: [u8; 4] = std::array::from_fn(|byte| header[at + byte]);
        IpAddr::V4(Ipv4Addr::from(bytes))
    };
    transport(header[9], address(12), address(16), packet.get(words * 4..))
}

fn ipv6(packet: &[u8]) -> Result<Tuple, Reason> {
    let header = packet.first_chunk::<40>().ok_or(Reason::Short)?;
    if header[0] >> 4 != 6 {
        return Err(Reason::Short);
    }
    if header[6] == IPV6_FRAGMENT {
        return Err(Reason::Fragment);
    }
    let address = |at: usize| {
        let bytes: [u8; 16] = std::array::from_fn(|byte| header[at + byte]);
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    transport(header[6], address(8), address(24), packet.get(40..))
}

fn transport(
    number: u8,
    source: IpAddr,
    destination: IpAddr,
    segment: Option<&[u8]>,
) -> Result<Tuple, Reason> {
    let protocol = Protocol::from_number(number).ok_or(Reason::Protocol)?;
    let segment = segment.unwrap_or_default();
    let port = |at| be16(segment, at).ok_or(Reason::Short);
    Ok(Tuple {
        source: SocketAddr::new(source, port(0)?),
        destination: SocketAddr::new(destination, port(2)?),
        protocol,
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}
