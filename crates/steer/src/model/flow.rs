//! A flow and its hash.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// What is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Number 6.
    Tcp,
    /// Number 17.
    Udp,
}

/// A flow, as its packets to this host show it: the peer first. Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The peer.
    pub source: SocketAddr,
    /// This host.
    pub destination: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
}

impl Tuple {
    /// The flow of the packets that a socket receives: between IPv4 addresses that are mapped into
    /// IPv6, these are IPv4 packets.
    pub fn of_socket(peer: SocketAddr, local: SocketAddr, protocol: Protocol) -> Self {
        let canonical =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Self { source: canonical(peer), destination: canonical(local), protocol }
    }

    /// The flow's hash; never 0.
    ///
    /// Multiply-shift hashing (Dietzfelbinger and others, 1997) of the words in turn: the
    /// addresses, as many words as they fill, then the ports and the protocol, all as they are in
    /// the packet.
    pub fn hash(&self, keys: &[u64; 5]) -> u32 {
        let mix = |hash: u64, word: u64, multiplier: u64| {
            let product = hash.wrapping_add(word).wrapping_mul(multiplier);
            product ^ product >> 32
        };
        let addresses = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let [[a, b, c, d], [e, f, g, h]] = [source.octets(), destination.octets()];
                vec![u64::from_ne_bytes([a, b, c, d, e, f, g, h])]
            }
            (source, destination) => {
                [source, destination].map(v6).iter().flat_map(|ip| halves(*ip)).collect()
            }
        };
        let hash = addresses
            .iter()
            .zip(&keys[1..])
            .fold(keys[0], |hash, (word, multiplier)| mix(hash, *word, *multiplier));
        let hash = mix(hash, self.rest(), keys[1]).wrapping_mul(keys[2]);
        // The best bits are on top.
        ((hash >> 32) as u32).max(1)
    }

    /// Ports and protocol: as the packet has the ports, then 16 bits of protocol, then zeros.
    fn rest(&self) -> u64 {
        let in_packet = |port: u16| u64::from(u16::from_ne_bytes(port.to_be_bytes()));
        in_packet(self.source.port())
            | in_packet(self.destination.port()) << 16
            | u64::from(self.protocol.number()) << 32
    }
}

impl Protocol {
    /// TCP or UDP, by number.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    /// Its number in an IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn halves(address: Ipv6Addr) -> [u64; 2] {
    let bytes = address.octets();
    [0, 8].map(|at| std::array::from_fn(|byte| bytes[at + byte])).map(u64::from_ne_bytes)
}
