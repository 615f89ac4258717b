//! What stands in a capture file, in the classic format or as pcapng. Times are in nanoseconds.
//!
//! No crate writes these. Of those that write pcapng, `pcap-file` (2.0) writes each block twice to learn its
//! length, and swaps the halves of the times in statistics; `pcap-parser` allocates for each block.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ETHERNET: u16 = 1;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// What every program reads.
    Pcap,
    /// With the device, the host and the losses.
    Pcapng,
}

/// What a file says of where its packets come from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) snaplen: u32,
    /// The lender's, if it says which.
    pub(super) device: Option<String>,
    /// The expression that they match.
    pub(super) filter: Option<String>,
}

/// What a file says of all its packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistics {
    pub(super) began: SystemTime,
    pub(super) ended: SystemTime,
    pub(super) written: u64,
    pub(super) lost: u64,
}

/// A packet as it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) time: SystemTime,
    pub(super) parts: &'a [&'a [u8]],
    /// Bytes that are written of it.
    pub(super) kept: usize,
    /// Packets that were lost since the one before, as far as it is known.
    pub(super) lost: u64,
}

impl Record<'_> {
    /// Its bytes, in all its parts.
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    fn write_bytes(&self, to: &mut Vec<u8>) {
        let mut left = self.kept;
        for part in self.parts {
            let part = &part[..part.len().min(left)];
            to.extend_from_slice(part);
            left -= part.len();
        }
    }
}

impl Format {
    /// Bytes that a record takes.
    pub(super) fn len(self, record: &Record<'_>) -> u64 {
        let len = match self {
            Format::Pcap => classic::HEADER + record.kept,
            Format::Pcapng => pcapng::packet_len(record),
        };
        len as u64
    }

    /// Bytes that the end of a file takes.
    pub(super) fn end_len(self) -> u64 {
        if self == Format::Pcapng { pcapng::STATISTICS as u64 } else { 0 }
    }

    /// Begins a file.
    pub(super) fn begin(self, to: &mut Vec<u8>, origin: &Origin) {
        match self {
            Format::Pcap => classic::begin(to, origin),
            Format::Pcapng => pcapng::begin(to, origin),
        }
    }

    #[inline]
    pub(super) fn write(self, to: &mut Vec<u8>, record: &Record<'_>) {
        match self {
            Format::Pcap => classic::write(to, record),
            Format::Pcapng => pcapng::write(to, record),
        }
    }

    /// Ends a file.
    pub(super) fn end(self, to: &mut Vec<u8>, statistics: &Statistics) {
        if self == Format::Pcapng {
            pcapng::end(to, statistics);
        }
    }
}

/// Appends words in the machine's byte order, from which readers know it.
fn words<const WORDS: usize>(to: &mut Vec<u8>, words: [u32; WORDS]) {
    to.extend_from_slice(words.map(u32::to_ne_bytes).as_flattened());
}

/// Since 1970: times before do not happen.
fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// The format of tcpdump and libpcap.
mod classic {
    use super::{ETHERNET, Origin, Record, since_1970, words};

    /// Bytes in front of a packet.
    pub(super) const HEADER: usize = 16;
    const NANOSECONDS: u32 = 0xa1b2_3c4d;
    const VERSION: [u16; 2] = [2, 4];

    pub(super) fn begin(to: &mut Vec<u8>, origin: &Origin) {
        words(to, [NANOSECONDS]);
        VERSION.iter().for_each(|part| to.extend(part.to_ne_bytes()));
        // Two fields that nobody uses: the time zone, and how exact times are.
        words(to, [0, 0, origin.snaplen, ETHERNET.into()]);
    }

    #[inline]
    pub(super) fn write(to: &mut Vec<u8>, record: &Record<'_>) {
        let time = since_1970(record.time);
        // The seconds wrap in 2106.
        let seconds = time.as_secs() as u32;
        words(to, [seconds, time.subsec_nanos(), record.kept as u32, record.len() as u32]);
        record.write_bytes(to);
    }
}

/// The format of Wireshark: blocks, which have options (draft-ietf-opsawg-pcapng).
mod pcapng {
    use std::fs;

    use super::{ETHERNET, Origin, Record, Statistics, since_1970, words};

    const SECTION: u32 = 0x0a0d_0d0a;
    const BYTE_ORDER: u32 = 0x1a2b_3c4d;
    const INTERFACE: u32 = 1;
    const PACKET: u32 = 6;
    const INTERFACE_STATISTICS: u32 = 5;

    /// Options of a section, an interface, a packet and statistics.
    const HARDWARE: u16 = 2;
    const OS: u16 = 3;
    const APPLICATION: u16 = 4;
    const NAME: u16 = 2;
    const RESOLUTION: u16 = 9;
    const FILTER: u16 = 11;
    const LOST: u16 = 4;
    const BEGAN: u16 = 2;
    const ENDED: u16 = 3;
    const RECEIVED: u16 = 4;
    const DROPPED: u16 = 5;

