//! Reads the packets of a capture file, pcap or pcapng, ahead of whoever sends them.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context as _, anyhow, bail, ensure};
use pcap_parser::{
    Block, Linktype, OptionCode, PcapBlockOwned, PcapError, PcapNGOption, create_reader,
};

use crate::exit::usage;

/// Packets that were read together.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// It is the first of its file.
    pub(super) begins: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) packets: Vec<Recorded>,
}

/// A packet of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Where it ends in its chunk. It begins where the one before ends.
    pub(super) end: usize,
    /// When it was recorded, in nanoseconds since 1970; never before the one before it.
    pub(super) nanoseconds: u64,
    /// It was longer than what was recorded of it.
    pub(super) is_cut: bool,
    /// It is not of Ethernet.
    pub(super) is_other: bool,
}

/// Bytes of a chunk, and how many are read ahead.
const CHUNK: usize = 1 << 20;
const AHEAD: usize = 4;

/// The largest block of a file.
const LARGEST: usize = 1 << 20;

/// A file that is open, and has packets of Ethernet as far as its beginning says.
#[derive(Debug)]
pub(super) struct Capture {
    path: PathBuf,
    file: Option<File>,
}

impl Capture {
    /// Opens it; `-` is stdin. It is to be read so often; 0: without end.
    pub(super) fn open(path: &Path, times: u64) -> anyhow::Result<Capture> {
        let path = path.to_owned();
        if path == Path::new("-") {
            if times != 1 {
                return Err(usage(format!("--loop {times}: stdin is read once (expected a file)")));
            }
            return Ok(Capture { path, file: None });
        }
        let file = File::open(&path).with_context(|| format!("--pcap {}", path.display()))?;
        let kind = file.metadata()?.file_type();
        if kind.is_dir() {
            return Err(usage(format!("--pcap {}: is a folder (expected a file)", path.display())));
        }
        if times != 1 && !kind.is_file() {
            return Err(usage(format!(
                "--loop {times}: {} can be read once (expected a regular file)",
                path.display()
            )));
        }
        let mut capture = Capture { path, file: Some(file) };
        if kind.is_file() {
            capture.look()?;
        }
        Ok(capture)
    }

    /// Looks whether it is what it should be, and goes back to its beginning.
    fn look(&mut self) -> anyhow::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let (mut first, name) = (Chunk::default(), self.path.display().to_string());
        let mut read = Reading::default();
        read.all(&mut *file, |chunk| {
            first = chunk;
            false
        })
        .with_context(|| format!("--pcap {name}"))?;
        if first.packets.is_empty() {
            bail!("--pcap {name}: there are no packets in it");
        }
        if first.packets.iter().all(|packet| packet.is_other) {
            bail!("--pcap {name}: its packets are not of Ethernet (link type {})", read.other);
        }
        file.rewind().with_context(|| format!("--pcap {name}"))
    }

    /// Has a thread read it so often; 0: without end. Nothing more comes after its last packet, or after
    /// an error.
    pub(super) fn read(self, times: u64) -> anyhow::Result<Receiver<anyhow::Result<Chunk>>> {
        let (to, from) = sync_channel(AHEAD);
        let thread = thread::Builder::new().name("xsk-read".into());
        thread.spawn(move || self.read_all(times, &to)).context("cannot start a thread")?;
        Ok(from)
    }

    fn read_all(mut self, times: u64, to: &SyncSender<anyhow::Result<Chunk>>) {
        let (mut over, mut done) = (false, 0);
        while !over && (times == 0 || done < times) {
            let mut read = Reading { is_again: done > 0, ..Reading::default() };
            let next = |chunk| to.send(Ok(chunk)).is_ok();
            let result = match &mut self.file {
                Some(file) => read.all(file, next),
                None => read.all(io::stdin(), next),
            };
            done += 1;
            let result = result.and_then(|goes_on| {
                over = !goes_on;
                // It was emptied meanwhile; to read it over and over would find nothing for ever.
                ensure!(read.packets > 0 || times == 1, "there are no packets in it any more");
                self.file.as_mut().map_or(Ok(()), |file| file.rewind().map_err(Into::into))
            });
            if let Err(error) = result {
                over = true;
                // Nobody listens where the sender has ended.
                let _ = to.send(Err(error.context(format!("--pcap {}", self.path.display()))));
            }
        }
    }
}

