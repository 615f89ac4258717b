//! The packets that `send` sends, made once for each size; a packet costs only the bytes that vary.

use std::net::IpAddr;
use std::sync::Arc;

use etherparse::{ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder};
use kit::Mac;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use xsk::LivePackets;

use super::flows::{Flows, Order};
use super::probe::{self, Probe, Stream, fold};
use super::turns::Turns;
use super::values::{Sizes, Span, Tags};
use crate::exit::usage;
use crate::packets::values::Ports;

/// What the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Pattern {
    /// Zeros
    Zeros,
    /// Bytes that count up from 0 to 255, over and over
    Counter,
    /// Random bytes, the same in every packet
    Random,
    /// A sequence number and a time, which `xsk drop --check` reads
    Seq,
}

/// What packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// UDP
    Udp,
    /// TCP segments that ask for a connection
    TcpSyn,
    /// ICMP or ICMPv6 echo requests (pings)
    IcmpEcho,
    /// ARP requests for the hardware address of --dst
    Arp,
}

impl Kind {
    /// As it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Udp => "udp",
            Kind::TcpSyn => "tcp-syn",
            Kind::IcmpEcho => "icmp-echo",
            Kind::Arp => "arp",
        }
    }

    /// As people read it.
    pub(super) fn words(self) -> &'static str {
        match self {
            Kind::Udp => "UDP packets",
            Kind::TcpSyn => "TCP SYN segments",
            Kind::IcmpEcho => "ICMP echo requests",
            Kind::Arp => "ARP requests",
        }
    }

    pub(super) fn has_ports(self) -> bool {
        matches!(self, Kind::Udp | Kind::TcpSyn)
    }

    /// Bytes of its header behind that of IP, or of all of it behind Ethernet's.
    fn header(self) -> usize {
        match self {
            Kind::Udp | Kind::IcmpEcho => 8,
            Kind::TcpSyn => 20,
            Kind::Arp => ARP,
        }
    }

    /// Where the checksum is in that header.
    fn checksum(self) -> Option<usize> {
        match self {
            Kind::Udp => Some(6),
            Kind::TcpSyn => Some(16),
            Kind::IcmpEcho => Some(2),
            Kind::Arp => None,
        }
    }
}

/// What packets have in common, and what varies.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    /// The option that gives sizes.
    pub(super) option: &'static str,
    pub(super) kind: Kind,
    /// Bytes of the Ethernet frame without its check sequence.
    pub(super) sizes: Sizes,
    pub(super) source_mac: Span<Mac>,
    pub(super) target_mac: Span<Mac>,
    pub(super) tags: Tags,
    pub(super) source: Span<IpAddr>,
    pub(super) target: Span<IpAddr>,
    pub(super) source_ports: Ports,
    pub(super) target_ports: Ports,
    pub(super) pattern: Pattern,
    /// Most flows, if not all that there can be.
    pub(super) limit: Option<u64>,
    pub(super) order: Order,
    /// The order of source ports, if not from the first to the last.
    pub(super) turns: Option<Arc<Turns>>,
}

const ETHERNET: usize = 14;
const TAG: usize = 4;
/// An ARP packet over Ethernet and IPv4.
const ARP: usize = 28;
/// The least that Ethernet carries.
const LEAST: usize = 60;

/// The packets, with the first of what varies and an empty probe.
#[derive(Clone, Debug)]
pub(super) struct Template {
    kind: Kind,
    /// One of each size.
    bodies: Vec<Body>,
    /// Which of them is next, in turn.
    turn: Vec<u16>,
    fields: Vec<Field>,
    /// Where the header behind that of IP starts.
    inner: usize,
    /// Where checksums are that vary.
    sums: [Option<usize>; 2],
    probes: bool,
    flows: Flows,
}

/// A packet of one size.
#[derive(Clone, Debug)]
struct Body {
    bytes: Vec<u8>,
    /// What each checksum of [`Template::sums`] covers, without what varies.
    fixed: [u32; 2],
}

/// Bytes that vary: a number of `width` bytes, even as where they are.
#[derive(Clone, Copy, Debug)]
struct Field {
    at: usize,
    width: usize,
    first: u64,
    /// Whose number of a flow is added to `first`.
    digit: usize,
    /// Which checksums cover it.
    sums: [bool; 2],
}

