//! Sockmap as the kernel gives it, with neither sized buffers nor a governor: the baseline that
//! the relay's sockmap engine is measured against.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use bpf::{Map, Object};

use crate::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/sockmap_stock.rs"));

/// Where a redirect puts the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// Into the target's own receive queue.
    Ingress,
    /// Out of the target, to its peer.
    Egress,
}

/// A redirect of everything that one socket receives to another. Dropping it ends it; data that
/// is queued in between is then lost.
///
/// Nothing bounds what the kernel queues for a slow receiver: whoever sends must watch what has
/// arrived.
#[derive(Debug)]
pub struct StockSockmap {
    // The program lives as long as the map that it is attached to.
    _sockets: Map,
}

impl StockSockmap {
    /// Redirects what `source` receives from now on to `target`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) where BPF or sockmaps are not to be had.
    pub fn new(source: impl AsFd, target: impl AsFd, redirect: Redirect) -> Result<Self> {
        Self::attach(source, target, redirect).map_err(|e| Error::io("redirecting by a sockmap", e))
    }

    fn attach(source: impl AsFd, target: impl AsFd, redirect: Redirect) -> io::Result<Self> {
        let object = Object::load(OBJECT)?;
        let name = match redirect {
            Redirect::Ingress => "redirect_ingress",
            Redirect::Egress => "redirect_egress",
        };
        let sockets = object.map("sockets")?;
        object.attach_sockmap(name, &sockets)?;
        let put =
            |key: u32, socket: &dyn AsFd| sockets.set(&key, &(socket.as_fd().as_raw_fd() as u64));
        put(constants::TARGET, &target)?;
        put(constants::SOURCE, &source)?;
        Ok(Self { _sockets: sockets })
    }
}
