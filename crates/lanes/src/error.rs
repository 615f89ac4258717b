//! The one error of this crate.

use std::fmt;
use std::io;
use std::path::Path;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What was wrong with a CPU set, a lane layout or the machine's description of itself.
///
/// `Display` is one line that names the thing, the value and what was expected.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    offset: Option<usize>,
    source: Option<io::Error>,
}

/// The sort of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not a CPU set or a lane layout.
    Syntax,
    /// The machine has no such CPU.
    NoSuchCpu,
    /// The CPU exists but is offline.
    Offline,
    /// This process may not run on the CPU (cpuset, affinity).
    NotAllowed,
    /// The map has no such lane.
    NoSuchLane,
    /// A lane layout names a CPU twice.
    Overlap,
    /// A lane layout leaves out an online CPU.
    Incomplete,
    /// A file below `/sys/devices/system` could not be read or makes no sense.
    Sysfs,
    /// The kernel refused to say which CPUs this process may use.
    Affinity,
}

impl Error {
    /// The sort of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// For an error in a text that a user wrote: the byte offset in it where the trouble starts.
    pub fn offset(&self) -> Option<usize> {
        self.offset
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), offset: None, source: None }
    }

    /// An error at byte `offset` of `text`, which is a `what` ("CPU set").
    pub(crate) fn at(
        kind: ErrorKind,
        what: &str,
        text: &str,
        offset: usize,
        trouble: impl fmt::Display,
    ) -> Self {
        let character = text[..offset].chars().count() + 1;
        let message = format!("{what} {text:?}: {trouble} at character {character}");
        Self { kind, message, offset: Some(offset), source: None }
    }

    pub(crate) fn io(kind: ErrorKind, message: impl Into<String>, source: io::Error) -> Self {
        Self { kind, message: message.into(), offset: None, source: Some(source) }
    }

    /// The same trouble, found in a file.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        let message = format!("{}: {}", path.display(), self.message);
        Self { kind: ErrorKind::Sysfs, message, offset: None, source: self.source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}
