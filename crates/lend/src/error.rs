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
    /// A value that cannot be used.
    Invalid,
    /// Another lender has the socket's path.
    InUse,
    /// Nobody listens there.
    NoLender,
    /// The caller may not.
    NotPermitted,
    /// The lender refused the borrower: too many, no frames left, no version in common.
    Refused,
    /// What the other side said makes no sense.
    Protocol,
    /// It cannot be changed while frames are on loan.
    OnLoan,
    /// The other side did not answer in time.
    TimedOut,
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