/// Digits of a flow, from the one that changes fastest.
pub(super) const SPORT: usize = 0;
pub(super) const DPORT: usize = 1;
pub(super) const SOURCE: usize = 2;
pub(super) const TARGET: usize = 3;
const SOURCE_MAC: usize = 4;
const TARGET_MAC: usize = 5;
const TAGS: [usize; 2] = [6, 7];
const DIGITS: usize = 8;

impl Recipe {
    /// Where IP or ARP begins.
    fn net(&self) -> usize {
        ETHERNET + TAG * self.tags.0.len()
    }

    /// Where what is behind IP begins.
    fn inner(&self) -> usize {
        let header = match (self.kind, self.source.first) {
            (Kind::Arp, _) => 0,
            (_, IpAddr::V4(_)) => 20,
            (_, IpAddr::V6(_)) => 40,
        };
        self.net() + header
    }

    fn probes(&self) -> bool {
        self.pattern == Pattern::Seq
    }

    /// The smallest packet that there can be, and the largest.
    fn range(&self) -> [usize; 2] {
        let probe = if self.probes() { probe::LEN } else { 0 };
        // The length in an IPv4 header has the header in it, that of IPv6 has not.
        let header = if self.source.first.is_ipv4() { 0 } else { 40 };
        let least = self.inner() + self.kind.header() + probe;
        [least.max(LEAST), self.net() + header + usize::from(u16::MAX)]
    }

    /// The sizes of packets, as they are sent.
    fn sizes(&self) -> anyhow::Result<Vec<usize>> {
        let ([least, most], option) = (self.range(), self.option);
        let family = match (self.kind, self.source.first) {
            (Kind::Arp, _) => "ARP",
            (_, IpAddr::V4(_)) => "IPv4",
            (_, IpAddr::V6(_)) => "IPv6",
        };
        let kind = if self.kind.has_ports() || self.kind == Kind::Arp { "" } else { "ICMP over " };
        let kind = if self.kind == Kind::TcpSyn { "TCP over " } else { kind };
        let what = if self.probes() { "pattern seq over " } else { "" };
        let tags = if self.tags.0.is_empty() { "" } else { " with --vlan" };
        let size = |&(size, _): &(u32, u32)| match size as usize {
            size if size < least && self.sizes.grows => Ok(least),
            size if size < least => Err(usage(format!(
                "{option} {size}: {what}{kind}{family}{tags} needs at least {least} bytes"
            ))),
            size if size > most => Err(usage(format!(
                "{option} {size}: a packet of {family}{tags} has at most {most} bytes"
            ))),
            size => Ok(size),
        };
        self.sizes.each.iter().map(size).collect()
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        let (source, target) = (self.source, self.target);
        if source.first.is_ipv4() != target.first.is_ipv4() {
            return Err(usage(format!(
                "--src {source} and --dst {target} are not of the same IP version"
            )));
        }
        if self.kind == Kind::Arp && source.first.is_ipv6() {
            return Err(usage(format!("--packet arp: --src {source} is IPv6 (expected IPv4)")));
        }
        if self.kind == Kind::Arp && self.probes() {
            return Err(usage(
                "--pattern seq: ARP has no payload (expected --packet udp, tcp-syn or icmp-echo)"
                    .into(),
            ));
        }
        Ok(())
    }

    /// How many values each digit has.
    pub(super) fn counts(&self) -> [u64; DIGITS] {
        let mut counts = [1; DIGITS];
        if self.kind.has_ports() {
            (counts[SPORT], counts[DPORT]) = (self.source_ports.len(), self.target_ports.len());
        }
        (counts[SOURCE], counts[TARGET]) = (self.source.count, self.target.count);
        (counts[SOURCE_MAC], counts[TARGET_MAC]) = (self.source_mac.count, self.target_mac.count);
        for (digit, tag) in TAGS.into_iter().zip(&self.tags.0) {
            counts[digit] = tag.ids.count;
        }
        counts
    }

