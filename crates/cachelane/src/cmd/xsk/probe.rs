//! What packets of the pattern `seq` carry, so that their receiver can tell which are missing.
//!
//! The probe is the start of the payload, 22 bytes, numbers in network order:
//!
//! | bytes | |
//! |---|---|
//! | 0..2 | 0xc1a7 |
//! | 2..8 | the packet's number in its stream, from 0 |
//! | 8..14 | when its batch was made: nanoseconds of the sender's monotonic clock, the lower 48 bits |
//! | 14..20 | the stream: one for each sending thread of each run |
//! | 20..22 | makes the ones' complement sum of the probe zero |
//!
//! The last field guards the others. As UDP's checksum is of the same kind, it is the same for all
//! probes, so that the sender need not touch it. The rest of the payload counts up:
//! the byte at payload offset *n* is the lowest byte of *n*.

use super::flows::drawn;

/// Bytes of a probe.
pub(super) const LEN: usize = 22;

const MAGIC: u64 = 0xc1a7;

/// The lower 48 bits.
const LOW: u64 = (1 << 48) - 1;

/// One packet's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) stream: Stream,
    /// Below 2^48.
    pub(super) number: u64,
    /// Below 2^48: three days.
    pub(super) nanoseconds: u64,
}

/// A stream, which says of each of its packets by the number which flow it is of. In 48 bits: which one it
/// is, in 27; whether flows are drawn, in one; and how many flows there are but for one, in 20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stream(u64);

/// The most flows of a stream that are told apart.
pub(super) const FLOWS: u32 = 1 << 20;

impl Stream {
    /// The bits of [`Self::id`].
    pub(super) const IDS: u32 = 27;

    /// A stream of 1 to [`FLOWS`] flows, which have packets in turn or as they are [`drawn`].
    pub(super) fn new(id: u32, flows: u32, is_drawn: bool) -> Stream {
        let id = u64::from(id) & ((1 << Self::IDS) - 1);
        Stream(id << 21 | u64::from(is_drawn) << 20 | u64::from(flows - 1) & 0xfffff)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn id(self) -> u32 {
        (self.0 >> 21) as u32
    }

    /// How many flows it has.
    pub(super) fn flows(self) -> u32 {
        (self.0 & 0xfffff) as u32 + 1
    }

    /// Which flow the packet of this number is of.
    pub(super) fn flow(self, number: u64) -> u32 {
        let flows = self.flows();
        match self.0 >> 20 & 1 {
            _ if flows == 1 => 0,
            0 => (number % u64::from(flows)) as u32,
            _ => drawn(number, self.id(), flows),
        }
    }
}

/// Why bytes are no probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoProbe {
    /// They are something else.
    Other,
    /// They were one, and something has changed them.
    Corrupt,
}

impl Probe {
    pub(super) fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (time, stream) = (self.nanoseconds & LOW, self.stream.bits());
        bytes[..8].copy_from_slice(&(MAGIC << 48 | self.number).to_be_bytes());
        bytes[8..16].copy_from_slice(&(time << 16 | stream >> 32).to_be_bytes());
        bytes[16..20].copy_from_slice(&(stream as u32).to_be_bytes());
        let guard = !fold(sum(&bytes[..20]));
        bytes[20..].copy_from_slice(&guard.to_be_bytes());
        bytes
    }

    /// Reads the probe at the start of a payload.
    pub(super) fn read(payload: &[u8]) -> Result<Probe, NoProbe> {
        let bytes = payload.first_chunk::<LEN>().ok_or(NoProbe::Other)?;
        let word = |at: usize| {
            let eight: [u8; 8] = std::array::from_fn(|i| bytes[at + i]);
            u64::from_be_bytes(eight)
        };
        let (first, second) = (word(0), word(8));
        if first >> 48 != MAGIC {
            return Err(NoProbe::Other);
        }
        if fold(sum(bytes)) != 0xffff {
            return Err(NoProbe::Corrupt);
        }
        let low = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        let stream = Stream((second & 0xffff) << 32 | u64::from(low));
        Ok(Probe { stream, number: first & LOW, nanoseconds: second >> 16 })
    }

    /// How long it took until this time of the same clock, if that is less than three days.
    pub(super) fn took(&self, now: u64) -> u64 {
        now.wrapping_sub(self.nanoseconds) & LOW
    }
}

/// The payload after the probe: `len` bytes from payload offset `at`.
pub(super) fn fill(at: usize, len: usize) -> impl Iterator<Item = u8> {
    (at..at + len).map(|n| n as u8)
}

/// The sum of 16-bit words as in the Internet checksum, not yet folded. An odd last byte is the
/// upper half of a word.
pub(super) fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |&byte| u32::from(byte) << 8);
    words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + last
}

/// Adds the carries of a sum back in.
pub(super) fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Nanoseconds of the monotonic clock, which all processes of a host share.
pub(super) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Probe {
        let stream = Stream::new(0x7ad_beef, 1000, true);
        Probe { stream, number: 0x1234_5678_9abc, nanoseconds: 77 }
    }

    #[test]
    fn a_probe_is_read_as_it_was_written() {
        for probe in [
            some(),
            Probe { stream: Stream::new(0, 1, false), number: 0, nanoseconds: 0 },
            Probe {
                stream: Stream::new((1 << 27) - 1, FLOWS, true),
                number: LOW,
                nanoseconds: LOW,
            },
        ] {
            assert_eq!(Probe::read(&probe.bytes()), Ok(probe));
        }
        assert_eq!((some().stream.id(), some().stream.flows()), (0x7ad_beef, 1000));
    }

    #[test]
    fn every_changed_bit_is_found() {
        for bit in 0..LEN * 8 {
            let mut bytes = some().bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 16 { NoProbe::Other } else { NoProbe::Corrupt };
            assert_eq!(Probe::read(&bytes), Err(expected), "bit {bit}");
        }
        assert_eq!(Probe::read(&some().bytes()[..LEN - 1]), Err(NoProbe::Other));
    }

    #[test]
    fn every_probe_adds_the_same_to_a_checksum() {
        for number in 0..70_000 {
            let probe = Probe { number, ..some() };
            assert_eq!(fold(sum(&probe.bytes())), 0xffff);
        }
    }

    #[test]
    fn a_clock_may_pass_the_end_of_its_bits_on_the_way() {
        let now = 5 << 48 | 1_000;
        let probe = Probe { nanoseconds: (now - 5_000) & LOW, ..some() };
        assert_eq!(Probe::read(&probe.bytes()).expect("a probe").took(now), 5_000);
    }
}
