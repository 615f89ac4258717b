//! Where the generator's frames end.

use std::os::fd::AsFd as _;

use libbpf_rs::{Object, TC_EGRESS, TC_INGRESS, TcHook};

use super::object::{Count, Maps, index, load, missing};
use crate::{End, Error, Host, Result};

/// Counts and drops the frames of [`FrameGenerator`](super::FrameGenerator)s that a device
/// receives, and nothing else, until it is dropped.
///
/// It is a tc filter, which a device has without receiving in another way than before: an XDP
/// program there would turn on its NAPI, and take it out of what is measured.
#[derive(Debug)]
pub struct FrameSink {
    host: Host,
    index: u32,
    object: Object,
    maps: Maps,
}

impl FrameSink {
    /// A sink where `end` receives. A device can have one at a time.
    ///
    /// # Errors
    /// As [`FrameGenerator::new`](super::FrameGenerator::new).
    pub fn attach(end: &End) -> Result<Self> {
        let object = load(None)?;
        let maps = Maps::of(&object).map_err(|error| Error::bpf("the sink", error))?;
        let index = index(&end.host, &end.device)?;
        end.host
            .run(|| attach(&object, index))?
            .map_err(|error| Error::bpf(&format!("a sink on {}", end.device), error))?;
        Ok(Self { host: end.host.clone(), index, object, maps })
    }

    /// Frames that have arrived.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn arrived(&self) -> Result<u64> {
        self.maps.read(Count::Arrived).map_err(|error| Error::bpf("reading the sink", error))
    }
}

impl Drop for FrameSink {
    fn drop(&mut self) {
        // The device may be gone, and a drop could not say what else is wrong.
        let _ = self
            .host
            .run(|| hook(&self.object, self.index)?.attach_point(TC_INGRESS | TC_EGRESS).destroy());
    }
}

fn attach(object: &Object, index: u32) -> libbpf_rs::Result<()> {
    let mut hook = hook(object, index)?;
    hook.create()?;
    hook.attach().map(drop)
}

fn hook(object: &Object, index: u32) -> libbpf_rs::Result<TcHook> {
    let program = object.progs().find(|program| program.name() == "sink").ok_or_else(missing)?;
    let mut hook = TcHook::new(program.as_fd());
    hook.ifindex(index as i32).attach_point(TC_INGRESS).handle(1).priority(1);
    Ok(hook)
}