    /// All that can vary.
    fn fields(&self) -> Vec<Field> {
        let (net, inner) = (self.net(), self.inner());
        let number = |mac: Mac| mac.0.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let field = |at, width, first, digit| Field { at, width, first, digit, sums: [false; 2] };
        let mut fields = vec![
            field(0, 6, number(self.target_mac.first), TARGET_MAC),
            field(6, 6, number(self.source_mac.first), SOURCE_MAC),
        ];
        for (at, (digit, tag)) in TAGS.into_iter().zip(&self.tags.0).enumerate() {
            let first = u64::from(tag.priority) << 13 | u64::from(tag.ids.first);
            fields.push(field(ETHERNET + TAG * at, 2, first, digit));
        }
        // In which checksums addresses are: ICMP's covers none of IPv4.
        let ends = [self.source.first, self.target.first];
        let in_inner = self.kind != Kind::IcmpEcho || ends[0].is_ipv6();
        for (end, (address, digit)) in ends.into_iter().zip([SOURCE, TARGET]).enumerate() {
            fields.push(match address {
                IpAddr::V4(four) if self.kind == Kind::Arp => {
                    field(net + 14 + 10 * end, 4, four.to_bits().into(), digit)
                }
                IpAddr::V4(four) => Field {
                    sums: [true, in_inner],
                    ..field(net + 12 + 4 * end, 4, four.to_bits().into(), digit)
                },
                // A span is far shorter than the half of an address, but may begin near its end.
                IpAddr::V6(six) => Field {
                    sums: [false, true],
                    ..field(net + 16 + 16 * end, 8, six.to_bits() as u64, digit)
                },
            });
        }
        if self.kind == Kind::Arp {
            fields.push(field(net + 8, 6, number(self.source_mac.first), SOURCE_MAC));
        }
        if self.kind.has_ports() {
            let ends = [(self.source_ports, SPORT), (self.target_ports, DPORT)];
            for (end, (ports, digit)) in ends.into_iter().enumerate() {
                let sums = [false, true];
                let first = ports.first.into();
                fields.push(Field { sums, ..field(inner + 2 * end, 2, first, digit) });
            }
        }
        fields
    }

    /// A packet of this size.
    fn packet(&self, size: usize) -> anyhow::Result<Vec<u8>> {
        const HOPS: u8 = 64;
        /// Of a host that has no connection yet.
        const WINDOW: u16 = 65535;
        let payload = payload(self.pattern, size - self.inner() - self.kind.header());
        let mut bytes = Vec::with_capacity(size);
        let (source_mac, target_mac) = (self.source_mac.first.0, self.target_mac.first.0);
        let ethernet = PacketBuilder::ethernet2(source_mac, target_mac);
        let ip = match (self.source.first, self.target.first) {
            (IpAddr::V4(source), IpAddr::V4(target)) if self.kind == Kind::Arp => {
                let (hardware, operation) = (ArpHardwareId::ETHERNET, ArpOperation::REQUEST);
                let (ip, nobody) = (EtherType::IPV4, [0; 6]);
                let [source, target] = [source.octets(), target.octets()];
                let (from, to) = (&source, &target);
                let arp = ArpPacket::new(hardware, ip, operation, &source_mac, from, &nobody, to)?;
                ethernet.arp(arp).write(&mut bytes)?;
                bytes.extend(&payload);
                None
            }
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                Some(ethernet.ipv4(source.octets(), target.octets(), HOPS))
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                Some(ethernet.ipv6(source.octets(), target.octets(), HOPS))
            }
            _ => unreachable!("check() has refused it"),
        };
        let ports = (self.source_ports.first, self.target_ports.first);
        match (ip, self.kind) {
            (Some(ip), Kind::Udp) => ip.udp(ports.0, ports.1).write(&mut bytes, &payload)?,
            (Some(ip), Kind::TcpSyn) => {
                ip.tcp(ports.0, ports.1, 1, WINDOW).syn().write(&mut bytes, &payload)?;
            }
            (Some(ip), _) if self.source.first.is_ipv4() => {
                ip.icmpv4_echo_request(1, 1).write(&mut bytes, &payload)?;
            }
            (Some(ip), _) => ip.icmpv6_echo_request(1, 1).write(&mut bytes, &payload)?,
            (None, _) => {}
        }
        let tags = self.tags.0.iter().enumerate();
        let tags = tags.flat_map(|(number, tag)| {
            // The outer one of two is a provider's (802.1ad).
            let outer = number + 1 < self.tags.0.len();
            let kind: u16 = if outer { 0x88a8 } else { 0x8100 };
            [kind, u16::from(tag.priority) << 13 | tag.ids.first]
        });
        let tags: Vec<u8> = tags.flat_map(u16::to_be_bytes).collect();
        bytes.splice(12..12, tags);
        Ok(bytes)
    }
}

