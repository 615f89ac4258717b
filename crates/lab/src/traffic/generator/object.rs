//! The BPF programs of the generator and the sink, and their maps.

use std::io;

use bpf::{Map, Object, Program};
use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};

use crate::{Error, Host, Result};

include!(concat!(env!("OUT_DIR"), "/generator.rs"));

/// The loaded programs, which threads may run at the same time, and their maps.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) inject_batch: Program,
    pub(super) inject_one: Program,
    pub(super) sink: Program,
    settings: Map,
    counts: Map,
}

pub(crate) fn index(host: &Host, device: &str) -> Result<u32> {
    let find = || {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        name_to_index(socket, device)
    };
    host.run(find)?.map_err(|error| match error {
        rustix::io::Errno::NODEV => Error::invalid(format!("{host}: no device {device}")),
        error => Error::io(format!("{host}: {device}"), error),
    })
}

impl Programs {
    pub(super) fn load() -> Result<Self> {
        let load = || -> io::Result<Self> {
            let object = Object::load(OBJECT)?;
            Ok(Self {
                inject_batch: object.program("inject_batch")?,
                inject_one: object.program("inject_one")?,
                sink: object.program("sink")?,
                settings: object.map("settings")?,
                counts: object.map("counts")?,
            })
        };
        load().map_err(|e| Error::io("loading the programs of the frame generator", e))
    }

    /// `setting` is one of `enum setting`.
    pub(super) fn put(&self, setting: u32, value: u32) -> io::Result<()> {
        self.settings.set(&setting, &value)
    }

    /// The sum over all CPUs; `count` is one of `enum count`.
    pub(super) fn read(&self, count: u32) -> io::Result<u64> {
        self.counts.sum(&count)
    }
}
