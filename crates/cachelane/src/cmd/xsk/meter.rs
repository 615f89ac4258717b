//! What the threads count, for whoever asks while they work.

use std::sync::Arc;
use std::time::Instant;

use knobs::{Counter, Registry};
use parking_lot::Mutex;
use xsk::{Outstanding, Statistics};

use super::check::Tally;

/// One thread's numbers.
#[derive(Debug, Default)]
pub(in crate::cmd) struct Meter {
    pub(in crate::cmd) rx_packets: Counter,
    pub(in crate::cmd) rx_bytes: Counter,
    pub(in crate::cmd) tx_packets: Counter,
    pub(in crate::cmd) tx_bytes: Counter,
    published: Mutex<Published>,
}

/// What only the thread itself can read, as it last wrote it down.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cmd) struct Published {
    pub(in crate::cmd) outstanding: Outstanding,
    pub(in crate::cmd) statistics: Statistics,
    /// When the first and the latest packet went through.
    pub(in crate::cmd) active: Option<(Instant, Instant)>,
    pub(in crate::cmd) tally: Tally,
}

impl Meter {
    pub(in crate::cmd) fn publish(&self, published: Published) {
        *self.published.lock() = published;
    }
}

/// All threads' numbers.
#[derive(Clone, Debug)]
pub(in crate::cmd) struct Meters(Arc<[Meter]>);

impl Meters {
    pub(in crate::cmd) fn new(threads: usize) -> Meters {
        Meters((0..threads).map(|_| Meter::default()).collect())
    }

    pub(in crate::cmd) fn of(&self, thread: usize) -> &Meter {
        &self.0[thread]
    }

    /// Adds them up.
    pub(in crate::cmd) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for meter in self.0.iter() {
            totals.rx_packets += meter.rx_packets.value();
            totals.rx_bytes += meter.rx_bytes.value();
            totals.tx_packets += meter.tx_packets.value();
            totals.tx_bytes += meter.tx_bytes.value();
            totals.add(&meter.published.lock());
        }
        totals
    }

    /// Adds every counter to `registry`, which then holds on to them.
    ///
    /// # Errors
    /// A name that the registry holds already.
    pub(in crate::cmd) fn register(&self, registry: &Registry) -> Result<(), knobs::Error> {
        for (name, unit, help, read) in TRAFFIC {
            let meters = self.clone();
            registry.counter(&format!("xsk.{name}"), unit, help, move || read(&meters.totals()))?;
        }
        for (name, help, read) in DROPS {
            let meters = self.clone();
            let read = move || read(&meters.totals().statistics);
            registry.counter(&format!("xsk.drops.{name}"), "packets", help, read)?;
        }
        for (name, help, read) in RINGS {
            let meters = self.clone();
            let read = move || u64::from(read(&meters.totals().outstanding));
            registry.gauge(&format!("xsk.rings.{name}"), "frames", help, read)?;
        }
        Ok(())
    }
}

/// Packets that the kernel has dropped.
pub(in crate::cmd) fn dropped(statistics: &Statistics) -> u64 {
    DROPS.iter().map(|(_, _, read)| read(statistics)).sum()
}

