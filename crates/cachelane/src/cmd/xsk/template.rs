//! The packet that `send` sends, made once; a packet costs only the bytes that vary.

use std::net::IpAddr;

use etherparse::PacketBuilder;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use xsk::LivePackets;

use super::probe::{self, Probe, fold};
use crate::exit::usage;
use crate::packets::values::Ports;
use kit::Mac;

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

/// What every packet has in common, and which ports they have.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    /// Bytes of the Ethernet frame without its check sequence.
    pub(super) size: usize,
    pub(super) source_mac: Mac,
    pub(super) target_mac: Mac,
    pub(super) source: IpAddr,
    pub(super) target: IpAddr,
    pub(super) source_ports: Ports,
    pub(super) target_ports: Ports,
    pub(super) pattern: Pattern,
}

const ETHERNET: usize = 14;
const UDP: usize = 8;

/// A packet with the first of its ports and an empty probe.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    /// Where the UDP header starts.
    udp: usize,
    /// What the UDP checksum covers, without the ports.
    fixed: u32,
    probes: bool,
    flows: Flows,
}

impl Template {
    /// Makes the packet.
    pub(super) fn new(recipe: &Recipe) -> anyhow::Result<Template> {
        let udp = ETHERNET + ip_header(recipe)?;
        let probes = recipe.pattern == Pattern::Seq;
        let least = (udp + UDP + if probes { probe::LEN } else { 0 }).max(60);
        let (size, most) = (recipe.size, largest(recipe));
        let family = if recipe.source.is_ipv4() { "IPv4" } else { "IPv6" };
        if size < least {
            let what = if probes { "pattern seq over " } else { "" };
            return Err(usage(format!(
                "--size {size}: {what}{family} needs at least {least} bytes"
            )));
        }
        if size > most {
            return Err(usage(format!(
                "--size {size}: a packet of {family} has at most {most} bytes"
            )));
        }
        let payload = payload(recipe.pattern, recipe.size - udp - UDP);
        let flows = Flows::new(recipe.source_ports, recipe.target_ports);
        let bytes = packet(recipe, flows.next, &payload)?;
        let stored = u16::from_be_bytes([bytes[udp + 6], bytes[udp + 7]]);
        let Flow { source, target } = flows.next;
        // Taking something out is adding its complement.
        let fixed = u32::from(!stored) + u32::from(!source) + u32::from(!target);
        Ok(Template { bytes, udp, fixed, probes, flows })
    }

    /// The packet as a frame has it before anything varies.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes up to the end of what [`stamp`](Self::stamp) writes.
    pub(super) fn head(&self) -> usize {
        self.udp + UDP + if self.probes { probe::LEN } else { 0 }
    }

    /// The same packets for the kernel to make, those of this stream from these flows on.
    pub(super) fn live(&self, flows: &Flows, stream: u32, rate: f64) -> LivePackets {
        let both = |ports: Ports| [ports.first, ports.last];
        LivePackets {
            packet: self.bytes.clone(),
            udp: self.udp,
            fixed: self.fixed,
            sources: both(flows.sources),
            targets: both(flows.targets),
            first: [flows.next.source, flows.next.target],
            probes: self.probes.then_some(stream),
            rate,
        }
    }

    /// Whether packets carry probes.
    pub(super) fn probes(&self) -> bool {
        self.probes
    }

    /// The flows that packets belong to, one after the other.
    pub(super) fn flows(&self) -> Flows {
        self.flows.clone()
    }

    /// Writes what varies into a frame that has held this packet before.
    #[inline]
    pub(super) fn stamp(&self, frame: &mut [u8], flow: Flow, probe: Option<&Probe>) {
        let header = &mut frame[self.udp..];
        if self.flows.vary() {
            header[..2].copy_from_slice(&flow.source.to_be_bytes());
            header[2..4].copy_from_slice(&flow.target.to_be_bytes());
            header[6..8].copy_from_slice(&self.checksum(flow).to_be_bytes());
        }
        if let Some(probe) = probe {
            // The checksum holds: the sum of a probe is zero, as that of the empty one is.
            header[UDP..][..probe::LEN].copy_from_slice(&probe.bytes());
        }
    }

    #[inline]
    fn checksum(&self, flow: Flow) -> u16 {
        let sum = self.fixed + u32::from(flow.source) + u32::from(flow.target);
        match !fold(sum) {
            // A checksum of 0 says that there is none.
            0 => 0xffff,
            other => other,
        }
    }
}

