//! What `drop --check` finds in packets of the pattern `seq`: which are lost, late, there twice or
//! changed on the way.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use frames::FrameArea;
use serde_json::Value;
use xsk::Packet;

use super::maker::Streams;
use super::probe::{self, NoProbe, Probe, Stream, monotonic};
use super::times::{LONGEST, Times};

/// What was found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Packets with a probe that is right.
    pub(super) probes: u64,
    /// Numbers missing between the first and the last that came.
    pub(super) lost: u64,
    /// Came after one of their flow with a higher number.
    pub(super) reordered: u64,
    /// Came again.
    pub(super) duplicated: u64,
    /// Something in them is not as it was sent.
    pub(super) corrupt: u64,
    /// Carry no probe, or are of more flows than are followed.
    pub(super) other: u64,
}

/// How many flows there were, and what happened to how many of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowTally {
    pub(super) flows: u64,
    pub(super) lost: u64,
    pub(super) reordered: u64,
    pub(super) duplicated: u64,
}

impl Tally {
    /// Whether all that was sent came once, in order, unchanged.
    pub(super) fn is_clean(&self) -> bool {
        let Tally { lost, reordered, duplicated, corrupt, .. } = *self;
        [lost, reordered, duplicated, corrupt] == [0; 4]
    }
}

/// Checks packets as they come.
#[derive(Debug)]
pub(super) struct Checker {
    tally: Tally,
    streams: HashMap<Stream, Track>,
    latency: Times,
    /// The payload as it is sent, from any offset.
    fill: Vec<u8>,
    /// Streams that alone are looked at; none: all.
    ours: Option<Streams>,
    /// Flows that are followed so far.
    followed: usize,
}

impl Checker {
    pub(super) fn new() -> Checker {
        let latency = Times::default();
        let fill = probe::fill(0, 256 + (64 << 10)).collect();
        Checker {
            tally: Tally::default(),
            streams: HashMap::new(),
            latency,
            fill,
            ours: None,
            followed: 0,
        }
    }

    /// One that looks at the packets of these streams alone.
    pub(super) fn of(streams: Streams) -> Checker {
        Checker { ours: Some(streams), ..Checker::new() }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// Looks at all flows.
    pub(super) fn flows(&self) -> FlowTally {
        let mut all = FlowTally::default();
        for flow in self.streams.values().flat_map(|track| &track.flows) {
            all.flows += u64::from(flow.next > 0);
            all.lost += u64::from(flow.lost > 0);
            all.reordered += u64::from(flow.reordered);
            all.duplicated += u64::from(flow.duplicated);
        }
        all
    }

    /// Looks at one packet, in the parts in which it came, at this time of the monotonic clock.
    pub(super) fn packet(&mut self, parts: &[&[u8]], nanoseconds: u64) {
        match self.probe(parts) {
            Ok(probe) if !self.ours.is_none_or(|ours| ours.have(probe.stream)) => {
                self.tally.other += 1;
            }
            Ok(probe) => {
                let streams = self.streams.len();
                let track = match self.streams.entry(probe.stream) {
                    Entry::Occupied(there) => there.into_mut(),
                    Entry::Vacant(_) if streams == STREAMS => return self.tally.other += 1,
                    Entry::Vacant(free) => {
                        let flows = probe.stream.flows() as usize;
                        // Of too many flows, the order of all is what is looked at.
                        let flows = if self.followed + flows > FOLLOWED { 1 } else { flows };
                        self.followed += flows;
                        free.insert(Track::new(probe.stream, probe.number, flows))
                    }
                };
                self.tally.probes += 1;
                track.see(probe.number, &mut self.tally);
                let took = Duration::from_nanos(probe.took(nanoseconds));
                // A longer one is rather of another host's clock.
                if took < LONGEST {
                    self.latency.add(took, 1);
                }
            }
            Err(NoProbe::Corrupt) => self.tally.corrupt += 1,
            Err(NoProbe::Other) => self.tally.other += 1,
        }
    }

    /// How long packets took, for people and in microseconds for programs, if any could be told.
    pub(super) fn delays(&self) -> Option<(String, Value)> {
        (!self.latency.is_empty()).then(|| (self.latency.text(), self.latency.object()))
    }

    fn probe(&self, parts: &[&[u8]]) -> Result<Probe, NoProbe> {
        let (first, rest) = parts.split_first().ok_or(NoProbe::Other)?;
        let payload = payload(first).ok_or(NoProbe::Other)?;
        let probe = Probe::read(payload.bytes)?;
        let mut at = probe::LEN;
        let mut left = payload.len.checked_sub(at).ok_or(NoProbe::Corrupt)?;
        for part in std::iter::once(&payload.bytes[at..]).chain(rest.iter().copied()) {
            // What follows the payload pads the frame.
            let part = &part[..part.len().min(left)];
            if part != &self.fill[at % 256..][..part.len()] {
                return Err(NoProbe::Corrupt);
            }
            (at, left) = (at + part.len(), left - part.len());
        }
        if left > 0 { Err(NoProbe::Corrupt) } else { Ok(probe) }
    }
}

/// Looks at packets that have just come.
pub(super) fn check(checker: &mut Checker, packets: &[Packet], area: &FrameArea) {
    let now = monotonic();
    let mut parts: Vec<&[u8]> = Vec::new();
    for packet in packets {
        parts.push(packet.bytes(area));
        if !packet.more {
            checker.packet(&parts, now);
            parts.clear();
        }
    }
}

/// The payload of a packet.
struct Payload<'a> {
    /// As far as it is in the first part.
    bytes: &'a [u8],
    /// Its length as the headers say it.
    len: usize,
}