impl Template {
    /// Makes the packets.
    pub(super) fn new(recipe: &Recipe) -> anyhow::Result<Template> {
        recipe.check()?;
        let counts = recipe.counts();
        let flows = Flows::new(&counts, recipe.limit, recipe.order).with_turns(&recipe.turns);
        let mut fields = recipe.fields();
        fields.retain(|field| flows.vary() && counts[field.digit] > 1);
        let inner = recipe.inner();
        let varies = |sum: usize| fields.iter().any(|field| field.sums[sum]);
        let net = (recipe.source.first.is_ipv4()).then_some(recipe.net() + 10);
        let sums = [
            net.filter(|_| varies(0)),
            recipe.kind.checksum().map(|at| inner + at).filter(|_| varies(1)),
        ];
        let body = |size| -> anyhow::Result<Body> {
            let bytes = recipe.packet(size)?;
            let fixed = [0, 1].map(|which| {
                let Some(at) = sums[which] else { return 0 };
                let stored = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                // Taking something out is adding its complement.
                let out = |field: &Field| {
                    let varies = probe::sum(&bytes[field.at..field.at + field.width]);
                    if field.sums[which] { u32::from(!fold(varies)) } else { 0 }
                };
                u32::from(!stored) + fields.iter().map(out).sum::<u32>()
            });
            Ok(Body { bytes, fixed })
        };
        let bodies = recipe.sizes()?.into_iter().map(body).collect::<Result<_, _>>()?;
        let (turn, probes) = (recipe.sizes.turn(), recipe.probes());
        Ok(Template { kind: recipe.kind, bodies, turn, fields, inner, sums, probes, flows })
    }

    /// The longest packet as a frame has it before anything varies. Shorter ones are the start of it,
    /// but for what [`Self::stamp`] writes.
    pub(super) fn bytes(&self) -> &[u8] {
        let longest = self.bodies.iter().max_by_key(|body| body.bytes.len());
        longest.map_or(&[], |body| &body.bytes)
    }

    /// The bytes up to the end of what [`stamp`](Self::stamp) writes.
    pub(super) fn head(&self) -> usize {
        self.inner + self.kind.header() + if self.probes { probe::LEN } else { 0 }
    }

    /// The lengths of packets, in turn.
    pub(super) fn lengths(&self) -> impl ExactSizeIterator<Item = usize> {
        self.turn.iter().map(|body| self.bodies[usize::from(*body)].bytes.len())
    }

    /// The mean length of packets.
    pub(super) fn mean_length(&self) -> f64 {
        self.lengths().sum::<usize>() as f64 / self.turn.len() as f64
    }

    /// Whether all packets are the same.
    pub(super) fn is_constant(&self) -> bool {
        self.bodies.len() == 1 && !self.probes && !self.flows.vary()
    }

    /// Whether packets carry probes.
    pub(super) fn probes(&self) -> bool {
        self.probes
    }

    /// The flows that packets belong to, one after the other.
    pub(super) fn flows(&self) -> Flows {
        self.flows.clone()
    }

