//! What can go wrong.

use std::fmt;
use std::path::Path;

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// The text is not a CPU set or a lane layout.
        Syntax => BadInput,
        /// The machine has no such CPU.
        NoSuchCpu => BadInput,
        /// The CPU exists but is offline.
        Offline => BadInput,
        /// This process may not run on the CPU (cpuset, affinity).
        NotAllowed => BadInput,
        /// The map has no such lane.
        NoSuchLane => BadInput,
        /// A lane layout names a CPU twice.
        Overlap => BadInput,
        /// A lane layout leaves out an online CPU.
        Incomplete => BadInput,
        /// A file below `/sys/devices/system` could not be read or makes no sense.
        Sysfs => Failed,
        /// The kernel refused to say which CPUs this process may use.
        Affinity => Failed,
    }
    also offset: Option<usize>,
}

impl Error {
    /// For an error in a text that a user wrote: the byte offset in it where the trouble starts.
    pub fn offset(&self) -> Option<usize> {
        self.offset
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
        Self { offset: Some(offset), ..Self::new(kind, message) }
    }

    /// The same trouble, found in a file.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        let message = format!("{}: {}", path.display(), self.message);
        Self { kind: ErrorKind::Sysfs, message, offset: None, ..self }
    }
}
