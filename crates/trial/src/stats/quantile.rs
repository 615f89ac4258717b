//! Ratios of quantiles of merged histograms.

use super::subsets::{Found, Item, Subsets};
use super::{Comparison, Rules, check, student};
use crate::error::Error;
use crate::value::Histogram;

/// How often an interval of ratios is halved to find a bound.
const HALVINGS: usize = 24;

/// The widest range of ratios in which bounds are looked for.
const WIDEST: f64 = 1e6;

/// Compares this quantile of an arm's observations with the baseline's, block by block.
///
/// # Errors
/// As [`compare`](super::compare). All histograms have the same buckets.
pub(crate) fn compare_quantiles(
    base: &[Histogram],
    other: &[Histogram],
    quantile: f64,
    rules: &Rules,
) -> Result<Comparison, Error> {
    let counts = |all: &[Histogram]| all.iter().map(Histogram::count).collect::<Vec<_>>();
    check(&counts(base), &counts(other))?;
    let of = |all: &[Histogram]| merged(all).quantile(quantile).unwrap_or(0.0);
    let values = [of(base), of(other)];
    let centre = values[1] / values[0];
    let (alpha, seed) = (rules.alpha(), rules.seed);
    let judge = |ratio: f64| {
        let excesses = excesses(base, other, quantile, ratio);
        let found = Subsets::new(excesses.iter().copied(), 0.0).judge(alpha, seed);
        student::widen(&excesses, 0.0, alpha, Found { bounded: false, ..found })
    };
    let at_null = judge(1.0);
    // The most extreme pattern of n blocks has probability 2 / 2^n.
    let bounded =
        centre.is_finite() && centre > 0.0 && (-(base.len() as f64)).exp2() <= alpha / 2.0;
    let bound = |direction: f64| {
        let rejects = |factor: f64| judge(centre * factor.powf(direction)).p <= alpha;
        let (mut inside, mut outside) = (1.0, 1.001);
        while !rejects(outside) {
            inside = outside;
            outside *= outside;
            if outside > WIDEST {
                return if direction > 0.0 { f64::INFINITY } else { f64::NEG_INFINITY };
            }
        }
        for _ in 0..HALVINGS {
            let middle = f64::sqrt(inside * outside);
            if rejects(middle) { outside = middle } else { inside = middle }
        }
        centre * inside.powf(direction)
    };
    let (low, high) =
        if bounded { (bound(-1.0), bound(1.0)) } else { (f64::NEG_INFINITY, f64::INFINITY) };
    let found = Found { centre, low, high, bounded, p: at_null.p };
    Ok(rules.conclude(&found, values, base.len()))
}

fn merged(all: &[Histogram]) -> Histogram {
    let mut sum = all[0].clone();
    for one in &all[1..] {
        sum.counts.iter_mut().zip(&one.counts).for_each(|(sum, one)| *sum += one);
    }
    sum
}

/// How many observations more of the arm than of the baseline lie above the quantile that both have
/// together, once the arm's sizes are divided by `ratio`; for each block, and less what follows from
/// an arm's having more observations.
fn excesses(base: &[Histogram], other: &[Histogram], quantile: f64, ratio: f64) -> Vec<Item> {
    let (all_base, all_other) = (merged(base), merged(other));
    let wanted = quantile * (all_base.count() + all_other.count());
    let mut below = 0.0;
    let mut above = all_base.bounds.last().copied().unwrap_or(1.0) * ratio.recip().max(1.0) * 1.001;
    for _ in 0..60 {
        let middle = f64::midpoint(below, above);
        let count = all_base.at_most(middle) + all_other.at_most(middle * ratio);
        if count < wanted { below = middle } else { above = middle }
    }
    let both = all_base.count() + all_other.count();
    let common = (both - all_base.at_most(above) - all_other.at_most(above * ratio)) / both;
    let over = |histogram: &Histogram, size: f64| histogram.count() - histogram.at_most(size);
    let item = |(a, b): (&Histogram, &Histogram)| {
        let surplus = b.count() - a.count();
        Item { num: over(b, above * ratio) - over(a, above) - common * surplus, den: 0.0 }
    };
    base.iter().zip(other).map(item).collect()
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::measure::Better;
    use crate::stats::Verdict;

    fn rules() -> Rules {
        Rules { better: Better::Lower, margin: 0.01, confidence: 0.95, share: 1.0, seed: 1 }
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
            let found = compare_quantiles(&blocks(1.0, 1), &blocks(1.3, 2), quantile, &rules());
            let found = found.unwrap();
            let interval = found.interval.unwrap();
            assert_eq!(found.verdict, Verdict::Worse, "{found:?}");
            assert!(interval.low < 1.3 && 1.3 < interval.high, "{found:?}");
            assert!(interval.low > 1.1 && interval.high < 1.5, "{found:?}");
        }
    }

    #[test]
    fn equal_arms_differ_as_rarely_as_the_confidence_says() {
        let differ = (0..200).filter(|&seed| {
            let found =
                compare_quantiles(&blocks(1.0, seed), &blocks(1.0, seed + 1000), 0.9, &rules());
            found.unwrap().p < 0.05
        });
        // Of 200 trials at 5 %, more than 18 are seen once in 40 times.
        let differ = differ.count();
        assert!(differ <= 18, "{differ} of 200");
    }

    #[test]
    fn the_interval_holds_exactly_what_is_not_rejected() {
        let (base, other) = (blocks(1.0, 3), blocks(1.1, 4));
        let found = compare_quantiles(&base, &other, 0.9, &rules()).unwrap();
        let interval = found.interval.unwrap();
        for (ratio, inside) in [
            (interval.low * 1.001, true),
            (interval.high / 1.001, true),
            (interval.low / 1.003, false),
            (interval.high * 1.003, false),
        ] {
            let excesses = excesses(&base, &other, 0.9, ratio);
            let p = Subsets::new(excesses.iter().copied(), 0.0).judge(0.05, 1).p;
            assert_eq!(p > 0.05, inside, "{ratio} of {interval:?}: p = {p}");
        }
    }
}
