//! Ratios of quantiles of merged histograms.

use super::estimate::variance;
use super::subsets::{Found, Item, Subsets};
use super::{Estimate, Rules, Tested, check, student};
use crate::error::Error;
use crate::value::Histogram;

/// How often an interval of ratios is halved to find a bound.
const HALVINGS: usize = 24;

/// The widest range of ratios in which bounds are looked for.
const WIDEST: f64 = 1e6;

/// Two arms' histograms, block by block, of which a quantile is compared. All have the same buckets.
struct Arms {
    base: Vec<Histogram>,
    other: Vec<Histogram>,
    /// Those of each arm added up.
    all: [Histogram; 2],
    quantile: f64,
}

/// Tests this quantile of an arm's observations against the baseline's, block by block, as one of a
/// family of so many comparisons.
///
/// # Errors
/// As [`compare`](super::compare). All histograms have the same buckets.
pub(crate) fn test_quantile(
    base: Vec<Histogram>,
    other: Vec<Histogram>,
    quantile: f64,
    rules: &Rules,
    family: usize,
) -> Result<Tested, Error> {
    let arms = Arms::new(base, other, quantile)?;
    let p = arms.p(1.0, rules.among(family).alpha(), rules.seed);
    Ok(Tested::new(p, rules, move |rules| {
        let blocks = arms.base.len();
        let (centre, alpha) = (arms.ratio(), rules.alpha());
        // The most extreme pattern of n blocks has probability 2 / 2^n.
        let bounded =
            centre.is_finite() && centre > 0.0 && (-(blocks as f64)).exp2() <= alpha / 2.0;
        let bound = |direction: f64| {
            let rejects = |ratio| arms.p(ratio, alpha, rules.seed) <= alpha;
            let bound = furthest(centre, direction, rejects);
            bound.unwrap_or(direction * f64::INFINITY)
        };
        let (low, high) =
            if bounded { (bound(-1.0), bound(1.0)) } else { (f64::NEG_INFINITY, f64::INFINITY) };
        rules.conclude(&Found { centre, low, high, bounded, p }, arms.values(), blocks)
    }))
}

/// How likely the blocks are if this is the ratio of the arms' quantiles, as in
/// [`against`](super::against).
///
/// # Errors
/// As [`test_quantile`].
pub(crate) fn against_quantile(
    base: Vec<Histogram>,
    other: Vec<Histogram>,
    quantile: f64,
    ratio: f64,
    alpha: f64,
    seed: u64,
) -> Result<(f64, bool), Error> {
    let arms = Arms::new(base, other, quantile)?;
    Ok((arms.p(ratio, alpha, seed), arms.ratio() > ratio))
}

/// The arms' quantiles and the logarithm of their ratio, its variance from how far the ratio has to go for the excesses
/// to come to as much as they vary; none where there is no ratio, or of one block.
///
/// # Errors
/// As [`test_quantile`].
pub(crate) fn estimate_quantile(
    base: Vec<Histogram>,
    other: Vec<Histogram>,
    quantile: f64,
) -> Result<([f64; 2], Option<Estimate>), Error> {
    let arms = Arms::new(base, other, quantile)?;
    let (ratio, n) = (arms.ratio(), arms.base.len() as f64);
    if n < 2.0 || !(ratio > 0.0 && ratio.is_finite()) {
        return Ok((arms.values(), None));
    }
    let excesses = |ratio| arms.excesses(ratio).iter().map(|item| item.num).collect::<Vec<f64>>();
    let at_ratio = excesses(ratio);
    let (sum, deviation) = (at_ratio.iter().sum::<f64>(), (n * variance(&at_ratio)).sqrt());
    let half = |direction: f64| {
        let rejects = |ratio| (excesses(ratio).iter().sum::<f64>() - sum).abs() >= deviation;
        furthest(ratio, direction, rejects).map(|at| (at / ratio).ln().abs())
    };
    let width = half(-1.0).zip(half(1.0)).map(|(down, up)| f64::midpoint(down, up));
    let estimate =
        |width: f64| Estimate { value: ratio.ln(), variance: width * width, freedom: n - 1.0 };
    Ok((arms.values(), width.map(estimate)))
}

/// The ratio furthest from the centre, upwards or downwards, that is not rejected; none if there are
/// always further ones.
fn furthest(centre: f64, direction: f64, rejects: impl Fn(f64) -> bool) -> Option<f64> {
    let rejects = |factor: f64| rejects(centre * factor.powf(direction));
    let (mut inside, mut outside) = (1.0, 1.001);
    while !rejects(outside) {
        inside = outside;
        outside *= outside;
        if outside > WIDEST {
            return None;
        }
    }
    for _ in 0..HALVINGS {
        let middle = f64::sqrt(inside * outside);
        if rejects(middle) { outside = middle } else { inside = middle }
    }
    Some(centre * inside.powf(direction))
}

impl Arms {
    fn new(base: Vec<Histogram>, other: Vec<Histogram>, quantile: f64) -> Result<Self, Error> {
        let counts = |all: &[Histogram]| all.iter().map(Histogram::count).collect::<Vec<_>>();
        check(&counts(&base), &counts(&other))?;
        let all = [merged(&base), merged(&other)];
        Ok(Self { base, other, all, quantile })
    }

    /// The quantiles of the baseline and of the arm.
    fn values(&self) -> [f64; 2] {
        self.all.each_ref().map(|all| all.quantile(self.quantile).unwrap_or(0.0))
    }

    fn ratio(&self) -> f64 {
        let [base, other] = self.values();
        other / base
    }

