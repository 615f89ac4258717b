//! What can go wrong.

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// There is no device of this name.
        NoDevice => BadInput,
        /// The device has no queue of this number.
        NoQueue => BadInput,
        /// Another socket has the queue.
        QueueTaken => Failed,
        /// The device, or the kernel, takes no XDP program or AF_XDP socket of this kind.
        NoXdp => HostCannot,
        /// Another XDP program is on the device.
        ProgramPresent => Failed,
        /// The memory would be more than the caller may lock.
        MemlockLimit => HostCannot,
        /// The device's packets do not fit into a frame.
        FrameTooSmall => BadInput,
        /// The caller may not.
        NotPermitted => NotPermitted,
        /// The kernel or the device lacks what was asked for.
        Unsupported => HostCannot,
        /// A value that cannot be used.
        Invalid => BadInput,
        /// Anything else that the system reported.
        Io => Failed,
    }
    io,
}

impl From<bpf::kernel::TooOld> for Error {
    fn from(error: bpf::kernel::TooOld) -> Self {
        Self::new(ErrorKind::Unsupported, format!("AF_XDP sockets: {error}"))
    }
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
}
