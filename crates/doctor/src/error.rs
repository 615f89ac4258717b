//! What can go wrong.

use kit::{Class, Classed as _};

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// There is no such process, the folder is no recorded host, or the lanes are none of this
        /// machine's.
        Invalid => BadInput,
        /// The kernel does not load the programs that watch traffic.
        Unsupported => HostCannot,
        /// The system does not let the caller read or write there.
        NotPermitted => NotPermitted,
        /// Anything else that the system reported.
        Io => Failed,
    }
    io,
}

impl From<lanes::Error> for Error {
    fn from(error: lanes::Error) -> Self {
        let kind = match error.class() {
            Class::BadInput => ErrorKind::Invalid,
            _ => ErrorKind::Io,
        };
        Self::new(kind, error.to_string())
    }
}
