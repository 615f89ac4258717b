//! A histogram of durations.

use std::time::Duration;

use hdrhistogram::Histogram;

/// How long things took, to three digits, from a microsecond's fraction to a minute.
#[derive(Clone, Debug)]
pub struct Latency {
    /// In nanoseconds.
    histogram: Histogram<u64>,
}

impl Latency {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(100, 60_000_000_000, 3);
        Self { histogram: histogram.expect("the bounds are in order and the digits in range") }
    }

    /// Counts one; more than a minute counts as a minute.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency that this share (0 to 1) of the counted did not exceed; zero if none was.
    fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(share))
    }

    /// The median.
    pub fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    /// The 99th percentile.
    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    /// The 99.9th percentile.
    pub fn p999(&self) -> Duration {
        self.quantile(0.999)
    }

    /// Adds all that another histogram has counted.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_was_recorded_and_outliers_are_kept() {
        let mut latency = Latency::new();
        assert_eq!((latency.count(), latency.p99()), (0, Duration::ZERO));
        (1..=1000).for_each(|ms| latency.record(Duration::from_millis(ms)));
        let mut other = Latency::new();
        other.record(Duration::from_secs(3600));
        latency.merge(&other);
        assert_eq!(latency.count(), 1001);
        let near = |value: Duration, ms: f64| {
            let off = value.as_secs_f64() * 1e3 / ms - 1.0;
            assert!(off.abs() < 0.01, "{value:?}, expected {ms} ms");
        };
        near(latency.p50(), 501.0);
        near(latency.p99(), 991.0);
        near(latency.quantile(1.0), 60_000.0);
    }
}
