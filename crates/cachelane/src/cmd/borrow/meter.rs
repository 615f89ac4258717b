//! What the workers count, for whoever asks while they work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use knobs::Counter;

/// One worker's numbers, which it alone writes.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) packets: Counter,
    pub(super) bytes: Counter,
    // Relaxed: figures for people, which order nothing.
    dropped: AtomicU64,
    /// When the first and the latest packet came: nanoseconds since the start, plus 1; 0 for none.
    first: AtomicU64,
    latest: AtomicU64,
}

impl Meter {
    /// Packets came, so long after the start.
    pub(super) fn saw_packets(&self, since: Duration) {
        let now = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
        if self.first.load(Relaxed) == 0 {
            self.first.store(now, Relaxed);
        }
        self.latest.store(now, Relaxed);
    }

    /// So many were dropped so far.
    pub(super) fn dropped(&self, packets: u64) {
        self.dropped.store(packets, Relaxed);
    }

    pub(super) fn read(&self) -> Totals {
        Totals {
            packets: self.packets.value(),
            bytes: self.bytes.value(),
            dropped: self.dropped.load(Relaxed),
            active: Some((self.first.load(Relaxed), self.latest.load(Relaxed)))
                .filter(|&(first, _)| first > 0),
        }
    }
}

/// All workers' numbers, and since when.
#[derive(Clone, Debug)]
pub(super) struct Meters {
    pub(super) start: Instant,
    workers: Arc<[CachePadded<Meter>]>,
}

impl Meters {
    pub(super) fn new(workers: usize) -> Meters {
        let workers = (0..workers).map(|_| CachePadded::default()).collect();
        Meters { start: Instant::now(), workers }
    }

    pub(super) fn of(&self, worker: usize) -> &Meter {
        &self.workers[worker]
    }

    pub(super) fn read(&self) -> Vec<Totals> {
        self.workers.iter().map(|meter| meter.read()).collect()
    }

    pub(super) fn total(&self) -> Totals {
        self.workers.iter().map(|meter| meter.read()).fold(Totals::default(), Totals::and)
    }
}

/// What was received, of a worker or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    active: Option<(u64, u64)>,
}

impl Totals {
    pub(super) fn and(self, other: Totals) -> Totals {
        Totals {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            dropped: self.dropped + other.dropped,
            active: match (self.active, other.active) {
                (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
                (one, other) => one.or(other),
            },
        }
    }

    /// From the first to the latest packet.
    pub(super) fn active(&self) -> Duration {
        let (first, latest) = self.active.unwrap_or_default();
        Duration::from_nanos(latest.saturating_sub(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up_from_the_first_packet_to_the_latest() {
        let meters = Meters::new(3);
        for (worker, from, to) in [(0, 5, 7), (2, 0, 6)] {
            let meter = meters.of(worker);
            meter.packets.add(10);
            meter.bytes.add(600);
            meter.dropped(2);
            meter.saw_packets(Duration::from_secs(from));
            meter.saw_packets(Duration::from_secs(to));
        }
        let totals = meters.total();
        assert_eq!((totals.packets, totals.bytes, totals.dropped), (20, 1200, 4));
        assert_eq!(totals.active(), Duration::from_secs(7));
        assert_eq!(meters.read()[1], Totals::default());
        assert_eq!(Totals::default().active(), Duration::ZERO);
    }
}
