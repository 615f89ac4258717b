//! What a quantity says at a moment, and what lies between two moments.

use std::time::Duration;

use trial::Histogram;

use crate::{Error, Result, histogram};

/// What a quantity says at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// What has come together so far, in parts that each only grow.
    Total(Vec<Part>),
    /// What there is now.
    Level(f64),
    /// The values that have been seen so far, for each of the series that are added up, by its
    /// name.
    Histogram(Vec<(String, Histogram)>),
}

/// A part of a total, such as one CPU's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// Whose it is, such as `CPU 3`; empty where a total has one part.
    pub(crate) of: String,
    /// What it has come to.
    pub(crate) value: f64,
    /// What happens to it besides growing.
    pub(crate) nature: Nature,
}

/// How a part of a total grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Nature {
    /// Never less than before, from 0 on; there when the total was first read, or not there.
    Fixed,
    /// As `Fixed`, and starts again at 0 after `u32::MAX`.
    Wraps,
    /// Computed from figures that are rounded: it may fall back by this much.
    Rounded(f64),
    /// It may appear at any time, and had been 0 until then.
    Appears,
}

/// What lies between two values of a quantity.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Amount {
    /// By how much a total grew, or the level's mean times the seconds.
    Number(f64),
    /// The values that came.
    Histogram(Histogram),
}

impl Value {
    /// A total of one part that never wraps.
    pub(crate) fn total(value: f64) -> Self {
        Self::Total(vec![Part { of: String::new(), value, nature: Nature::Fixed }])
    }

    /// What lies between an earlier value of the same quantity and this one, `elapsed` later.
    ///
    /// # Errors
    /// [`ErrorKind::Void`](crate::ErrorKind::Void) if a part was reset, or came or went meanwhile.
    pub(crate) fn since(&self, earlier: &Self, elapsed: Duration) -> Result<Amount> {
        match (self, earlier) {
            (Self::Total(now), Self::Total(before)) => grown(now, before).map(Amount::Number),
            (Self::Level(now), Self::Level(before)) => {
                Ok(Amount::Number((now + before) / 2.0 * elapsed.as_secs_f64()))
            }
            (Self::Histogram(now), Self::Histogram(before)) => came(now, before),
            _ => Err(Error::void("it changed between counter, gauge and histogram")),
        }
    }
}

impl Part {
    /// By how much it grew.
    fn since(&self, earlier: f64) -> Result<f64> {
        const MODULUS: f64 = (1u64 << 32) as f64;
        let grown = self.value - earlier;
        match self.nature {
            // A counter that grew by more than half of its range in a window was reset instead.
            Nature::Wraps if grown < 0.0 && grown + MODULUS < MODULUS / 2.0 => Ok(grown + MODULUS),
            Nature::Rounded(slack) if grown >= -slack => Ok(grown),
            _ if grown >= 0.0 => Ok(grown),
            _ => Err(Error::void(format!(
                "{}the counter was reset: it went back from {earlier} to {}",
                self.prefix(),
                self.value
            ))),
        }
    }

    fn prefix(&self) -> String {
        if self.of.is_empty() { String::new() } else { format!("{}: ", self.of) }
    }
}

/// Parts come in the same order at each reading, but for those that came or went.
fn grown(now: &[Part], before: &[Part]) -> Result<f64> {
    let mut left = before.iter().peekable();
    let mut sum = 0.0;
    for part in now {
        match left.next_if(|earlier| earlier.of == part.of) {
            Some(earlier) => sum += part.since(earlier.value)?,
            None if part.nature == Nature::Appears => sum += part.value,
            None => return Err(changed(now, before)),
        }
    }
    match left.next() {
        Some(_) => Err(changed(now, before)),
        // Rounding can leave less than nothing.
        None => Ok(sum.max(0.0)),
    }
}

/// Says which parts came or went.
fn changed(now: &[Part], before: &[Part]) -> Error {
    let lacks = |parts: &[Part], part: &&Part| !parts.iter().any(|other| other.of == part.of);
    if let Some(gone) = before.iter().find(|part| lacks(now, part)) {
        return Error::void(format!("{} is gone", gone.of));
    }
    let new = now.iter().find(|part| lacks(before, part));
    Error::void(new.map_or("its parts changed".into(), |part| format!("{} is new", part.of)))
}