    /// What stands against having the kernel make these packets, if anything: an option.
    pub(super) fn not_live(&self) -> Option<&'static str> {
        let others = [
            (SOURCE, "--src"),
            (TARGET, "--dst"),
            (SOURCE_MAC, "--src-mac"),
            (TARGET_MAC, "--dst-mac"),
            (TAGS[0], "--vlan"),
            (TAGS[1], "--vlan"),
        ];
        let varies = |digit| self.fields.iter().any(|field| field.digit == digit);
        let other = others.into_iter().find(|(digit, _)| varies(*digit)).map(|(_, option)| option);
        let kind = (self.kind != Kind::Udp).then_some("--packet");
        let sizes = (self.bodies.len() > 1).then_some("--size");
        let order = self.flows.is_random().then_some("--order");
        let limit = self.flows.is_limited().then_some("--flows");
        let turns = self.flows.turns().map(|_| "--rss");
        kind.or(sizes).or(other).or(order).or(limit).or(turns)
    }

    /// The same packets for the kernel to make: those of one of so many threads.
    pub(super) fn live(&self, thread: usize, threads: usize, stream: Stream) -> LivePackets {
        let port = |digit: usize, at: usize| {
            let bytes = self.bytes();
            let first = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let varies = self.fields.iter().any(|field| field.digit == digit);
            let count = if varies { self.flows.counts()[digit] } else { 1 };
            // Not above the last port.
            [first, first + (count - 1) as u16]
        };
        let (bytes, inner) = (self.bytes(), self.inner);
        let (sources, targets) = (port(SPORT, inner), port(DPORT, inner + 2));
        let stored = u16::from_be_bytes([bytes[inner + 6], bytes[inner + 7]]);
        let mut flows = self.flows().of_thread(thread, threads, stream.id());
        let digits = flows.next();
        let first = [sources[0] + digits[SPORT] as u16, targets[0] + digits[DPORT] as u16];
        LivePackets {
            packet: bytes.to_vec(),
            udp: inner,
            fixed: u32::from(!stored) + u32::from(!sources[0]) + u32::from(!targets[0]),
            sources,
            targets,
            first,
            probes: self.probes.then_some(stream.bits()),
            rate: 0.0,
        }
    }

    /// Writes all that [`Self::stamp`] does not, into a frame that has held something else.
    pub(super) fn renew(&self, frame: &mut [u8], number: u64) {
        let bytes = &self.body(number).bytes;
        frame[..bytes.len()].copy_from_slice(bytes);
    }

    #[inline]
    fn body(&self, number: u64) -> &Body {
        match self.bodies.len() {
            1 => &self.bodies[0],
            _ => &self.bodies[usize::from(self.turn[(number % self.turn.len() as u64) as usize])],
        }
    }

    /// Writes what varies into a frame that has held packets of this template before: the packet with
    /// this number in its thread. Its length.
    #[inline]
    pub(super) fn stamp(
        &self,
        frame: &mut [u8],
        number: u64,
        flow: &[u64],
        probe: Option<&Probe>,
    ) -> usize {
        let body = self.body(number);
        if self.bodies.len() > 1 {
            let head = self.head();
            frame[..head].copy_from_slice(&body.bytes[..head]);
        }
        let mut sums = body.fixed;
        for field in &self.fields {
            let value = (field.first + flow[field.digit]).to_be_bytes();
            let bytes = &value[8 - field.width..];
            frame[field.at..][..field.width].copy_from_slice(bytes);
            for (sum, is_in) in sums.iter_mut().zip(field.sums) {
                *sum += if is_in { probe::sum(bytes) } else { 0 };
            }
        }
        let [net, inner] = [0, 1].map(|which| !fold(sums[which]));
        // UDP's checksum of 0 says that there is none.
        let inner = if inner == 0 && self.kind == Kind::Udp { 0xffff } else { inner };
        for (at, checksum) in self.sums.iter().zip([net, inner]) {
            if let Some(at) = *at {
                frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
            }
        }
        if let Some(probe) = probe {
            // The checksum holds: the sum of a probe is zero, as that of the empty one is.
            let at = self.inner + self.kind.header();
            frame[at..][..probe::LEN].copy_from_slice(&probe.bytes());
        }
        body.bytes.len()
    }
}

