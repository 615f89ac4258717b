//! What the threads count, for whoever asks while they work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use knobs::{Counter, MeterKind, Registry};
use parking_lot::Mutex;
use serde_json::{Value, json};
use xsk::{Outstanding, Statistics};

use crate::counters::{Count, register};
use crate::figures::{rate_over, si};

/// One thread's numbers.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) rx_packets: Counter,
    pub(crate) rx_bytes: Counter,
    pub(crate) tx_packets: Counter,
    pub(crate) tx_bytes: Counter,
    /// What only the thread itself can read, as it last wrote it down; without those above.
    published: Mutex<Totals>,
}

impl Meter {
    pub(crate) fn publish(&self, own: Totals) {
        *self.published.lock() = own;
    }

    fn read(&self) -> Totals {
        Totals {
            rx_packets: self.rx_packets.value(),
            rx_bytes: self.rx_bytes.value(),
            tx_packets: self.tx_packets.value(),
            tx_bytes: self.tx_bytes.value(),
            ..*self.published.lock()
        }
    }
}

/// All threads' numbers.
#[derive(Clone, Debug)]
pub(crate) struct Meters(Arc<[CachePadded<Meter>]>);

impl Meters {
    pub(crate) fn new(threads: usize) -> Meters {
        Meters((0..threads).map(|_| CachePadded::default()).collect())
    }

    pub(crate) fn of(&self, thread: usize) -> &Meter {
        &self.0[thread]
    }

    /// Each thread's.
    pub(crate) fn threads(&self) -> Vec<Totals> {
        self.0.iter().map(|meter| meter.read()).collect()
    }

    /// Adds them up.
    pub(crate) fn totals(&self) -> Totals {
        Totals::sum(self.0.iter().map(|meter| meter.read()))
    }

    /// Adds every counter to `registry`, which then holds on to them.
    ///
    /// # Errors
    /// A name that the registry holds already.
    pub(crate) fn register(&self, registry: &Registry) -> Result<(), knobs::Error> {
        let totals = |meters: &Meters| {
            let meters = meters.clone();
            move || meters.totals()
        };
        register(registry, MeterKind::Counter, "xsk", &TRAFFIC, totals(self))?;
        register(registry, MeterKind::Counter, "xsk.drops", &DROPS, totals(self))?;
        register(registry, MeterKind::Gauge, "xsk.rings", &RINGS, totals(self))
    }
}

const TRAFFIC: [Count<Totals>; 4] = [
    ("rx_packets", "packets", "Packets received.", |t| t.rx_packets),
    ("rx_bytes", "bytes", "Bytes received.", |t| t.rx_bytes),
    ("tx_packets", "packets", "Packets sent.", |t| t.tx_packets),
    ("tx_bytes", "bytes", "Bytes sent.", |t| t.tx_bytes),
];

/// Why the kernel drops packets: a name, what it means, and how many it has dropped.
pub(crate) const DROPS: [Count<Totals>; 5] = [
    ("rx_ring_full", "packets", "The receive ring was full.", |t| t.statistics.rx_ring_full),
    ("fill_ring_empty", "packets", "There was no frame to receive into.", |t| {
        t.statistics.fill_ring_empty
    }),
    // In copy mode the kernel counts one for which there is no frame here as well.
    ("rx_dropped", "packets", "Too long for a frame, and others.", |t| {
        t.statistics.rx_dropped.saturating_sub(t.statistics.fill_ring_empty)
    }),
    ("rx_invalid", "packets", "What was posted to receive into is no frame.", |t| {
        t.statistics.rx_invalid
    }),
    ("tx_invalid", "packets", "What was posted to send is no packet.", |t| t.statistics.tx_invalid),
];

/// The sockets' rings: a name, what it means, and how many frames are there.
pub(crate) const RINGS: [Count<Totals>; 4] = [
    ("fill", "frames", "Frames for the kernel to receive into.", |t| t.outstanding.fill.into()),
    ("rx", "frames", "Frames received, not yet taken.", |t| t.outstanding.rx.into()),
    ("tx", "frames", "Frames for the kernel to send.", |t| t.outstanding.tx.into()),
    ("completed", "frames", "Frames sent, not yet taken back.", |t| t.outstanding.completed.into()),
];

/// Numbers of a thread or, added up, of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    /// Packets that a lender dropped, as their borrower had its quota.
    pub(crate) over_quota: u64,
    pub(crate) outstanding: Outstanding,
    pub(crate) statistics: Statistics,
    /// When the first and the latest packet went through.
    pub(crate) active: Option<(Instant, Instant)>,
}

impl Totals {
    /// All of them, added up.
    pub(crate) fn sum(all: impl IntoIterator<Item = Totals>) -> Totals {
        all.into_iter().reduce(Totals::and).unwrap_or_default()
    }

    fn and(mut self, other: Totals) -> Totals {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        self.over_quota += other.over_quota;
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
        self
    }

    /// From the first to the latest packet.
    pub(crate) fn active(&self) -> Duration {
        self.active.map_or(Duration::ZERO, |(first, latest)| latest.duration_since(first))
    }

    /// What went through, for people: how many, and how fast unless they came at once.
    pub(crate) fn text(&self, what: &str, packets: u64, bytes: u64) -> String {
        let so_many = format!("{what} {packets} packets, {bytes} bytes");
        match [packets, bytes * 8].map(|count| rate_over(count, self.active()).map(si)) {
            [Some(pps), Some(bits)] => {
                let seconds = self.active().as_secs_f64();
                format!("{so_many} in {seconds:.2} s: {pps}pps, {bits}bit/s")
            }
            _ => so_many,
        }
    }

    /// The same for programs.
    pub(crate) fn object(&self, packets: u64, bytes: u64) -> Value {
        let [pps, bits] = [packets, bytes * 8].map(|count| rate_over(count, self.active()));
        traffic(packets, bytes, pps, bits)
    }
}

/// What went through, for programs.
pub(crate) fn traffic(packets: u64, bytes: u64, pps: Option<f64>, bits: Option<f64>) -> Value {
    json!({"packets": packets, "bytes": bytes, "pps": pps, "bits_per_second": bits})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_every_counter_has_a_name_of_its_own() {
        let meters = Meters::new(3);
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        for (thread, active) in [(0, (start, start)), (1, (later, later))] {
            meters.of(thread).rx_packets.add(5);
            let statistics = Statistics { rx_ring_full: 3, ..Statistics::default() };
            let outstanding = Outstanding { fill: 7, ..Outstanding::default() };
            let active = Some(active);
            let own =
                Totals { outstanding, statistics, active, over_quota: 2, ..Totals::default() };
            meters.of(thread).publish(own);
        }
        let totals = meters.totals();
        assert_eq!((totals.rx_packets, totals.statistics.rx_ring_full), (10, 6));
        assert_eq!((totals.outstanding.fill, totals.over_quota), (14, 4));
        assert_eq!(totals.active(), Duration::from_secs(2));
        assert_eq!((meters.threads()[2], totals.tx_packets), (Totals::default(), 0));
        assert_eq!(Totals::default().active(), Duration::ZERO);
        let registry = Registry::new("xsk");
        meters.register(&registry).expect("names of their own");
        let readings = registry.readings();
        let value = |name| readings.iter().find(|r| r.name == name)?.value.value().copied();
        assert_eq!(value("xsk.rx_packets"), Some(10));
        assert_eq!(value("xsk.drops.rx_ring_full"), Some(6));
        assert_eq!(value("xsk.rings.fill"), Some(14));
    }
}
