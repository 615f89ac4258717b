//! From blocks to a verdict.
//!
//! # One family of sums gives the p-value and the interval
//!
//! Under the null hypothesis each block's difference is as likely to have either sign (`plan` says
//! why), so the test flips signs: all 2^n patterns up to 16 blocks, else random ones with the
//! observed pattern added. Flipping the signs of a subset of blocks leaves the sum at or above the
//! observed one exactly where the subset's own mean is not above the null. So the means of all
//! subsets of blocks (Hartigan's "typical values", 1969) hold both answers: the share of them on
//! either side of the null is the p-value, and their tail quantiles are the values of the ratio that
//! the test would not reject. Test and interval therefore never disagree, and the interval keeps its
//! coverage with 6 blocks, where a percentile bootstrap does not (`tests/simulation.rs` has both).
//!
//! # The estimate
//!
//! The geometric mean of the blocks' ratios, each the mean of one arm's windows over the mean of the
//! other's. It is the centre of the interval above, treats a doubling and a halving alike, and uses
//! all the data: a median would need half as many blocks again to find the same effect.
//!
//! A count can be zero. One empty window of a block does no harm. Where a whole block is zero in an
//! arm, its ratio is undefined, and the estimate becomes the ratio of the sums over all blocks, its
//! interval made the same way from subsets' ratios of sums. Where the baseline is zero throughout
//! there is no ratio at all, and only the p-value speaks.

mod paired;
mod subsets;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::measure::Better;
use subsets::{Item, Subsets};

pub(crate) use paired::median;
pub use paired::{Ratio, paired_difference, paired_ratio};

/// How to judge a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Which direction is the good one.
    pub better: Better,
    /// How far from 1 a ratio may be and still make no difference, as a share: 0.01 is 1 %.
    pub margin: f64,
    /// The confidence; 1 - confidence is the error budget.
    pub confidence: f64,
    /// The share of the error budget that this comparison may spend, in (0, 1]; 1 if it is the only
    /// look at the data. The interval is widened, and the p-value raised, to match.
    pub share: f64,
    /// Draws the sign patterns where there are more than 16 blocks.
    pub seed: u64,
}

/// An arm against the baseline, by one measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The baseline's mean over all blocks.
    pub base: f64,
    /// The arm's mean over all blocks.
    pub other: f64,
    /// The arm over the baseline; `None` if the baseline is zero throughout.
    pub ratio: Option<f64>,
    /// The confidence interval of the ratio; `None` if it has no finite bounds.
    pub interval: Option<Interval>,
    /// How likely a difference like this is by chance, from 0 to 1, corrected for
    /// [`Rules::share`]: below 1 - confidence is a difference.
    pub p: f64,
    /// What follows.
    pub verdict: Verdict,
    /// How many blocks this rests on.
    pub blocks: usize,
    /// How the ratio was estimated.
    pub estimator: Estimator,
    /// What a reader should know about this comparison, if anything.
    pub note: Option<String>,
}

/// A range of ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// What a comparison found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "lowercase")]
pub enum Verdict {
    /// A difference, in the good direction.
    Better,
    /// A difference, in the bad direction.
    Worse,
    /// The whole interval lies within the margin; a difference so small does not count, even if it
    /// is certain.
    #[strum(serialize = "no difference")]
    NoDifference,
    /// Neither: more blocks, or less noise, might tell.
    Inconclusive,
}

/// How a ratio was estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// The geometric mean of the blocks' ratios.
    GeometricMean,
    /// The ratio of the sums over all blocks, because a block is zero in an arm.
    RatioOfSums,
}

/// Compares the means of an arm's windows, block by block, with the baseline's in the same block.
///
/// # Errors
/// [`ErrorKind::TooFewBlocks`] without a block; [`ErrorKind::InvalidData`] if the slices differ in
/// length, or hold a value that is negative, infinite or not a number.
pub fn compare(base: &[f64], other: &[f64], rules: &Rules) -> Result<Comparison, Error> {
    check(base, other)?;
    let zeros = base.iter().zip(other).filter(|&(&b, &o)| b == 0.0 || o == 0.0).count();
    let (estimator, subsets) = if zeros == 0 {
        let items = base.iter().zip(other).map(|(b, o)| Item { num: (o / b).ln(), den: 1.0 });
        (Estimator::GeometricMean, Subsets::new(items, 0.0))
    } else {
        let items = base.iter().zip(other).map(|(&b, &o)| Item { num: o, den: b });
        (Estimator::RatioOfSums, Subsets::new(items, 1.0))
    };
    let alpha = (1.0 - rules.confidence) * rules.share;
    let found = subsets.judge(alpha, rules.seed);
    let to_ratio = |value: f64| match estimator {
        Estimator::GeometricMean => value.exp(),
        Estimator::RatioOfSums => value,
    };
    let (low, high) = (to_ratio(found.low), to_ratio(found.high));
    let ratio = Some(to_ratio(found.centre)).filter(|ratio| ratio.is_finite());
    let interval = (ratio.is_some() && low.is_finite() && high.is_finite() && found.bounded)
        .then_some(Interval { low, high });
    let p = (found.p / rules.share).min(1.0);
    Ok(Comparison {
        base: mean(base),
        other: mean(other),
        ratio,
        interval,
        p,
        verdict: verdict(p, low, high, rules),
        blocks: base.len(),
        estimator,
        note: note(zeros, ratio, interval, base, other),
    })
}

