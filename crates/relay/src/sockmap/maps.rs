//! The sockmap engine's BPF object: loads it, and reads and writes its maps.
//!
//! `unsafe` here is the generated skeleton's, and two byte casts of the generated plain structs.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::{Error, ErrorKind};

#[allow(unreachable_pub, unused_qualifications, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/sockmap.skel.rs"));
}

pub(super) use skel::types::{flow as Flow, progress as Progress};

/// Handles of the loaded maps. The program lives as long as `sources`, which it is attached to.
#[derive(Debug)]
pub(super) struct Maps {
    sources: MapHandle,
    targets: MapHandle,
    flows: MapHandle,
    progress: MapHandle,
}

impl Maps {
    /// Loads the object with room for `slots` flows at a time.
    pub(super) fn load(slots: u32) -> Result<Maps, Error> {
        Maps::try_load(slots).map_err(|e| {
            let kind = match e.kind() {
                libbpf_rs::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                _ => ErrorKind::Unsupported,
            };
            Error::new(kind, format!("the sockmap engine's BPF program does not load: {e:#}"))
        })
    }

    fn try_load(slots: u32) -> libbpf_rs::Result<Maps> {
        let mut storage = MaybeUninit::uninit();
        let mut open = skel::SockmapSkelBuilder::default().open(&mut storage)?;
        open.maps.sources.set_max_entries(slots)?;
        open.maps.targets.set_max_entries(slots)?;
        open.maps.flows.set_max_entries(slots)?;
        open.maps.progress.set_max_entries(slots)?;
        let skel = open.load()?;
        skel.progs.relay_verdict.attach_sockmap(skel.maps.sources.as_fd().as_raw_fd())?;
        Ok(Maps {
            sources: MapHandle::try_from(&skel.maps.sources)?,
            targets: MapHandle::try_from(&skel.maps.targets)?,
            flows: MapHandle::try_from(&skel.maps.flows)?,
            progress: MapHandle::try_from(&skel.maps.progress)?,
        })
    }

    pub(super) fn insert_flow(&self, cookie: u64, flow: &Flow) -> libbpf_rs::Result<()> {
        // SAFETY: `Flow` is plain integers without padding (sockmap.h asserts its size), so
        // every byte of it is initialised; the slice lives no longer than the borrow.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(flow).cast::<u8>(), size_of::<Flow>())
        };
        self.flows.update(&cookie.to_ne_bytes(), bytes, MapFlags::NO_EXIST)
    }

    pub(super) fn flow(&self, cookie: u64) -> libbpf_rs::Result<Option<Flow>> {
        let bytes = self.flows.lookup(&cookie.to_ne_bytes(), MapFlags::ANY)?;
        Ok(bytes.filter(|b| b.len() == size_of::<Flow>()).map(|b| {
            // SAFETY: the length was just checked, any bytes make a `Flow`, and the read asks
            // for no alignment.
            unsafe { std::ptr::read_unaligned(b.as_ptr().cast::<Flow>()) }
        }))
    }

    pub(super) fn remove_flow(&self, cookie: u64) {
        // It may never have been there: removal is for cleaning up.
        let _ = self.flows.delete(&cookie.to_ne_bytes());
    }

    pub(super) fn set_progress(&self, slot: u32, done: Progress) -> libbpf_rs::Result<()> {
        self.progress.update(&slot.to_ne_bytes(), &done.forwarded.to_ne_bytes(), MapFlags::ANY)
    }

    pub(super) fn add_source(&self, slot: u32, socket: BorrowedFd<'_>) -> libbpf_rs::Result<()> {
        add(&self.sources, slot, socket)
    }

    pub(super) fn add_target(&self, slot: u32, socket: BorrowedFd<'_>) -> libbpf_rs::Result<()> {
        add(&self.targets, slot, socket)
    }

    pub(super) fn remove_target(&self, slot: u32) {
        // A closed socket has left the map by itself.
        let _ = self.targets.delete(&slot.to_ne_bytes());
    }
}

fn add(map: &MapHandle, slot: u32, socket: BorrowedFd<'_>) -> libbpf_rs::Result<()> {
    map.update(&slot.to_ne_bytes(), &(socket.as_raw_fd() as u64).to_ne_bytes(), MapFlags::ANY)
}
