//! The worker's dealings with ports: what the packet path knows of them, and our place on them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::io::Errno;

use super::Worker;
use crate::accelerator::{Control, bpf};
use crate::decide::{Obstacle, Plan, PortPlan, Refresh, Way};
use crate::program::{self, Port};
use crate::tcx;
use crate::{Error, ErrorKind, Result};

/// How long a port's link stays where it is, at least, when others want to be last as well.
const BETWEEN_MOVES: Duration = Duration::from_secs(10);

/// Our place on a port's ingress; dropping it detaches, and so does the end of the process.
#[derive(Debug)]
pub(super) struct Link {
    fd: OwnedFd,
    /// When it was last moved behind others.
    moved: Option<Instant>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // A device that is gone has nothing attached; closing does the rest.
        let _ = tcx::detach(self.fd.as_fd());
    }
}

impl Worker {
    /// Tells the packet path about the ports.
    pub(super) fn place(&mut self, plan: &Plan) -> Result<()> {
        let now: HashMap<u16, PortPlan> =
            plan.ports.iter().map(|port| (port.number, port.clone())).collect();
        let before = std::mem::take(&mut self.ports);
        let wrong = before.iter().filter(|(number, port)| now.get(number) != Some(port));
        for (number, _) in wrong {
            // In between nobody may act on a mixture of the old and the new.
            self.write(*number, &Port::default())?;
        }
        for (number, port) in now.iter().filter(|(number, port)| before.get(number) != Some(port)) {
            let flags = flags(port);
            self.write(*number, &Port { flags: 0, ..entry(port) })?;
            self.write(*number, &Port { flags, ..entry(port) })?;
        }
        self.ports = now;
        let numbers = plan.ports.iter().map(|port| (port.index, port.number)).collect();
        self.mirror(|mirror, table| mirror.set_ports(numbers, table))
    }

    fn write(&self, slot: u16, port: &Port) -> Result<()> {
        self.shared
            .program
            .set_port(slot.into(), port)
            .map_err(|e| bpf("telling the packet path about a port", &e))
    }

    /// Attaches to the ports that are there, behind all others, or, with the fast path off, to
    /// none.
    pub(super) fn attach(&mut self) -> Result<()> {
        let Control { fastpath, plan, .. } = self.shared.control();
        let none = self.links.is_empty();
        let wanted = |index: &u32| fastpath && plan.ports.iter().any(|port| port.index == *index);
        self.links.retain(|index, _| wanted(index));
        for port in plan.ports.iter().filter(|port| wanted(&port.index)) {
            let settled =
                |link: &Link| link.moved.is_none_or(|moved| moved.elapsed() > BETWEEN_MOVES);
            let moved = match self.links.get(&port.index) {
                None => None,
                Some(link) if is_overtaken(port) && settled(link) => {
                    tracing::info!(
                        "port {}: going behind a tcx program that came after",
                        port.name
                    );
                    // Closed before the new one is made: for a moment the kernel path alone.
                    self.links.remove(&port.index);
                    // Its new place is seen by the next glance.
                    self.next_glance = Instant::now();
                    Some(Instant::now())
                }
                Some(_) => continue,
            };
            match self.shared.program.attach(port.index) {
                Ok(fd) => {
                    self.links.insert(port.index, Link { fd, moved });
                }
                // It has left since it was read.
                Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {}
                Err(error) => {
                    return Err(Error::io(format!("cannot attach to port {}", port.name), error));
                }
            }
        }
        if none && !self.links.is_empty() {
            // While we were on no port, stations may have moved unseen.
            self.distrust()?;
            self.mirror(|mirror, table| mirror.unsettle(table))?;
        }
        Ok(())
    }
}

/// Whether another program sees the port's packets after ours.
fn is_overtaken(port: &PortPlan) -> bool {
    port.receive.iter().any(|obstacle| matches!(obstacle, Obstacle::Behind(_)))
}

/// Refuses a bridge that another process accelerates: each of the two would want to be last.
pub(super) fn refuse_second(plan: &Plan) -> Result<()> {
    for port in &plan.ports {
        let ours = |id: &&u32| tcx::program_name(**id).as_deref() == Some(program::NAME);
        if let Some(id) = port.before.iter().find(ours) {
            let message = format!(
                "another process accelerates this bridge already: tcx program {id} on {} is \
                 cachelane's",
                port.name
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
    }
    Ok(())
}

/// A port as the packet path knows it, without its flags.
fn entry(port: &PortPlan) -> Port {
    Port {
        index: port.index,
        flags: 0,
        max_len: port.max_len,
        gso_max_segs: port.gso.segments,
        gso_max_size: port.gso.size,
        gso_ipv4_max_size: port.gso.ipv4_size,
        peer_key: port.peer.map_or(0, program::key),
    }
}

fn flags(port: &PortPlan) -> u32 {
    let flags = [
        (port.receive.is_empty(), program::PORT_IN),
        (port.send >= Way::Queue, program::PORT_OUT),
        (port.send == Way::Straight, program::PORT_STRAIGHT),
        (port.isolated, program::PORT_ISOLATED),
        (port.refresh != Refresh::Never, program::PORT_REFRESH),
        (port.refresh == Refresh::Copy, program::PORT_COPY),
    ];
    flags.into_iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag)
}
