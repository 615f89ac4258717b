//! Frames that say which one they are, wherever they turn up.

use lab::traffic::{Frame, FrameTarget};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A protocol of our own, which no host's stack sends.
pub const OWN: u16 = 0x88b5;
/// Another of our own, which the filters of some tests drop.
pub const DROPPED: u16 = 0x88b6;
pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
/// The tags of a VLAN (802.1Q), and those of a provider (802.1ad).
pub const VLAN: u16 = 0x8100;
pub const PROVIDER: u16 = 0x88a8;
pub const IPV6: u16 = 0x86dd;
pub const BROADCAST: Mac = [0xff; 6];

/// The number of frames that are not looked at.
pub const UNCOUNTED: u32 = u32::MAX;

/// Stands before a frame's number.
const MAGIC: [u8; 8] = *b"CLbridge";

/// A frame to be sent, without its number yet.
#[derive(Clone)]
pub struct Sent {
    pub to: Mac,
    pub from: Mac,
    pub ethertype: u16,
    /// What stands between the Ethernet header and the number.
    pub body: Vec<u8>,
    /// Length with the Ethernet header.
    pub len: usize,
}

/// A frame as it arrived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// Its number.
    pub id: u32,
    pub to: FrameTarget,
    pub len: usize,
    /// Of all its bytes.
    pub hash: u64,
}

/// A station that no host has: `number` tells it from others.
pub fn station(number: u8) -> Mac {
    [0x02, 0, 0, 0, 0x57, number]
}

impl Sent {
    /// A short frame of a protocol of our own.
    pub fn new(to: Mac, from: Mac) -> Self {
        Self { to, from, ethertype: OWN, body: Vec::new(), len: 60 }
    }

    pub fn ethertype(self, ethertype: u16) -> Self {
        Self { ethertype, ..self }
    }

    pub fn len(self, len: usize) -> Self {
        Self { len, ..self }
    }

    /// Puts a VLAN tag before the rest.
    pub fn tagged(self, vlan: u16) -> Self {
        self.tag(VLAN, vlan)
    }

    /// Puts a tag of this protocol, with a priority and a VLAN, before the rest.
    pub fn tag(self, protocol: u16, contents: u16) -> Self {
        let mut body = contents.to_be_bytes().to_vec();
        body.extend(self.ethertype.to_be_bytes());
        body.extend(&self.body);
        Self { ethertype: protocol, body, ..self }
    }

    /// A UDP datagram over IPv4, to the discard port.
    pub fn ipv4(self, to: [u8; 4], from: [u8; 4]) -> Self {
        let len = self.len.max(14 + 28 + 12);
        let total = (len - 14) as u16;
        let mut header = vec![0x45, 0];
        header.extend(total.to_be_bytes());
        header.extend([0, 1, 0, 0, 64, 17, 0, 0]);
        header.extend(from);
        header.extend(to);
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header.extend(udp(total - 20));
        Self { ethertype: IPV4, body: header, len, ..self }
    }

    /// A UDP datagram over IPv6, to the discard port, its checksum left out.
    pub fn ipv6(self) -> Self {
        let len = self.len.max(14 + 48 + 12);
        let payload = (len - 14 - 40) as u16;
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(payload.to_be_bytes());
        header.extend([17, 64]);
        for last in [1, 2] {
            header.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        header.extend(udp(payload));
        Self { ethertype: IPV6, body: header, len, ..self }
    }

    /// An ARP reply, which teaches nobody who did not ask.
    pub fn arp(self, sender: [u8; 4], target: [u8; 4]) -> Self {
        let mut body = vec![0, 1, 8, 0, 6, 4, 0, 2];
        body.extend(self.from);
        body.extend(sender);
        body.extend(self.to);
        body.extend(target);
        Self { ethertype: ARP, body, ..self }
    }

    /// An ARP request.
    pub fn arp_request(self, sender: [u8; 4], target: [u8; 4]) -> Self {
        let mut asked = self.arp(sender, target);
        asked.body[7] = 1;
        asked
    }

    /// A message of ICMPv6 with a type that nobody uses.
    pub fn icmpv6(self) -> Self {
        let mut sent = self.ipv6();
        sent.body[6] = 58;
        sent.body[40] = 200;
        sent
    }

    /// Its bytes with this number.
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = [self.to, self.from].concat();
        bytes.extend(self.ethertype.to_be_bytes());
        bytes.extend(&self.body);
        bytes.extend(MAGIC);
        bytes.extend(id.to_be_bytes());
        let filled = bytes.len().max(self.len);
        bytes.resize(filled, id as u8);
        bytes
    }
}

impl std::fmt::Display for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { to, from, ethertype, len, .. } = self;
        let (from, to) = (lab::Mac(*from), lab::Mac(*to));
        write!(f, "{from} > {to}, protocol {ethertype:04x}, {len} bytes")
    }
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Arrival {
    /// None if it is not one of ours, or an ICMP message about one.
    pub fn of(frame: &Frame) -> Option<Self> {
        let start = frame.bytes.get(14..)?;
        if frame.bytes[12..14] == IPV4.to_be_bytes() && start.get(9) == Some(&1) {
            return None;
        }
        let at = start.windows(MAGIC.len()).take(128).position(|window| window == MAGIC)?;
        let id = u32::from_be_bytes(*start.get(at + MAGIC.len()..)?.first_chunk()?);
        let hash = fnv(&frame.bytes);
        (id != UNCOUNTED).then_some(Self { id, to: frame.to, len: frame.bytes.len(), hash })
    }
}

/// The length of a datagram of [`segment`].
pub const SEGMENT: usize = 64;

/// A datagram with this number.
pub fn segment(id: u32) -> [u8; SEGMENT] {
    let mut bytes = [0; SEGMENT];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&id.to_be_bytes());
    bytes
}

fn udp(len: u16) -> [u8; 8] {
    let [high, low] = len.to_be_bytes();
    [0x30, 0x39, 0, 9, high, low, 0, 0]
}

fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(folded as u16 + (folded >> 16) as u16)
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
