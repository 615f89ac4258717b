//! Capture files as tcpdump and Wireshark read them, one or one after the other.
//!
//! A packet is a record of a file, in one of two formats (`format`); `sink` writes whole records, and `files`
//! makes the files. A file is complete before the next one is made.

mod files;
mod format;
mod sink;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;

use crate::args::{Choice, choice, duration, size};
use crate::exit::usage;
use files::{Files, cannot_write};
use format::{Format, Origin, Record, Statistics};
use sink::Sink;

const FORMATS: Choice<Format> = &[("pcap", Format::Pcap), ("pcapng", Format::Pcapng)];

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
    /// Format of the file: pcapng also has the device, the host and what was dropped [default: pcapng if
    /// FILE ends with .pcapng, else pcap]
    #[arg(long, value_name = "FORMAT", requires = "path", value_parser = choice(FORMATS))]
    format: Option<Format>,
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

    /// Begins the first file, if packets are to be written, with what this device receives and a filter
    /// leaves of it.
    pub(super) fn create(
        &self,
        device: Option<&str>,
        filter: Option<&str>,
    ) -> anyhow::Result<Option<Capture>> {
        let Some(path) = &self.path else { return Ok(None) };
        let is_pcapng = path.extension().is_some_and(|name| name.eq_ignore_ascii_case("pcapng"));
        let by_name = if is_pcapng { Format::Pcapng } else { Format::Pcap };
        let [device, filter] = [device, filter].map(|text| text.map(str::to_owned));
        let origin = Origin { snaplen: self.snaplen, device, filter };
        let format = self.format.unwrap_or(by_name);
        Capture::create(path, self.rotation(), format, origin).map(Some)
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
    format: Format,
    origin: Origin,
    /// The file that is being written.
    path: PathBuf,
    sink: Sink,
    began: SystemTime,
    /// When it is old enough for another one.
    due: Option<Instant>,
    /// Packets in it.
    written: u64,
    /// Packets that were lost while it was written.
    lost: u64,
    /// Of these, those that no packet tells of yet.
    untold: u64,
    /// In all files.
    lost_in_all: u64,
    /// The file is whole, and nothing follows in it.
    is_finished: bool,
}

/// The file, as people read it.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdout".into() } else { path.display().to_string() }
}

impl Capture {
    /// Makes the first file; where there is no rotation, one that is there is emptied, and `-` is stdout.
    fn create(
        path: &Path,
        rotation: Rotation,
        format: Format,
        origin: Origin,
    ) -> anyhow::Result<Capture> {
        let mut files = Files::new(path, &rotation);
        let (path, sink) = begin(&mut files, format, &origin)?;
        let mut capture = Capture {
            files,
            rotation,
            format,
            origin,
            path,
            sink,
            began: SystemTime::UNIX_EPOCH,
            due: None,
            written: 0,
            lost: 0,
            untold: 0,
            lost_in_all: 0,
            is_finished: false,
        };
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
        let kept = len.min(self.origin.snaplen as usize);
        let record = Record { time, parts, kept, lost: self.untold };
        // A packet that is larger than a file may be has a file of its own.
        if self.written > 0 && self.is_full(&record) {
            self.rotate()?;
        }
        (self.untold, self.written) = (0, self.written + 1);
        let format = self.format;
        let written = self.sink.record(|to| format.write(to, &record));
        written.with_context(|| cannot_write(&self.path))
    }

    /// So many packets were lost so far: the next one that is written tells of those that are new.
    pub(super) fn lost(&mut self, packets: u64) {
        let new = packets.saturating_sub(self.lost_in_all);
        self.lost_in_all += new;
        self.lost += new;
        self.untold += new;
    }

    /// To be called now and then: begins another file if it is time.
    pub(super) fn turn(&mut self, now: Instant) -> anyhow::Result<()> {
        match self.due {
            Some(due) if now >= due && self.written > 0 => self.rotate(),
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
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(());
        }
        let &mut Capture { format, began, written, lost, .. } = self;
        let statistics = Statistics { began, ended: SystemTime::now(), written, lost };
        let ended = self.sink.record(|to| format.end(to, &statistics));
        ended.and_then(|()| self.sink.flush()).with_context(|| cannot_write(&self.path))
    }

    /// Whether whoever read it is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    /// Whether the file has no room for another record.
    fn is_full(&self, record: &Record<'_>) -> bool {
        let len = || self.sink.len() + self.format.len(record) + self.format.end_len();
        self.rotation.size.is_some_and(|most| len() > most)
    }

    /// Completes the file, and begins the next.
    fn rotate(&mut self) -> anyhow::Result<()> {
        self.finish()?;
        (self.path, self.sink) = begin(&mut self.files, self.format, &self.origin)?;
        self.begun();
        Ok(())
    }

    /// A file has begun.
    fn begun(&mut self) {
        (self.began, self.written, self.lost) = (SystemTime::now(), 0, 0);
        self.is_finished = false;
        // A time that is too long for the system is for ever.
        self.due = self.rotation.time.and_then(|time| Instant::now().checked_add(time));
        if self.rotation.is_on() {
            tracing::info!("writing to {}", self.path.display());
        }
    }
}

/// Makes a file, and begins it.
fn begin(files: &mut Files, format: Format, origin: &Origin) -> anyhow::Result<(PathBuf, Sink)> {
    let made = files.next()?;
    let mut sink = Sink::new(made.file, made.ours);
    let begun = sink.record(|to| format.begin(to, origin)).and_then(|()| sink.flush());
    if begun.is_err() {
        files.undo();
    }
    begun.with_context(|| cannot_write(&made.path))?;
    Ok((made.path, sink))
}

#[cfg(test)]
mod tests;