fn verdict(p: f64, low: f64, high: f64, rules: &Rules) -> Verdict {
    let within = low > 1.0 - rules.margin && high < 1.0 + rules.margin;
    let certain = p < 1.0 - rules.confidence;
    match rules.better {
        _ if within => Verdict::NoDifference,
        Better::Higher if certain && low > 1.0 => Verdict::Better,
        Better::Higher if certain && high < 1.0 => Verdict::Worse,
        Better::Lower if certain && high < 1.0 => Verdict::Better,
        Better::Lower if certain && low > 1.0 => Verdict::Worse,
        _ => Verdict::Inconclusive,
    }
}

fn note(
    zeros: usize,
    ratio: Option<f64>,
    interval: Option<Interval>,
    base: &[f64],
    other: &[f64],
) -> Option<String> {
    let all_zero = |values: &[f64]| values.iter().all(|&value| value == 0.0);
    let text = match (ratio, interval) {
        _ if all_zero(base) && all_zero(other) => "zero in every window of both arms".into(),
        (None, _) => "the baseline is zero in every window, so there is no ratio".into(),
        (_, None) if zeros == 0 => format!("{} blocks are too few for an interval", base.len()),
        (_, None) => "too many blocks are zero for an interval".into(),
        _ if zeros > 0 => format!(
            "ratio of sums: {zeros} of {} blocks are zero in an arm and have no ratio of their own",
            base.len()
        ),
        _ => return None,
    };
    Some(text)
}

