//! The ports as the packet path finds them on the way in, where the bridge looks at VLANs: by their
//! interface indexes, for the VLAN of frames without a tag.
//!
//! A bucket holds the ports whose indexes leave one remainder. So what comes in costs one look into
//! an array. The few ports that find their bucket full are left to the kernel path.

use std::collections::{HashMap, HashSet};

use super::Worker;
use crate::Result;
use crate::program::{Inlet, InletBucket, constants};
use crate::state::State;

/// What the packet path has been told of the ways in.
#[derive(Debug, Default)]
pub(super) struct Inlets {
    buckets: HashMap<u32, Vec<(u32, u16)>>,
    /// Those that it has not been told of as they are now.
    untold: HashSet<u32>,
    /// Ports by interface index that found no room.
    left_out: HashSet<u32>,
    /// There is room for the VLANs of ports with lower numbers.
    ports: u32,
}

impl Inlets {
    /// With room for the VLANs of so many ports.
    pub(super) fn new(ports: u32) -> Inlets {
        Inlets { ports, ..Inlets::default() }
    }

    /// Whether a port has to do without being known.
    pub(super) fn have_no_room(&self, index: u32, number: u16) -> bool {
        self.left_out.contains(&index) || u32::from(number) >= self.ports
    }

    /// Takes in what the ports are now.
    pub(super) fn arrange(&mut self, state: &State) {
        let by_vlan = state.ports.iter().filter(|_| state.bridge.vlans.is_some());
        let pvids = by_vlan.filter_map(|port| Some((port.index, port.vlans.as_ref()?.pvid())));
        self.put(pvids.map(|(index, pvid)| (index, pvid.unwrap_or(0))));
    }

    fn put(&mut self, ports: impl Iterator<Item = (u32, u16)>) {
        let mut buckets: HashMap<u32, Vec<(u32, u16)>> = HashMap::new();
        self.left_out.clear();
        for (index, pvid) in ports {
            let bucket = buckets.entry(index % constants::INLET_BUCKETS).or_default();
            if bucket.len() < constants::INLETS_IN_BUCKET as usize {
                bucket.push((index, pvid));
            } else {
                self.left_out.insert(index);
            }
        }
        let old = std::mem::replace(&mut self.buckets, buckets);
        let changed = |home: &&u32| old.get(home) != self.buckets.get(home);
        let all = old.keys().chain(self.buckets.keys());
        self.untold.extend(all.filter(changed));
    }

    fn bucket(&self, home: u32) -> InletBucket {
        let mut bucket = InletBucket::default();
        let there = self.buckets.get(&home).into_iter().flatten();
        for (inlet, (index, pvid)) in bucket.inlets.iter_mut().zip(there) {
            *inlet = Inlet { index: *index, pvid: u32::from(*pvid) };
        }
        bucket
    }
}

impl Worker {
    /// Tells the packet path in which VLAN frames without a tag are.
    pub(super) fn place_inlets(&mut self) -> Result<()> {
        while let Some(home) = self.inlets.untold.iter().next().copied() {
            self.shared.program.set_inlets(home, &self.inlets.bucket(home))?;
            self.inlets.untold.remove(&home);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: u32 = constants::INLET_BUCKETS;

    #[test]
    fn ports_that_find_no_room_are_left_out_and_a_bucket_is_told_when_it_changes() {
        let mut inlets = Inlets::new(100);
        let all: Vec<(u32, u16)> = (0..6).map(|n| (7 + n * BUCKETS, 10)).chain([(8, 20)]).collect();
        inlets.put(all.iter().copied());
        assert_eq!(inlets.untold, HashSet::from([7, 8]));
        let no_room: Vec<bool> =
            all.iter().map(|(index, _)| inlets.have_no_room(*index, 1)).collect();
        assert_eq!(no_room, [false, false, false, false, true, true, false]);
        assert!(inlets.have_no_room(8, 100), "its number is too high");
        let told = inlets.bucket(7).inlets.map(|inlet| (inlet.index, inlet.pvid));
        assert_eq!(told, [0, 1, 2, 3].map(|n| (7 + n * BUCKETS, 10)));

        inlets.untold.clear();
        inlets.put(all.iter().copied());
        assert_eq!(inlets.untold, HashSet::new());
        inlets.put([(8, 21)].into_iter());
        assert_eq!(inlets.untold, HashSet::from([7, 8]));
        assert_eq!(inlets.bucket(7).inlets.map(|inlet| inlet.index), [0; 4]);
        assert!(!inlets.have_no_room(all[5].0, 1));
    }
}
