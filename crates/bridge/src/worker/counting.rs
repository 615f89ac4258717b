//! The worker's counting of what arrives behind other programs.

use std::time::Instant;

use super::Worker;
use super::arrivals::Port;
use super::pace::GLANCE;
use crate::state::State;
use crate::{Error, Result};

impl Worker {
    /// Compares what the ports with programs before ours have received with what got here.
    pub(super) fn count_arrivals(&mut self) -> Result<()> {
        let program = &self.shared.program;
        let counting = |error| Error::io("counting what arrives", error);
        let watched = watched(&self.state, program.id());
        let gone = self.arrivals.ports.extract_if(|index, _| !watched.contains(index));
        for (index, _) in gone {
            program.forget_arrivals(index).map_err(counting)?;
        }
        for index in watched {
            let Some(port) = self.arrivals.ports.get_mut(&index) else {
                program.count_arrivals(index).map_err(counting)?;
                self.arrivals.ports.insert(index, Port::new());
                continue;
            };
            if port.read.elapsed() < GLANCE {
                continue;
            }
            let arrived = program.arrivals(index).map_err(counting)?;
            // One that has left is announced.
            let Some(received) = self.reader.received(index)? else { continue };
            port.learn(arrived, received);
            port.read = Instant::now();
        }
        Ok(())
    }
}

/// The ports that our program is attached to behind others.
fn watched(state: &State, ours: u32) -> Vec<u32> {
    let behind = |programs: &[u32]| programs.iter().position(|id| *id == ours) > Some(0);
    state.ports.iter().filter(|port| behind(&port.tcx_ingress)).map(|port| port.index).collect()
}