/// How far a file was read.
#[derive(Debug, Default)]
struct Reading {
    interfaces: Vec<Interface>,
    chunk: Chunk,
    latest: u64,
    packets: u64,
    /// A link type that is not Ethernet.
    other: i32,
    /// The section's byte order.
    is_big: bool,
    /// It was read before, so that what is to be said of it has been said.
    is_again: bool,
}

/// Where packets of a file were recorded.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: Linktype,
    /// Units of time in a second.
    units: u64,
    /// Seconds to be added.
    offset: i64,
}

impl Reading {
    /// Reads everything; false if `next` wants no more chunks.
    fn all(
        &mut self,
        mut from: impl Read + Send,
        mut next: impl FnMut(Chunk) -> bool,
    ) -> anyhow::Result<bool> {
        let head = head(&mut from).context("cannot read it")?;
        let reader = create_reader(LARGEST, Cursor::new(head).chain(from));
        let mut reader = reader.map_err(|_| anyhow!("it is neither pcap nor pcapng"))?;
        loop {
            match reader.next() {
                Ok((len, block)) => {
                    self.block(&block)?;
                    reader.consume(len);
                }
                Err(PcapError::Eof) => break,
                Err(PcapError::UnexpectedEof) => {
                    if !self.is_again {
                        tracing::warn!("the capture file ends within packet {}", self.packets + 1);
                    }
                    break;
                }
                Err(PcapError::Incomplete(_)) => {
                    // Where a pipe has nothing yet, what there is goes on.
                    if !self.chunk.packets.is_empty() && !next(std::mem::take(&mut self.chunk)) {
                        return Ok(false);
                    }
                    reader.refill().map_err(|_| anyhow!("cannot read it"))?;
                }
                Err(error) => {
                    let what = match error {
                        PcapError::BufferTooSmall => "is larger than a megabyte",
                        _ => "is not as it should be",
                    };
                    bail!("what follows packet {} {what}", self.packets);
                }
            }
            let is_full = self.chunk.bytes.len() >= CHUNK;
            if is_full && !next(std::mem::take(&mut self.chunk)) {
                return Ok(false);
            }
        }
        let last = std::mem::take(&mut self.chunk);
        Ok(last.packets.is_empty() || next(last))
    }

    fn block(&mut self, block: &PcapBlockOwned<'_>) -> anyhow::Result<()> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let units =
                    if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
                self.interfaces = vec![Interface { link: header.network, units, offset: 0 }];
            }
            PcapBlockOwned::Legacy(packet) => {
                let units = self.interfaces.first().map_or(1_000_000, |one| one.units);
                let time = u64::from(packet.ts_sec) * units + u64::from(packet.ts_usec);
                let data = &packet.data[..packet.data.len().min(packet.caplen as usize)];
                self.packet(0, Some(time), data, packet.origlen)?;
            }
            PcapBlockOwned::NG(Block::SectionHeader(section)) => {
                self.interfaces.clear();
                self.is_big = section.big_endian();
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(one)) => {
                let units = units(one.if_tsresol);
                let units = units.context("it has an interface with an unknown unit of time")?;
                let offset = self.offset(&one.options);
                self.interfaces.push(Interface { link: one.linktype, units, offset });
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let time = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let data = &packet.data[..packet.data.len().min(packet.caplen as usize)];
                self.packet(packet.if_id as usize, Some(time), data, packet.origlen)?;
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                let data = &packet.data[..packet.data.len().min(packet.origlen as usize)];
                self.packet(0, None, data, packet.origlen)?;
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(())
    }

