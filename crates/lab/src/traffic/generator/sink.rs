//! Where the generator's frames end.

use std::os::fd::AsFd as _;

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};

use super::object::{Programs, constants, index};
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
    programs: Programs,
}

impl FrameSink {
    /// A sink where `end` receives. A device can have one at a time.
    ///
    /// # Errors
    /// As [`FrameGenerator::new`](super::FrameGenerator::new).
    pub fn attach(end: &End) -> Result<Self> {
        let programs = Programs::load()?;
        let index = index(&end.host, &end.device)?;
        end.host
            .run(|| attach(&programs, index))?
            .map_err(|e| Error::io(format!("a sink on {}", end.device), bpf::io_error(e)))?;
        Ok(Self { host: end.host.clone(), index, programs })
    }

    /// Frames that have arrived.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn arrived(&self) -> Result<u64> {
        self.programs.read(constants::ARRIVED).map_err(|e| Error::io("reading the sink", e))
    }
}

impl Drop for FrameSink {
    fn drop(&mut self) {
        // The device may be gone, and a drop could not say what else is wrong.
        let _ = self.host.run(|| {
            hook(&self.programs, self.index).attach_point(TC_INGRESS | TC_EGRESS).destroy()
        });
    }
}

fn attach(programs: &Programs, index: u32) -> libbpf_rs::Result<()> {
    let mut hook = hook(programs, index);
    hook.create()?;
    hook.attach().map(drop)
}

fn hook(programs: &Programs, index: u32) -> TcHook {
    let mut hook = TcHook::new(programs.sink.as_fd());
    hook.ifindex(index as i32).attach_point(TC_INGRESS).handle(1).priority(1);
    hook
}
