//! What was counted of each listener and each backend.

use std::fmt;
use std::time::Duration;

use kit::Count;

use crate::cause::Cause;
use crate::session::Record;

/// What a relay counted, apart for each listener and each backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// In the order of the configuration.
    pub listeners: Vec<Traffic>,
    /// In the order of the configuration.
    pub backends: Vec<Traffic>,
}

/// What was counted of one listener or backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Traffic {
    /// Its address, or a backend's name.
    pub addr: String,
    /// For a backend, whether it is not left alone after a refusal. A listener is up.
    pub is_up: bool,
    /// Connections at this moment. A backend's are those that wait for it, too.
    pub active: u64,
    /// Connections so far: accepted by the listener, or by the backend.
    pub connections: u64,
    /// Attempts to reach the backend that failed.
    pub connect_failed: u64,
    /// Clients of the listener that were not let in: by the lists of addresses, or by a client's
    /// limits.
    pub refused: u64,
    /// Bytes forwarded from clients to backends.
    pub bytes_up: u64,
    /// Bytes forwarded from backends to clients.
    pub bytes_down: u64,
    /// Connections that have ended, by [`Cause`]: see [`Traffic::ended`].
    pub ended: [u64; Cause::ALL.len()],
    /// How long backends took to accept.
    pub connect_time: Times,
    /// How long connections took from accepting to their end.
    pub session_time: Times,
}

impl Traffic {
    /// Connections that ended for this cause.
    pub fn ended(&self, cause: Cause) -> u64 {
        self.ended[cause as usize]
    }

    /// Connections that did not end well.
    pub fn failed(&self) -> u64 {
        self.ended.iter().sum::<u64>() - self.ended(Cause::Normal)
    }
}

/// A distribution of times.
#[derive(Clone, PartialEq, Eq)]
pub struct Times(Vec<u64>);

impl Times {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time that this share of them, 0 to 1, did not exceed: at most 1/8 too high. None of none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reached = |n: &u64| {
            seen += n;
            seen >= rank
        };
        let bucket = self.0.iter().position(reached)?;
        Some(Duration::from_micros(highest(bucket)))
    }
}

impl fmt::Debug for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| self.quantile(share));
        write!(f, "{} times: p50 {p50:?}, p99 {p99:?}, max {max:?}", self.count())
    }
}

/// What one worker counts of each listener and each backend. Others read it.
#[derive(Debug)]
pub(crate) struct Tallies {
    pub(crate) listeners: Box<[Tally]>,
    pub(crate) backends: Box<[Tally]>,
}

impl Tallies {
    pub(crate) fn new(listeners: usize, backends: usize) -> Tallies {
        let tallies = |n| std::iter::repeat_with(Tally::default).take(n).collect();
        Tallies { listeners: tallies(listeners), backends: tallies(backends) }
    }
}

/// What one worker counts of one listener or backend.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    pub(crate) connections: Count,
    pub(crate) connect_failed: Count,
    pub(crate) refused: Count,
    bytes: [Count; 2],
    ended: [Count; Cause::ALL.len()],
    connect_time: Histogram,
    session_time: Histogram,
}

impl Tally {
    pub(crate) fn moved(&self, [up, down]: [u64; 2]) {
        self.bytes[0].add(up);
        self.bytes[1].add(down);
    }

    /// A connection has ended. Its bytes are counted apart.
    pub(crate) fn ends(&self, record: &Record) {
        self.ended[record.cause as usize].add(1);
        self.session_time.add(record.total);
        if let Some(time) = record.session.connecting() {
            self.connect_time.add(time);
        }
    }
}

impl Traffic {
    /// Nothing counted yet, and so many connections now.
    pub(crate) fn new(addr: String, is_up: bool, active: u64) -> Traffic {
        let (connections, connect_failed, bytes_up, bytes_down) = (0, 0, 0, 0);
        let (ended, times) = ([0; Cause::ALL.len()], || Times(vec![0; BUCKETS]));
        let (connect_time, session_time) = (times(), times());
        Traffic {
            addr,
            is_up,
            active,
            connections,
            connect_failed,
            refused: 0,
            bytes_up,
            bytes_down,
            ended,
            connect_time,
            session_time,
        }
    }

    /// Adds what one worker counted.
    pub(crate) fn add(&mut self, tally: &Tally) {
        self.connections += tally.connections.get();
        self.connect_failed += tally.connect_failed.get();
        self.refused += tally.refused.get();
        self.bytes_up += tally.bytes[0].get();
        self.bytes_down += tally.bytes[1].get();
        self.connect_time.add(&tally.connect_time);
        self.session_time.add(&tally.session_time);
        for (sum, one) in self.ended.iter_mut().zip(&tally.ended) {
            *sum += one.get();
        }
    }
}

impl Times {
    fn add(&mut self, histogram: &Histogram) {
        for (sum, one) in self.0.iter_mut().zip(&histogram.0) {
            *sum += one.get();
        }
    }
}

/// Buckets in which a histogram halves a power of two: 2 to the power of this.
const FINE: u32 = 3;
/// Buckets of a histogram; the last one begins at 2^42 microseconds, 50 days.
const BUCKETS: usize = ((42 - FINE as usize + 1) << FINE) + 1;

/// Times in microseconds, which one thread adds to while others read.
#[derive(Debug)]
struct Histogram([Count; BUCKETS]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(std::array::from_fn(|_| Count::default()))
    }
}

impl Histogram {
    fn add(&self, time: Duration) {
        let micros = time.as_micros().try_into().unwrap_or(u64::MAX);
        self.0[bucket(micros)].add(1);
    }
}

/// Where a value counts: below 2^FINE each has its own bucket; above, each power of two has 2^FINE.
fn bucket(value: u64) -> usize {
    if value < 1 << FINE {
        return value as usize;
    }
    let power = value.ilog2();
    let place = (value >> (power - FINE)) as usize & ((1 << FINE) - 1);
    ((((power - FINE + 1) as usize) << FINE) + place).min(BUCKETS - 1)
}

/// The highest value of a bucket.
fn highest(bucket: usize) -> u64 {
    let (power, place) = (bucket >> FINE, bucket as u64 & ((1 << FINE) - 1));
    match power {
        0 => place,
        _ => ((place + (1 << FINE) + 1) << (power - 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_at_most_an_eighth_below_the_highest_of_its_bucket() {
        for power in 0..42 {
            for value in [1u64 << power, (1 << power) + 1, (2 << power) - 1, 3 << power >> 1] {
                let highest = highest(bucket(value));
                assert!(highest >= value && highest <= value + value / 8, "{value}: {highest}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!((1..BUCKETS).all(|n| bucket(highest(n - 1) + 1) == n));
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let histogram = Histogram::default();
        let mut times = Times(vec![0; BUCKETS]);
        assert_eq!(times.quantile(0.5), None);
        (1..=1000).for_each(|ms| histogram.add(Duration::from_millis(ms)));
        times.add(&histogram);
        assert_eq!(times.count(), 1000);
        for (share, ms) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = times.quantile(share).unwrap();
            let exact = Duration::from_millis(ms);
            assert!(found >= exact && found <= exact + exact / 8, "{share}: {found:?}");
        }
    }
}
