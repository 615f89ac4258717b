//! Capture files as tcpdump and Wireshark read them, one or one after the other.
//!
//! A packet is a record of a file; `sink` writes whole records, and `files` makes the files. A file is
//! complete before the next one is made.

mod files;
mod sink;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use crate::args::{duration, size};
use crate::exit::usage;
use files::{Files, cannot_write};
use sink::Sink;

/// In the machine's byte order: a reader tells it from this.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const ETHERNET: u32 = 1;

/// Where packets are written to.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Capture files")]
#[command(group = clap::ArgGroup::new("rotation").multiple(true))]
pub(super) struct FileArgs {
    /// Write packets to this capture file, with timestamps in nanoseconds; - for stdout
    #[arg(long = "pcap", value_name = "FILE", group = "task")]
    pub(super) path: Option<PathBuf>,
    /// Most bytes of a packet that --pcap writes
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, requires = "path", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    snaplen: u32,
    /// Begin another file before one grows larger than this, such as 100M; files are called
    /// FILE_00001_20261129101500 with FILE's extension, the time in UTC
    #[arg(long, value_name = "SIZE", requires = "path", group = "rotation", value_parser = rotate_size)]
    rotate_size: Option<u64>,
    /// Begin another file once one is so old, such as 1h, and has packets
    #[arg(long, value_name = "TIME", requires = "path", group = "rotation", value_parser = rotate_time)]
    rotate_time: Option<Duration>,
    /// Keep the newest N files, at least 2: the oldest of this run is removed before another one is made
    /// [default: all]
    #[arg(long, value_name = "N", requires = "rotation", value_parser = clap::value_parser!(u32).range(2..))]
    files: Option<u32>,
}

/// When one file ends and the next begins.
#[derive(Clone, Copy, Debug)]
struct Rotation {
    size: Option<u64>,
    time: Option<Duration>,
    /// So many are kept.
    files: Option<u32>,
}

impl Rotation {
    fn is_on(&self) -> bool {
        self.size.is_some() || self.time.is_some()
    }
}

impl FileArgs {
    fn rotation(&self) -> Rotation {
        Rotation { size: self.rotate_size, time: self.rotate_time, files: self.files }
    }

    /// Whether packets go where else a command prints.
    pub(super) fn is_stdout(&self) -> bool {
        self.path.as_deref() == Some(Path::new("-"))
    }

    /// What cannot be done.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let Some(path) = self.path.as_deref().filter(|_| self.rotation().is_on()) else {
            return Ok(());
        };
        let option = if self.rotate_size.is_some() { "--rotate-size" } else { "--rotate-time" };
        let expected = "(expected the name of a file, from which names are made)";
        if self.is_stdout() {
            return Err(usage(format!("{option} makes files where --pcap - has none {expected}")));
        }
        let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if is_folder || path.file_name().is_none() {
            let path = path.display();
            return Err(usage(format!(
                "--pcap {path} is a folder, and {option} is given {expected}"
            )));
        }
        Ok(())
    }

    /// The file or files, as people read it.
    pub(super) fn name(&self) -> Option<String> {
        let path = self.path.as_deref()?;
        Some(if self.rotation().is_on() { name(&files::pattern(path)) } else { name(path) })
    }

    /// Begins the first file, if packets are to be written.
    pub(super) fn create(&self) -> anyhow::Result<Option<Capture>> {
        let create = |path: &PathBuf| Capture::create(path, self.rotation(), self.snaplen);
        self.path.as_ref().map(create).transpose()
    }
}

/// Reads how large a file may be.
fn rotate_size(s: &str) -> Result<u64, String> {
    const LEAST: usize = 4 << 10;
    let bytes = size(s)?;
    if bytes < LEAST {
        return Err(format!("'{s}' is too small (expected at least 4K)"));
    }
    Ok(bytes as u64)
}

/// Reads how old a file may be.
fn rotate_time(s: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(100);
    let time = duration(s)?;
    if time < LEAST {
        return Err(format!("'{s}' is too short (expected at least 100ms)"));
    }
    Ok(time)
}

/// What is written: a file, and those that follow it.
pub(super) struct Capture {
    files: Files,
    rotation: Rotation,
    snaplen: u32,
    /// The file that is being written.
    path: PathBuf,
    sink: Sink,
    /// It has packets.
    has_packets: bool,
    /// When it is old enough for another one.
    due: Option<Instant>,
}

