//! The worker's dealings with ports: what the packet path knows of them, and our place on them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bpf::Link;
use bpf::tcx::{self, Hook};
use rustix::io::Errno;

use super::Worker;
use crate::Result;
use crate::decide::{Obstacle, Plan, PortPlan, Refresh, Way};
use crate::program::{self, Port, constants};
use crate::shared::Gate;

/// How long a port's link stays where it is, at least, when others want to be last as well.
const BETWEEN_MOVES: Duration = Duration::from_secs(10);

/// Our place on a port's ingress; dropping it detaches, and so does the end of the process.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) link: Link,
    /// When it was last moved behind others.
    moved: Option<Instant>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // A device that is gone has nothing attached; closing does the rest.
        let _ = self.link.detach();
    }
}

/// What the packet path's map of ports holds in a slot.
#[derive(Debug)]
pub(super) struct Placed {
    plan: PortPlan,
    /// Where the kernel has it; 0: that is not known.
    device: u64,
    /// It has its flags; closed, nothing is taken from it or sent to it.
    open: bool,
}

impl Worker {
    /// Leaves to the kernel path what was announced to have changed, before it is looked at.
    pub(super) fn close(&mut self) -> Result<()> {
        let heard = &self.watch.heard;
        if heard.concerns_all() && !self.shared.gate.lock().alarmed {
            self.shared.change(|gate| gate.alarmed = true)?;
        }
        if heard.ports.is_empty() {
            return Ok(());
        }
        if !self.shared.gate.lock().unread {
            self.shared.change(|gate| gate.unread = true)?;
        }
        let told = |placed: &Placed| placed.open && heard.ports.contains(&placed.plan.index);
        let slots = self.slots(|_, placed| told(placed));
        slots.into_iter().try_for_each(|slot| self.close_one(slot))
    }

    /// The slots of which this holds.
    fn slots(&self, holds: impl Fn(&u16, &Placed) -> bool) -> Vec<u16> {
        self.ports
            .iter()
            .filter(|(slot, placed)| holds(slot, placed))
            .map(|(slot, _)| *slot)
            .collect()
    }

    fn close_one(&mut self, slot: u16) -> Result<()> {
        let Some(placed) = self.ports.get_mut(&slot) else { return Ok(()) };
        placed.open = false;
        let closed = Port { device: placed.device, ..entry(&placed.plan) };
        self.shared.program.set_port(slot, &closed)
    }

    /// Tells the packet path about the ports.
    pub(super) fn place(&mut self, plan: &Plan) -> Result<()> {
        let now: HashMap<u16, &PortPlan> =
            plan.ports.iter().map(|port| (port.number, port)).collect();
        let is_right = |number: &u16, placed: &Placed| {
            placed.open && now.get(number).is_some_and(|port| **port == placed.plan)
        };
        let wrong = self.slots(|number, placed| !is_right(number, placed));
        for number in wrong {
            // In between nobody may act on a mixture of the old and the new.
            self.close_one(number)?;
            let old = self.ports.get(&number).map(|placed| placed.plan.index);
            if now.get(&number).map(|port| port.index) != old {
                self.shared.program.set_port(number, &Port::default())?;
                self.ports.remove(&number);
            }
        }
        self.place_inlets()?;
        // Before a number is another port's: no station of the old one is then taken for its own.
        let numbers = plan.ports.iter().map(|port| (port.index, port.number)).collect();
        self.mirror(|mirror, table| mirror.set_ports(numbers, table))?;
        for (number, port) in now {
            if self.ports.get(&number).is_some_and(|placed| placed.open) {
                continue;
            }
            let found = self.shared.program.device(port.index)?;
            let device = found.unwrap_or_default();
            self.shared.program.set_port(number, &Port { device, ..entry(port) })?;
            // Where there is no room for them, it is closed by its plan.
            let room = !self.inlets.have_no_room(port.index, number);
            if let Some(vlans) = port.vlans.as_ref().filter(|_| room) {
                self.shared.program.set_vlans(number, vlans)?;
            }
            // What was announced while the host was read is not in the plan.
            let open = found.is_some() && !self.watch.heard.ports.contains(&port.index);
            if open {
                self.shared
                    .program
                    .set_port(number, &Port { device, flags: flags(port), ..entry(port) })?;
            }
            self.ports.insert(number, Placed { plan: port.clone(), device, open });
        }
        Ok(())
    }

