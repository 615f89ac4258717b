//! A file that is read again and again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::error::Context as _;
use crate::{Error, ErrorKind, Result};

/// How much of a file is believed: `/proc/stat` of the largest machines has some hundred KiB.
const LIMIT: usize = 16 << 20;

/// How long a reading may take to be at one moment, and how often to try for that.
const MOMENT: Duration = Duration::from_micros(500);
const TRIES: usize = 3;

/// A file of procfs, sysfs or cgroupfs that stays open: each reading makes its text anew.
///
/// What it is of is decided once: the network namespace of the thread that opened it, the process,
/// the cgroup. If that goes, reading fails, whatever gets its name later.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) path: String,
    file: File,
    text: Vec<u8>,
    /// When the text was made.
    pub(crate) at: Instant,
}

impl Kept {
    /// Opens a file; `lacking` says why it may not be there.
    pub(crate) fn open(path: impl Into<String>, lacking: &str) -> Result<Self> {
        let path = path.into();
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Error::caused(ErrorKind::Absent, format!("{path} ({lacking})"), error)
            }
            _ => Error::io(path.clone(), error),
        })?;
        Ok(Self { path, file, text: Vec::new(), at: Instant::now() })
    }

    /// Reads it, and again where that took so long that the moment of its figures is in doubt.
    pub(crate) fn read(&mut self) -> Result<()> {
        let mut best = Duration::MAX;
        for _ in 0..TRIES {
            let before = Instant::now();
            let text = self.read_once().context(&self.path)?;
            let took = before.elapsed();
            if took < best {
                (best, self.text, self.at) = (took, text, before + took / 2);
            }
            if best < MOMENT {
                break;
            }
        }
        Ok(())
    }

    /// What the last [`read`](Self::read) found.
    pub(crate) fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.text)
            .map_err(|_| Error::new(ErrorKind::Io, format!("{}: not text", self.path)))
    }

    fn read_once(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(self.text.len() + 4096);
        let mut chunk = [0; 16 << 10];
        loop {
            match self.file.read_at(&mut chunk, text.len() as u64) {
                Ok(0) => return Ok(text),
                Ok(got) => text.extend_from_slice(&chunk[..got]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if text.len() > LIMIT {
                return Err(io::Error::other("more than 16 MiB"));
            }
        }
    }
}