    /// How likely the excesses are if this is the ratio.
    fn p(&self, ratio: f64, alpha: f64, seed: u64) -> f64 {
        let excesses = self.excesses(ratio);
        let subsets = Subsets::new(excesses.iter().copied(), 0.0);
        subsets.values(alpha, seed).p().max(student::probability(&excesses, 0.0))
    }

    /// How many observations more of the arm than of the baseline lie above the quantile that both have
    /// together, once the arm's sizes are divided by `ratio`; for each block, and less what follows from
    /// an arm's having more observations.
    fn excesses(&self, ratio: f64) -> Vec<Item> {
        let [all_base, all_other] = &self.all;
        let both = all_base.count() + all_other.count();
        let wanted = self.quantile * both;
        let mut below = 0.0;
        let mut above =
            all_base.bounds.last().copied().unwrap_or(1.0) * ratio.recip().max(1.0) * 1.001;
        for _ in 0..60 {
            let middle = f64::midpoint(below, above);
            let count = all_base.at_most(middle) + all_other.at_most(middle * ratio);
            if count < wanted { below = middle } else { above = middle }
        }
        let common = (both - all_base.at_most(above) - all_other.at_most(above * ratio)) / both;
        let over = |histogram: &Histogram, size: f64| histogram.count() - histogram.at_most(size);
        let item = |(a, b): (&Histogram, &Histogram)| {
            let surplus = b.count() - a.count();
            Item { num: over(b, above * ratio) - over(a, above) - common * surplus, den: 0.0 }
        };
        self.base.iter().zip(&self.other).map(item).collect()
    }
}

fn merged(all: &[Histogram]) -> Histogram {
    let mut sum = all[0].clone();
    all[1..].iter().for_each(|one| sum += one);
    sum
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::measure::Better;
    use crate::stats::{Comparison, Verdict, mean};

    fn rules() -> Rules {
        Rules { better: Better::Lower, margin: 0.01, confidence: 0.95, share: 1.0, seed: 1 }
    }

    fn compare(base: Vec<Histogram>, other: Vec<Histogram>, quantile: f64) -> Comparison {
        test_quantile(base, other, quantile, &rules(), 1).unwrap().conclude(1)
    }

    /// Exponential sizes of this mean, as many as 500 give or take a burst, in fine buckets.
    fn blocks(mean: f64, seed: u64) -> Vec<Histogram> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let bounds: Vec<f64> = (1..300).map(|i| 0.01 * 1.03_f64.powi(i)).collect();
        let block = |_| {
            let mut counts = vec![0.0; bounds.len() + 1];
            let burst = if rng.random_bool(0.2) { 4.0 } else { 1.0 };
            for _ in 0..(500.0 * burst) as usize {
                let size = -mean * (1.0 - rng.random::<f64>()).ln();
                counts[bounds.partition_point(|bound| *bound < size)] += 1.0;
            }
            Histogram { bounds: bounds.clone(), counts }
        };
        (0..20).map(block).collect()
    }

    #[test]
    fn a_quantile_that_grew_is_found_with_its_ratio() {
        for quantile in [0.5, 0.9] {
            let found = compare(blocks(1.0, 1), blocks(1.3, 2), quantile);
            let interval = found.interval.unwrap();
            assert_eq!(found.verdict, Verdict::Worse, "{found:?}");
            assert!(interval.low < 1.3 && 1.3 < interval.high, "{found:?}");
            assert!(interval.low > 1.1 && interval.high < 1.5, "{found:?}");
        }
    }

    #[test]
    fn equal_arms_differ_as_rarely_as_the_confidence_says() {
        let differ = (0..200)
            .filter(|&seed| compare(blocks(1.0, seed), blocks(1.0, seed + 1000), 0.9).p < 0.05);
        // Of 200 trials at 5 %, more than 18 are seen once in 40 times.
        let differ = differ.count();
        assert!(differ <= 18, "{differ} of 200");
    }

    #[test]
    fn the_interval_holds_exactly_what_is_not_rejected() {
        let arms = Arms::new(blocks(1.0, 3), blocks(1.1, 4), 0.9).unwrap();
        let interval = compare(blocks(1.0, 3), blocks(1.1, 4), 0.9).interval.unwrap();
        for (ratio, inside) in [
            (interval.low * 1.001, true),
            (interval.high / 1.001, true),
            (interval.low / 1.003, false),
            (interval.high * 1.003, false),
        ] {
            let p = arms.p(ratio, 0.05, 1);
            assert_eq!(p > 0.05, inside, "{ratio} of {interval:?}: p = {p}");
        }
    }

    #[test]
    fn an_estimate_varies_as_much_as_it_says() {
        let estimates = (0..200).map(|seed| {
            let (base, other) = (blocks(1.0, seed), blocks(1.2, seed + 1000));
            estimate_quantile(base, other, 0.9).unwrap().1.unwrap()
        });
        let estimates: Vec<Estimate> = estimates.collect();
        let values: Vec<f64> = estimates.iter().map(|one| one.value).collect();
        let said = mean(estimates.iter().map(|one| one.variance));
        assert!((mean(values.iter().copied()) - 1.2_f64.ln()).abs() < 0.01);
        // The variance of 200 values is known to 10 %.
        let ratio = variance(&values) / said;
        assert!((0.7..1.4).contains(&ratio), "{ratio}");
        let none = vec![Histogram { bounds: vec![1.0], counts: vec![0.0; 2] }; 8];
        assert_eq!(estimate_quantile(none.clone(), none, 0.5).unwrap().0, [0.0; 2]);
    }
}