    /// Seconds that are to be added to times. The crate reads them in one byte order only.
    fn offset(&self, options: &[PcapNGOption<'_>]) -> i64 {
        let option = options.iter().find(|option| option.code == OptionCode::IfTsoffset);
        let bytes = option.and_then(|option| option.value.first_chunk::<8>()).copied();
        let read = if self.is_big { i64::from_be_bytes } else { i64::from_le_bytes };
        bytes.map_or(0, read)
    }

    fn packet(
        &mut self,
        interface: usize,
        time: Option<u64>,
        data: &[u8],
        len: u32,
    ) -> anyhow::Result<()> {
        self.packets += 1;
        let one = self.interfaces.get(interface).with_context(|| {
            format!("packet {} is of an interface that the file does not describe", self.packets)
        })?;
        if let Some(time) = time {
            let (units, second) = (u128::from(one.units), 1_000_000_000);
            let since = u128::from(time) * second / units;
            let offset = i128::from(one.offset) * second as i128;
            let at = (since as i128).saturating_add(offset).clamp(0, i128::from(u64::MAX));
            self.latest = self.latest.max(at as u64);
        }
        let is_other = one.link != Linktype::ETHERNET;
        if is_other {
            self.other = one.link.0;
        }
        self.chunk.begins |= self.packets == 1;
        self.chunk.bytes.extend_from_slice(data);
        self.chunk.packets.push(Recorded {
            end: self.chunk.bytes.len(),
            nanoseconds: self.latest,
            is_cut: data.len() < len as usize,
            is_other,
        });
        Ok(())
    }
}

/// Units of time in a second, as an interface says it: a power of ten, or of two. (The crate reads no
/// powers of two.)
fn units(resolution: u8) -> Option<u64> {
    match resolution {
        power @ ..0x80 => 10_u64.checked_pow(power.into()),
        power => 1_u64.checked_shl(u32::from(power & 0x7f)),
    }
}

/// The file's header whole, which its reader wants at once, also of a pipe.
fn head(from: &mut impl Read) -> io::Result<Vec<u8>> {
    /// Of pcap; and of pcapng up to where its length and byte order are.
    const PCAP: usize = 24;
    const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
    const BIG: [u8; 4] = [0x1a, 0x2b, 0x3c, 0x4d];
    let mut head = Vec::new();
    from.by_ref().take(PCAP as u64).read_to_end(&mut head)?;
    if let Some((&[magic, len, order], _)) = head.as_chunks::<4>().0.split_first_chunk::<3>()
        && magic == MAGIC
    {
        let len = if order == BIG { u32::from_be_bytes(len) } else { u32::from_le_bytes(len) };
        let rest = (len as usize).min(LARGEST / 2).saturating_sub(head.len());
        from.take(rest as u64).read_to_end(&mut head)?;
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use super::*;

    /// A file of pcap, in one byte order and unit or the other.
    fn pcap(is_big: bool, nanoseconds: bool, link: u32, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let word = |number: u32| if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
        let half = |number: u16| if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
        let mut bytes = word(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
        bytes.extend([half(2), half(4)].concat());
        bytes.extend([0, 0, 65535, link].map(word).concat());
        for (seconds, parts, data) in packets {
            let len = data.len() as u32;
            bytes.extend([*seconds, *parts, len, len + 1].map(word).concat());
            bytes.extend(*data);
        }
        bytes
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let padding = body.len().next_multiple_of(4) - body.len();
        let len = ((12 + body.len() + padding) as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &vec![0; padding], &len].concat()
    }

    /// A file of pcapng with an interface in milliseconds and one in microseconds.
    fn pcapng() -> Vec<u8> {
        let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
        let interface = |link: u8, unit: u8| {
            block(1, &[link, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, unit, 0, 0, 0, 0, 0, 0, 0])
        };
        let packet = |interface: u32, time: u64, data: &[u8]| {
            let len = data.len() as u32;
            let head = [interface, (time >> 32) as u32, time as u32, len, len];
            block(6, &[head.map(u32::to_le_bytes).concat(), data.to_vec()].concat())
        };
        [
            block(0x0a0d_0d0a, &section),
            interface(1, 3),
            interface(101, 6),
            packet(0, 5_000, b"one"),
            packet(1, 5_000_001, b"other"),
            packet(0, 5_002, b"two"),
        ]
        .concat()
    }

    /// Bytes, a time, whether it was cut, and whether it is not of Ethernet.
    type Read = (Vec<u8>, u64, bool, bool);

    fn all(bytes: &[u8]) -> anyhow::Result<Vec<Read>> {
        let mut found = Vec::new();
        Reading::default().all(bytes, |chunk| {
            let mut from = 0;
            for packet in chunk.packets {
                let bytes = chunk.bytes[from..packet.end].to_vec();
                found.push((bytes, packet.nanoseconds, packet.is_cut, packet.is_other));
                from = packet.end;
            }
            true
        })?;
        Ok(found)
    }

    #[test]
    fn packets_and_their_times_are_read_of_every_kind_of_file() {
        let packets = [(7, 5, &b"abc"[..]), (7, 3, b"d"), (8, 0, b"")];
        for (is_big, nanoseconds) in [(false, false), (false, true), (true, false), (true, true)] {
            let unit = if nanoseconds { 1 } else { 1000 };
            let found = all(&pcap(is_big, nanoseconds, 1, &packets)).expect("packets");
            let first = 7_000_000_000 + 5 * unit;
            // A time that goes back counts as the latest.
            let expected = [
                (b"abc".to_vec(), first, true, false),
                (b"d".to_vec(), first, true, false),
                (vec![], 8_000_000_000, true, false),
            ];
            assert_eq!(found, expected, "{is_big} {nanoseconds}");
        }
        let expected = [
            (b"one".to_vec(), 5_000_000_000, false, false),
            (b"other".to_vec(), 5_000_001_000, false, true),
            (b"two".to_vec(), 5_002_000_000, false, false),
        ];
        assert_eq!(all(&pcapng()).expect("packets"), expected);
    }

    /// In either byte order, in powers of two, and with seconds to be added.
    #[test]
    fn times_are_those_of_the_interface() {
        for is_big in [false, true] {
            let word =
                |number: u32| if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
            let half =
                |number: u16| if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
            let long =
                |number: i64| if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
            let block = |kind, body: &[u8]| {
                let len = word(12 + body.len() as u32);
                [&word(kind)[..], &len, body, &len].concat()
            };
            let section = [&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat();
            let interface = [
                &[half(1), half(0)].concat()[..],
                &word(0),
                &[half(9), half(1)].concat(),
                &[0x94, 0, 0, 0],
                &[half(14), half(8)].concat(),
                &long(100),
                &word(0),
            ];
            // Three seconds and a half, in parts of 2^20.
            let packet = [word(0), word(0), word(7 << 19), word(4), word(4)].concat();
            let bytes = [
                block(0x0a0d_0d0a, &section),
                block(1, &interface.concat()),
                block(6, &[packet, b"abcd".to_vec()].concat()),
            ];
            let found = all(&bytes.concat()).expect("a packet");
            assert_eq!(found, [(b"abcd".to_vec(), 103_500_000_000, false, false)], "{is_big}");
        }
    }

    #[test]
    fn what_is_no_capture_is_said_and_one_that_is_cut_gives_what_it_has() {
        for nothing in [&b""[..], b"hello", &[0; 4096]] {
            let said = format!("{:#}", all(nothing).expect_err("no capture"));
            assert!(said.contains("neither pcap nor pcapng"), "{said}");
        }
        let whole = pcap(false, true, 1, &[(1, 0, b"abc"), (2, 0, b"defg")]);
        for cut in 1..20 {
            let found = all(&whole[..whole.len() - cut]).expect("the first one");
            assert_eq!(found.len(), 1, "{cut}");
        }
        let mut wrong = whole.clone();
        wrong[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
        let said = format!("{:#}", all(&wrong).expect_err("not a length"));
        assert!(said.contains("packet 0"), "{said}");
    }

    #[test]
    fn a_file_is_read_again_and_again_and_a_reader_that_is_gone_ends_that() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&pcap(false, false, 1, &[(1, 0, b"abc")])).expect("room");
        let read = |times| {
            let capture = Capture::open(file.path(), times).expect("a capture");
            capture.read(times).expect("a thread")
        };
        assert_eq!(
            read(3).iter().map(|chunk| chunk.expect("a chunk").packets.len()).sum::<usize>(),
            3
        );
        let endless = read(0);
        assert_eq!(endless.iter().take(100).count(), 100);
        let waiting = Duration::from_millis(1);
        assert_ne!(endless.recv_timeout(waiting).err(), Some(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_file_without_ethernet_is_refused() {
        let refused = |bytes: &[u8]| {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            file.write_all(bytes).expect("room");
            format!("{:#}", Capture::open(file.path(), 1).expect_err("refused"))
        };
        let said = refused(&pcap(false, false, 101, &[(1, 0, b"abc")]));
        assert!(said.contains("not of Ethernet (link type 101)"), "{said}");
        let said = refused(&pcap(false, false, 1, &[]));
        assert!(said.contains("no packets"), "{said}");
        assert!(
            format!("{:#}", Capture::open("/".as_ref(), 1).expect_err("a folder"))
                .contains("--pcap /")
        );
    }
}
