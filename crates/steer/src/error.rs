//! What can go wrong.

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// There is no device of this name.
        NoDevice => BadInput,
        /// The device, or the kernel, takes no XDP program or AF_XDP socket of this kind.
        NoXdp => HostCannot,
        /// Another XDP program is on the device: a refusal, as the other things that stand against it.
        ProgramPresent => HostCannot,
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

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
}

impl From<bpf::kernel::TooOld> for Error {
    fn from(error: bpf::kernel::TooOld) -> Self {
        Self::new(ErrorKind::Unsupported, format!("steering: {error}"))
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