/// The file, as people read it.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdout".into() } else { path.display().to_string() }
}

impl Capture {
    /// Makes the first file; where there is no rotation, one that is there is emptied, and `-` is stdout.
    fn create(path: &Path, rotation: Rotation, snaplen: u32) -> anyhow::Result<Capture> {
        let mut files = Files::new(path, &rotation);
        let (path, sink) = begin(&mut files, snaplen)?;
        let mut capture =
            Capture { files, rotation, snaplen, path, sink, has_packets: false, due: None };
        capture.begun();
        Ok(capture)
    }

    /// How many files there were so far, for whoever asks.
    pub(super) fn made(&self) -> Arc<AtomicU64> {
        self.files.made()
    }

    /// Writes a packet of these parts, as far as it is wanted. A reader that is gone is no error.
    pub(super) fn packet(&mut self, time: SystemTime, parts: &[&[u8]]) -> anyhow::Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let kept = len.min(self.snaplen as usize);
        let record = (RECORD + kept) as u64;
        // A packet that is larger than a file may be has a file of its own.
        if self.has_packets
            && self.rotation.size.is_some_and(|most| self.sink.len() + record > most)
        {
            self.rotate()?;
        }
        self.has_packets = true;
        let written = self.sink.record(|to| write_record(to, time, parts, kept));
        written.with_context(|| cannot_write(&self.path))
    }

    /// To be called now and then: begins another file if it is time.
    pub(super) fn turn(&mut self, now: Instant) -> anyhow::Result<()> {
        match self.due {
            Some(due) if now >= due && self.has_packets => self.rotate(),
            // Files without packets would only push others out.
            Some(due) if now >= due => {
                self.due = self.rotation.time.and_then(|time| now.checked_add(time));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Hands on what was written, so that a reader has it.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        self.sink.flush().with_context(|| cannot_write(&self.path))
    }

    /// Completes the last file.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.flush()
    }

    /// Whether whoever read it is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    /// Completes the file, and begins the next.
    fn rotate(&mut self) -> anyhow::Result<()> {
        self.finish()?;
        (self.path, self.sink) = begin(&mut self.files, self.snaplen)?;
        self.has_packets = false;
        self.begun();
        Ok(())
    }

    /// A file has begun.
    fn begun(&mut self) {
        // A time that is too long for the system is for ever.
        self.due = self.rotation.time.and_then(|time| Instant::now().checked_add(time));
        if self.rotation.is_on() {
            tracing::info!("writing to {}", self.path.display());
        }
    }
}

/// Makes a file with its header.
fn begin(files: &mut Files, snaplen: u32) -> anyhow::Result<(PathBuf, Sink)> {
    let made = files.next()?;
    let mut sink = Sink::new(made.file, made.ours);
    let begun = sink.record(|to| write_header(to, snaplen)).and_then(|()| sink.flush());
    if begun.is_err() {
        files.undo();
    }
    begun.with_context(|| cannot_write(&made.path))?;
    Ok((made.path, sink))
}

fn write_header(to: &mut Vec<u8>, snaplen: u32) {
    to.extend(MAGIC.to_ne_bytes());
    VERSION.iter().for_each(|part| to.extend(part.to_ne_bytes()));
    // Two fields that nobody uses: the time zone, and how exact times are.
    to.extend([0; 8]);
    to.extend(snaplen.to_ne_bytes());
    to.extend(ETHERNET.to_ne_bytes());
}

/// Bytes in front of a packet.
const RECORD: usize = 16;

fn write_record(to: &mut Vec<u8>, time: SystemTime, parts: &[&[u8]], kept: usize) {
    // Times before 1970 do not happen.
    let time = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut header = [0; RECORD];
    // The seconds wrap in 2106.
    let fields = [time.as_secs() as u32, time.subsec_nanos(), kept as u32, len as u32];
    for (to, field) in header.chunks_exact_mut(4).zip(fields) {
        to.copy_from_slice(&field.to_ne_bytes());
    }
    to.extend_from_slice(&header);
    let mut left = kept;
    for part in parts {
        let part = &part[..part.len().min(left)];
        to.extend_from_slice(part);
        left -= part.len();
    }
}

#[cfg(test)]
mod tests;
