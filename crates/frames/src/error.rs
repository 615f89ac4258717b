//! What can go wrong.

use std::{fmt, io};

/// An error of this crate.
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
    /// The system has no memory of the wanted kind.
    Memory,
}

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What sort of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Invalid, message: message.into(), source: None }
    }

    pub(crate) fn memory(message: impl Into<String>, source: io::Error) -> Self {
        Self { kind: ErrorKind::Memory, message: message.into(), source: Some(source) }
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

/// Why an address that came back was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is outside the area.
    Foreign {
        /// What came back.
        address: u64,
    },
    /// The frame is not with this holder: it came back twice, or was never handed out.
    NotOut {
        /// What came back.
        address: u64,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Foreign { address } => write!(f, "address {address:#x} is outside the area"),
            Refused::NotOut { address } => {
                write!(f, "the frame at {address:#x} is not with this holder")
            }
        }
    }
}

impl std::error::Error for Refused {}
