//! What can go wrong.

use std::fmt;

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// A value that cannot be used.
        Invalid => BadInput,
        /// The system has no memory of the wanted kind.
        Memory => HostCannot,
    }
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
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
