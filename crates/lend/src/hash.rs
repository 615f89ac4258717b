//! To which flow a packet belongs, as a number.
//!
//! Both directions of a connection have the same number, and nobody who does not have the key can
//! choose addresses so that their numbers are alike: that is what aHash, keyed at random, is made
//! for, in a fifth of the time that SipHash takes. It is a parser of its own, since all it wants is
//! four fields: finding them with etherparse's lax slices takes 73 ns, and this takes 25 to 33
//! with the hash (`the_hash_of_a_packet`, among the ignored tests). What it cannot read it does not
//! guess: the flow is then what it could read.

use std::hash::{BuildHasher as _, Hasher as _};

use ahash::RandomState;

/// The key of a lender, the same for all its threads: they agree on who has a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowHasher(RandomState);

/// What packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// Too short for an Ethernet header.
    Nothing,
    /// Not IP: both addresses and the type.
    Ethernet { ends: [u64; 2], ether_type: u16 },
    /// An address and a port each; the port is 0 where it is not known, which goes for all
    /// fragments, with protocol 0.
    V4 { ends: [(u32, u16); 2], protocol: u8 },
    /// Likewise.
    V6 { ends: [(u128, u16); 2], protocol: u8 },
}

impl FlowHasher {
    /// The number of a packet's flow; of any bytes.
    #[inline]
    pub(crate) fn hash(&self, packet: &[u8]) -> u32 {
        let mut hasher = self.0.build_hasher();
        match flow(packet) {
            Flow::Nothing => {}
            Flow::Ethernet { ends, ether_type } => {
                let [low, high] = sorted(ends);
                hasher.write_u64(low);
                hasher.write_u64(high);
                hasher.write_u16(ether_type);
            }
            Flow::V4 { ends, protocol } => {
                for (address, port) in sorted(ends) {
                    hasher.write_u64(u64::from(address) << 16 | u64::from(port));
                }
                hasher.write_u8(protocol);
            }
            Flow::V6 { ends, protocol } => {
                let [(low, low_port), (high, high_port)] = sorted(ends);
                hasher.write_u128(low);
                hasher.write_u128(high);
                hasher.write_u32(u32::from(low_port) << 16 | u32::from(high_port));
                hasher.write_u8(protocol);
            }
        }
        let hash = hasher.finish();
        (hash >> 32) as u32 ^ hash as u32
    }
}

#[inline]
fn sorted<T: PartialOrd>([one, other]: [T; 2]) -> [T; 2] {
    if one <= other { [one, other] } else { [other, one] }
}

/// The most VLAN tags that are skipped.
const TAGS: usize = 2;

#[inline]
fn flow(packet: &[u8]) -> Flow {
    let Some((addresses, mut rest)) = packet.split_first_chunk::<12>() else {
        return Flow::Nothing;
    };
    let mut ether_type = 0;
    for _ in 0..=TAGS {
        let Some((bytes, after)) = rest.split_first_chunk::<2>() else { break };
        (ether_type, rest) = (u16::from_be_bytes(*bytes), after);
        match (ether_type, rest.split_first_chunk::<2>()) {
            // 802.1Q, 802.1ad and its predecessor: a tag, and a type again.
            (0x8100 | 0x88a8 | 0x9100, Some((_tag, after))) => rest = after,
            _ => break,
        }
    }
    let ip = match ether_type {
        0x0800 => v4(rest),
        0x86dd => v6(rest),
        _ => None,
    };
    ip.unwrap_or_else(|| {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *addresses;
        let ends = [[0, 0, a, b, c, d, e, f], [0, 0, g, h, i, j, k, l]].map(u64::from_be_bytes);
        Flow::Ethernet { ends, ether_type }
    })
}

#[inline]
fn v4(packet: &[u8]) -> Option<Flow> {
    let header = packet.first_chunk::<20>()?;
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let address = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let (from, to) = (address(12), address(16));
    // More fragments follow, or it is not the first one.
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let (protocol, [from_port, to_port]) = match fragment {
        true => (0, [0, 0]),
        false => (header[9], ports(header[9], packet.get(length..))),
    };
    Some(Flow::V4 { ends: [(from, from_port), (to, to_port)], protocol })
}

#[inline]
fn v6(packet: &[u8]) -> Option<Flow> {
    /// The next header of a fragment.
    const FRAGMENT: u8 = 44;
    let (header, payload) = packet.split_first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let (_, addresses) = header.split_first_chunk::<8>()?;
    let (from, to) = addresses.split_first_chunk::<16>()?;
    let (from, to) = (u128::from_be_bytes(*from), u128::from_be_bytes(*to.first_chunk()?));
    let (protocol, [from_port, to_port]) = match header[6] {
        FRAGMENT => (0, [0, 0]),
        protocol => (protocol, ports(protocol, Some(payload))),
    };
    Some(Flow::V6 { ends: [(from, from_port), (to, to_port)], protocol })
}

/// The ports of TCP, UDP, DCCP, SCTP and UDP-Lite, which all start with them.
#[inline]
fn ports(protocol: u8, payload: Option<&[u8]>) -> [u16; 2] {
    match (protocol, payload.and_then(|payload| payload.first_chunk::<4>())) {
        (6 | 17 | 33 | 132 | 136, Some(&[a, b, c, d])) => {
            [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
        }
        _ => [0, 0],
    }
}

#[cfg(test)]
mod tests;