/// The ports of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) source: u16,
    pub(super) target: u16,
}

/// All pairs of ports, over and over.
#[derive(Clone, Debug)]
pub(super) struct Flows {
    sources: Ports,
    targets: Ports,
    next: Flow,
}

impl Flows {
    fn new(sources: Ports, targets: Ports) -> Flows {
        Flows { sources, targets, next: Flow { source: sources.first, target: targets.first } }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.sources.len() * self.targets.len()
    }

    /// Whether there is more than one.
    #[inline]
    pub(super) fn vary(&self) -> bool {
        self.sources.first != self.sources.last || self.targets.first != self.targets.last
    }

    /// Starts from the `n`th.
    pub(super) fn skip(mut self, n: u64) -> Flows {
        let n = n % self.count();
        // Both are offsets inside a range of ports.
        self.next.source = self.sources.first + (n % self.sources.len()) as u16;
        self.next.target = self.targets.first + (n / self.sources.len()) as u16;
        self
    }

    /// The next one.
    #[inline]
    pub(super) fn next(&mut self) -> Flow {
        let now = self.next;
        if now.source < self.sources.last {
            self.next.source = now.source + 1;
        } else {
            self.next.source = self.sources.first;
            let more = now.target < self.targets.last;
            self.next.target = if more { now.target + 1 } else { self.targets.first };
        }
        now
    }
}

fn ip_header(recipe: &Recipe) -> anyhow::Result<usize> {
    match (recipe.source, recipe.target) {
        (IpAddr::V4(_), IpAddr::V4(_)) => Ok(20),
        (IpAddr::V6(_), IpAddr::V6(_)) => Ok(40),
        (source, target) => {
            Err(usage(format!("--src {source} and --dst {target} are not of the same IP version")))
        }
    }
}

/// The largest frame: the length in an IPv4 header has the header in it, that of IPv6 has not.
fn largest(recipe: &Recipe) -> usize {
    let header = if recipe.source.is_ipv4() { 0 } else { 40 };
    ETHERNET + header + usize::from(u16::MAX)
}

fn payload(pattern: Pattern, len: usize) -> Vec<u8> {
    match pattern {
        Pattern::Zeros => vec![0; len],
        Pattern::Counter => probe::fill(0, len).collect(),
        Pattern::Random => {
            let mut bytes = vec![0; len];
            StdRng::seed_from_u64(1).fill_bytes(&mut bytes);
            bytes
        }
        Pattern::Seq => {
            let empty = Probe { stream: 0, number: 0, nanoseconds: 0 }.bytes();
            empty.into_iter().chain(probe::fill(probe::LEN, len - probe::LEN)).collect()
        }
    }
}

