//! Numbers as a reader wants them: three digits, a unit that fits.

/// A value and its unit: `1.85 Mpps`, `335k packets`, `1,860 MB/s`, `12.5 %`, `43.0 µs`.
///
/// Times move to the unit that suits them; short symbols take a prefix; units that have one already
/// stay as they are.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    quantity_to(value, unit, 3)
}

/// The same with so many significant digits.
pub(crate) fn quantity_to(value: f64, unit: &str, digits: i32) -> String {
    if let Some(seconds) = seconds_per(unit) {
        return time(value * seconds, digits);
    }
    // The measure's name says by what it is taken.
    if unit.starts_with("CPU s/") {
        return time(value, digits);
    }
    let unit = match unit.split_once('/') {
        Some((one, other)) if one == other => "",
        _ => unit,
    };
    let fixed = has_prefix(unit) || unit == "%";
    let (scale, prefix) = if fixed { (1.0, "") } else { prefix(rounded_up(value, digits)) };
    let number = grouped(value / scale, digits);
    match unit {
        "" => format!("{number}{prefix}"),
        "B" | "B/s" | "bit/s" | "bps" | "pps" | "Hz" => format!("{number} {prefix}{unit}"),
        _ if unit.starts_with('/') => format!("{number}{prefix}{unit}"),
        _ => format!("{number}{prefix} {unit}"),
    }
}

/// A ratio and its interval, to the digits that the interval leaves certain: `1.42 [1.37, 1.48]`.
pub(crate) fn ratio(ratio: f64, interval: Option<(f64, f64)>) -> String {
    let Some((low, high)) = interval else { return fixed(ratio, decimals_of(ratio, 0.05 * ratio)) };
    // A bound may not look like 1 if it is not.
    let hides_one = |value: f64, decimals: usize| {
        value != 1.0 && fixed(value, decimals) == fixed(1.0, decimals)
    };
    let mut decimals = decimals_of(ratio, (high - low) / 2.0);
    while decimals < 4 && (hides_one(low, decimals) || hides_one(high, decimals)) {
        decimals += 1;
    }
    format!("{} [{}, {}]", fixed(ratio, decimals), fixed(low, decimals), fixed(high, decimals))
}

/// A probability: `0.031`, `< 0.001`.
pub(crate) fn probability(p: f64) -> String {
    if p < 0.001 { "< 0.001".into() } else { format!("{p:.3}") }
}

/// A share as a percentage without needless digits: `1 %`, `0.5 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}

/// A plain value on an axis whose ticks are `step` apart.
pub(crate) fn tick(value: f64, step: f64) -> String {
    fixed(value, usize::try_from(-step.log10().floor() as i64).unwrap_or(0))
}

fn decimals_of(ratio: f64, half_width: f64) -> usize {
    let least = match ratio {
        // Where margins are.
        0.9..1.1 => 3,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    let certain = if half_width > 0.0 { -half_width.log10().floor() } else { 0.0 };
    (certain as usize).clamp(least, 4)
}

fn fixed(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$}")
}

fn seconds_per(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    })
}

fn time(seconds: f64, digits: i32) -> String {
    let units = [(1e-6, 1e-9, "ns"), (1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms")];
    let rounded = rounded_up(seconds, digits);
    let (_, scale, unit) =
        units.into_iter().find(|(below, ..)| rounded < *below).unwrap_or((0.0, 1.0, "s"));
    if seconds == 0.0 {
        "0 s".into()
    } else {
        format!("{} {unit}", grouped(seconds / scale, digits))
    }
}

fn has_prefix(unit: &str) -> bool {
    let mut letters = unit.chars();
    matches!(letters.next(), Some('k' | 'K' | 'M' | 'G' | 'T'))
        && letters.next().is_some_and(char::is_alphabetic)
}

/// What to divide a value by, and the prefix for that.
fn prefix(value: f64) -> (f64, &'static str) {
    match value.abs() {
        1e12.. => (1e12, "T"),
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        // Four digits read as well without a prefix.
        1e4.. => (1e3, "k"),
        _ => (1.0, ""),
    }
}

/// A bit more than the value: at least a power of ten where rounding to `digits` makes it one.
fn rounded_up(value: f64, digits: i32) -> f64 {
    value * (1.0 + 0.5 * 10_f64.powi(-digits))
}

/// So many significant digits, more before the point, thousands apart.
fn grouped(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = rounded_up(value, digits).abs().log10().floor() as i32;
    if magnitude < -4 {
        return format!("{value:.2e}");
    }
    let text = fixed(value, usize::try_from(digits - 1 - magnitude).unwrap_or(0));
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) && digit.is_ascii_digit() {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_three_digits_and_a_unit_that_fits() {
        for (value, unit, expected) in [
            (1_851_950.0, "pps", "1.85 Mpps"),
            (335_000.0, "packets", "335k packets"),
            (335_000.0, "/s", "335k/s"),
            (1860.0, "MB/s", "1,860 MB/s"),
            (2.2e9, "B/s", "2.20 GB/s"),
            (999_900.0, "pps", "1.00 Mpps"),
            (4321.0, "", "4,321"),
            (12.53, "%", "12.5 %"),
            (0.0, "%", "0 %"),
            (0.0, "ms", "0 s"),
            (1500.0, "ns", "1.50 µs"),
            (0.043, "ms", "43.0 µs"),
            (2.0, "s", "2.00 s"),
            (1.95e-8, "CPU s/bytes", "19.5 ns"),
            (0.0123, "segments/segments", "0.0123"),
            (12.5, "Mpps", "12.5 Mpps"),
            (0.0123, "", "0.0123"),
            (0.000_001, "", "1.00e-6"),
        ] {
            assert_eq!(quantity(value, unit), expected);
        }
    }

    #[test]
    fn ratios_have_the_digits_that_their_interval_leaves_certain() {
        for (value, interval, expected) in [
            (1.4213, Some((1.3712, 1.4789)), "1.42 [1.37, 1.48]"),
            (1.0042, Some((0.9981, 1.0101)), "1.004 [0.998, 1.010]"),
            (38.75, Some((35.1, 42.3)), "38.8 [35.1, 42.3]"),
            (388.75, Some((351.0, 423.4)), "389 [351, 423]"),
            (1.02, Some((1.0004, 1.04)), "1.0200 [1.0004, 1.0400]"),
            (1.0, Some((1.0, 1.0)), "1.000 [1.000, 1.000]"),
            (1.5, None, "1.50"),
            (0.0, None, "0.00"),
        ] {
            assert_eq!(ratio(value, interval), expected);
        }
    }
}
