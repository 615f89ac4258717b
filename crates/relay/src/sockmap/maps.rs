//! The sockmap engine's BPF object and its maps.

use std::os::fd::{AsFd, AsRawFd};

use bpf::Map;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::{Error, ErrorKind};

include!(concat!(env!("OUT_DIR"), "/sockmap.skel.rs"));

pub(super) use skel::types::{flow as Flow, progress as Progress};

/// Handles of the loaded maps. The program lives as long as `sources`, which it is attached to.
#[derive(Debug)]
pub(super) struct Maps {
    /// By slot, the sockets whose data the verdict sees.
    pub(super) sources: Map,
    /// By slot, the sockets that it sends to.
    pub(super) targets: Map,
    /// By the source's cookie.
    pub(super) flows: Map,
    /// By slot.
    pub(super) progress: Map,
}

impl Maps {
    pub(super) fn load(slots: u32) -> Result<Maps, Error> {
        needs_kernel()?;
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
}

/// Refuses kernels that have not what the verdict program calls, which came with 6.2.
pub(crate) fn needs_kernel() -> Result<(), Error> {
    bpf::kernel::expect("kernel function bpf_cast_to_kern_ctx").map_err(|error| {
        let message = format!(
            "the sockmap engine: {error}, or another engine: copy, splice and auto work here"
        );
        Error::new(ErrorKind::Unsupported, message)
    })
}
