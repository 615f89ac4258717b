//! The mirror of the kernel's forwarding table in the packet path's map.
//!
//! The kernel's entries come as a whole, once and after an overrun, and as changes. All are
//! remembered; what the packet path may use of them goes into its map. What is left out there
//! takes the kernel path.

use std::collections::{HashMap, HashSet};

use crate::program::Station;
use crate::program::constants::{STATION_AGELESS, STATION_FIXED, STATION_SLOT_SHIFT};
use crate::state::Key;
use crate::{Change, Entry, EntryKind, Result};

/// What `unsettled` is in a station that has just been written.
pub(crate) const UNSETTLED: u32 = 1;

/// Where stations are written: the packet path's map, or a model of it in tests.
pub(crate) trait StationMap {
    /// Writes a station. Returns whether there was room where it may stand.
    fn set(&mut self, key: Key, station: Station) -> Result<bool>;
    fn remove(&mut self, key: Key) -> Result<()>;
}

/// The kernel's entries, and which of them the packet path's map holds.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) stations: HashMap<Key, Held>,
    /// Those of them with a slot: in the packet path's map.
    pub(crate) mapped: u32,
    /// Usable entries that found no slot.
    pub(crate) left_out: HashSet<Key>,
    slots: Slots,
    /// Interface index to port number. Entries of other devices are not for the packet path.
    numbers: HashMap<u32, u16>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    entry: Entry,
    slot: Option<u32>,
}

/// The places for stamps.
#[derive(Debug)]
struct Slots {
    /// Those that were used and are free again.
    free: Vec<u32>,
    /// The first that was never used.
    unused: u32,
    capacity: u32,
}

impl Mirror {
    /// An empty mirror with room for `capacity` stations in the packet path's map.
    pub(crate) fn new(capacity: u32) -> Mirror {
        Mirror {
            stations: HashMap::new(),
            mapped: 0,
            left_out: HashSet::new(),
            slots: Slots { free: Vec::new(), unused: 0, capacity },
            numbers: HashMap::new(),
        }
    }

    /// Says which devices are ports, by interface index, and maps the stations behind them anew.
    pub(crate) fn set_ports(
        &mut self,
        numbers: HashMap<u32, u16>,
        map: &mut impl StationMap,
    ) -> Result<()> {
        let old = std::mem::replace(&mut self.numbers, numbers);
        if old == self.numbers {
            return Ok(());
        }
        let concerned =
            |held: &Held| old.get(&held.entry.port) != self.numbers.get(&held.entry.port);
        let entries: Vec<Entry> =
            self.stations.values().filter(|held| concerned(held)).map(|held| held.entry).collect();
        entries.into_iter().try_for_each(|entry| self.set(entry, map))
    }

    /// Makes the map hold what `entries`, all of the kernel's, call for.
    pub(crate) fn rebuild(&mut self, entries: &[Entry], map: &mut impl StationMap) -> Result<()> {
        let now: HashSet<Key> = entries.iter().map(|entry| entry.key).collect();
        let gone: Vec<Key> =
            self.stations.keys().filter(|key| !now.contains(key)).copied().collect();
        for key in gone {
            self.apply(Change::Removed(key), map)?;
        }
        let is_held = |held: &Held, entry: &Entry| held.entry == *entry && held.slot.is_some();
        for entry in entries {
            // What is as it was stays as settled as it was.
            if !self.stations.get(&entry.key).is_some_and(|held| is_held(held, entry)) {
                self.set(*entry, map)?;
            }
        }
        Ok(())
    }

    /// Writes every entry again, so that none is settled.
    pub(crate) fn unsettle(&mut self, map: &mut impl StationMap) -> Result<()> {
        let entries: Vec<Entry> = self.stations.values().map(|held| held.entry).collect();
        entries.into_iter().try_for_each(|entry| self.set(entry, map))
    }

    /// The kernel's entry, as far as is known.
    pub(crate) fn entry(&self, key: Key) -> Option<&Entry> {
        self.stations.get(&key).map(|held| &held.entry)
    }

    /// Follows one change of the kernel's table.
    pub(crate) fn apply(&mut self, change: Change, map: &mut impl StationMap) -> Result<()> {
        match change {
            Change::Set(entry) => self.set(entry, map),
            Change::Removed(key) => {
                self.unmap(key, map)?;
                self.stations.remove(&key);
                self.left_out.remove(&key);
                self.fill(map)
            }
        }
    }

    /// Writes the entry even where it is as it was. It is not settled by that: what a notification
    /// says may be out of date by now.
    fn set(&mut self, entry: Entry, map: &mut impl StationMap) -> Result<()> {
        let held = self.stations.entry(entry.key).or_insert(Held { entry, slot: None });
        held.entry = entry;
        let Some(port) = usable(&entry, &self.numbers) else {
            self.left_out.remove(&entry.key);
            self.unmap(entry.key, map)?;
            return self.fill(map);
        };
        if held.slot.is_none() {
            held.slot = self.slots.take();
            self.mapped += u32::from(held.slot.is_some());
        }
        let Some(slot) = held.slot else {
            self.left_out.insert(entry.key);
            return Ok(());
        };
        let ageless = if entry.kind == EntryKind::Ageing { 0 } else { STATION_AGELESS };
        let fixed = if entry.sticky { STATION_FIXED } else { 0 };
        let place = slot << STATION_SLOT_SHIFT | ageless | fixed | port;
        let station = Station { place, unsettled: UNSETTLED };
        if !map.set(entry.key, station)? {
            self.release(entry.key);
            self.left_out.insert(entry.key);
        }
        Ok(())
    }

    /// Takes the station out of the map; it stays known.
    fn unmap(&mut self, key: Key, map: &mut impl StationMap) -> Result<()> {
        if self.release(key) { map.remove(key) } else { Ok(()) }
    }

    /// Gives up the station's slot. Returns whether it had one.
    fn release(&mut self, key: Key) -> bool {
        let slot = self.stations.get_mut(&key).and_then(|held| held.slot.take());
        self.slots.free.extend(slot);
        self.mapped -= u32::from(slot.is_some());
        slot.is_some()
    }

    /// Lets one in that found no room before, for one that has gone.
    fn fill(&mut self, map: &mut impl StationMap) -> Result<()> {
        if self.slots.free.is_empty() {
            return Ok(());
        }
        let Some(key) = self.left_out.iter().next().copied() else { return Ok(()) };
        self.left_out.remove(&key);
        match self.stations.get(&key).map(|held| held.entry) {
            Some(entry) => self.set(entry, map),
            None => Ok(()),
        }
    }
}

/// The port that the packet path may send this station's packets to.
fn usable(entry: &Entry, numbers: &HashMap<u32, u16>) -> Option<u32> {
    if entry.kernel_only || entry.kind == EntryKind::Local {
        return None;
    }
    numbers.get(&entry.port).map(|number| u32::from(*number))
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = self.unused;
            (slot < self.capacity).then(|| {
                self.unused += 1;
                slot
            })
        })
    }
}

#[cfg(test)]
mod tests;
