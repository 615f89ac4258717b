//! What can go wrong.

use std::io;

kit::error! {
    /// What went wrong, by how a caller can react.
    pub enum ErrorKind {
        /// The process may not do this: making network namespaces needs root.
        NotPermitted => NotPermitted,
        /// A program is not installed; `package` is the Debian package that has it.
        Missing {
            /// Name of the Debian package.
            package: &'static str,
        } => HostCannot,
        /// A program ran and failed; the message has the command line and its stderr.
        Command => Failed,
        /// A system call or a file operation failed.
        Io => Failed,
        /// Something did not happen within its bound.
        TimedOut => Failed,
        /// The caller asked for something that makes no sense.
        Invalid => BadInput,
    }
    io: |source| match source.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
        io::ErrorKind::TimedOut => ErrorKind::TimedOut,
        _ => ErrorKind::Io,
    },
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TimedOut, message)
    }

    pub(crate) fn missing(program: &str) -> Self {
        let package = package_of(program);
        Self::new(
            ErrorKind::Missing { package },
            format!("{program} is not installed; it is in the Debian package {package}"),
        )
    }
}

/// The Debian package of each program that this crate starts by itself.
fn package_of(program: &str) -> &'static str {
    match program {
        "ip" | "bridge" | "tc" | "ss" => "iproute2",
        "ethtool" => "ethtool",
        "setpriv" | "unshare" => "util-linux",
        "haproxy" => "haproxy",
        "nginx" => "nginx and libnginx-mod-stream",
        "sysctl" | "ps" => "procps",
        "ping" => "iputils-ping",
        _ => "that provides it",
    }
}
