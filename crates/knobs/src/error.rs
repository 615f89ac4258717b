//! The one error of this crate, on both ends of the socket.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong with a knob, a request or a control socket.
///
/// `Display` is one line that names the thing, the value and what was expected. An error that the
/// other process sent keeps its kind and its words.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

/// The sort of an [`Error`]; on the wire in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name that is not lowercase and dotted.
    BadName,
    /// The name is taken.
    Duplicate,
    /// The process has no such knob.
    UnknownKnob,
    /// The knob does not take the value.
    BadValue,
    /// The process cannot read the knob's own value.
    Unreadable,
    /// The request is not one.
    Malformed,
    /// The request, or the answer, is longer than it may be.
    TooLarge,
    /// The other side speaks another version of the protocol.
    Schema,
    /// The other process belongs to another user, or the runtime directory is open to others.
    NotPermitted,
    /// The process is gone.
    Gone,
    /// The process did not answer in time.
    Timeout,
    /// The operating system refused something.
    Io,
    /// The process broke while it answered; it is still there.
    Internal,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

impl Error {
    /// The sort of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error of the operating system while doing `what` ("bind /run/x.sock").
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { kind: ErrorKind::Io, message: what.into(), source: Some(source.into()) }
    }

    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}