/// What is behind UDP, a TCP header, or that of an ICMP echo; behind two VLAN tags at most.
fn payload(frame: &[u8]) -> Option<Payload<'_>> {
    const ICMP: u8 = 1;
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const ICMP6: u8 = 58;
    let word = |at: usize| frame.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let mut net = 14;
    while net < 22 && matches!(word(net - 2)?, 0x8100 | 0x88a8) {
        net += 4;
    }
    let (protocol, inner, len) = match word(net - 2)? {
        0x0800 => {
            let header = usize::from(frame.get(net)? & 15) * 4;
            let len = usize::from(word(net + 2)?).checked_sub(header)?;
            (*frame.get(net + 9)?, net + header, len)
        }
        0x86dd => (*frame.get(net + 6)?, net + 40, usize::from(word(net + 4)?)),
        _ => return None,
    };
    let header = match protocol {
        UDP | ICMP | ICMP6 => 8,
        TCP => usize::from(frame.get(inner + 12)? >> 4) * 4,
        _ => return None,
    };
    let len = if protocol == UDP { usize::from(word(inner + 4)?) } else { len };
    Some(Payload { bytes: frame.get(inner + header..)?, len: len.checked_sub(header)? })
}

/// The most streams, and flows of all of them, that are followed, so that nobody can use up the memory.
const STREAMS: usize = 1024;
const FOLLOWED: usize = 1 << 21;

/// How many numbers back a late packet is told from one that came again.
const WINDOW: u64 = 1 << 16;

/// What came of one stream.
#[derive(Debug)]
struct Track {
    stream: Stream,
    /// The number of the one that came first, before which none is missed.
    first: u64,
    /// One past the highest number so far.
    next: u64,
    /// So many steps it may still take to note which flows have lost packets: numbers may be anything.
    credit: u64,
    /// Which of the last [`WINDOW`] numbers came: a bit each, at the number modulo the window.
    came: Box<[u64]>,
    /// What came of each flow, or of all if that is one.
    flows: Vec<Flow>,
}

/// What came of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// One past its highest number so far; 0: none came.
    next: u64,
    lost: u32,
    reordered: bool,
    duplicated: bool,
}

impl Track {
    /// A stream whose first packet is this one. Earlier ones are not missed.
    fn new(stream: Stream, first: u64, flows: usize) -> Track {
        let came = vec![0; WINDOW as usize / 64].into_boxed_slice();
        Track { stream, first, next: first, credit: 0, came, flows: vec![Flow::default(); flows] }
    }

    fn see(&mut self, number: u64, tally: &mut Tally) {
        /// What one packet may cost, on average and at most.
        const STEPS: u64 = 256;
        const SAVED: u64 = 1 << 20;
        self.credit = (self.credit + STEPS).min(SAVED);
        if number >= self.next {
            let missing = number - self.next;
            self.clear(number - missing.min(WINDOW), number);
            // Which flow the others were of is not looked at.
            let known = missing.min(WINDOW).min(self.credit);
            self.credit -= known;
            for lost in number - known..number {
                let flow = self.flow(lost);
                flow.lost = flow.lost.saturating_add(1);
            }
            self.mark(number);
            tally.lost += missing;
            self.next = number + 1;
            self.flow(number).next = number + 1;
        } else if self.next - number > WINDOW || !self.has(number) {
            // One from before the window is taken for late: it cannot be told.
            if self.next - number <= WINDOW {
                self.mark(number);
            }
            let was_missed = number >= self.first;
            tally.lost = tally.lost.saturating_sub(u64::from(was_missed));
            let flow = self.flow(number);
            flow.lost = flow.lost.saturating_sub(u32::from(was_missed));
            // One that others of its flow did not overtake is in order.
            if flow.next > number {
                flow.reordered = true;
                tally.reordered += 1;
            } else {
                flow.next = number + 1;
            }
        } else {
            tally.duplicated += 1;
            self.flow(number).duplicated = true;
        }
    }

