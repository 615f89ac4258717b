//! Printing to stdout, the one way. A reader that has gone is a quiet end; anything else that goes
//! wrong is an error that names stdout.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::PIPE_BUF;

use crate::exit::Exit;
use crate::member;
use crate::run;
use crate::terminal::clean;

/// Prints a text as it is.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    try_print(text).map(drop)
}

/// Prints each on a line of its own.
pub(crate) fn lines(lines: impl IntoIterator<Item = impl Display>) -> anyhow::Result<()> {
    print(&lines.into_iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// What a dry run says: what would be done, and that this is all.
pub(crate) fn dry_run(would: Vec<String>) -> anyhow::Result<Exit> {
    lines(would.iter().map(String::as_str).chain(["would change nothing else on this host"]))?;
    Ok(Exit::Ok)
}

/// Prints a text as it is; whether somebody still reads it. Where a signal asks this process to end
/// and the reader has stopped reading, nobody does.
pub(crate) fn try_print(text: &str) -> anyhow::Result<bool> {
    // A pipe that has room takes so much at once.
    match text.as_bytes().chunks(PIPE_BUF).try_for_each(write) {
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::TimedOut) => {
            Ok(false)
        }
        written => written.map(|()| true).context("cannot print to stdout"),
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    write_to(io::stdout().lock(), bytes)
}

/// Writes at most [`PIPE_BUF`] bytes.
pub(crate) fn write_to(mut out: impl io::Write + AsFd, bytes: &[u8]) -> io::Result<()> {
    wait_for_room(&out)?;
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Waits until there is room for [`PIPE_BUF`] bytes. Where a signal asks this process to end and the reader
/// has stopped reading, it fails with `TimedOut`.
pub(crate) fn wait_for_room(out: &impl AsFd) -> io::Result<()> {
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    /// For a reader that is only slow.
    const LOOKS: u32 = 10;
    let mut looks = 0;
    while retry_on_intr(|| poll(&mut [PollFd::new(out, PollFlags::OUT)], Some(&LOOK)))? == 0 {
        looks += u32::from(run::is_asked_to_end());
        if looks > LOOKS {
            return Err(io::Error::new(ErrorKind::TimedOut, "nobody reads it"));
        }
    }
    Ok(())
}

/// A terminal that a view is drawn on: what is written goes out when it is flushed.
#[derive(Debug, Default)]
pub(crate) struct Screen(Vec<u8>);

impl io::Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.0);
        bytes.chunks(PIPE_BUF).try_for_each(write)
    }
}

/// Says on stderr that something is wrong, in lines that do nothing to a terminal. Where nobody reads
/// that any more, nobody is told.
pub(crate) fn complain(text: &str) {
    let text = Vec::from_iter(text.split('\n').map(clean)).join("\n");
    let whose = member::name().map_or(String::new(), |name| format!(" {name}"));
    let _ = writeln!(io::stderr(), "cachelane{whose}: {text}");
}

/// Whether a file can be written there, found out before there is something to write. Leaves
/// everything as it was.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().write(true).open(path).map(drop)
        }
        Err(error) => Err(error),
    }
}
