//! Whole records on their way into a file.
//!
//! A file ends after a whole record whenever the system lets it: records are gathered, and handed on
//! together. When there is no room for all of them, the file is cut after the last one that it has.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::FileTypeExt as _;

use rustix::pipe::PIPE_BUF;

use crate::out;

/// So many bytes are gathered.
const FULL: usize = 256 << 10;

/// A file that is being written.
pub(super) struct Sink {
    file: File,
    /// Nobody else writes to the file, which was empty: it may be cut.
    ours: bool,
    /// Somebody else has to read before more can be written: it is a pipe or a socket.
    has_reader: bool,
    gathered: Vec<u8>,
    /// Where each record in there ends.
    ends: Vec<usize>,
    /// Bytes that the file has.
    written: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Whoever read it is gone.
    Closed,
    /// Nothing more can be written.
    Failed,
}

impl Sink {
    pub(super) fn new(file: File, ours: bool) -> Sink {
        // The last record may go beyond.
        let gathered = Vec::with_capacity(FULL * 2);
        let kind = file.metadata().map(|meta| meta.file_type());
        let has_reader = kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket());
        Sink { file, ours, has_reader, gathered, ends: Vec::new(), written: 0, state: State::Open }
    }

    /// Bytes that the file has, once what was gathered is in it.
    pub(super) fn len(&self) -> u64 {
        self.written + self.gathered.len() as u64
    }

    /// Whether whoever read it is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Takes a record, which `write` appends.
    pub(super) fn record(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        write(&mut self.gathered);
        self.ends.push(self.gathered.len());
        if self.gathered.len() < FULL { Ok(()) } else { self.flush() }
    }

    /// Hands on what was gathered. A reader that is gone is no error, and an error is told once.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut done = 0;
        while self.state == State::Open && done < self.gathered.len() {
            match self.write(&self.gathered[done..]) {
                Ok(0) => return self.fail(done, ErrorKind::WriteZero.into()),
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.state = State::Closed,
                Err(error) => return self.fail(done, error),
            }
        }
        self.written += done as u64;
        self.gathered.clear();
        self.ends.clear();
        Ok(())
    }

    /// Writes what there is room for; how much that was.
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_reader {
            return (&self.file).write(bytes);
        }
        out::wait_for_room(&self.file)?;
        (&self.file).write(&bytes[..bytes.len().min(PIPE_BUF)])
    }

    /// So many of the bytes that were gathered are in the file: cuts it after a whole record.
    fn fail(&mut self, done: usize, error: io::Error) -> io::Result<()> {
        self.state = State::Failed;
        let whole = self.ends.iter().rev().find(|end| **end <= done).copied().unwrap_or(0);
        self.written += whole as u64;
        if self.ours && whole < done {
            // What is no regular file cannot be cut, and has no end to cut it at.
            let _ = self.file.set_len(self.written);
        }
        self.gathered.clear();
        self.ends.clear();
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_reach_the_file_when_there_are_many_and_when_they_are_to() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sink = Sink::new(file.reopen().unwrap(), true);
        let len = || file.as_file().metadata().unwrap().len();
        sink.record(|to| to.extend(b"abc")).unwrap();
        assert_eq!((sink.len(), len()), (3, 0));
        sink.flush().unwrap();
        assert_eq!((sink.len(), len()), (3, 3));
        sink.record(|to| to.resize(FULL, 7)).unwrap();
        assert_eq!((sink.len(), len()), (FULL as u64 + 3, FULL as u64 + 3));
    }

    #[test]
    fn a_file_without_room_for_all_ends_after_a_whole_record() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sink = Sink::new(file.reopen().unwrap(), true);
        sink.record(|to| to.extend(b"first")).unwrap();
        sink.flush().unwrap();
        for record in [&b"second"[..], b"third", b"fourth"] {
            sink.record(|to| to.extend(record)).unwrap();
        }
        // As a disk does that has room for this much.
        sink.file.write_all(b"secondthi").unwrap();
        let refused = sink.fail(9, ErrorKind::StorageFull.into()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        assert_eq!(std::fs::read(file.path()).unwrap(), b"firstsecond");
        sink.record(|to| to.extend(b"more")).unwrap();
        sink.flush().expect("it was told");
        assert_eq!(std::fs::read(file.path()).unwrap(), b"firstsecond");
    }

    #[test]
    fn a_full_disk_is_an_error_and_a_reader_that_is_gone_is_none() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut sink = Sink::new(full, true);
        sink.record(|to| to.push(1)).unwrap();
        assert_eq!(sink.flush().unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(!sink.is_closed());
        let (reader, writer) = io::pipe().unwrap();
        let mut sink = Sink::new(File::from(std::os::fd::OwnedFd::from(writer)), false);
        drop(reader);
        sink.record(|to| to.push(1)).unwrap();
        sink.flush().expect("no error");
        assert!(sink.is_closed());
    }
}
