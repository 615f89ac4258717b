//! What packets of the pattern `seq` carry, so that their receiver can tell which are missing.
//!
//! The probe is the start of the UDP payload, 22 bytes, numbers in network order:
//!
//! | bytes | |
//! |---|---|
//! | 0..2 | 0xc1a7 |
//! | 2..8 | the packet's number in its stream, from 0 or 1 |
//! | 8..16 | when its batch was made: nanoseconds of the sender's monotonic clock |
//! | 16..20 | the stream: drawn for each run, and one for each flow of each sending thread |
//! | 20..22 | makes the ones' complement sum of the probe zero |
//!
//! The last field guards the others. As UDP's checksum is of the same kind, it is the same for all
//! probes, so that the sender need not touch it. The rest of the payload counts up:
//! the byte at payload offset *n* is the lowest byte of *n*.

/// Bytes of a probe.
pub(super) const LEN: usize = 22;

const MAGIC: u64 = 0xc1a7;

/// One packet's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) stream: u32,
    /// Below 2^48.
    pub(super) number: u64,
    pub(super) nanoseconds: u64,
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
        bytes[..8].copy_from_slice(&(MAGIC << 48 | self.number).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.nanoseconds.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.stream.to_be_bytes());
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
        let first = word(0);
        if first >> 48 != MAGIC {
            return Err(NoProbe::Other);
        }
        if fold(sum(bytes)) != 0xffff {
            return Err(NoProbe::Corrupt);
        }
        let stream = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        Ok(Probe { stream, number: first & ((1 << 48) - 1), nanoseconds: word(8) })
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

    const SOME: Probe = Probe { stream: 0xdead_beef, number: 0x1234_5678_9abc, nanoseconds: 77 };

    #[test]
    fn a_probe_is_read_as_it_was_written() {
        for probe in [
            SOME,
            Probe { stream: 0, number: 0, nanoseconds: 0 },
            Probe { stream: u32::MAX, number: (1 << 48) - 1, nanoseconds: u64::MAX },
        ] {
            assert_eq!(Probe::read(&probe.bytes()), Ok(probe));
        }
    }

    #[test]
    fn every_changed_bit_is_found() {
        for bit in 0..LEN * 8 {
            let mut bytes = SOME.bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 16 { NoProbe::Other } else { NoProbe::Corrupt };
            assert_eq!(Probe::read(&bytes), Err(expected), "bit {bit}");
        }
        assert_eq!(Probe::read(&SOME.bytes()[..LEN - 1]), Err(NoProbe::Other));
    }

    #[test]
    fn every_probe_adds_the_same_to_a_checksum() {
        for number in 0..70_000 {
            let probe = Probe { number, ..SOME };
            assert_eq!(fold(sum(&probe.bytes())), 0xffff);
        }
    }
}
