//! What the threads count, for whoever asks while they work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use knobs::{MeterKind, Registry};
use parking_lot::Mutex;
use serde_json::{Value, json};
use xsk::{Device, Outstanding, Statistics};

use crate::counters::register;
use crate::figures::{rate_over, si};

kit::counters! {
    /// What went through.
    pub(crate) struct Traffic of TrafficCounts {
        rx_packets: "packets", "Packets received.";
        rx_bytes: "bytes", "Bytes received.";
        tx_packets: "packets", "Packets sent.";
        tx_bytes: "bytes", "Bytes sent.";
    }
}

kit::counters! {
    /// Why the kernel drops packets.
    pub(crate) struct Drops {
        rx_ring_full: "packets", "The receive ring was full.";
        fill_ring_empty: "packets", "There was no frame to receive into.";
        rx_dropped: "packets", "Too long for a frame, and others.";
        rx_invalid: "packets", "What was posted to receive into is no frame.";
        tx_invalid: "packets", "What was posted to send is no packet.";
        tx_dropped: "packets", "The device dropped it: it is down, or has no carrier.";
    }
}

kit::counters! {
    /// Frames in the sockets' rings.
    pub(crate) struct Rings {
        fill: "frames", "Frames for the kernel to receive into.";
        rx: "frames", "Frames received, not yet taken.";
        tx: "frames", "Frames for the kernel to send.";
        completed: "frames", "Frames sent, not yet taken back.";
    }
}

impl Drops {
    /// What a socket has counted.
    pub(crate) fn of(statistics: Statistics, zero_copy: bool) -> Drops {
        let Statistics {
            rx_ring_full,
            fill_ring_empty,
            rx_dropped,
            rx_invalid,
            tx_invalid,
            tx_dropped,
            ..
        } = statistics;
        // Zero-copy drivers ask for frames before packets come: an answer of none drops nothing.
        let fill_ring_empty = if zero_copy { 0 } else { fill_ring_empty };
        // In copy mode the kernel counts one for which there is no frame there as well.
        let rx_dropped = rx_dropped.saturating_sub(fill_ring_empty);
        Drops { rx_ring_full, fill_ring_empty, rx_dropped, rx_invalid, tx_invalid, tx_dropped }
    }
}

impl From<Outstanding> for Rings {
    fn from(outstanding: Outstanding) -> Rings {
        let Outstanding { fill, rx, tx, completed, .. } = outstanding;
        let [fill, rx, tx, completed] = [fill, rx, tx, completed].map(u64::from);
        Rings { fill, rx, tx, completed }
    }
}

/// One thread's numbers.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) traffic: TrafficCounts,
    /// What only the thread itself can read, as it last wrote it down; without the traffic.
    published: Mutex<Totals>,
    queues: Mutex<Vec<OnQueue>>,
}

/// What went through a queue of a device.
#[derive(Clone, Debug)]
pub(crate) struct OnQueue {
    pub(crate) device: Device,
    pub(crate) queue: u32,
    pub(crate) traffic: Traffic,
}

impl Meter {
    pub(crate) fn publish(&self, own: Totals) {
        *self.published.lock() = own;
    }

    pub(crate) fn publish_queues(&self, queues: &[OnQueue]) {
        queues.clone_into(&mut self.queues.lock());
    }

    fn read(&self) -> Totals {
        Totals { traffic: (&self.traffic).into(), ..*self.published.lock() }
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

    /// What went through each queue, by device and number.
    pub(crate) fn queues(&self) -> Vec<OnQueue> {
        let mut all: Vec<OnQueue> =
            self.0.iter().flat_map(|meter| meter.queues.lock().clone()).collect();
        all.sort_by(|a, b| (a.device.name(), a.queue).cmp(&(b.device.name(), b.queue)));
        all
    }

    /// Adds every counter to `registry`, which then holds on to them.
    pub(crate) fn register(&self, registry: &Registry) -> Result<(), knobs::Error> {
        use MeterKind::{Counter, Gauge};
        let [traffic, drops, rings] = [(); 3].map(|()| self.clone());
        let traffic = move || traffic.totals().traffic.values();
        register(registry, Counter, "xsk", Traffic::FIELDS, traffic)?;
        let drops = move || drops.totals().drops.values();
        register(registry, Counter, "xsk.drops", Drops::FIELDS, drops)?;
        let rings = move || rings.totals().rings.values();
        register(registry, Gauge, "xsk.rings", Rings::FIELDS, rings)
    }
}

/// Numbers of a thread or, added up, of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) traffic: Traffic,
    pub(crate) drops: Drops,
    pub(crate) rings: Rings,
    /// Packets that a lender dropped, as their borrower had its quota.
    pub(crate) over_quota: u64,
    /// Packets of a lender that the borrower's filter did not match.
    pub(crate) filtered: u64,
    /// How often a connection to the lender was made anew.
    pub(crate) reconnects: u64,
    /// When the first and the latest packet went through.
    pub(crate) active: Option<(Instant, Instant)>,
}

impl Totals {
    /// All of them, added up.
    pub(crate) fn sum(all: impl IntoIterator<Item = Totals>) -> Totals {
        all.into_iter().reduce(Totals::and).unwrap_or_default()
    }

    fn and(mut self, other: Totals) -> Totals {
        self.traffic.add(&other.traffic);
        self.drops.add(&other.drops);
        self.rings.add(&other.rings);
        self.over_quota += other.over_quota;
        self.filtered += other.filtered;
        self.reconnects += other.reconnects;
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
            meters.of(thread).traffic.rx_packets.add(5);
            let drops = Drops { rx_ring_full: 3, ..Drops::default() };
            let rings = Rings { fill: 7, ..Rings::default() };
            let own =
                Totals { drops, rings, over_quota: 2, active: Some(active), ..Totals::default() };
            meters.of(thread).publish(own);
        }
        let totals = meters.totals();
        assert_eq!((totals.traffic.rx_packets, totals.drops.rx_ring_full), (10, 6));
        assert_eq!((totals.rings.fill, totals.over_quota), (14, 4));
        assert_eq!(totals.active(), Duration::from_secs(2));
        assert_eq!((meters.threads()[2], totals.traffic.tx_packets), (Totals::default(), 0));
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
