//! When the packet path may believe what its map says of a station.
//!
//! The kernel learns from a packet after our program has seen it, and says so later still. So a
//! notification may be out of date when it comes, and what is read of the kernel's table may be
//! too, if a packet from another port is on its way to the bridge at that moment. Therefore:
//!
//! * Whatever is written into the map is *unsettled*: the packet path leaves the station's
//!   packets to the kernel.
//! * The packet path counts in the entry when it sees the station on another port.
//! * [`SETTLE`] after the entry was written, or the count was read, every packet that was under
//!   way then has passed the bridge. The kernel is asked where the station is, and if that is
//!   what the entry says, it is settled: by a compare-and-swap of the count, which fails if a
//!   packet was seen on another port meanwhile. Then all begins anew.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::Worker;
use crate::state::Mac;
use crate::{Change, Entry, Error, Result};

/// How long a packet may take from our program to the bridge's table.
pub(super) const SETTLE: Duration = Duration::from_millis(10);
/// How long a station that is seen here and there is left to the kernel at least.
const RESTLESS: Duration = Duration::from_millis(100);
/// So many stations are asked for one by one, or one in so many of all; more by reading the whole
/// table.
const SINGLY: usize = 32;

/// The stations that are to be settled.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    stations: HashMap<Mac, Waiting>,
    /// When to look at them, in that order: first those that wait for [`SETTLE`], then those that
    /// wait for [`RESTLESS`]. What is not the station's latest is passed over.
    queues: [VecDeque<(Instant, Mac)>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    until: Instant,
    /// What the count was.
    count: u32,
}

impl Unsettled {
    /// A station was written with this count, or has it now.
    pub(super) fn add(&mut self, mac: Mac, count: u32) {
        self.wait(mac, count, SETTLE);
    }

    fn wait(&mut self, mac: Mac, count: u32, time: Duration) {
        let until = Instant::now() + time;
        self.stations.insert(mac, Waiting { until, count });
        self.queues[usize::from(time > SETTLE)].push_back((until, mac));
    }

    /// When to look at the next one.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| Some(queue.front()?.0)).min()
    }

    /// When all those have been looked at that wait for [`SETTLE`] now.
    pub(super) fn last(&self) -> Option<Instant> {
        self.queues[0].back().map(|(until, _)| *until)
    }

    /// Takes those out whose time has come.
    fn due(&mut self, now: Instant) -> Vec<(Mac, u32)> {
        let mut due = Vec::new();
        for queue in &mut self.queues {
            while let Some((until, mac)) = queue.front().copied().filter(|(until, _)| *until <= now)
            {
                queue.pop_front();
                if self.stations.get(&mac).is_some_and(|waiting| waiting.until == until) {
                    due.extend(self.stations.remove(&mac).map(|waiting| (mac, waiting.count)));
                }
            }
        }
        due
    }
}

impl Worker {
    /// Takes in which stations were seen on another port.
    pub(super) fn unsettle(&mut self, seen: impl Iterator<Item = Mac>) -> Result<()> {
        for mac in seen {
            let count = self.shared.program.unsettled(mac);
            if let Some(count) = count.map_err(|e| Error::io("reading a station", e))? {
                self.unsettled.add(mac, count);
            }
        }
        Ok(())
    }

    /// Settles the stations whose time has come, as far as they are where they were.
    pub(super) fn settle(&mut self) -> Result<()> {
        let due = self.unsettled.due(Instant::now());
        if due.is_empty() {
            return Ok(());
        }
        let settled = self.settle_all(&due);
        if settled.is_err() {
            // Another time.
            for (mac, count) in due {
                self.unsettled.wait(mac, count, RESTLESS);
            }
        }
        settled
    }

    fn settle_all(&mut self, due: &[(Mac, u32)]) -> Result<()> {
        let singly = SINGLY.max(self.mirror.len() / SINGLY);
        let all = match due.len() <= singly {
            true => None,
            false => {
                let entries = self.reader.stations(self.index)?.into_iter();
                Some(entries.map(|entry| (entry.mac, entry)).collect::<HashMap<_, _>>())
            }
        };
        for &(mac, count) in due {
            let found = match &all {
                Some(all) => all.get(&mac).copied(),
                None => self.reader.station(self.index, mac)?,
            };
            self.settle_one(mac, count, found)?;
        }
        Ok(())
    }

    fn settle_one(&mut self, mac: Mac, count: u32, found: Option<Entry>) -> Result<()> {
        if found.as_ref() != self.mirror.entry(mac) {
            let change = found.map_or(Change::Removed(mac), Change::Set);
            return self.apply(std::iter::once(change));
        }
        let settled = self.shared.program.settle(mac, count);
        if settled.map_err(|e| Error::io("settling a station", e))? {
            return Ok(());
        }
        let count =
            self.shared.program.unsettled(mac).map_err(|e| Error::io("reading a station", e))?;
        if let Some(count) = count {
            self.unsettled.wait(mac, count, RESTLESS);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut unsettled = Unsettled::default();
        assert_eq!((unsettled.next(), unsettled.last()), (None, None));
        unsettled.add(mac(1), 1);
        unsettled.add(mac(2), 1);
        let (next, last) = (unsettled.next().unwrap(), unsettled.last().unwrap());
        assert_eq!(unsettled.due(next - Duration::from_nanos(1)), []);
        assert_eq!(unsettled.due(last), [(mac(1), 1), (mac(2), 1)]);
        assert_eq!(unsettled.next(), None);
    }

    #[test]
    fn a_station_that_is_written_again_waits_again() {
        let mut unsettled = Unsettled::default();
        unsettled.add(mac(1), 1);
        let first = unsettled.last().unwrap();
        std::thread::sleep(Duration::from_micros(1));
        unsettled.add(mac(1), 7);
        assert_eq!(unsettled.due(first), []);
        assert_eq!(unsettled.due(unsettled.last().unwrap()), [(mac(1), 7)]);
    }

    #[test]
    fn a_restless_station_keeps_nobody_waiting() {
        let mut unsettled = Unsettled::default();
        unsettled.wait(mac(1), 3, RESTLESS);
        unsettled.add(mac(2), 1);
        let last = unsettled.last().unwrap();
        assert_eq!(unsettled.due(last), [(mac(2), 1)]);
        assert_eq!(unsettled.last(), None);
        assert_eq!(unsettled.due(unsettled.next().unwrap()), [(mac(1), 3)]);
    }
}