fn payload(pattern: Pattern, len: usize) -> Vec<u8> {
    match pattern {
        Pattern::Zeros => vec![0; len],
        Pattern::Counter => probe::fill(0, len).collect(),
        Pattern::Random => {
            /// Of any packet: shorter ones have the start of the same bytes.
            const MOST: usize = 1 << 16;
            let mut bytes = vec![0; MOST];
            StdRng::seed_from_u64(1).fill_bytes(&mut bytes);
            bytes.truncate(len);
            bytes
        }
        Pattern::Seq => {
            let stream = Stream::new(0, 1, false);
            let empty = Probe { stream, number: 0, nanoseconds: 0 }.bytes();
            empty.into_iter().chain(probe::fill(probe::LEN, len - probe::LEN)).collect()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};

    use super::*;

    pub(in super::super) fn recipe(source: &str, target: &str) -> Recipe {
        Recipe {
            option: "--size",
            kind: Kind::Udp,
            sizes: "128".parse().unwrap(),
            source_mac: "02:00:00:00:00:01".parse().unwrap(),
            target_mac: "02:00:00:00:00:02".parse().unwrap(),
            tags: Tags::default(),
            source: source.parse().unwrap(),
            target: target.parse().unwrap(),
            source_ports: "1000-1002".parse().unwrap(),
            target_ports: "65534-65535".parse().unwrap(),
            pattern: Pattern::Seq,
            limit: None,
            order: Order::Counting,
            turns: None,
        }
    }

    /// What is in a packet that is right in everything: what varies, as text, and its payload.
    fn check(bytes: &[u8]) -> (String, Vec<u8>) {
        let packet = SlicedPacket::from_ethernet(bytes).expect("a packet");
        let mac = |at: usize| Mac(std::array::from_fn(|byte| bytes[at + byte]));
        let mut said = format!("{} {}", mac(6), mac(0));
        for tag in &packet.link_exts {
            let LinkExtSlice::Vlan(tag) = tag else { panic!("{tag:?}") };
            said += &format!(
                " {}:{}",
                tag.vlan_identifier().value(),
                tag.priority_code_point().value()
            );
        }
        let net = packet.net.as_ref().expect("a network packet");
        if let NetSlice::Arp(arp) = net {
            assert_eq!(
                (arp.operation(), arp.sender_hw_addr()),
                (ArpOperation::REQUEST, &mac(6).0[..])
            );
            said += &format!(" {:?} {:?}", arp.sender_protocol_addr(), arp.target_protocol_addr());
            return (said, Vec::new());
        }
        let transport = packet.transport.as_ref().expect("a payload");
        match net {
            NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                said +=
                    &format!(" {} {}", ip.header().source_addr(), ip.header().destination_addr());
            }
            NetSlice::Ipv6(ip) => {
                said +=
                    &format!(" {} {}", ip.header().source_addr(), ip.header().destination_addr());
            }
            NetSlice::Arp(_) => unreachable!("seen above"),
        }
        // All of the header and the payload add up to nothing, with the addresses where they count.
        let (header, payload) = match transport {
            TransportSlice::Udp(udp) => {
                said += &format!(" {} {}", udp.source_port(), udp.destination_port());
                assert_ne!(udp.checksum(), 0, "no checksum");
                (udp.slice(), udp.payload())
            }
            TransportSlice::Tcp(tcp) => {
                assert!(tcp.syn() && !tcp.ack() && !tcp.rst());
                said += &format!(" {} {}", tcp.source_port(), tcp.destination_port());
                (tcp.slice(), tcp.payload())
            }
            TransportSlice::Icmpv4(icmp) => (icmp.slice(), icmp.payload()),
            TransportSlice::Icmpv6(icmp) => (icmp.slice(), icmp.payload()),
            other => panic!("{other:?}"),
        };
        let mut covered = probe::sum(header);
        let len = header.len() as u32;
        match net {
            NetSlice::Ipv4(ip) if !matches!(transport, TransportSlice::Icmpv4(_)) => {
                let ip = ip.header();
                covered += probe::sum(&ip.source()) + probe::sum(&ip.destination());
                covered += u32::from(ip.protocol().0) + len;
            }
            NetSlice::Ipv6(ip) => {
                let ip = ip.header();
                covered += probe::sum(&ip.source()) + probe::sum(&ip.destination());
                covered += u32::from(ip.next_header().0) + len;
            }
            _ => {}
        }
        assert_eq!(fold(covered), 0xffff, "{packet:?}");
        (said, payload.to_vec())
    }

    #[test]
    fn every_kind_pattern_and_size_gives_a_right_packet() {
        let ends = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
        for ((source, target), kind) in ends
            .into_iter()
            .flat_map(|ends| [Kind::Udp, Kind::TcpSyn, Kind::IcmpEcho].map(|kind| (ends, kind)))
        {
            for pattern in [Pattern::Zeros, Pattern::Counter, Pattern::Random, Pattern::Seq] {
                for (size, tags) in [(104, "0"), (105, "5:7"), (127, "100,7"), (1514, "4094,0:1")] {
                    let (sizes, tags) = (size.to_string().parse().unwrap(), tags.parse().unwrap());
                    let recipe = Recipe { sizes, pattern, kind, tags, ..recipe(source, target) };
                    let template = Template::new(&recipe).expect("a packet");
                    assert_eq!(template.bytes().len(), size);
                    let (said, payload) = check(template.bytes());
                    assert!(said.contains(&format!("{source} {target}")), "{said}");
                    match pattern {
                        Pattern::Zeros => assert!(payload.iter().all(|&byte| byte == 0)),
                        Pattern::Counter => assert_eq!(payload[..3], [0, 1, 2]),
                        Pattern::Random => assert_ne!(payload[..8], payload[8..16]),
                        Pattern::Seq => assert_eq!(Probe::read(&payload).unwrap().number, 0),
                    }
                }
            }
        }
        let arp =
            Recipe { kind: Kind::Arp, pattern: Pattern::Zeros, ..recipe("10.0.0.1", "10.0.0.2") };
        let (said, _) = check(Template::new(&arp).expect("a packet").bytes());
        assert!(said.ends_with("[10, 0, 0, 1] [10, 0, 0, 2]"), "{said}");
        let double = Template::new(&Recipe { tags: "100,7".parse().unwrap(), ..arp });
        assert_eq!(double.expect("a packet").bytes()[12..14], [0x88, 0xa8]);
    }

    /// Everything varies at once, over sizes in turn.
    #[test]
    fn checksums_stay_right_whatever_varies() {
        let ends = [("10.0.0.250-10.0.1.5", "10.1.0.0/30"), ("fd00::fff0-fd00::1:5", "fd00::/126")];
        for ((source, target), kind) in ends
            .into_iter()
            .flat_map(|ends| [Kind::Udp, Kind::TcpSyn, Kind::IcmpEcho].map(|kind| (ends, kind)))
        {
            for order in [Order::Counting, Order::Random] {
                let recipe = Recipe {
                    kind,
                    sizes: "128:2,300,1514".parse().unwrap(),
                    source_mac: "02:00:00:00:ff:fe-02:00:00:01:00:01".parse().unwrap(),
                    tags: "100,4000-4001:3".parse().unwrap(),
                    order,
                    ..recipe(source, target)
                };
                let template = Template::new(&recipe).expect("packets");
                let mut frame = template.bytes().to_vec();
                let (mut flows, mut seen) = (template.flows(), HashSet::new());
                let lengths: Vec<usize> = template.lengths().collect();
                for number in 0..20_000_u64 {
                    // Sparse numbers, so that every word of the probe changes.
                    let sparse = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                    let stream = Stream::new(sparse as u32, 1 + number as u32, true);
                    let nanoseconds = !sparse >> 16;
                    let probe = Probe { stream, number: sparse, nanoseconds };
                    let len = template.stamp(&mut frame, number, flows.next(), Some(&probe));
                    assert_eq!(len, lengths[number as usize % lengths.len()]);
                    if number % 17 == 0 {
                        let (said, payload) = check(&frame[..len]);
                        assert_eq!(Probe::read(&payload), Ok(probe));
                        assert_eq!(payload.last(), Some(&((payload.len() - 1) as u8)));
                        seen.insert(said);
                    }
                }
                // 1,176 looks at 12 to 21 addresses, four targets, four MACs, two VLANs and ports.
                assert!(seen.len() > 200, "{kind:?} {order:?}: {}", seen.len());
            }
        }
    }

    #[test]
    fn arp_requests_come_from_the_address_that_they_say() {
        let recipe = Recipe {
            kind: Kind::Arp,
            pattern: Pattern::Zeros,
            source_mac: "02:00:00:00:00:01-02:00:00:00:00:03".parse().unwrap(),
            ..recipe("10.0.0.0/31", "10.1.0.0-10.1.0.4")
        };
        let template = Template::new(&recipe).expect("packets");
        let mut frame = template.bytes().to_vec();
        let mut flows = template.flows();
        let kinds: HashSet<String> = (0..60)
            .map(|number| {
                let len = template.stamp(&mut frame, number, flows.next(), None);
                check(&frame[..len]).0
            })
            .collect();
        assert_eq!((kinds.len(), flows.count()), (30, 30));
    }

    #[test]
    fn a_constant_packet_is_written_once_and_a_limit_of_one_makes_it_so() {
        let one =
            Recipe { pattern: Pattern::Zeros, limit: Some(1), ..recipe("10.0.0.1", "10.0.0.2") };
        assert!(Template::new(&one).expect("a packet").is_constant());
        let many = Recipe { limit: None, ..one };
        assert!(!Template::new(&many).expect("packets").is_constant());
    }

    #[test]
    fn what_the_kernel_makes_is_the_same_and_what_it_cannot_is_named() {
        let v4 = recipe("10.0.0.1", "10.0.0.2");
        let template = Template::new(&v4).expect("packets");
        assert_eq!(template.not_live(), None);
        let live = template.live(1, 2, Stream::new(9, 6, false));
        assert_eq!((live.sources, live.targets), ([1000, 1002], [65534, 65535]));
        assert_eq!((live.first, live.udp), ([1000, 65535], 34));
        let parse = |s: &str| s.parse().unwrap();
        for (recipe, option) in [
            (Recipe { kind: Kind::TcpSyn, ..v4.clone() }, "--packet"),
            (Recipe { sizes: "64,65".parse().unwrap(), ..v4.clone() }, "--size"),
            (Recipe { source: parse("10.0.0.0/24"), ..v4.clone() }, "--src"),
            (Recipe { tags: "1-2".parse().unwrap(), ..v4.clone() }, "--vlan"),
            (Recipe { order: Order::Random, ..v4.clone() }, "--order"),
            (Recipe { limit: Some(2), ..v4.clone() }, "--flows"),
        ] {
            assert_eq!(Template::new(&recipe).expect("packets").not_live(), Some(option));
        }
        let tagged = Recipe { tags: "1".parse().unwrap(), ..v4 };
        let tagged = Template::new(&tagged).expect("packets");
        assert_eq!(
            (tagged.not_live(), tagged.live(0, 1, Stream::new(9, 1, false)).udp),
            (None, 38)
        );
    }

    #[test]
    fn sizes_and_addresses_that_do_not_fit_are_named() {
        let refused = |recipe: &Recipe| Template::new(recipe).unwrap_err().to_string();
        let sized = |size: u32, recipe: &Recipe| Recipe {
            sizes: size.to_string().parse().unwrap(),
            ..recipe.clone()
        };
        let v4 = recipe("10.0.0.1", "10.0.0.2");
        let v6 = recipe("fd00::1", "fd00::2");
        assert!(refused(&sized(63, &v4)).contains("at least 64 bytes"));
        assert!(refused(&sized(83, &v6)).contains("IPv6 needs at least 84"));
        for (recipe, most) in [(&v4, 65_549), (&v6, 65_589)] {
            let large = Template::new(&sized(most, recipe)).expect("it fits");
            assert_eq!(large.bytes().len(), most as usize);
            let said = refused(&sized(most + 1, recipe));
            assert!(said.contains(&format!("at most {most} bytes")), "{said}");
        }
        let plain = Recipe { pattern: Pattern::Zeros, ..v4.clone() };
        assert!(refused(&sized(59, &plain)).contains("--size 59: IPv4 needs at least 60"));
        assert!(Template::new(&sized(64, &v4)).is_ok());
        let default = Recipe { sizes: Sizes::default(), ..v6.clone() };
        assert_eq!(Template::new(&default).expect("a packet").bytes().len(), 84);
        let imix = Recipe { sizes: "imix".parse().unwrap(), ..v6.clone() };
        assert_eq!(Template::new(&imix).expect("packets").lengths().min(), Some(84));
        let mixed = recipe("10.0.0.1", "fd00::2");
        assert!(refused(&mixed).contains("not of the same IP version"));
        let arp = |of: &Recipe| Recipe { kind: Kind::Arp, ..of.clone() };
        assert!(refused(&arp(&v6)).contains("expected IPv4"));
        assert!(refused(&arp(&v4)).contains("ARP has no payload"));
    }
}