fn check(base: &[f64], other: &[f64]) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidData, what));
    if base.len() != other.len() {
        return invalid(format!("values come in pairs, got {} and {}", base.len(), other.len()));
    }
    if base.is_empty() {
        return Err(Error::new(ErrorKind::TooFewBlocks, "nothing to compare: not one pair"));
    }
    for (i, value) in base.iter().zip(other).flat_map(|(b, o)| [b, o]).enumerate() {
        if !value.is_finite() || *value < 0.0 {
            let pair = i / 2 + 1;
            return invalid(format!(
                "pair {pair} holds {value}; expected a finite number, 0 or more"
            ));
        }
    }
    Ok(())
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(better: Better) -> Rules {
        Rules { better, margin: 0.01, confidence: 0.95, share: 1.0, seed: 1 }
    }

    /// n values around `centre`, a percent apart at most.
    fn around(centre: f64, n: usize) -> Vec<f64> {
        (0..n).map(|i| centre * (1.0 + 0.002 * ((i * 7 % 5) as f64 - 2.0))).collect()
    }

    #[test]
    fn verdict_follows_the_good_direction() {
        let (low, high) = (around(100.0, 10), around(110.0, 10));
        for (base, other, better, expected) in [
            (&low, &high, Better::Higher, Verdict::Better),
            (&low, &high, Better::Lower, Verdict::Worse),
            (&high, &low, Better::Higher, Verdict::Worse),
            (&high, &low, Better::Lower, Verdict::Better),
            (&low, &low, Better::Higher, Verdict::NoDifference),
        ] {
            let found = compare(base, other, &rules(better)).unwrap();
            assert_eq!(found.verdict, expected, "{found:?}");
        }
    }

    #[test]
    fn a_certain_difference_within_the_margin_is_none() {
        let base = vec![1000.0; 20];
        let other: Vec<f64> = (0..20).map(|i| 1003.0 + f64::from(i % 3)).collect();
        let found = compare(&base, &other, &rules(Better::Higher)).unwrap();
        assert!(found.p < 0.001);
        assert_eq!(found.verdict, Verdict::NoDifference);
    }

    #[test]
    fn five_blocks_that_agree_are_not_enough() {
        let five = compare(&[1.0; 5], &[2.0; 5], &rules(Better::Higher)).unwrap();
        assert_eq!((five.p, five.interval), (2.0 / 32.0, None));
        assert_eq!(five.verdict, Verdict::Inconclusive);
        assert_eq!(five.ratio, Some(2.0));
        assert_eq!(five.note.as_deref(), Some("5 blocks are too few for an interval"));
        let six = compare(&[1.0; 6], &[2.0; 6], &rules(Better::Higher)).unwrap();
        assert_eq!((six.p, six.verdict), (2.0 / 64.0, Verdict::Better));
    }

    #[test]
    fn a_smaller_share_of_the_budget_asks_for_more_evidence() {
        let share = |share| Rules { share, ..rules(Better::Higher) };
        let found = compare(&[1.0; 8], &[2.0; 8], &share(0.1)).unwrap();
        assert_eq!((found.verdict, found.interval), (Verdict::Inconclusive, None));
        assert_eq!(found.p, 20.0 / 256.0);
        let found = compare(&[1.0; 12], &[2.0; 12], &share(0.1)).unwrap();
        assert_eq!(found.verdict, Verdict::Better);
    }

    #[test]
    fn counts_that_are_zero_in_some_blocks_give_the_ratio_of_sums() {
        let base = [8.0, 0.0, 10.0, 9.0, 0.0, 11.0, 7.0, 9.0, 12.0, 10.0];
        let other = [1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 1.0, 0.0, 2.0, 1.0];
        let found = compare(&base, &other, &rules(Better::Lower)).unwrap();
        assert_eq!(found.estimator, Estimator::RatioOfSums);
        assert!((found.ratio.unwrap() - 8.0 / 76.0).abs() < 1e-12);
        let Interval { low, high } = found.interval.unwrap();
        assert!(low < 8.0 / 76.0 && 8.0 / 76.0 < high && high < 0.3, "{low} {high}");
        assert_eq!(found.verdict, Verdict::Better);
        assert!(found.note.unwrap().contains("4 of 10 blocks are zero in an arm"));
    }

    #[test]
    fn a_baseline_of_zero_has_no_ratio_but_a_verdict() {
        let found = compare(&[0.0; 10], &[5.0; 10], &rules(Better::Lower)).unwrap();
        assert_eq!((found.ratio, found.interval), (None, None));
        assert_eq!(found.verdict, Verdict::Worse);
        assert!(found.note.unwrap().contains("no ratio"));
    }

    #[test]
    fn zero_throughout_is_inconclusive_and_says_so() {
        let found = compare(&[0.0; 10], &[0.0; 10], &rules(Better::Lower)).unwrap();
        assert_eq!((found.ratio, found.p), (None, 1.0));
        assert_eq!(found.verdict, Verdict::Inconclusive);
        assert_eq!(found.note.as_deref(), Some("zero in every window of both arms"));
    }

    #[test]
    fn an_arm_that_drops_to_zero_is_a_difference() {
        let found = compare(&[5.0; 10], &[0.0; 10], &rules(Better::Lower)).unwrap();
        assert_eq!(found.ratio, Some(0.0));
        assert_eq!(found.verdict, Verdict::Better);
    }

    #[test]
    fn identical_arms_make_no_difference() {
        for blocks in [6, 40] {
            let values = vec![3.0; blocks];
            let found = compare(&values, &values, &rules(Better::Higher)).unwrap();
            assert_eq!((found.ratio, found.p), (Some(1.0), 1.0));
            assert_eq!(found.verdict, Verdict::NoDifference);
        }
    }

    #[test]
    fn swapping_the_arms_inverts_the_ratio_and_keeps_p() {
        for blocks in [9, 30] {
            let base = around(50.0, blocks);
            let other: Vec<f64> = (0..blocks).map(|i| 51.0 + (i % 4) as f64).collect();
            let there = compare(&base, &other, &rules(Better::Higher)).unwrap();
            let back = compare(&other, &base, &rules(Better::Higher)).unwrap();
            assert!((there.ratio.unwrap() * back.ratio.unwrap() - 1.0).abs() < 1e-12);
            assert!((there.p - back.p).abs() < 1e-12);
            let (there, back) = (there.interval.unwrap(), back.interval.unwrap());
            assert!((there.low * back.high - 1.0).abs() < 1e-12, "{there:?} {back:?}");
        }
    }

    #[test]
    fn bad_values_are_named() {
        for (base, other, kind, expected) in [
            (vec![], vec![], ErrorKind::TooFewBlocks, "not one pair"),
            (vec![1.0], vec![], ErrorKind::InvalidData, "got 1 and 0"),
            (vec![1.0, 2.0], vec![1.0, f64::NAN], ErrorKind::InvalidData, "pair 2 holds NaN"),
            (vec![-1.0], vec![1.0], ErrorKind::InvalidData, "pair 1 holds -1"),
            (vec![1.0], vec![f64::INFINITY], ErrorKind::InvalidData, "pair 1 holds inf"),
        ] {
            let error = compare(&base, &other, &rules(Better::Higher)).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(expected), "'{error}' lacks '{expected}'");
        }
    }
}
