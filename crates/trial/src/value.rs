//! What a window measures.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// One measure in one window, or in several that were added up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// So much of one thing for so much of another.
    Part(Part),
    /// How often each size was seen, of which the measure is a quantile.
    Histogram(Histogram),
}

/// A numerator and its denominator: CPU seconds and packets, bytes and seconds. Parts are added up
/// before they are divided, so a window counts for as much as it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The numerator: finite, 0 or more.
    pub num: f64,
    /// The denominator: finite, 0 or more.
    pub den: f64,
}

/// Counts of observations by size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// The upper bound of each bucket, ascending and finite. The first bucket starts at 0, or, if its
    /// bound is not above that, at its bound.
    pub bounds: Vec<f64>,
    /// How many observations are in each bucket; one more than bounds, for those above them all.
    pub counts: Vec<f64>,
}

impl From<f64> for Value {
    /// A plain number, of which windows give the mean.
    fn from(num: f64) -> Self {
        Self::Part(num.into())
    }
}

impl From<f64> for Part {
    fn from(num: f64) -> Self {
        Self { num, den: 1.0 }
    }
}

impl Part {
    /// The numerator for one of the denominator; 0 of nothing is 0.
    pub fn ratio(self) -> f64 {
        if self.num == 0.0 { 0.0 } else { self.num / self.den }
    }
}

impl AddAssign for Part {
    fn add_assign(&mut self, other: Self) {
        self.num += other.num;
        self.den += other.den;
    }
}

impl Value {
    /// Adds another window's, of the same measure.
    ///
    /// # Errors
    /// If the two are not of one kind, or their buckets differ.
    pub(crate) fn add(&mut self, other: &Self) -> Result<(), &'static str> {
        match (self, other) {
            (Self::Part(sum), Self::Part(part)) => *sum += *part,
            (Self::Histogram(sum), Self::Histogram(one)) if sum.has_buckets_of(one) => *sum += one,
            (Self::Histogram(_), Self::Histogram(_)) => return Err("its buckets changed"),
            _ => return Err("it changed from a histogram to a number, or back"),
        }
        Ok(())
    }

    /// Whether the two can be added up.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Part(_), Self::Part(_)) => true,
            (Self::Histogram(one), Self::Histogram(other)) => one.has_buckets_of(other),
            _ => false,
        }
    }

    pub(crate) fn part(self) -> Option<Part> {
        match self {
            Self::Part(part) => Some(part),
            Self::Histogram(_) => None,
        }
    }

    pub(crate) fn histogram(self) -> Option<Histogram> {
        match self {
            Self::Histogram(histogram) => Some(histogram),
            Self::Part(_) => None,
        }
    }

    /// What is wrong with it, if anything.
    pub(crate) fn trouble(&self) -> Option<String> {
        let bad = |value: f64| !value.is_finite() || value < 0.0;
        let found = match self {
            Self::Part(Part { num, den }) => [*num, *den].into_iter().find(|value| bad(*value)),
            Self::Histogram(Histogram { bounds, counts }) => {
                let finite = bounds.iter().all(|bound| bound.is_finite());
                if counts.len() != bounds.len() + 1 || !bounds.is_sorted() || !finite {
                    return Some("a histogram with buckets out of order or missing".into());
                }
                counts.iter().copied().find(|count| bad(*count))
            }
        };
        found.map(|value| value.to_string())
    }

    /// As one number: the ratio, or this quantile.
    pub(crate) fn number(&self, quantile: f64) -> f64 {
        match self {
            Self::Part(part) => part.ratio(),
            Self::Histogram(histogram) => histogram.quantile(quantile).unwrap_or(0.0),
        }
    }
}

impl AddAssign<&Self> for Histogram {
    /// Adds the observations of one with the same buckets.
    fn add_assign(&mut self, other: &Self) {
        debug_assert!(self.has_buckets_of(other));
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }
}