    /// Attaches to the ports that are there, behind all others, or, with the fast path off, to
    /// none. Returns whether it is other ports than before that refuse that.
    pub(super) fn attach(&mut self) -> Result<bool> {
        let Gate { fastpath, plan, .. } = self.shared.gate.lock().clone();
        let before = std::mem::take(&mut self.refused);
        let none = self.links.is_empty();
        let there: HashSet<u32> = plan.ports.iter().map(|port| port.index).collect();
        let gone = self.links.keys().filter(|index| !fastpath || !there.contains(index));
        for index in gone.copied().collect::<Vec<_>>() {
            // Each time the kernel waits until no packet is under way.
            self.links.remove(&index);
            self.tend()?;
        }
        let (ours, mut again) = (self.shared.program.id(), false);
        let seen: HashSet<u32> = self
            .state
            .ports
            .iter()
            .filter(|port| port.tcx_ingress.contains(&ours))
            .map(|port| port.index)
            .collect();
        for port in plan.ports.iter().filter(|_| fastpath) {
            let settled = |place: &Attachment| {
                place.moved.is_none_or(|moved| moved.elapsed() > BETWEEN_MOVES)
            };
            let moved = match self.links.get(&port.index) {
                None => None,
                Some(_) if !seen.contains(&port.index) => {
                    tracing::warn!("port {}: our program was taken off it", port.name);
                    again = true;
                    None
                }
                Some(place) if is_overtaken(port) && settled(place) => {
                    tracing::info!(
                        "port {}: going behind a tcx program that came after",
                        port.name
                    );
                    // Its new place is seen by the next glance.
                    self.next_glance = Instant::now();
                    Some(Instant::now())
                }
                Some(_) => continue,
            };
            // Closed before the new one is made: for a moment the kernel path alone.
            self.links.remove(&port.index);
            self.attach_to(port, moved);
            self.tend()?;
        }
        if again || none && !self.links.is_empty() {
            // While we were on no port, or not on one of them, stations may have moved unseen.
            self.distrust()?;
            self.mirror(|mirror, table| mirror.unsettle(table))?;
        }
        Ok(self.refused != before)
    }

    /// Attaches to one port. That it cannot is the port's own refusal, and tried again.
    fn attach_to(&mut self, port: &PortPlan, moved: Option<Instant>) {
        match self.shared.program.attach(port.index) {
            Ok(link) => {
                self.links.insert(port.index, Attachment { link, moved });
                self.arrivals.begin(port.index);
                let programs = tcx::programs(port.index, Hook::Ingress);
                let known = self.state.ports.iter_mut().find(|known| known.index == port.index);
                if let (Some(known), Ok(programs)) = (known, programs) {
                    known.tcx_ingress = programs;
                }
            }
            // It has left since it was read.
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {}
            Err(error) => {
                self.refused.insert(port.index, error.to_string());
            }
        }
    }
}

/// Whether another program sees the port's packets after ours.
fn is_overtaken(port: &PortPlan) -> bool {
    port.receive.iter().any(|obstacle| matches!(obstacle, Obstacle::Behind(_)))
}

/// A port as the packet path knows it, without its flags and its device.
fn entry(port: &PortPlan) -> Port {
    Port {
        index: port.index,
        flags: 0,
        max_len: port.max_len,
        gso_max_segs: port.gso.segments,
        gso_max_size: port.gso.size,
        gso_ipv4_max_size: port.gso.ipv4_size,
        peer_key: port.peer.map_or(0, program::number),
        device: 0,
    }
}

fn flags(port: &PortPlan) -> u32 {
    let flags = [
        (port.receive.is_empty(), constants::PORT_IN),
        (port.send >= Way::Queue, constants::PORT_OUT),
        (port.send == Way::Straight, constants::PORT_STRAIGHT),
        (port.isolated, constants::PORT_ISOLATED),
        (port.refresh != Refresh::Never, constants::PORT_REFRESH),
        (port.refresh == Refresh::Copy, constants::PORT_COPY),
        (port.receive.contains(&Obstacle::Unseen), constants::PORT_UNSEEN),
    ];
    flags.into_iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag)
}
