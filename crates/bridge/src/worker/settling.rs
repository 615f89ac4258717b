//! When the packet path may believe what its map says of a station.
//!
//! The kernel learns from a packet after our program has seen it, and says so later still. So a
//! notification may be out of date when it comes, and what is read of the kernel's table may be
//! too, if a packet from another port is on its way to the bridge at that moment. Therefore:
//!
//! * Whatever is written into the map is *unsettled*: the packet path leaves the station's
//!   packets to the kernel.
//! * The packet path counts in the entry when it sees the station on another port.
//! * [`SETTLE`](super::unsettled::SETTLE) after the entry was written, or the count was read, every
//!   packet that was under way then has passed the bridge. The kernel is asked where the station
//!   is, and if that is what the entry says, it is settled: by a compare-and-swap of the count,
//!   which fails if a packet was seen on another port meanwhile. Then all begins anew.

use std::collections::HashMap;
use std::time::Instant;

use super::Worker;
use super::unsettled::RESTLESS;
use crate::state::Key;
use crate::{Change, Entry, Result};

/// So many stations are asked for one by one, or one in so many of all; more by reading the whole
/// table.
const SINGLY: usize = 32;

impl Worker {
    /// Settles the stations whose time has come, as far as they are where they were.
    pub(super) fn settle(&mut self) -> Result<()> {
        let due = self.unsettled.due(Instant::now());
        if due.is_empty() {
            return Ok(());
        }
        let settled = self.settle_all(&due);
        if settled.is_err() {
            // Another time.
            for (key, count) in due {
                self.unsettled.wait(key, count, RESTLESS);
            }
        }
        settled
    }

    fn settle_all(&mut self, due: &[(Key, u32)]) -> Result<()> {
        let singly = SINGLY.max(self.mirror.stations.len() / SINGLY);
        let mut all = None;
        if due.len() > singly {
            let entries = self.reader.stations(self.shared.bridge)?.into_iter();
            all = Some(entries.map(|entry| (entry.key, entry)).collect::<HashMap<_, _>>());
        }
        for &(key, count) in due {
            let found = match &all {
                Some(all) => all.get(&key).copied(),
                None => self.reader.station(self.shared.bridge, key)?,
            };
            self.settle_one(key, count, found)?;
        }
        Ok(())
    }

    fn settle_one(&mut self, key: Key, count: u32, found: Option<Entry>) -> Result<()> {
        if found.as_ref() != self.mirror.entry(key) {
            let change = found.map_or(Change::Removed(key), Change::Set);
            return self.apply(std::iter::once(change));
        }
        if !self.shared.program.settle(key, count)?
            && let Some(count) = self.shared.program.unsettled(key)?
        {
            self.unsettled.wait(key, count, RESTLESS);
        }
        Ok(())
    }
}