    /// The flow of the packet of this number.
    fn flow(&mut self, number: u64) -> &mut Flow {
        let flow = if self.flows.len() == 1 { 0 } else { self.stream.flow(number) };
        &mut self.flows[flow as usize]
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.came[word] & bit != 0
    }

    fn mark(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.came[word] |= bit;
    }

    /// These have not come, at most a window of them.
    fn clear(&mut self, from: u64, to: u64) {
        let mut number = from;
        while number < to {
            let (word, bit) = place(number);
            if bit == 1 && to - number >= 64 {
                self.came[word] = 0;
                number += 64;
            } else {
                self.came[word] &= !bit;
                number += 1;
            }
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::super::template::{self, Kind, Recipe, Template};
    use super::*;

    fn recipe(size: usize) -> Recipe {
        Recipe {
            sizes: size.to_string().parse().unwrap(),
            source_ports: "9".parse().unwrap(),
            target_ports: "9".parse().unwrap(),
            ..template::tests::recipe("10.0.0.1", "10.0.0.2")
        }
    }

    fn template_of(recipe: Recipe) -> Template {
        Template::new(&recipe).expect("a packet")
    }

    fn template(size: usize) -> Template {
        template_of(recipe(size))
    }

    fn packet(template: &Template, stream: u32, number: u64) -> Vec<u8> {
        packet_of(template, Stream::new(stream, 1, false), number)
    }

    fn packet_of(template: &Template, stream: Stream, number: u64) -> Vec<u8> {
        let mut bytes = template.bytes().to_vec();
        let probe = Probe { stream, number, nanoseconds: 1_000 };
        template.stamp(&mut bytes, number, template.flows().next(), Some(&probe));
        bytes
    }

    fn tally_of(numbers: &[u64]) -> (u64, u64, u64) {
        let template = template(64);
        let mut checker = Checker::new();
        for &number in numbers {
            checker.packet(&[&packet(&template, 7, number)], 2_000);
        }
        let Tally { lost, reordered, duplicated, .. } = checker.tally();
        (lost, reordered, duplicated)
    }

    #[test]
    fn lost_late_and_repeated_packets_are_told_apart() {
        for (numbers, expected) in [
            (&[0, 1, 2, 3][..], (0, 0, 0)),
            (&[5, 6, 7], (0, 0, 0)),
            (&[0, 3], (2, 0, 0)),
            (&[0, 3, 1], (1, 1, 0)),
            (&[0, 3, 1, 2], (0, 2, 0)),
            (&[0, 1, 1, 2, 0], (0, 0, 2)),
            (&[0, 3, 1, 1], (1, 1, 1)),
            (&[1, 0], (0, 1, 0)),
            (&[5, 3, 4, 3, 7], (1, 2, 1)),
            (&[0, 70, 5, 69, 5], (67, 2, 1)),
            (&[0, 200_000], (199_999, 0, 0)),
            (&[0, 200_000, 199_999, 199_999], (199_998, 1, 1)),
            (&[0, 200_000, 3], (199_998, 1, 0)),
            (&[0, WINDOW, 1, WINDOW + 1], (WINDOW - 2, 1, 0)),
        ] {
            assert_eq!(tally_of(numbers), expected, "{numbers:?}");
        }
    }

    /// Flow 3 does not come at all, flow 5 loses one, and what comes late of others is in order by flow, but
    /// for one.
    #[test]
    fn what_happened_is_known_by_flow() {
        let template = template(64);
        for is_drawn in [false, true] {
            let stream = Stream::new(1, 10, is_drawn);
            let mut checker = Checker::new();
            let mut see = |number| {
                checker.packet(&[&packet_of(&template, stream, number)], 2_000);
            };
            let of = |flow: u32, from: u64| (from..).find(|number| stream.flow(*number) == flow);
            let one = of(5, 500).expect("one of it");
            let (late, later) = (of(7, 600).expect("one"), of(7, 601 + 20).expect("one more"));
            let mut away = 0;
            for number in 0..1000 {
                let flow = stream.flow(number);
                away += u64::from(flow == 3);
                if flow != 3 && number != one && number != late {
                    see(number);
                }
                if number == later {
                    // Behind others of its flow.
                    see(late);
                }
            }
            // All of a flow behind all of the others, but in order.
            let second = 1000..1100;
            second.clone().filter(|number| stream.flow(*number) != 6).for_each(&mut see);
            second.filter(|number| stream.flow(*number) == 6).for_each(&mut see);
            see(1099);
            let Tally { lost, reordered, duplicated, .. } = checker.tally();
            assert_eq!((lost, reordered, duplicated), (away + 1, 1, 1), "{is_drawn}");
            let flows = FlowTally { flows: 10, lost: 2, reordered: 1, duplicated: 1 };
            assert_eq!(checker.flows(), flows, "{is_drawn}");
        }
    }

    /// Streams without end are not followed without end.
    #[test]
    fn memory_is_bounded_whatever_comes() {
        let template = template(64);
        let mut checker = Checker::new();
        for id in 0..3_000 {
            let stream = Stream::new(id, 1 << 20, false);
            checker.packet(&[&packet_of(&template, stream, 1 << 47)], 2_000);
            checker.packet(&[&packet_of(&template, stream, 1)], 2_000);
        }
        assert!(checker.streams.len() <= STREAMS && checker.followed <= FOLLOWED + STREAMS);
        assert_eq!(checker.tally().other, 2 * (3_000 - STREAMS as u64));
    }

    #[test]
    fn streams_do_not_mix() {
        let template = template(64);
        let mut checker = Checker::new();
        for number in 0..100 {
            checker.packet(&[&packet(&template, 1, number)], 2_000);
            checker.packet(&[&packet(&template, 2, 1_000 + number)], 2_000);
        }
        assert_eq!(checker.tally(), Tally { probes: 200, ..Tally::default() });
        assert!(checker.tally().is_clean());
        let (text, delays) = checker.delays().expect("all on one clock");
        let median = delays["median"].as_f64().expect("a number");
        assert!((median - 1.0).abs() < 0.02 && text.contains("median 1"), "{text}: {median}");
    }

    #[test]
    fn a_changed_byte_anywhere_in_the_payload_is_found() {
        let template = template(300);
        let mut checker = Checker::new();
        let whole = packet(&template, 1, 0);
        for at in 42 + 2..300 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            checker.packet(&[&bytes], 2_000);
        }
        checker.packet(&[&whole[..299]], 2_000);
        assert_eq!(checker.tally(), Tally { corrupt: 300 - 44 + 1, ..Tally::default() });
        assert!(!checker.tally().is_clean());
    }

    #[test]
    fn probes_are_found_in_every_kind_of_packet() {
        for (kind, ends, tags) in [
            (Kind::Udp, ["10.0.0.1", "10.0.0.2"], "5"),
            (Kind::Udp, ["fd00::1", "fd00::2"], "100,5"),
            (Kind::TcpSyn, ["10.0.0.1", "10.0.0.2"], "5"),
            (Kind::TcpSyn, ["fd00::1", "fd00::2"], "5"),
            (Kind::IcmpEcho, ["10.0.0.1", "10.0.0.2"], "5"),
            (Kind::IcmpEcho, ["fd00::1", "fd00::2"], "5"),
        ] {
            let [source, target] = ends.map(|end| end.parse().unwrap());
            let tags = tags.parse().unwrap();
            let template = template_of(Recipe { kind, source, target, tags, ..recipe(200) });
            let mut checker = Checker::new();
            checker.packet(&[&packet(&template, 1, 0)], 2_000);
            checker.packet(&[&packet(&template, 1, 1)], 2_000);
            let expected = Tally { probes: 2, ..Tally::default() };
            assert_eq!(checker.tally(), expected, "{kind:?} {ends:?}");
        }
    }

    #[test]
    fn packets_in_parts_and_with_padding_are_read() {
        let template = template(1000);
        let mut checker = Checker::new();
        let mut bytes = packet(&template, 1, 0);
        checker.packet(&[&bytes[..64], &bytes[64..700], &bytes[700..]], 2_000);
        bytes.extend([0; 6]);
        checker.packet(&[&bytes[..99], &bytes[99..]], 2_000);
        let expected = Tally { probes: 2, duplicated: 1, ..Tally::default() };
        assert_eq!(checker.tally(), expected);
    }

    #[test]
    fn other_packets_are_counted_apart() {
        let mut checker = Checker::new();
        let mut tcp = packet(&template(64), 1, 0);
        tcp[23] = 47;
        for bytes in [&tcp[..], &[0; 64], &[0; 3], &[]] {
            checker.packet(&[bytes], 2_000);
        }
        assert_eq!(checker.tally(), Tally { other: 4, ..Tally::default() });
    }
}
