//! The access log: a line for each connection that has ended.
//!
//! # Hand-over
//!
//! Each worker puts records into a ring of its own, and one thread takes them out, makes lines of
//! them and writes them, so a worker waits for nobody: a record that finds its ring full is lost and
//! counted. The thread parks until a worker has put something in, and then sleeps for [`BATCH`], so
//! that busy workers do not have to wake it for each record.
//!
//! Nor does the thread wait for ever: see [`target`].

mod format;
mod target;

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rtrb::{Consumer, Producer, RingBuffer};
use strum::{EnumString, VariantNames};

use crate::Error;
use crate::cause::Cause;
use crate::repeated::Speaker;
use crate::session::Record;
use format::Formatter;
use target::Sink;

/// Records that a worker may be ahead of the thread that writes: a third of a second at the rate that
/// one worker accepts at.
const RING: usize = 8192;

/// How long lines gather before they are written.
const BATCH: Duration = Duration::from_millis(20);

/// Bytes of lines that are written in one go, about.
const CHUNK: usize = 64 * 1024;

/// How long what is left may take to be written at the end.
const END: Duration = Duration::from_secs(30);

/// What to log of connections, and where.
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// Where lines go.
    pub target: LogTarget,
    /// What a line looks like.
    pub format: LogFormat,
    /// Which connections have a line.
    pub sample: LogSample,
}

/// Where an access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard error.
    Stderr,
    /// A file, which is appended to; or a FIFO, or a device.
    File(PathBuf),
    /// The socket of a syslog daemon or of journald.
    Syslog(PathBuf),
}

impl LogTarget {
    const DEV_LOG: &str = "/dev/log";
}

impl FromStr for LogTarget {
    type Err = Error;

    fn from_str(s: &str) -> Result<LogTarget, Error> {
        match s.split_once(':') {
            _ if s == "stderr" => Ok(LogTarget::Stderr),
            _ if s == "syslog" => Ok(LogTarget::Syslog(LogTarget::DEV_LOG.into())),
            Some(("syslog", path)) if path.starts_with('/') => Ok(LogTarget::Syslog(path.into())),
            _ if s.contains('/') => Ok(LogTarget::File(s.into())),
            _ => Err(Error::invalid(format!(
                "access log '{s}' is nowhere to log to (expected stderr, syslog, \
                 syslog:/PATH/OF/SOCKET, or a file's path with a / in it)"
            ))),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTarget::Stderr => f.write_str("stderr"),
            LogTarget::File(path) => path.display().fmt(f),
            LogTarget::Syslog(path) => write!(f, "syslog:{}", path.display()),
        }
    }
}

/// What a line of an access log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_format)]
pub enum LogFormat {
    /// HAProxy's `tcplog`.
    #[default]
    Text,
    /// An object of JSON.
    Json,
}

fn unknown_format(name: &str) -> Error {
    let expected = kit::or(LogFormat::VARIANTS.iter().copied());
    Error::invalid(format!("access log format '{name}' is not known (expected {expected})"))
}

/// Of so many connections that ended well, one has a line; those that did not all have theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSample(NonZeroU32);

impl Default for LogSample {
    /// Every one.
    fn default() -> LogSample {
        LogSample(NonZeroU32::MIN)
    }
}

impl FromStr for LogSample {
    type Err = Error;

    fn from_str(s: &str) -> Result<LogSample, Error> {
        let n = s.strip_prefix("1/").and_then(|n| n.parse().ok());
        n.map(LogSample).ok_or_else(|| {
            let expected = "expected 1/N, such as 1/100 for one of a hundred";
            Error::invalid(format!("access log sample '{s}' does not parse ({expected})"))
        })
    }
}

/// The thread that writes, until it is dropped; what was logged before is written then.
#[derive(Debug)]
pub(crate) struct Writer {
    hub: Arc<Hub>,
    sample: LogSample,
    thread: Option<JoinHandle<()>>,
}

/// Where workers, their relay and the thread that writes meet.
#[derive(Debug, Default)]
struct Hub {
    /// Rings that the thread has not taken over yet. Workers never take this lock.
    rings: Mutex<Vec<Consumer<Record>>>,
    /// Release by whoever asks, Acquire in the thread: rings and records that were there before are
    /// seen by it.
    reopen: AtomicBool,
    end: AtomicBool,
    /// Lines that could not be written. Relaxed: a count.
    lost: AtomicU64,
}

