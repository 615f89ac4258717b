//! Whether anything gets to our program of what a port receives.
//!
//! A tcx program before ours may end the chain, as one that returns `TC_ACT_OK` does: the bridge
//! gets the packet, and ours never runs. No list of programs tells that, so the packets are
//! counted that get here from such a port, and compared with what its device has received.

use std::collections::HashMap;
use std::time::Instant;

use super::Worker;
use super::looking::GLANCE;
use crate::Result;
use crate::error::Context as _;

/// So few packets may have ended elsewhere.
const FEW: u64 = 16;

/// The ports that have programs before ours, by interface index.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    ports: HashMap<u32, Port>,
}

/// What is known of one.
#[derive(Debug)]
struct Port {
    read: Instant,
    /// What the device had received as of the last reading.
    received: u64,
    /// What had got here as of the last reading that found more than the one before it, and what
    /// the device had received then. None: it was not read yet since counting began.
    since: Option<(u64, u64)>,
    keeps_all: bool,
}

impl Arrivals {
    /// Whether nothing got to our program of what the port has received of late.
    pub(super) fn keeps_all(&self, index: u32) -> bool {
        self.ports.get(&index).is_some_and(|port| port.keeps_all)
    }

    /// Our program was attached to the port: what came before does not count.
    pub(super) fn begin(&mut self, index: u32) {
        if let Some(port) = self.ports.get_mut(&index) {
            *port = Port::new();
        }
    }
}

impl Port {
    fn new() -> Port {
        Port { read: Instant::now(), received: 0, since: None, keeps_all: false }
    }

    /// `arrived` was read before `received`.
    fn learn(&mut self, arrived: u64, received: u64) {
        match self.since {
            Some((known, from)) if known == arrived => {
                // What came since the last reading may still be on its way.
                self.keeps_all |= self.received.saturating_sub(from) >= FEW;
            }
            _ => (self.since, self.keeps_all) = (Some((arrived, received)), false),
        }
        self.received = received;
    }
}

impl Worker {
    /// Compares what the ports with programs before ours have received with what got here.
    pub(super) fn count_arrivals(&mut self) -> Result<()> {
        const COUNTING: &str = "counting what arrives";

        let (counts, ours) = (&self.shared.program.maps.arrivals, self.shared.program.id());
        let behind = |programs: &[u32]| programs.iter().position(|id| *id == ours) > Some(0);
        let watched = self.state.ports.iter().filter(|port| behind(&port.tcx_ingress));
        let watched: Vec<u32> = watched.map(|port| port.index).collect();
        let gone = self.arrivals.ports.extract_if(|index, _| !watched.contains(index));
        for (index, _) in gone {
            counts.remove(&index).context(COUNTING)?;
        }
        for index in watched {
            let Some(port) = self.arrivals.ports.get_mut(&index) else {
                counts.set_per_cpu(&index, &0_u64).context(COUNTING)?;
                self.arrivals.ports.insert(index, Port::new());
                continue;
            };
            if port.read.elapsed() < GLANCE {
                continue;
            }
            let arrived = counts.sum(&index).context(COUNTING)?;
            // One that has left is announced.
            let Some(received) = self.reader.received(index)? else { continue };
            port.learn(arrived, received);
            port.read = Instant::now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_keeps_all_once_many_packets_have_had_the_time_to_arrive() {
        // Arrived and received, and what is thought then.
        for (readings, expected) in [
            (&[(0, 100), (0, 110), (0, 115), (0, 116)][..], false),
            (&[(0, 100), (0, 200)], false),
            (&[(0, 100), (0, 116), (0, 116)], true),
            // Idle: as it was.
            (&[(0, 100), (0, 116), (0, 116), (0, 116)], true),
            (&[(0, 100), (0, 116), (0, 116), (1, 117)], false),
            (&[(0, 100), (0, 116), (1, 117), (1, 117)], false),
            (&[(5, 100), (6, 1000), (6, 1000), (6, 1000)], false),
        ] {
            let mut port = Port::new();
            readings.iter().for_each(|(arrived, received)| port.learn(*arrived, *received));
            assert_eq!(port.keeps_all, expected, "{readings:?}");
        }
    }
}
