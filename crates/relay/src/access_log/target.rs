//! Where lines go. Nothing here waits longer than [`PATIENCE`] for whoever reads, and not at all
//! within that time of having waited in vain: lines are then lost, and counted.
//!
//! A line is whole or not there. What goes to a pipe goes in pieces that the kernel keeps together
//! (`PIPE_BUF`), and if a disk is full in the middle of a line, its rest is written once there is room.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::LogTarget;
use super::format::syslog_header;
use crate::Error;
use crate::repeated::say;

/// How long one that takes nothing is waited for, and how long it is then left alone.
const PATIENCE: Duration = Duration::from_secs(1);

/// What POSIX calls `PIPE_BUF`, on Linux.
const PIPE_BUF: usize = 4096;

/// Where lines go, and whether they arrive.
#[derive(Debug)]
pub(super) struct Sink {
    name: LogTarget,
    kind: Kind,
    /// Lines lost since the last one that was not.
    losing: u64,
    /// When one that failed is tried again.
    again: Option<Instant>,
}

#[derive(Debug)]
enum Kind {
    Stream(Stream),
    Syslog { path: PathBuf, socket: Option<UnixDatagram> },
}

#[derive(Debug)]
struct Stream {
    /// None: stderr.
    path: Option<PathBuf>,
    file: File,
    /// How much may be written at a time.
    piece: usize,
    /// The rest of a line that was begun.
    torn: Vec<u8>,
}

impl Sink {
    /// # Errors
    /// A file that cannot be opened. A syslog daemon may still come.
    pub(super) fn open(target: LogTarget) -> Result<Sink, Error> {
        let fail = |e| Error::io(format!("cannot log to {target}"), e);
        let kind = match &target {
            LogTarget::Stderr => {
                let stderr = io::stderr().as_fd().try_clone_to_owned();
                Kind::Stream(Stream::new(None, stderr.map_err(fail)?.into()))
            }
            LogTarget::File(path) => {
                let file = open(path).map_err(fail)?;
                Kind::Stream(Stream::new(Some(path.clone()), file))
            }
            LogTarget::Syslog(path) => Kind::Syslog { path: path.clone(), socket: None },
        };
        Ok(Sink { name: target, kind, losing: 0, again: None })
    }

    /// Writes whole lines. How many are lost.
    pub(super) fn write(&mut self, lines: &[u8]) -> u64 {
        if matches!(&self.kind, Kind::Stream(stream) if stream.is_removed())
            && !self.is_left_alone()
        {
            self.reopen();
        }
        let mut lost = 0;
        let mut rest = lines;
        while !rest.is_empty() {
            let length = match &self.kind {
                Kind::Stream(stream) => whole_lines(rest, stream.piece),
                Kind::Syslog { .. } => whole_lines(rest, 0),
            };
            let (piece, more) = rest.split_at(length);
            lost += self.write_piece(piece);
            rest = more;
        }
        lost
    }

    /// Whether it failed a moment ago.
    fn is_left_alone(&self) -> bool {
        self.again.is_some_and(|again| Instant::now() < again)
    }

    fn write_piece(&mut self, piece: &[u8]) -> u64 {
        if self.is_left_alone() {
            let lost = count(piece);
            self.losing += lost;
            return lost;
        }
        let (lost, failed) = match &mut self.kind {
            Kind::Stream(stream) => stream.write(piece),
            Kind::Syslog { path, socket } => match send(path, socket, piece) {
                Ok(()) => (0, None),
                Err(e) => (1, Some(e)),
            },
        };
        self.losing += lost;
        match failed {
            Some(e) => {
                say!(WARN, "the access log loses lines: cannot write to {}: {e}", self.name);
                self.again = Some(Instant::now() + PATIENCE);
            }
            None => {
                self.again = None;
                let lost = std::mem::take(&mut self.losing);
                if lost > 0 {
                    let name = &self.name;
                    say!(WARN, burst 10, "the access log goes on at {name} after {lost} lost lines");
                }
            }
        }
        lost
    }