fn packet(recipe: &Recipe, flow: Flow, payload: &[u8]) -> anyhow::Result<Vec<u8>> {
    const HOPS: u8 = 64;
    let ethernet = PacketBuilder::ethernet2(recipe.source_mac.0, recipe.target_mac.0);
    let ip = match (recipe.source, recipe.target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            ethernet.ipv4(source.octets(), target.octets(), HOPS)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            ethernet.ipv6(source.octets(), target.octets(), HOPS)
        }
        _ => unreachable!("ip_header() has refused it"),
    };
    let mut bytes = Vec::with_capacity(recipe.size);
    ip.udp(flow.source, flow.target).write(&mut bytes, payload)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use etherparse::{SlicedPacket, TransportSlice};

    use super::*;

    fn recipe(source: &str, target: &str) -> Recipe {
        Recipe {
            size: 128,
            source_mac: Mac([2, 0, 0, 0, 0, 1]),
            target_mac: Mac([2, 0, 0, 0, 0, 2]),
            source: source.parse().unwrap(),
            target: target.parse().unwrap(),
            source_ports: "1000-1002".parse().unwrap(),
            target_ports: "65534-65535".parse().unwrap(),
            pattern: Pattern::Seq,
        }
    }

    /// The ports of a packet and its payload, if everything in it is right.
    fn check(bytes: &[u8]) -> (Flow, Vec<u8>) {
        let packet = SlicedPacket::from_ethernet(bytes).expect("a packet");
        let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("{packet:?}") };
        let header = udp.to_header();
        let expected = match packet.net.as_ref().expect("IP") {
            etherparse::NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                udp.to_header().calc_checksum_ipv4(&header, udp.payload())
            }
            etherparse::NetSlice::Ipv6(ip) => {
                udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(header.checksum, expected.expect("it fits"), "{header:?}");
        let flow = Flow { source: header.source_port, target: header.destination_port };
        (flow, udp.payload().to_vec())
    }

    #[test]
    fn every_pattern_and_size_gives_a_right_packet() {
        for (source, target) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            for pattern in [Pattern::Zeros, Pattern::Counter, Pattern::Random, Pattern::Seq] {
                for size in [84, 85, 127, 1514] {
                    let recipe = Recipe { size, pattern, ..recipe(source, target) };
                    let template = Template::new(&recipe).expect("a packet");
                    assert_eq!(template.bytes().len(), size);
                    let (flow, payload) = check(template.bytes());
                    assert_eq!(flow, Flow { source: 1000, target: 65534 });
                    match pattern {
                        Pattern::Zeros => assert!(payload.iter().all(|&byte| byte == 0)),
                        Pattern::Counter => assert_eq!(payload[..3], [0, 1, 2]),
                        Pattern::Random => assert_ne!(payload[..8], payload[8..16]),
                        Pattern::Seq => assert_eq!(Probe::read(&payload).unwrap().number, 0),
                    }
                }
            }
        }
    }

    #[test]
    fn checksums_stay_right_whatever_varies() {
        for (source, target) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let template = Template::new(&recipe(source, target)).expect("a packet");
            let mut frame = template.bytes().to_vec();
            let mut flows = template.flows();
            for number in 0..200_000_u64 {
                // Sparse numbers, so that every word of the probe changes.
                let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                let probe = Probe { stream: number as u32, number, nanoseconds: !number };
                let flow = flows.next();
                template.stamp(&mut frame, flow, Some(&probe));
                if number % 64 == 0 {
                    let (found, payload) = check(&frame);
                    assert_eq!((found, Probe::read(&payload)), (flow, Ok(probe)));
                }
            }
        }
    }

    #[test]
    fn flows_are_all_pairs_in_turn() {
        let flows = Template::new(&recipe("10.0.0.1", "10.0.0.2")).expect("a packet").flows();
        assert_eq!((flows.count(), flows.vary()), (6, true));
        let mut all = flows.clone();
        let seen: Vec<(u16, u16)> =
            (0..7).map(|_| all.next()).map(|f| (f.source, f.target)).collect();
        let first = [(1000, 65534), (1001, 65534), (1002, 65534)];
        let second = [(1000, 65535), (1001, 65535), (1002, 65535), (1000, 65534)];
        assert_eq!(seen, [&first[..], &second[..]].concat());
        for n in 0..14 {
            let flow = flows.clone().skip(n).next();
            assert_eq!((flow.source, flow.target), seen[n as usize % 6], "{n}");
        }
    }

    #[test]
    fn sizes_and_addresses_that_do_not_fit_are_named() {
        let too_small = |recipe: &Recipe| Template::new(recipe).unwrap_err().to_string();
        let v4 = recipe("10.0.0.1", "10.0.0.2");
        let v6 = recipe("fd00::1", "fd00::2");
        assert!(too_small(&Recipe { size: 63, ..v4.clone() }).contains("at least 64 bytes"));
        assert!(too_small(&Recipe { size: 83, ..v6.clone() }).contains("IPv6 needs at least 84"));
        for (recipe, most) in [(&v4, 65_549), (&v6, 65_589)] {
            let large = |size| Template::new(&Recipe { size, ..recipe.clone() });
            assert_eq!(large(most).expect("it fits").bytes().len(), most);
            let said = too_small(&Recipe { size: most + 1, ..recipe.clone() });
            assert!(said.contains(&format!("at most {most} bytes")), "{said}");
            assert!(large(100_000).is_err());
        }
        let plain = Recipe { size: 59, pattern: Pattern::Zeros, ..v4.clone() };
        assert!(too_small(&plain).contains("--size 59: IPv4 needs at least 60"));
        assert!(Template::new(&Recipe { size: 64, ..v4 }).is_ok());
        let mixed = recipe("10.0.0.1", "fd00::2");
        assert!(too_small(&mixed).contains("not of the same IP version"));
    }
}
