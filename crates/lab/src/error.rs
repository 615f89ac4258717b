//! The one error type of this crate.

use std::{fmt, io};

/// What went wrong, by how a caller can react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The process may not do this: making network namespaces needs root.
    NotPermitted,
    /// A program is not installed; `package` is the Debian package that has it.
    Missing {
        /// Name of the Debian package.
        package: &'static str,
    },
    /// A program ran and failed; the message has the command line and its stderr.
    Command,
    /// A system call or a file operation failed.
    Io,
    /// Something did not happen within its bound.
    TimedOut,
    /// The caller asked for something that makes no sense.
    Invalid,
}

/// An error with its kind and what was being done.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

/// Short for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What went wrong, by how a caller can react.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TimedOut, message)
    }

    pub(crate) fn io(message: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = match source.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
            io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            _ => ErrorKind::Io,
        };
        Self { kind, message: message.into(), source: Some(source) }
    }

    pub(crate) fn missing(program: &str) -> Self {
        let package = package_of(program);
        Self::new(
            ErrorKind::Missing { package },
            format!("{program} is not installed; it is in the Debian package {package}"),
        )
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
        self.source.as_ref().map(|source| source as _)
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
        "iperf3" => "iperf3",
        "sysctl" | "ps" => "procps",
        "ping" => "iputils-ping",
        _ => "that provides it",
    }
}
