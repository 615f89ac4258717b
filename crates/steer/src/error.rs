//! What can go wrong.

use std::{fmt, io};

/// An error of this crate: what was being done to what, and why it failed.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

/// What sort of error it is, for callers that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no device of this name.
    NoDevice,
    /// The device, or the kernel, takes no XDP program or AF_XDP socket of this kind.
    NoXdp,
    /// Another XDP program is on the device.
    ProgramPresent,
    /// The caller may not.
    NotPermitted,
    /// The kernel or the device lacks what was asked for.
    Unsupported,
    /// A value that cannot be used.
    Invalid,
    /// Anything else that the system reported.
    Io,
}

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What sort of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// A failed system call, in the middle of doing `what`.
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = match source.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
            _ => ErrorKind::Io,
        };
        Self { kind, message: what.into(), source: Some(source) }
    }
}

impl From<xsk::Error> for Error {
    fn from(error: xsk::Error) -> Self {
        let kind = match error.kind() {
            xsk::ErrorKind::NoDevice => ErrorKind::NoDevice,
            xsk::ErrorKind::NoXdp => ErrorKind::NoXdp,
            xsk::ErrorKind::ProgramPresent => ErrorKind::ProgramPresent,
            xsk::ErrorKind::NotPermitted => ErrorKind::NotPermitted,
            xsk::ErrorKind::Unsupported => ErrorKind::Unsupported,
            xsk::ErrorKind::Invalid => ErrorKind::Invalid,
            _ => ErrorKind::Io,
        };
        // Its message has its cause.
        Self::new(kind, error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
