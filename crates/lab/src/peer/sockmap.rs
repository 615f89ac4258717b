//! Sockmap as the kernel gives it, with neither sized buffers nor a governor: the baseline that
//! the relay's sockmap engine is measured against.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, ObjectBuilder};

use crate::{Error, Result};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sockmap_stock.bpf.o"));

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
    _sockets: MapHandle,
}

impl StockSockmap {
    /// Redirects what `source` receives from now on to `target`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) where BPF or sockmaps are not to be had.
    pub fn new(source: impl AsFd, target: impl AsFd, redirect: Redirect) -> Result<Self> {
        Self::attach(source, target, redirect)
            .map_err(|e| Error::io("redirecting by a sockmap", std::io::Error::other(e)))
    }

    fn attach(source: impl AsFd, target: impl AsFd, redirect: Redirect) -> libbpf_rs::Result<Self> {
        let object = ObjectBuilder::default().open_memory(OBJECT)?.load()?;
        let name = match redirect {
            Redirect::Ingress => "redirect_ingress",
            Redirect::Egress => "redirect_egress",
        };
        let missing = || libbpf_rs::Error::from(std::io::Error::other("the object lacks a part"));
        let sockets = object.maps().find(|m| m.name() == "sockets").ok_or_else(missing)?;
        let sockets = MapHandle::try_from(&sockets)?;
        let program = object.progs_mut().find(|p| p.name() == name).ok_or_else(missing)?;
        program.attach_sockmap(sockets.as_fd().as_raw_fd())?;
        let put = |key: u32, socket: &dyn AsFd| {
            let value = (socket.as_fd().as_raw_fd() as u64).to_ne_bytes();
            sockets.update(&key.to_ne_bytes(), &value, MapFlags::ANY)
        };
        put(1, &target)?;
        put(0, &source)?;
        Ok(Self { _sockets: sockets })
    }
}
