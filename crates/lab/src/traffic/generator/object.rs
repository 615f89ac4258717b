//! The BPF programs of the generator and the sink, and their maps.

use std::{io, os::fd::AsFd as _};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder};
use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};

use crate::{Error, Host, Result};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/generator.bpf.o"));

/// What the programs read, by the order of `enum setting`.
#[derive(Clone, Copy)]
pub(super) enum Setting {
    Port,
    Sources,
    FirstSource,
    Targets,
    FirstTarget,
}

/// What they count, by the order of `enum count`.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Injected,
    Refused,
    Arrived,
}

/// The maps, which outlive the programs: running one borrows its object, so each thread has one
/// of its own, and all of them have these.
#[derive(Debug)]
pub(super) struct Maps {
    settings: MapHandle,
    counts: MapHandle,
}

/// Loads the programs, onto these maps or onto new ones.
pub(super) fn load(maps: Option<&Maps>) -> Result<Object> {
    let load = || {
        let mut object = ObjectBuilder::default().open_memory(OBJECT)?;
        for (mut map, maps) in object.maps_mut().filter_map(|map| Some((map, maps?))) {
            let ours = [("settings", &maps.settings), ("counts", &maps.counts)];
            if let Some((_, ours)) = ours.iter().find(|(name, _)| map.name() == *name) {
                map.reuse_fd(ours.as_fd())?;
            }
        }
        object.load()
    };
    load().map_err(|error| Error::bpf("loading the programs of the frame generator", error))
}

pub(in crate::traffic) fn index(host: &Host, device: &str) -> Result<u32> {
    let find = || {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        name_to_index(socket, device)
    };
    host.run(find)?.map_err(|error| match error {
        rustix::io::Errno::NODEV => Error::invalid(format!("{host}: no device {device}")),
        error => Error::io(format!("{host}: {device}"), error),
    })
}

impl Maps {
    pub(super) fn of(object: &Object) -> libbpf_rs::Result<Self> {
        let find = |name: &str| {
            let map = object.maps().find(|map| map.name() == name).ok_or_else(missing)?;
            MapHandle::try_from(&map)
        };
        Ok(Self { settings: find("settings")?, counts: find("counts")? })
    }

    pub(super) fn put(&self, setting: Setting, value: u32) -> libbpf_rs::Result<()> {
        self.settings.update(&(setting as u32).to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
    }

    /// The sum over all CPUs.
    pub(super) fn read(&self, count: Count) -> libbpf_rs::Result<u64> {
        let values = self.counts.lookup_percpu(&(count as u32).to_ne_bytes(), MapFlags::ANY)?;
        let values = values.ok_or_else(missing)?;
        let numbers = values.iter().filter_map(|value| value.first_chunk());
        Ok(numbers.map(|bytes| u64::from_ne_bytes(*bytes)).sum())
    }
}

pub(in crate::traffic) fn missing() -> libbpf_rs::Error {
    io::Error::other("the object lacks a part").into()
}
