//! Looking at bridges without loading or attaching anything.

use std::time::Instant;

use crate::decide::decide;
use crate::host::Reader;
use crate::owner::{self, Accelerated};
use crate::program::{self, constants};
use crate::{Plan, Result};

/// What the fast path could do on a bridge, or does.
#[derive(Debug)]
pub struct Inspection {
    /// What may be taken from and sent to each port: by the process that accelerates the bridge, if
    /// one does.
    pub plan: Plan,
    /// The process that accelerates it.
    pub accelerated: Option<Accelerated>,
    /// The ports that its program is attached to, by interface index.
    pub attached: Vec<u32>,
}

/// What the fast path could do on the bridge with this name, or does.
///
/// # Errors
/// As [`Accelerator::start`](crate::Accelerator::start), but for those of loading and attaching.
pub fn inspect(bridge: &str) -> Result<Inspection> {
    let mut reader = Reader::new()?;
    let mut state = reader.state(bridge)?;
    // As a process that follows the bridge looks: the ports one by one, and all else at once.
    let begin = Instant::now();
    reader.look_around(&mut state)?;
    state.longest_look = begin.elapsed();
    program::tcx_needed(state.bridge.index)?;
    let accelerated = owner::of(state.bridge.index)?;
    let program = accelerated.as_ref().map(|owner| owner.program);
    let ports = accelerated.as_ref().and_then(|owner| owner.ports.as_ref());
    for port in &mut state.ports {
        let flags = ports.and_then(|ports| program::port_flags(ports, port.number.into()).ok());
        port.unseen = flags.unwrap_or_default() & constants::PORT_UNSEEN != 0;
    }
    let is_on = |ids: &[u32]| program.is_some_and(|program| ids.contains(&program));
    let attached = state.ports.iter().filter(|port| is_on(&port.tcx_ingress));
    let attached = attached.map(|port| port.index).collect();
    Ok(Inspection { plan: decide(&state, program), accelerated, attached })
}

/// The names of the bridges that there are, in order.
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io) if they cannot be listed.
pub fn bridges() -> Result<Vec<String>> {
    let bridges = Reader::new()?.bridges()?;
    Ok(bridges.into_iter().map(|(_, name)| name).collect())
}
