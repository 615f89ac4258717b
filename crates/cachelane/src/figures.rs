//! Numbers as people read them.

use std::time::Duration;

/// A number of things in this time, a second; 0 for no time.
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The same over the time from the first to the latest; none where that is next to none.
pub(crate) fn rate_over(count: u64, time: Duration) -> Option<f64> {
    const LEAST: Duration = Duration::from_millis(1);
    (time >= LEAST).then(|| per_second(count, time))
}

/// Three digits and a prefix: `1.23 M`, `45.6 k`, `7 `, for a unit to follow.
pub(crate) fn si(value: f64) -> String {
    let (scaled, prefix) = match value {
        v if v >= 999.5e6 => (v / 1e9, " G"),
        v if v >= 999.5e3 => (v / 1e6, " M"),
        v if v >= 999.5 => (v / 1e3, " k"),
        v => (v, " "),
    };
    let digits = match scaled {
        _ if prefix == " " => 0,
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{prefix}")
}

/// The same without a space: `1.23M`, `45.6k`, `7`.
pub(crate) fn tight(value: f64) -> String {
    si(value).replace(' ', "")
}

/// Those that there were: `one 1, other 3`.
pub(crate) fn named<N: std::fmt::Display>(counts: impl Iterator<Item = (N, u64)>) -> String {
    let there = counts.filter(|(_, count)| *count > 0);
    there.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// The same behind a total: ` (one 1, other 3)`, or nothing.
pub(crate) fn of_which<N: std::fmt::Display>(counts: impl Iterator<Item = (N, u64)>) -> String {
    let named = named(counts);
    if named.is_empty() { named } else { format!(" ({named})") }
}

/// Drops by reason: `drops: one 1, other 3`, or `no drops`.
pub(crate) fn drops<N: std::fmt::Display>(counts: impl Iterator<Item = (N, u64)>) -> String {
    let named = named(counts);
    if named.is_empty() { "no drops".into() } else { format!("drops: {named}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_over_no_time_is_none() {
        assert_eq!(rate_over(7, Duration::ZERO), None);
        assert_eq!(rate_over(7, Duration::from_micros(20)), None);
        assert_eq!(rate_over(7, Duration::from_millis(500)), Some(14.0));
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, expected) in [
            (0.0, "0 "),
            (7.4, "7 "),
            (999.0, "999 "),
            (999.6, "1.00 k"),
            (1_234.0, "1.23 k"),
            (99_960.0, "100 k"),
            (999_600.0, "1.00 M"),
            (12_340_000.0, "12.3 M"),
            (2.5e9, "2.50 G"),
        ] {
            assert_eq!(si(value), expected, "{value}");
        }
        assert_eq!(tight(1_234.0), "1.23k");
    }

    #[test]
    fn only_what_happened_is_named() {
        assert_eq!(named([("one", 1), ("none", 0), ("other", 3)].into_iter()), "one 1, other 3");
    }
}
