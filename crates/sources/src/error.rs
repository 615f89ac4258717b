//! What can go wrong.

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// The text is not a measure.
        Syntax => BadInput,
        /// There is no quantity, process, device or cgroup of this name.
        Unknown => BadInput,
        /// This host does not have what is to be read.
        Absent => HostCannot,
        /// The process may not read it.
        NotPermitted => NotPermitted,
        /// Nothing can be said of the time between two readings: a counter was reset, a part of it
        /// came or went, or a source did not answer.
        Void => Failed,
        /// The user's command failed, took too long or printed no number.
        Command => Failed,
        /// Anything else that the system reported.
        Io => Failed,
    }
    io,
}

impl Error {
    pub(crate) fn void(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Void, message)
    }

    pub(crate) fn syntax(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Syntax, message)
    }
}
