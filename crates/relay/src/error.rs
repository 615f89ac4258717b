//! What can go wrong.

use std::io;

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// A value that the caller gave cannot be used: an address, a CPU set, an engine's name.
        InvalidInput => BadInput,
        /// Another socket already listens on the address.
        AddressInUse => Failed,
        /// The address does not belong to this host.
        AddressNotAvailable => Failed,
        /// The kernel refuses this process the operation.
        PermissionDenied => NotPermitted,
        /// Another process has what was asked for, for now.
        Busy => Failed,
        /// The limit on open files does not allow what was asked for.
        FileLimit => HostCannot,
        /// This host lacks what was asked for, for example BPF sockmaps.
        Unsupported => HostCannot,
        /// Anything else the kernel said.
        Io => Failed,
    }
    io: |source| match source.kind() {
        io::ErrorKind::AddrInUse => ErrorKind::AddressInUse,
        io::ErrorKind::AddrNotAvailable => ErrorKind::AddressNotAvailable,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => ErrorKind::FileLimit,
            _ => ErrorKind::Io,
        },
    },
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }
}