    /// Opens a file anew. If that fails, the one that was open is written on.
    pub(super) fn reopen(&mut self) {
        let Kind::Stream(stream) = &mut self.kind else { return };
        let Some(path) = stream.path.clone() else { return };
        match open(&path) {
            Ok(file) => {
                stream.finish_line();
                *stream = Stream::new(Some(path), file);
                self.again = None;
            }
            Err(e) => {
                let name = &self.name;
                say!(WARN, "cannot open {name} anew, and goes on with the file that was open: {e}");
            }
        }
    }
}

impl Stream {
    fn new(path: Option<PathBuf>, file: File) -> Stream {
        let is_regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let piece = if is_regular { usize::MAX } else { PIPE_BUF };
        Stream { path, file, piece, torn: Vec::new() }
    }

    /// Whether the file has lost its name. What is written to it then is lost.
    fn is_removed(&self) -> bool {
        let meta = self.file.metadata();
        self.path.is_some() && meta.is_ok_and(|meta| meta.is_file() && meta.nlink() == 0)
    }

    /// Writes whole lines; how many are lost, and why.
    fn write(&mut self, lines: &[u8]) -> (u64, Option<io::Error>) {
        if self.is_removed() {
            return (count(lines), Some(io::Error::other("it was removed")));
        }
        if let Err(e) = self.write_torn() {
            return (count(lines), Some(e));
        }
        match self.write_all(lines) {
            (_, None) => (0, None),
            (written, Some(e)) => {
                let (done, rest) = lines.split_at(written);
                let is_torn = done.last().is_some_and(|byte| *byte != b'\n');
                let tail = if is_torn { whole_lines(rest, 0) } else { 0 };
                self.torn.extend_from_slice(&rest[..tail]);
                (count(&rest[tail..]), Some(e))
            }
        }
    }

    fn write_torn(&mut self) -> io::Result<()> {
        let torn = std::mem::take(&mut self.torn);
        match self.write_all(&torn) {
            (_, None) => Ok(()),
            (written, Some(e)) => {
                self.torn = torn[written..].to_vec();
                Err(e)
            }
        }
    }

    /// The last chance to end a line in this file.
    fn finish_line(&mut self) {
        // As far as it goes.
        let _ = self.write_torn();
    }

    /// How much was written, and what kept the rest from being.
    fn write_all(&mut self, bytes: &[u8]) -> (usize, Option<io::Error>) {
        let mut written = 0;
        while written < bytes.len() {
            if let Err(e) = await_room(&self.file) {
                return (written, Some(e));
            }
            match self.file.write(&bytes[written..]) {
                Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (written, Some(e)),
            }
        }
        (written, None)
    }
}

/// Not so that it waits: neither for a FIFO's reader now, nor in a write.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    OpenOptions::new().append(true).create(true).custom_flags(flags.bits() as i32).open(path)
}

/// Sends a line, to the daemon that listens now.
fn send(path: &Path, socket: &mut Option<UnixDatagram>, line: &[u8]) -> io::Result<()> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let message = [syslog_header(SystemTime::now()).as_bytes(), line].concat();
    // A socket whose daemon is gone says so once: its successor has another.
    if let Some(old) = socket.take() {
        let sent = await_room(&old).and_then(|()| old.send(&message));
        let is_stuck = sent.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::TimedOut);
        if sent.is_ok() || is_stuck {
            *socket = Some(old);
            return sent.map(drop);
        }
    }
    let new = socket.insert(connect(path)?);
    await_room(&*new)?;
    new.send(&message).map(drop)
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

/// Waits until a write would not.
fn await_room(to: &impl AsFd) -> io::Result<()> {
    let mut polled = [PollFd::new(to, PollFlags::OUT)];
    let timeout = PATIENCE.try_into().map_err(io::Error::other)?;
    match poll(&mut polled, Some(&timeout)) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads it")),
        Ok(_) => Ok(()),
        Err(Errno::INTR) => await_room(to),
        Err(e) => Err(e.into()),
    }
}

/// How long the whole lines at the start are that fit into `most`; the first is taken in any case.
fn whole_lines(lines: &[u8], most: usize) -> usize {
    let fitting = &lines[..lines.len().min(most)];
    let end = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
    let first = || lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |at| at + 1);
    end(fitting).unwrap_or_else(first)
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}
