//! Requests of a process's own making, beside those for knobs and counters: see
//! [`Registry::on_request`](crate::Registry::on_request).

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::result::Result as StdResult;

use nix::sys::socket::{getsockopt, sockopt};
use serde_json::Value;

use crate::{Error, Result};

/// The most files that one [`Answer`] carries.
pub const MAX_FILES: usize = 8192;

/// What answers requests of one name.
pub(crate) type Handler = dyn Fn(&Value, Peer) -> StdResult<Answer, String> + Send + Sync;

/// What answers a request: JSON, and open files, of which the client gets duplicates.
#[derive(Debug, Default)]
pub struct Answer {
    /// Anything that JSON can say.
    pub value: Value,
    /// At most [`MAX_FILES`], in this order.
    pub files: Vec<OwnedFd>,
}

/// A client, as the kernel knows it from the moment when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process; 0 for one of a PID namespace that this process does not see.
    pub pid: u32,
}

impl Peer {
    /// Who is at the other end.
    pub(crate) fn of(stream: &UnixStream) -> Result<Self> {
        // Not by rustix: its credentials hold a process id that cannot be 0.
        let peer = getsockopt(stream, sockopt::PeerCredentials)
            .map_err(|error| Error::io("read the client's credentials", error))?;
        Ok(Self { uid: peer.uid(), pid: peer.pid().unsigned_abs() })
    }

    /// This process.
    pub(crate) fn ours() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { uid, pid: std::process::id() }
    }
}

impl fmt::Display for Peer {
    /// Such as `uid 1000, pid 42`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}, pid {}", self.uid, self.pid)
    }
}
