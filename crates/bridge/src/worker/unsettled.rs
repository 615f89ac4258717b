//! The stations that are to be settled, and when.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::state::Key;

/// How long a packet may take from our program to the bridge's table.
pub(super) const SETTLE: Duration = Duration::from_millis(10);
/// How long a station that is seen here and there is left to the kernel at least.
pub(super) const RESTLESS: Duration = Duration::from_millis(100);

/// The stations that are to be settled.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    /// Until when each waits, and what its count was.
    stations: HashMap<Key, (Instant, u32)>,
    /// When to look at them, in that order: first those that wait for [`SETTLE`], then those that
    /// wait for [`RESTLESS`]. What is not the station's latest is passed over.
    queues: [VecDeque<(Instant, Key)>; 2],
}

impl Unsettled {
    /// A station was written with this count, or has it now.
    pub(super) fn add(&mut self, key: Key, count: u32) {
        self.wait(key, count, SETTLE);
    }

    pub(super) fn wait(&mut self, key: Key, count: u32, time: Duration) {
        let until = Instant::now() + time;
        self.stations.insert(key, (until, count));
        self.queues[usize::from(time > SETTLE)].push_back((until, key));
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
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Key, u32)> {
        let mut due = Vec::new();
        for queue in &mut self.queues {
            while let Some((until, key)) = queue.front().copied().filter(|(until, _)| *until <= now)
            {
                queue.pop_front();
                if self.stations.get(&key).is_some_and(|(latest, _)| *latest == until) {
                    due.extend(self.stations.remove(&key).map(|(_, count)| (key, count)));
                }
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(last: u8) -> Key {
        crate::state::Mac([2, 0, 0, 0, 0, last]).into()
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut unsettled = Unsettled::default();
        assert_eq!((unsettled.next(), unsettled.last()), (None, None));
        unsettled.add(key(1), 1);
        unsettled.add(key(2), 1);
        let (next, last) = (unsettled.next().unwrap(), unsettled.last().unwrap());
        assert_eq!(unsettled.due(next - Duration::from_nanos(1)), []);
        assert_eq!(unsettled.due(last), [(key(1), 1), (key(2), 1)]);
        assert_eq!(unsettled.next(), None);
    }

    #[test]
    fn a_station_that_is_written_again_waits_again() {
        let mut unsettled = Unsettled::default();
        unsettled.add(key(1), 1);
        let first = unsettled.last().unwrap();
        std::thread::sleep(Duration::from_micros(1));
        unsettled.add(key(1), 7);
        assert_eq!(unsettled.due(first), []);
        assert_eq!(unsettled.due(unsettled.last().unwrap()), [(key(1), 7)]);
    }

    #[test]
    fn a_restless_station_keeps_nobody_waiting() {
        let mut unsettled = Unsettled::default();
        unsettled.wait(key(1), 3, RESTLESS);
        unsettled.add(key(2), 1);
        let last = unsettled.last().unwrap();
        assert_eq!(unsettled.due(last), [(key(2), 1)]);
        assert_eq!(unsettled.last(), None);
        assert_eq!(unsettled.due(unsettled.next().unwrap()), [(key(1), 3)]);
    }
}
