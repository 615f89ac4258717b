//! What can go wrong.

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// There is no such process, or the folder is no recorded host.
        Invalid => BadInput,
        /// The system does not let the caller read or write there.
        NotPermitted => NotPermitted,
        /// Anything else that the system reported.
        Io => Failed,
    }
    io,
}

impl From<lanes::Error> for Error {
    fn from(error: lanes::Error) -> Self {
        Self::new(ErrorKind::Io, error.to_string())
    }
}