    /// Bytes of the longest option.
    const LONGEST: usize = u16::MAX as usize;

    /// Bytes of a packet's block beside the packet.
    const PACKET_BESIDE: usize = 8 + 20 + 4;
    /// Bytes of an option with a number of 64 bits, and of the last option.
    const NUMBER: usize = 4 + 8;
    const LAST: usize = 4;
    /// Bytes of a block of statistics.
    pub(super) const STATISTICS: usize = 8 + 12 + 4 * NUMBER + LAST + 4;

    pub(super) fn packet_len(record: &Record<'_>) -> usize {
        let options = if record.lost > 0 { NUMBER + LAST } else { 0 };
        PACKET_BESIDE + record.kept.next_multiple_of(4) + options
    }

    pub(super) fn begin(to: &mut Vec<u8>, origin: &Origin) {
        block(to, SECTION, |to| {
            words(to, [BYTE_ORDER]);
            // The version, and a length that is not said.
            to.extend([1_u16, 0].map(u16::to_ne_bytes).as_flattened());
            to.extend((-1_i64).to_ne_bytes());
            if let Some(hardware) = hardware() {
                option(to, HARDWARE, hardware.as_bytes());
            }
            option(to, OS, os().as_bytes());
            option(to, APPLICATION, concat!("cachelane ", env!("CARGO_PKG_VERSION")).as_bytes());
            words(to, [0]);
        });
        block(to, INTERFACE, |to| {
            to.extend([ETHERNET, 0].map(u16::to_ne_bytes).as_flattened());
            words(to, [origin.snaplen]);
            if let Some(device) = &origin.device {
                option(to, NAME, device.as_bytes());
            }
            // Ten to the power of minus nine seconds.
            option(to, RESOLUTION, &[9]);
            // One that is too long for an option is left out.
            if let Some(filter) = origin.filter.as_ref().filter(|filter| filter.len() < LONGEST) {
                // 0: as people write it, not compiled.
                option(to, FILTER, &[&[0], filter.as_bytes()].concat());
            }
            words(to, [0]);
        });
    }

    #[inline]
    pub(super) fn write(to: &mut Vec<u8>, record: &Record<'_>) {
        let len = packet_len(record) as u32;
        let [high, low] = halves(since_1970(record.time).as_nanos() as u64);
        words(to, [PACKET, len, 0, high, low, record.kept as u32, record.len() as u32]);
        record.write_bytes(to);
        to.extend_from_slice(&[0; 3][..record.kept.next_multiple_of(4) - record.kept]);
        if record.lost > 0 {
            option(to, LOST, &record.lost.to_ne_bytes());
            words(to, [0]);
        }
        words(to, [len]);
    }

    pub(super) fn end(to: &mut Vec<u8>, statistics: &Statistics) {
        let &Statistics { began, ended, written, lost } = statistics;
        let [began, ended] = [began, ended].map(|time| halves(since_1970(time).as_nanos() as u64));
        block(to, INTERFACE_STATISTICS, |to| {
            words(to, [0, ended[0], ended[1]]);
            for (code, [high, low]) in [(BEGAN, began), (ENDED, ended)] {
                option(to, code, [high, low].map(u32::to_ne_bytes).as_flattened());
            }
            option(to, RECEIVED, &(written + lost).to_ne_bytes());
            option(to, DROPPED, &lost.to_ne_bytes());
            words(to, [0]);
        });
    }

    /// The halves of a time as they are written, whatever the byte order.
    fn halves(nanoseconds: u64) -> [u32; 2] {
        // They last until 2554.
        [(nanoseconds >> 32) as u32, nanoseconds as u32]
    }

    fn block(to: &mut Vec<u8>, code: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let start = to.len();
        words(to, [code, 0]);
        write(to);
        let len = (to.len() - start + 4) as u32;
        words(to, [len]);
        to[start + 4..start + 8].copy_from_slice(&len.to_ne_bytes());
    }

    fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
        // Those that are written are short.
        to.extend_from_slice([code, value.len() as u16].map(u16::to_ne_bytes).as_flattened());
        to.extend_from_slice(value);
        to.extend_from_slice(&[0; 3][..value.len().next_multiple_of(4) - value.len()]);
    }

    /// The processors' name, as far as the kernel knows it.
    fn hardware() -> Option<String> {
        let info = fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = info.lines().find(|line| line.starts_with("model name"))?;
        let name = line.split_once(':')?.1.trim();
        (!name.is_empty()).then(|| name.chars().take(200).collect())
    }

    fn os() -> String {
        let uname = rustix::system::uname();
        let [name, release] = [uname.sysname(), uname.release()].map(|part| part.to_string_lossy());
        format!("{name} {release}")
    }
}