/// A worker's way to the access log.
#[derive(Debug)]
pub(crate) struct Port {
    ring: Producer<Record>,
    writer: Thread,
    sample: LogSample,
    /// Connections that ended well.
    well: u32,
}

impl Writer {
    /// Opens the target, and writes from now on. `listeners` are the names of what was listened on.
    pub(crate) fn start(
        log: AccessLog,
        listeners: Vec<String>,
        speaker: Speaker,
    ) -> Result<Writer, Error> {
        let sink = Sink::open(log.target)?;
        let formatter = Formatter::new(log.format, listeners);
        let hub = Arc::<Hub>::default();
        let shared = Arc::clone(&hub);
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || {
                speaker.speaks();
                shared.write(sink, &formatter);
            })
            .map_err(|e| Error::io("cannot start the access log's thread", e))?;
        Ok(Writer { hub, sample: log.sample, thread: Some(thread) })
    }

    /// A way here for one more worker.
    pub(crate) fn port(&self) -> Option<Port> {
        let (ring, taken) = RingBuffer::new(RING);
        self.hub.rings.lock().push(taken);
        let writer = self.thread.as_ref()?.thread().clone();
        Some(Port { ring, writer, sample: self.sample, well: 0 })
    }

    /// Opens the file anew, before the next line is written.
    pub(crate) fn reopen(&self) {
        self.hub.reopen.store(true, Release);
        self.wake();
    }

    /// Lines that could not be written.
    pub(crate) fn lost(&self) -> u64 {
        self.hub.lost.load(Relaxed)
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.hub.end.store(true, Release);
        self.wake();
        let Some(thread) = self.thread.take() else { return };
        // It waits for nobody, so it ends soon: unless the file's system does not answer.
        let until = Instant::now() + END;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Port {
    /// Hands a record over, unless it is left out of the sample. False: it is lost.
    pub(crate) fn send(&mut self, record: Record) -> bool {
        if record.cause == Cause::Normal {
            let is_in = self.well.is_multiple_of(self.sample.0.get());
            self.well = self.well.wrapping_add(1);
            if !is_in {
                return true;
            }
        }
        let fits = self.ring.push(record).is_ok();
        self.writer.unpark();
        fits
    }
}

impl Hub {
    fn write(&self, mut sink: Sink, formatter: &Formatter) {
        let mut rings = Vec::new();
        let mut lines = Vec::with_capacity(2 * CHUNK);
        loop {
            let ends = self.end.load(Acquire);
            if self.reopen.swap(false, Acquire) {
                sink.reopen();
            }
            rings.append(&mut self.rings.lock());
            // A worker that is gone has left all it had.
            rings.retain(|ring| !(ring.is_abandoned() && ring.is_empty()));
            for ring in &mut rings {
                while let Ok(record) = ring.pop() {
                    formatter.line(&record, &mut lines);
                    if lines.len() >= CHUNK {
                        self.flush(&mut sink, &mut lines);
                    }
                }
            }
            self.flush(&mut sink, &mut lines);
            if ends {
                return;
            }
            std::thread::park();
            if !self.end.load(Acquire) {
                std::thread::sleep(BATCH);
            }
        }
    }

    fn flush(&self, sink: &mut Sink, lines: &mut Vec<u8>) {
        if !lines.is_empty() {
            self.lost.fetch_add(sink.write(lines), Relaxed);
            lines.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_samples_parse_as_they_are_written() {
        for (given, target) in [
            ("stderr", LogTarget::Stderr),
            ("syslog", LogTarget::Syslog("/dev/log".into())),
            ("syslog:/run/log", LogTarget::Syslog("/run/log".into())),
            ("./access.log", LogTarget::File("./access.log".into())),
            ("/var/log/a:b", LogTarget::File("/var/log/a:b".into())),
        ] {
            assert_eq!(given.parse::<LogTarget>().unwrap(), target);
        }
        for given in ["", "stdout", "access.log", "syslog:", "syslog:log"] {
            let error = given.parse::<LogTarget>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{given}'")) && error.contains("expected"), "{error}");
        }
        assert_eq!("1/100".parse::<LogSample>().unwrap().0.get(), 100);
        for given in ["", "100", "1/0", "2/3", "1/x", "1/-1"] {
            assert!(given.parse::<LogSample>().is_err(), "{given}");
        }
    }
}
