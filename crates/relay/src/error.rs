//! What can go wrong, said so that the reader can act on it.

use std::fmt;
use std::io;

/// An error of this crate: what was attempted, on what, and what came of it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<io::Error>,
}

/// What sort of error it is, for callers that react differently to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value that the caller gave cannot be used: an address, a CPU set, an engine's name.
    InvalidInput,
    /// Another socket already listens on the address.
    AddressInUse,
    /// The address does not belong to this host.
    AddressNotAvailable,
    /// The kernel refuses this process the operation.
    PermissionDenied,
    /// The limit on open files does not allow what was asked for.
    FileLimit,
    /// This host lacks what was asked for, for example BPF sockmaps.
    Unsupported,
    /// Anything else the kernel said.
    Io,
}

impl Error {
    /// What sort of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), source: None }
    }

    pub(crate) fn invalid(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, context)
    }

    /// Wraps a kernel error; its number decides the kind.
    pub(crate) fn io(context: impl Into<String>, source: impl Into<io::Error>) -> Error {
        let source = source.into();
        let kind = match source.kind() {
            io::ErrorKind::AddrInUse => ErrorKind::AddressInUse,
            io::ErrorKind::AddrNotAvailable => ErrorKind::AddressNotAvailable,
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => match source.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => ErrorKind::FileLimit,
                _ => ErrorKind::Io,
            },
        };
        Error { kind, context: context.into(), source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.context),
            None => f.write_str(&self.context),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // Display says the source's own message already.
        self.source.as_ref().and_then(|e| e.source())
    }
}