fn came(now: &[(String, Histogram)], before: &[(String, Histogram)]) -> Result<Amount> {
    let mut sum: Option<Histogram> = None;
    let mut left = before.iter().peekable();
    for (series, now) in now {
        let came = match left.next_if(|(of, _)| of == series) {
            Some((_, earlier)) => histogram::since(now, earlier),
            None => Ok(now.clone()),
        };
        let came = came.map_err(|error| Error::void(format!("{series}: {error}")))?;
        match &mut sum {
            Some(sum) => histogram::add(sum, &came)?,
            None => sum = Some(came),
        }
    }
    if let Some((gone, _)) = left.next() {
        return Err(Error::void(format!("{gone} is gone")));
    }
    sum.map(Amount::Histogram).ok_or_else(|| Error::void("there is no series"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn total(nature: Nature, parts: &[(&str, f64)]) -> Value {
        let part = |&(of, value): &(&str, f64)| Part { of: of.into(), value, nature };
        Value::Total(parts.iter().map(part).collect())
    }

    fn grown(nature: Nature, before: &[(&str, f64)], now: &[(&str, f64)]) -> Result<f64, String> {
        match total(nature, now).since(&total(nature, before), SECOND) {
            Ok(Amount::Number(number)) => Ok(number),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_part_that_comes_goes_or_is_reset_voids_the_window() {
        use Nature::{Appears, Fixed, Rounded, Wraps};
        let reset = "b: the counter was reset: it went back from 9 to 1";
        for (nature, before, now, expected) in [
            (Fixed, vec![("a", 1.0), ("b", 2.0)], vec![("a", 2.0), ("b", 4.0)], Ok(3.0)),
            (Fixed, vec![("a", 1.0), ("b", 9.0)], vec![("a", 2.0), ("b", 1.0)], Err(reset)),
            (Fixed, vec![("a", 1.0), ("b", 9.0)], vec![("a", 2.0)], Err("b is gone")),
            (Fixed, vec![("a", 1.0), ("b", 9.0)], vec![("b", 9.0)], Err("a is gone")),
            (Fixed, vec![("b", 9.0)], vec![("a", 2.0), ("b", 9.0)], Err("a is new")),
            (Fixed, vec![("a", 9.0)], vec![("b", 9.0)], Err("a is gone")),
            (Appears, vec![("b", 9.0)], vec![("a", 2.0), ("b", 10.0)], Ok(3.0)),
            (Appears, vec![("a", 2.0), ("b", 9.0)], vec![("b", 10.0)], Err("a is gone")),
            (Appears, vec![("b", 9.0)], vec![("b", 1.0)], Err(reset)),
            (Rounded(0.02), vec![("a", 1.0), ("b", 9.0)], vec![("a", 0.99), ("b", 9.5)], Ok(0.49)),
            (Rounded(0.02), vec![("a", 1.0)], vec![("a", 0.99)], Ok(0.0)),
            (Rounded(0.02), vec![("b", 9.0)], vec![("b", 1.0)], Err(reset)),
            (Wraps, vec![("a", 4_294_967_290.0)], vec![("a", 4.0)], Ok(10.0)),
            (Wraps, vec![("b", 9.0)], vec![("b", 1.0)], Err(reset)),
        ] {
            match (grown(nature, &before, &now), expected) {
                (Ok(grown), Ok(expected)) => {
                    assert!((grown - expected).abs() < 1e-9, "{before:?} {now:?}: {grown}");
                }
                (grown, expected) => assert_eq!(grown, expected.map_err(str::to_owned)),
            }
        }
    }

    #[test]
    fn a_level_counts_for_as_long_as_it_is_there() {
        let elapsed = Duration::from_secs(4);
        let amount = Value::Level(30.0).since(&Value::Level(10.0), elapsed).unwrap();
        assert_eq!(amount, Amount::Number(80.0));
        let error = Value::Level(1.0).since(&Value::total(1.0), elapsed).unwrap_err();
        assert!(error.to_string().contains("changed between"), "{error}");
    }

    proptest! {
        #[test]
        fn a_counter_of_32_bits_counts_on_past_its_end(start: u32, steps in prop::collection::vec(0u32..1 << 30, 1..8)) {
            let (mut at, mut sum) = (start, 0.0);
            for &step in &steps {
                let next = at.wrapping_add(step);
                sum += grown(Nature::Wraps, &[("", at.into())], &[("", next.into())]).unwrap();
                at = next;
            }
            prop_assert_eq!(sum, steps.iter().map(|&step| f64::from(step)).sum::<f64>());
        }
    }
}
