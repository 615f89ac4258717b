//! From values to places on an axis.

use std::fmt;

use crate::number;

/// Ratios further apart than this get ticks at 1, 2, 5, 10 and so on.
const WIDE: f64 = 6.0;

/// An axis: the values at its ends, and where to write which.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    pub(super) ticks: Vec<Tick>,
}

/// A place on an axis and what to write there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) at: Percent,
    pub(super) value: f64,
    pub(super) label: String,
}

/// A place or a length, in percent of the width.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Percent(pub(super) f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}%", self.0)
    }
}

impl Scale {
    /// A logarithmic axis that shows all these ratios, and 1.
    pub(super) fn ratios(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = positive(values.into_iter().chain([1.0]));
        Self::of_ratios(low.min(0.98), high.max(1.02))
    }

    /// A logarithmic axis that shows all these values above 0.
    pub(super) fn logarithmic(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = positive(values);
        Self::of_ratios(low, high)
    }

    fn of_ratios(low: f64, high: f64) -> Self {
        let values =
            if high / low < WIDE { linear_ticks(low, high) } else { decade_ticks(low, high) };
        Self::with_ticks(low, high, true, values)
    }

    /// A linear axis that shows all these values; from zero unless that would squeeze them.
    pub(super) fn values(values: impl IntoIterator<Item = f64>, ticks: usize) -> Self {
        let (low, high) = range(values.into_iter().filter(|value| value.is_finite()));
        let low = if low < 0.6 * high { low.min(0.0) } else { low };
        let step = step(low, high, ticks);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        let high = if high > low { high } else { low + step };
        Self::with_ticks(low, high, false, multiples(low, high, step))
    }

    /// Where a value stands, in percent of the axis; outside ones at its end.
    pub(super) fn at(&self, value: f64) -> Percent {
        let place = |value: f64| if self.logarithmic { value.ln() } else { value };
        let share = (place(value) - place(self.low)) / (place(self.high) - place(self.low));
        Percent(100.0 * share.clamp(0.0, 1.0))
    }

    /// The same axis with quantities on its ticks, in as many digits as tell them apart.
    pub(super) fn in_unit(mut self, unit: &str) -> Self {
        for digits in 2..=6 {
            for tick in &mut self.ticks {
                tick.label = number::quantity_to(tick.value, unit, digits);
            }
            if self.ticks.windows(2).all(|pair| pair[0].label != pair[1].label) {
                break;
            }
        }
        self
    }

    fn with_ticks(low: f64, high: f64, logarithmic: bool, values: Vec<(f64, String)>) -> Self {
        let mut scale = Self { low, high, logarithmic, ticks: Vec::new() };
        let tick = |(value, label)| Tick { at: scale.at(value), value, label };
        scale.ticks = values.into_iter().map(tick).collect();
        scale
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

/// The ends of a logarithmic axis that shows those of these values which it can.
fn positive(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let positive = values.into_iter().filter(|value| *value > 0.0 && value.is_finite());
    let (low, high) = range(positive);
    // Nothing to show: any axis will do.
    let low = if low > 0.0 { low } else { 0.1 * high };
    widened(low, high)
}

/// A little room at both ends of a logarithmic axis.
fn widened(low: f64, high: f64) -> (f64, f64) {
    let room = (high / low).powf(0.06).max(1.005);
    (low / room, high * room)
}

/// 1, 2 or 5 times a power of ten, so that about `count` steps go into the range.
fn step(low: f64, high: f64, count: usize) -> f64 {
    let spread = if high > low { high - low } else { high.abs() };
    let raw = if spread > 0.0 { spread / count as f64 } else { 1.0 };
    let power = 10_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= raw * 0.999);
    factor.unwrap_or(10.0) * power
}

fn linear_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let step = step(low, high, 4);
    multiples((low / step).ceil() * step, high, step)
}

fn multiples(from: f64, to: f64, step: f64) -> Vec<(f64, String)> {
    let count = ((to - from) / step + 0.001).floor() as usize;
    let value = |i: usize| from + i as f64 * step;
    (0..=count).map(|i| (value(i), number::tick(value(i), step))).collect()
}

/// Powers of ten, with 2 and 5 between them if there are few, thinned out if there are many.
fn decade_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = (high / low).log10();
    let factors: &[f64] = if decades < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (decades / 5.0).ceil().max(1.0) as i32;
    let powers = (first..=last).filter(|power| power % every == 0);
    let values = powers.flat_map(|power| factors.iter().map(move |f| f * 10_f64.powi(power)));
    let inside = values.filter(|value| (low..=high).contains(value));
    inside.map(|value| (value, number::tick(value, value.min(1.0)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn ratio_axes_have_few_round_ticks_and_hold_one() {
        for (values, expected) in [
            (vec![1.02, 1.05], vec!["0.98", "1.00", "1.02", "1.04"]),
            (vec![1.4, 1.5], vec!["1.0", "1.2", "1.4"]),
            (vec![0.5, 2.0], vec!["0.5", "1.0", "1.5", "2.0"]),
            (vec![0.2, 4.0], vec!["0.2", "0.5", "1", "2"]),
            (vec![38.7, 1.02], vec!["1", "2", "5", "10", "20"]),
            (vec![3000.0, 1.0], vec!["1", "10", "100", "1000"]),
            (vec![], vec!["0.98", "0.99", "1.00", "1.01", "1.02"]),
        ] {
            let scale = Scale::ratios(values.clone());
            assert_eq!(labels(&scale), expected, "{values:?}");
            assert!((1.0..99.0).contains(&scale.at(1.0).0) || values.is_empty());
        }
    }

    #[test]
    fn value_axes_start_at_zero_unless_that_squeezes_the_values() {
        for (values, expected) in [
            (vec![48.0, 1860.0], vec!["0", "500", "1000", "1500", "2000"]),
            (vec![101.0, 108.0], vec!["100", "102", "104", "106", "108"]),
            (vec![0.0, 0.0], vec!["0", "1"]),
            (vec![7.0], vec!["6", "8"]),
            (vec![], vec!["0.0", "0.5", "1.0"]),
        ] {
            let scale = Scale::values(values.clone(), 4);
            let found = labels(&scale);
            assert_eq!((found.first(), found.last()), (expected.first(), expected.last()));
            assert!(found.len() <= 6, "{found:?}");
        }
    }

    #[test]
    fn ticks_close_together_get_the_digits_that_tell_them_apart() {
        let scale = Scale::values([1_002_000.0, 1_004_000.0], 2).in_unit("pps");
        assert_eq!(labels(&scale), ["1.002 Mpps", "1.003 Mpps", "1.004 Mpps"]);
    }

    #[test]
    fn places_are_percentages_of_the_axis() {
        let scale = Scale::values([0.0, 100.0], 4);
        let places = [0.0, 25.0, 500.0].map(|value| scale.at(value).0);
        assert_eq!(places, [0.0, 25.0, 100.0]);
        let scale = Scale::ratios([0.25, 4.0]);
        assert!((scale.at(1.0).0 - 50.0).abs() < 1e-9, "a half is as far from 1 as a double");
    }
}
