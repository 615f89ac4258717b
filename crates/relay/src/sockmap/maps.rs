//! The sockmap engine's BPF object: loads it, and reads and writes its maps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use bpf::Map;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::{Error, ErrorKind};

include!(concat!(env!("OUT_DIR"), "/sockmap.skel.rs"));

pub(super) use skel::types::{flow as Flow, progress as Progress};

/// Handles of the loaded maps. The program lives as long as `sources`, which it is attached to.
#[derive(Debug)]
pub(super) struct Maps {
    sources: Map,
    targets: Map,
    flows: Map,
    progress: Map,
}

impl Maps {
    /// Loads the object with room for `slots` flows at a time.
    pub(super) fn load(slots: u32) -> Result<Maps, Error> {
        let loaded = bpf::load(|storage| {
            let mut open = skel::SockmapSkelBuilder::default().open(storage)?;
            open.maps.sources.set_max_entries(slots)?;
            open.maps.targets.set_max_entries(slots)?;
            open.maps.flows.set_max_entries(slots)?;
            open.maps.progress.set_max_entries(slots)?;
            let skel = open.load()?;
            skel.progs.relay_verdict.attach_sockmap(skel.maps.sources.as_fd().as_raw_fd())?;
            Ok(Maps {
                sources: Map::of(&skel.maps.sources)?,
                targets: Map::of(&skel.maps.targets)?,
                flows: Map::of(&skel.maps.flows)?,
                progress: Map::of(&skel.maps.progress)?,
            })
        });
        loaded.map_err(|error| {
            let kind = match error.is_permission() {
                true => ErrorKind::PermissionDenied,
                false => ErrorKind::Unsupported,
            };
            Error::new(kind, format!("the sockmap engine's BPF program does not load: {error:#}"))
        })
    }

    pub(super) fn insert_flow(&self, cookie: u64, flow: &Flow) -> io::Result<()> {
        self.flows.insert(&cookie, flow)
    }

    pub(super) fn flow(&self, cookie: u64) -> io::Result<Option<Flow>> {
        self.flows.find(&cookie)
    }

    pub(super) fn remove_flow(&self, cookie: u64) {
        // It may never have been there: removal is for cleaning up.
        let _ = self.flows.remove(&cookie);
    }

    pub(super) fn set_progress(&self, slot: u32, done: Progress) -> io::Result<()> {
        self.progress.set(&slot, &done)
    }

    pub(super) fn add_source(&self, slot: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sources.set(&slot, &(socket.as_raw_fd() as u64))
    }

    pub(super) fn add_target(&self, slot: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.targets.set(&slot, &(socket.as_raw_fd() as u64))
    }

    pub(super) fn remove_target(&self, slot: u32) {
        // A closed socket has left the map by itself.
        let _ = self.targets.remove(&slot);
    }
}
