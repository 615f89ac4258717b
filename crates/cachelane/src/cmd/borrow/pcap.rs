//! A capture file as tcpdump and Wireshark read it: the classic format, times in nanoseconds.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

/// In the machine's byte order: a reader tells it from this.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const ETHERNET: u32 = 1;

/// A capture file that is being written.
pub(super) struct Capture {
    path: PathBuf,
    to: BufWriter<Box<dyn Write + Send>>,
    snaplen: u32,
    /// Whoever read it is gone.
    closed: bool,
}

/// The file, as people read it.
pub(super) fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdout".into() } else { path.display().to_string() }
}

impl Capture {
    /// Makes the file, or empties it; `-` is stdout.
    pub(super) fn create(path: &Path, snaplen: u32) -> anyhow::Result<Capture> {
        let to: Box<dyn Write + Send> = match path == Path::new("-") {
            true => Box::new(io::stdout()),
            false => {
                let file = File::create(path);
                Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
            }
        };
        Capture::new(path, to, snaplen)
    }

    fn new(path: &Path, to: Box<dyn Write + Send>, snaplen: u32) -> anyhow::Result<Capture> {
        const BUFFER: usize = 256 << 10;
        let to = BufWriter::with_capacity(BUFFER, to);
        let mut capture = Capture { path: path.to_owned(), to, snaplen, closed: false };
        let mut header = Vec::with_capacity(24);
        header.extend(MAGIC.to_ne_bytes());
        VERSION.iter().for_each(|part| header.extend(part.to_ne_bytes()));
        // Two fields that nobody uses: the time zone, and how exact times are.
        header.extend([0; 8]);
        header.extend(snaplen.to_ne_bytes());
        header.extend(ETHERNET.to_ne_bytes());
        capture.write(&header)?;
        capture.flush()?;
        Ok(capture)
    }

    /// Writes a packet of these parts, as far as it is wanted. A reader that is gone is no error.
    pub(super) fn packet(&mut self, time: SystemTime, parts: &[&[u8]]) -> anyhow::Result<()> {
        // Times before 1970 do not happen.
        let time = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let kept = len.min(self.snaplen as usize);
        let mut header = [0; 16];
        // The seconds wrap in 2106.
        let fields = [time.as_secs() as u32, time.subsec_nanos(), kept as u32, len as u32];
        for (to, field) in header.chunks_exact_mut(4).zip(fields) {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        self.write(&header)?;
        let mut left = kept;
        for part in parts {
            let part = &part[..part.len().min(left)];
            self.write(part)?;
            left -= part.len();
        }
        Ok(())
    }

    /// Hands on what was written, so that a reader has it.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        let flushed = self.to.flush();
        self.check(flushed)
    }

    /// Whether whoever read it is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.to.write_all(bytes);
        self.check(written)
    }

    fn check(&mut self, result: io::Result<()>) -> anyhow::Result<()> {
        match result {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            result => result.with_context(|| format!("cannot write {}", name(&self.path))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Refuses everything for this reason.
    struct Refuses(io::ErrorKind);

    impl Write for Refuses {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_packet_is_written_with_its_time_and_length_and_cut_at_the_snaplen() {
        let written = Shared::default();
        let mut capture =
            Capture::new("x".as_ref(), Box::new(written.clone()), 5).expect("a header");
        let time = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        capture.packet(time, &[b"abc"]).unwrap();
        capture.packet(time, &[b"abc", b"defg", b"h"]).unwrap();
        capture.flush().unwrap();
        let bytes = written.0.lock().unwrap().clone();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([word(0), word(16), word(20)], [0xa1b2_3c4d, 5, 1]);
        assert_eq!([word(24), word(28), word(32), word(36)], [1_700_000_000, 123_456_789, 3, 3]);
        assert_eq!(bytes[40..43], *b"abc");
        assert_eq!([word(51), word(55)], [5, 8]);
        assert_eq!(bytes[59..], *b"abcde");
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error_and_a_full_disk_is() {
        let gone = Capture::new("-".as_ref(), Box::new(Refuses(io::ErrorKind::BrokenPipe)), 99);
        assert!(gone.expect("no error").is_closed());
        let full = Capture::new("x".as_ref(), Box::new(Refuses(io::ErrorKind::StorageFull)), 99);
        assert_eq!(full.map(drop).unwrap_err().to_string(), "cannot write x");
    }
}
