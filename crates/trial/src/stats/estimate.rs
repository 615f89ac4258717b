//! Estimates, and how well they are known.

use super::{items, mean, sum, t_probability, t_quantile};
use crate::value::Part;

/// An estimate: its value, its variance, and the degrees of freedom that this is known with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) variance: f64,
    pub(crate) freedom: f64,
}

impl Estimate {
    /// The mean of these; none of fewer than four.
    pub(crate) fn of(values: impl AsRef<[f64]>) -> Option<Self> {
        let values = values.as_ref();
        if values.len() < 4 {
            return None;
        }
        let n = values.len() as f64;
        Some(Self {
            value: mean(values.iter().copied()),
            variance: variance(values) / n,
            freedom: n - 1.0,
        })
    }

    pub(crate) fn minus(self, other: &Self) -> Self {
        self.plus(other, -1.0)
    }

    /// This and `sign` times another; degrees of freedom by Welch and Satterthwaite.
    pub(crate) fn plus(self, other: &Self, sign: f64) -> Self {
        let variance = self.variance + other.variance;
        let parts = self.variance.powi(2) / self.freedom + other.variance.powi(2) / other.freedom;
        let freedom = if parts > 0.0 { variance * variance / parts } else { self.freedom };
        Self { value: self.value + sign * other.value, variance, freedom }
    }

    /// The range that holds the truth with this confidence.
    pub(crate) fn interval(&self, confidence: f64) -> [f64; 2] {
        let most = t_quantile(1.0 - (1.0 - confidence) / 2.0, self.freedom);
        let half = most * self.variance.sqrt();
        [self.value - half, self.value + half]
    }

    /// How likely it is to be so far from 0 by chance.
    pub(crate) fn p(&self) -> f64 {
        t_probability(self.value, self.variance.sqrt(), self.freedom)
    }
}

/// What the arms come to, and the logarithm of their ratio, its variance from the blocks' excesses at
/// that ratio; none where there is no ratio, of one block, or if numbers are too large to tell.
pub(crate) fn estimate(base: &[Part], other: &[Part]) -> ([f64; 2], Option<Estimate>) {
    let values = [base, other].map(|parts| sum(parts).ratio());
    let items = items(base, other);
    let num: f64 = items.iter().map(|item| item.num).sum();
    let den: f64 = items.iter().map(|item| item.den).sum();
    let ratio = num / den;
    if items.len() < 2 || !(ratio > 0.0 && ratio.is_finite()) {
        return (values, None);
    }
    let n = items.len() as f64;
    let excesses: Vec<f64> = items.iter().map(|item| item.num - ratio * item.den).collect();
    // The sum of the excesses is 0, and falls by `num` where the logarithm grows by 1.
    let variance = n * variance(&excesses) / num.powi(2);
    let estimate = Estimate { value: ratio.ln(), variance, freedom: n - 1.0 };
    (values, variance.is_finite().then_some(estimate))
}

/// Of the distribution that these were drawn from.
pub(super) fn variance(values: &[f64]) -> f64 {
    let centre = mean(values.iter().copied());
    values.iter().map(|value| (value - centre).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0)
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Blocks whose work comes in bursts, and costs this much give or take a tenth.
    fn blocks(cost: f64, rng: &mut Xoshiro256PlusPlus) -> Vec<Part> {
        let block = |_| {
            let den = rng.random_range(10.0..100.0);
            Part { num: cost * den * rng.random_range(0.9..1.1), den }
        };
        (0..20).map(block).collect()
    }

    #[test]
    fn a_log_ratio_varies_as_much_as_it_says() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let estimates = (0..1000).map(|_| {
            let (base, other) = (blocks(2.0, &mut rng), blocks(3.0, &mut rng));
            estimate(&base, &other).1.unwrap()
        });
        let estimates: Vec<Estimate> = estimates.collect();
        let values: Vec<f64> = estimates.iter().map(|one| one.value).collect();
        assert!((mean(values.iter().copied()) - 1.5_f64.ln()).abs() < 0.003);
        let said = mean(estimates.iter().map(|one| one.variance));
        let ratio = variance(&values) / said;
        // The variance of 1,000 values is known to 4.5 %.
        assert!((0.87..1.15).contains(&ratio), "{ratio}");
    }

    #[test]
    fn no_ratio_has_no_logarithm() {
        let of = |values: [f64; 4]| values.map(Part::from);
        let some = of([1.0, 2.0, 3.0, 4.0]);
        for (base, other) in [(of([0.0; 4]), some), (some, of([0.0; 4]))] {
            assert!(estimate(&base, &other).1.is_none());
        }
        assert!(estimate(&some[..1], &some[..1]).1.is_none());
        let same = estimate(&some, &some).1.unwrap();
        assert_eq!((same.value, same.variance, same.freedom), (0.0, 0.0, 3.0));
    }
}
