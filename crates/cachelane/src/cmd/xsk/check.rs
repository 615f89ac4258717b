//! What `drop --check` finds in packets of the pattern `seq`: which are lost, late, there twice or
//! changed on the way.

use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::probe::{self, NoProbe, Probe};

/// What was found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Packets with a probe that is right.
    pub(super) probes: u64,
    /// Numbers missing between the first and the last that came.
    pub(super) lost: u64,
    /// Came after one with a higher number.
    pub(super) reordered: u64,
    /// Came again.
    pub(super) duplicated: u64,
    /// Something in them is not as it was sent.
    pub(super) corrupt: u64,
    /// Carry no probe.
    pub(super) other: u64,
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
    streams: HashMap<u32, Stream>,
    latency: Histogram<u64>,
    /// The payload as it is sent, from any offset.
    fill: Vec<u8>,
}

/// The longest delay that is taken for one, and not for another host's clock.
const LONGEST: Duration = Duration::from_secs(60);

impl Checker {
    pub(super) fn new() -> Checker {
        let digits = 2;
        let longest = LONGEST.as_nanos() as u64;
        let latency = Histogram::new_with_max(longest, digits).expect("both are in range");
        let fill = probe::fill(0, 256 + (64 << 10)).collect();
        Checker { tally: Tally::default(), streams: HashMap::new(), latency, fill }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// Looks at one packet, in the parts in which it came, at this time of the monotonic clock.
    pub(super) fn packet(&mut self, parts: &[&[u8]], nanoseconds: u64) {
        match self.probe(parts) {
            Ok(probe) => {
                self.tally.probes += 1;
                let stream =
                    self.streams.entry(probe.stream).or_insert_with(|| Stream::at(probe.number));
                stream.see(probe.number, &mut self.tally);
                let took = nanoseconds.saturating_sub(probe.nanoseconds);
                if took < LONGEST.as_nanos() as u64 {
                    self.latency.saturating_record(took);
                }
            }
            Err(NoProbe::Corrupt) => self.tally.corrupt += 1,
            Err(NoProbe::Other) => self.tally.other += 1,
        }
    }

    /// Delays at these quantiles, if any could be told.
    pub(super) fn delays<const N: usize>(&self, quantiles: [f64; N]) -> Option<[Duration; N]> {
        let at = |quantile| Duration::from_nanos(self.latency.value_at_quantile(quantile));
        (!self.latency.is_empty()).then(|| quantiles.map(at))
    }

    fn probe(&self, parts: &[&[u8]]) -> Result<Probe, NoProbe> {
        let (first, rest) = parts.split_first().ok_or(NoProbe::Other)?;
        let payload = udp_payload(first).ok_or(NoProbe::Other)?;
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

/// The payload of a UDP packet.
struct Payload<'a> {
    /// As far as it is in the first part.
    bytes: &'a [u8],
    /// Its length as the header says it.
    len: usize,
}

fn udp_payload(frame: &[u8]) -> Option<Payload<'_>> {
    const UDP: u8 = 17;
    let word = |at: usize| frame.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (protocol, udp) = match word(12)? {
        0x0800 => (*frame.get(23)?, 14 + usize::from(frame.get(14)? & 15) * 4),
        0x86dd => (*frame.get(20)?, 54),
        _ => return None,
    };
    if protocol != UDP {
        return None;
    }
    let len = usize::from(word(udp + 4)?).checked_sub(8)?;
    Some(Payload { bytes: frame.get(udp + 8..)?, len })
}

/// The numbers of one stream.
#[derive(Debug)]
struct Stream {
    /// One past the highest number so far.
    next: u64,
    /// Which of the last [`WINDOW`] numbers came: a bit each, at the number modulo the window.
    came: Vec<u64>,
}

/// How many numbers back a late packet is told from one that came again.
const WINDOW: u64 = 1 << 16;

impl Stream {
    /// A stream whose first packet is this one. Earlier ones are not missed.
    fn at(first: u64) -> Stream {
        Stream { next: first, came: vec![u64::MAX; WINDOW as usize / 64] }
    }

    fn see(&mut self, number: u64, tally: &mut Tally) {
        if number >= self.next {
            let missing = number - self.next;
            for lost in number.saturating_sub(missing.min(WINDOW))..number {
                self.mark(lost, false);
            }
            self.mark(number, true);
            tally.lost += missing;
            self.next = number + 1;
        } else if self.next - number > WINDOW || !self.has(number) {
            // One from before the window is taken for late: it cannot be told.
            if self.next - number <= WINDOW {
                self.mark(number, true);
            }
            tally.reordered += 1;
            tally.lost = tally.lost.saturating_sub(1);
        } else {
            tally.duplicated += 1;
        }
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.came[word] & bit != 0
    }

    fn mark(&mut self, number: u64, came: bool) {
        let (word, bit) = place(number);
        self.came[word] = if came { self.came[word] | bit } else { self.came[word] & !bit };
    }
}

fn place(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::super::flows::Order;
    use super::super::template::{Kind, Pattern, Recipe, Template};
    use super::super::values::Tags;
    use super::*;

    fn template(size: usize) -> Template {
        let recipe = Recipe {
            kind: Kind::Udp,
            sizes: size.to_string().parse().unwrap(),
            source_mac: "02:00:00:00:00:01".parse().unwrap(),
            target_mac: "02:00:00:00:00:02".parse().unwrap(),
            tags: Tags::default(),
            source: "10.0.0.1".parse().unwrap(),
            target: "10.0.0.2".parse().unwrap(),
            source_ports: "9".parse().unwrap(),
            target_ports: "9".parse().unwrap(),
            pattern: Pattern::Seq,
            limit: None,
            order: Order::Counting,
        };
        Template::new(&recipe).expect("a packet")
    }

    fn packet(template: &Template, stream: u32, number: u64) -> Vec<u8> {
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
            (&[0, 200_000], (199_999, 0, 0)),
            (&[0, 200_000, 199_999, 199_999], (199_998, 1, 1)),
            (&[0, 200_000, 3], (199_998, 1, 0)),
            (&[0, WINDOW, 1, WINDOW + 1], (WINDOW - 2, 1, 0)),
        ] {
            assert_eq!(tally_of(numbers), expected, "{numbers:?}");
        }
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
        let [median] = checker.delays([0.5]).expect("all on one clock");
        assert!((median.as_nanos() as i64 - 1_000).abs() < 20, "{median:?}");
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
        tcp[23] = 6;
        for bytes in [&tcp[..], &[0; 64], &[0; 3], &[]] {
            checker.packet(&[bytes], 2_000);
        }
        assert_eq!(checker.tally(), Tally { other: 4, ..Tally::default() });
    }
}
