//! Many spans of time, and what they are like.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::Value;

/// Spans of time, of which it is known how many had which length, to one percent.
#[derive(Debug)]
pub(super) struct Times(Histogram<u64>);

/// A longer one counts as this one.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// What is said of them.
const QUANTILES: [(&str, f64); 6] = [
    ("median", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99_9", 0.999),
    ("p99_99", 0.9999),
    ("max", 1.0),
];

impl Times {
    /// There were so many of this length.
    pub(super) fn add(&mut self, time: Duration, many: usize) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record_n(nanoseconds, many as u64);
    }

    pub(super) fn join(&mut self, other: &Times) {
        // Both have the same range.
        let _ = self.0.add(&other.0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn at(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(quantile))
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let [median, _, most, _, rare, worst] = QUANTILES.map(|(_, quantile)| self.at(quantile));
        format!(
            "median {median:.1?}, 99 % below {most:.1?}, 99.99 % below {rare:.1?}, at most {worst:.1?}"
        )
    }

    /// For programs, in microseconds.
    pub(super) fn object(&self) -> Value {
        let value = |(name, quantile): (&str, f64)| {
            (name.to_owned(), Value::from(self.at(quantile).as_secs_f64() * 1e6))
        };
        Value::Object(QUANTILES.into_iter().map(value).collect())
    }
}

impl Default for Times {
    fn default() -> Times {
        let all = Histogram::new_with_max(LONGEST.as_nanos() as u64, 2);
        Times(all.expect("both are in range"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_by_their_quantiles() {
        let (mut times, mut others) = (Times::default(), Times::default());
        assert!(times.is_empty());
        times.add(Duration::from_micros(10), 99);
        others.add(Duration::from_secs(3600), 1);
        times.join(&others);
        let object = times.object();
        let at = |name: &str| object[name].as_f64().expect("a number");
        assert!((at("median") - 10.0).abs() < 0.1 && (at("max") - 60e6).abs() < 0.6e6, "{object}");
        let text = times.text();
        assert!(text.starts_with("median 10.") && text.contains("at most 60."), "{text}");
    }
}
