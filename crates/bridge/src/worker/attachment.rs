//! What the worker has at each port.

use std::time::Instant;

use bpf::Link;

use crate::decide::PortPlan;

/// Our place on a port's ingress; dropping it detaches, and so does the end of the process.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) link: Link,
    /// When it was last moved behind others.
    pub(super) moved: Option<Instant>,
}

impl Attachment {
    pub(super) fn detach(&self) -> std::io::Result<()> {
        self.link.detach()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // A device that is gone has nothing attached; closing does the rest.
        let _ = self.detach();
    }
}

/// What the packet path's map of ports holds in a slot.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) plan: PortPlan,
    /// Where the kernel has it; 0: that is not known.
    pub(super) device: u64,
    /// It has its flags; closed, nothing is taken from it or sent to it.
    pub(super) open: bool,
}