type Traffic = (&'static str, &'static str, &'static str, fn(&Totals) -> u64);
type Drops = (&'static str, &'static str, fn(&Statistics) -> u64);
type Ring = (&'static str, &'static str, fn(&Outstanding) -> u32);

const TRAFFIC: [Traffic; 4] = [
    ("rx_packets", "packets", "Packets received.", |t| t.rx_packets),
    ("rx_bytes", "bytes", "Bytes received.", |t| t.rx_bytes),
    ("tx_packets", "packets", "Packets sent.", |t| t.tx_packets),
    ("tx_bytes", "bytes", "Bytes sent.", |t| t.tx_bytes),
];

/// Why the kernel drops packets: a name, what it means, and how many it has dropped.
pub(in crate::cmd) const DROPS: [Drops; 5] = [
    ("rx_ring_full", "The receive ring was full.", |s| s.rx_ring_full),
    ("fill_ring_empty", "There was no frame to receive into.", |s| s.fill_ring_empty),
    // In copy mode the kernel counts one for which there is no frame here as well.
    ("rx_dropped", "Too long for a frame, and others.", |s| {
        s.rx_dropped.saturating_sub(s.fill_ring_empty)
    }),
    ("rx_invalid", "What was posted to receive into is no frame.", |s| s.rx_invalid),
    ("tx_invalid", "What was posted to send is no packet.", |s| s.tx_invalid),
];

/// The sockets' rings: a name, what it means, and how many frames are there.
pub(in crate::cmd) const RINGS: [Ring; 4] = [
    ("fill", "Frames for the kernel to receive into.", |o| o.fill),
    ("rx", "Frames received, not yet taken.", |o| o.rx),
    ("tx", "Frames for the kernel to send.", |o| o.tx),
    ("completed", "Frames sent, not yet taken back.", |o| o.completed),
];

/// All threads' numbers, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cmd) struct Totals {
    pub(in crate::cmd) rx_packets: u64,
    pub(in crate::cmd) rx_bytes: u64,
    pub(in crate::cmd) tx_packets: u64,
    pub(in crate::cmd) tx_bytes: u64,
    pub(in crate::cmd) outstanding: Outstanding,
    pub(in crate::cmd) statistics: Statistics,
    pub(in crate::cmd) active: Option<(Instant, Instant)>,
    pub(in crate::cmd) tally: Tally,
}

impl Totals {
    pub(in crate::cmd) fn add(&mut self, other: &Published) {
        let (to, from) = (&mut self.outstanding, &other.outstanding);
        to.fill += from.fill;
        to.rx += from.rx;
        to.tx += from.tx;
        to.completed += from.completed;
        let (to, from) = (&mut self.statistics, &other.statistics);
        to.rx_dropped += from.rx_dropped;
        to.rx_invalid += from.rx_invalid;
        to.tx_invalid += from.tx_invalid;
        to.rx_ring_full += from.rx_ring_full;
        to.fill_ring_empty += from.fill_ring_empty;
        to.tx_ring_empty += from.tx_ring_empty;
        self.active = match (self.active, other.active) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, other) => one.or(other),
        };
        // The threads of `drop --check` share one checker, and each writes down all of it; the
        // latest is the furthest.
        if other.tally.seen() >= self.tally.seen() {
            self.tally = other.tally;
        }
    }

    /// Seconds from the first to the latest packet.
    pub(in crate::cmd) fn seconds(&self) -> f64 {
        self.active.map_or(0.0, |(from, to)| to.duration_since(from).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_every_counter_has_a_name_of_its_own() {
        let meters = Meters::new(2);
        let start = Instant::now();
        let later = start + std::time::Duration::from_secs(2);
        for (thread, active) in [(0, (start, start)), (1, (later, later))] {
            meters.of(thread).rx_packets.add(5);
            let statistics = Statistics { rx_ring_full: 3, ..Statistics::default() };
            let outstanding = Outstanding { fill: 7, ..Outstanding::default() };
            let tally = Tally { probes: 1 + thread as u64, ..Tally::default() };
            let active = Some(active);
            meters.of(thread).publish(Published { outstanding, statistics, active, tally });
        }
        let totals = meters.totals();
        assert_eq!((totals.rx_packets, totals.statistics.rx_ring_full), (10, 6));
        assert_eq!((totals.outstanding.fill, totals.tally.probes), (14, 2));
        assert_eq!(totals.seconds(), 2.0);
        let registry = Registry::new("xsk");
        meters.register(&registry).expect("names of their own");
        let readings = registry.counters();
        let value = |name| readings.iter().find(|r| r.name == name).map(|r| r.value);
        assert_eq!(value("xsk.rx_packets"), Some(10));
        assert_eq!(value("xsk.drops.rx_ring_full"), Some(6));
        assert_eq!(value("xsk.rings.fill"), Some(14));
    }
}