impl Histogram {
    /// How many observations there are.
    pub fn count(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Whether the buckets are the same, so that the two can be added up and compared.
    pub fn has_buckets_of(&self, other: &Self) -> bool {
        self.bounds == other.bounds
    }

    /// Where the first bucket starts.
    fn start(&self) -> f64 {
        self.bounds.first().map_or(0.0, |bound| bound.min(0.0))
    }

    /// How many observations are at most `size`, as if each bucket's were spread evenly over it.
    /// Those above the last bound are taken to lie just above it.
    pub(crate) fn at_most(&self, size: f64) -> f64 {
        let mut low = self.start();
        let mut sum = 0.0;
        for (&high, &count) in self.bounds.iter().zip(&self.counts) {
            if size < high {
                let share = if high > low { (size - low).max(0.0) / (high - low) } else { 0.0 };
                return sum + share * count;
            }
            sum += count;
            low = high;
        }
        if size > low { self.count() } else { sum }
    }

    /// The size that this share of the observations is at most, as if each bucket's were spread evenly
    /// over it; none without observations, or without a bound. Of those above the last bound, that is
    /// all that is known.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count();
        let mut low = self.start();
        let mut sum = 0.0;
        for (&high, &count) in self.bounds.iter().zip(&self.counts) {
            if count > 0.0 && sum + count >= wanted {
                return Some(low + (high - low) * ((wanted - sum) / count).clamp(0.0, 1.0));
            }
            sum += count;
            low = high;
        }
        self.bounds.last().copied().filter(|_| self.count() > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram() -> Histogram {
        Histogram { bounds: vec![1.0, 2.0, 4.0], counts: vec![10.0, 0.0, 10.0, 5.0] }
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let quantile = |share| histogram().quantile(share).unwrap();
        assert_eq!([quantile(0.2), quantile(0.4), quantile(0.6)], [0.5, 1.0, 3.0]);
        assert_eq!(quantile(0.99), 4.0, "above the last bound nothing more is known");
        for (bounds, counts, median) in [
            (vec![1.0], vec![0.0, 0.0], None),
            (vec![], vec![5.0], None),
            (vec![-1.0], vec![4.0, 0.0], Some(-1.0)),
            (vec![0.0, 2.0], vec![0.0, 4.0, 0.0], Some(1.0)),
        ] {
            let histogram = Histogram { bounds, counts };
            assert_eq!(histogram.quantile(0.5), median, "{histogram:?}");
        }
    }

    #[test]
    fn counting_up_to_a_quantile_gives_its_share() {
        for share in [0.1, 0.3, 0.5, 0.7] {
            let size = histogram().quantile(share).unwrap();
            assert!((histogram().at_most(size) / 25.0 - share).abs() < 1e-12, "{share}");
        }
        assert_eq!((histogram().at_most(0.0), histogram().at_most(9.0)), (0.0, 25.0));
    }

    #[test]
    fn windows_add_up_bucket_by_bucket_and_number_by_number() {
        let mut sum = Value::Histogram(histogram());
        sum.add(&Value::Histogram(histogram())).unwrap();
        let Value::Histogram(sum) = sum else { panic!("{sum:?}") };
        assert_eq!(sum.counts, [20.0, 0.0, 20.0, 10.0]);
        let mut part = Value::from(3.0);
        part.add(&Value::Part(Part { num: 1.0, den: 3.0 })).unwrap();
        assert_eq!(part.number(0.5), 1.0);
        assert!(part.add(&Value::Histogram(histogram())).is_err());
    }

    #[test]
    fn values_that_make_no_sense_are_told() {
        for (value, expected) in [
            (Value::from(f64::NAN), "NaN"),
            (Value::Part(Part { num: 1.0, den: -1.0 }), "-1"),
            (Value::Histogram(Histogram { bounds: vec![2.0, 1.0], counts: vec![0.0; 3] }), "order"),
            (Value::Histogram(Histogram { bounds: vec![1.0], counts: vec![0.0] }), "missing"),
            (
                Value::Histogram(Histogram { bounds: vec![f64::INFINITY], counts: vec![0.0; 2] }),
                "order",
            ),
            (Value::Histogram(Histogram { bounds: vec![f64::NAN], counts: vec![0.0; 2] }), "order"),
        ] {
            let trouble = value.trouble().unwrap();
            assert!(trouble.contains(expected), "'{trouble}' lacks '{expected}'");
        }
        assert_eq!(Value::from(0.0).trouble(), None);
    }
}
