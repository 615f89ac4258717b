//! From blocks to a verdict.
//!
//! # The estimate
//!
//! A measure is a numerator and a denominator, and its ratio between two arms is a ratio of sums: all of
//! an arm's CPU seconds by all of its packets, over the same of the other arm. The mean of the
//! windows' own ratios is something else: it gives a window in which little happened the weight of a
//! busy one, and where traffic comes in bursts it can lie on the other side of 1.
//!
//! # One family of sums gives the p-value and the interval
//!
//! Where an arm makes a measure `r` times what it is under the other one, dividing its numerators by
//! `r` leaves two arms that differ in name only, and `plan` drew each block's order so that swapping
//! the names was as likely a draw. So under the null hypothesis `r`, the excess of the arm over its
//! share of the block is as likely to have either sign, *whatever* the traffic did. The test flips
//! signs: all 2^n patterns up to 16 blocks, else random ones with the observed pattern added.
//! Flipping the signs of a subset of blocks leaves the sum at or above the observed one exactly where
//! `r` is at most a ratio of sums over that subset (`items` has the terms). So the subsets' ratios,
//! Hartigan's "typical values" (1969), hold both answers: the share of them on either side of 1 is
//! the p-value, and their tail quantiles are the ratios that the test would not reject. Dividing each
//! pattern's sum by its standard error would change nothing: flips keep the squares, so the one orders
//! the patterns as the other does.
//!
//! # Where effects differ from block to block
//!
//! That test is exact where an arm has no effect on anything, or the same on everything. Where it
//! helps a little mostly and harms much now and then, so that the sums are equal, the excesses are
//! skewed and flipping their signs finds differences too often. So there is a second test beside it,
//! `student`: Student's t of the excesses with Hall's correction for skewness. The p-value is the
//! larger one, the interval is the hull of both.
//!
//! # Quantiles
//!
//! Histograms of an arm's windows are added up before a quantile is taken. The null hypothesis `r`
//! divides the arm's sizes by `r`; the excess is then the number of observations above the quantile
//! of both arms together, and the rest is as above, but for the bounds, which are searched for.

mod paired;
mod quantile;
mod student;
mod subsets;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::measure::Better;
use crate::value::Part;
use subsets::{Found, Item, Subsets};

pub(crate) use paired::median;
pub use paired::{Ratio, paired_difference, paired_ratio};
pub(crate) use quantile::compare_quantiles;
pub(crate) use student::{t_probability, t_quantile};

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
    /// The baseline over all blocks: its numerators' sum over its denominators', or its quantile.
    pub base: f64,
    /// The same of the arm.
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
    /// The confidence of the interval, which is higher than the plan's where several looks or
    /// comparisons share the error budget.
    pub confidence: f64,
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
    /// What was measured does not answer the question; the note says why.
    Withheld,
}

/// Compares an arm with the baseline, block by block.
///
/// # Errors
/// [`ErrorKind::TooFewBlocks`] without a block; [`ErrorKind::InvalidData`] if the slices differ in
/// length, or hold a value that is negative, infinite or not a number.
pub fn compare(base: &[Part], other: &[Part], rules: &Rules) -> Result<Comparison, Error> {
    for of in [|part: &Part| part.num, |part: &Part| part.den] {
        let all = |parts: &[Part]| parts.iter().map(of).collect::<Vec<_>>();
        check(&all(base), &all(other))?;
    }
    let items = items(base, other);
    let subsets = Subsets::new(items.iter().copied(), 1.0);
    let (alpha, seed) = (rules.alpha(), rules.seed);
    let found = student::widen(&items, 1.0, alpha, subsets.judge(alpha, seed));
    let ratio = |parts: &[Part]| sum(parts).ratio();
    Ok(rules.conclude(&found, [ratio(base), ratio(other)], base.len()))
}

fn sum(parts: &[Part]) -> Part {
    parts.iter().fold(Part::default(), |mut sum, part| {
        sum += *part;
        sum
    })
}

/// The terms whose ratio of sums, over all blocks, is the ratio of the arms, and over a subset the
/// ratio at which flipping that subset changes nothing.
///
/// With a and b the numerators and d the surplus of the arm's denominator in a block, A, B and D
/// the sums of numerators and of all denominators, and (A + B / r) / D what both arms have in common
/// under the ratio r, the excess of a block is (b / r - a) - d (A + B / r) / D.
fn items(base: &[Part], other: &[Part]) -> Vec<Item> {
    let (all_base, all_other) = (sum(base), sum(other));
    let den = all_base.den + all_other.den;
    let share = |num: f64| if den > 0.0 { num / den } else { 0.0 };
    let (base_share, other_share) = (share(all_base.num), share(all_other.num));
    let item = |(a, b): (&Part, &Part)| {
        let surplus = b.den - a.den;
        Item { num: b.num - other_share * surplus, den: a.num + base_share * surplus }
    };
    base.iter().zip(other).map(item).collect()
}

impl Rules {
    /// The error budget of this comparison.
    fn alpha(&self) -> f64 {
        (1.0 - self.confidence) * self.share
    }

    /// What follows from what was found.
    fn conclude(&self, found: &Found, [base, other]: [f64; 2], blocks: usize) -> Comparison {
        let Found { centre, low, high, bounded, .. } = *found;
        let ratio = Some(centre).filter(|ratio| ratio.is_finite());
        let interval = (ratio.is_some() && low.is_finite() && high.is_finite() && bounded)
            .then_some(Interval { low: low.max(0.0), high });
        let p = (found.p / self.share).min(1.0);
        Comparison {
            base,
            other,
            ratio,
            interval,
            p,
            verdict: verdict(p, low, high, self),
            blocks,
            confidence: 1.0 - self.alpha(),
            note: note(ratio, interval, base, other, blocks),
        }
    }
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
    ratio: Option<f64>,
    interval: Option<Interval>,
    base: f64,
    other: f64,
    blocks: usize,
) -> Option<String> {
    let text = match (ratio, interval) {
        _ if base == 0.0 && other == 0.0 => "zero in every window of both arms".into(),
        (None, _) => "the baseline is zero in every window, so there is no ratio".into(),
        (_, None) => format!("{blocks} blocks are too few for an interval"),
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

    /// Compares plain numbers.
    fn compare(base: &[f64], other: &[f64], rules: &Rules) -> Result<Comparison, Error> {
        let parts = |values: &[f64]| values.iter().copied().map(Part::from).collect::<Vec<_>>();
        super::compare(&parts(base), &parts(other), rules)
    }

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
    fn blocks_without_events_are_blocks_like_any_other() {
        let base = [8.0, 0.0, 10.0, 9.0, 0.0, 11.0, 7.0, 9.0, 12.0, 10.0];
        let other = [1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 1.0, 0.0, 2.0, 1.0];
        let found = compare(&base, &other, &rules(Better::Lower)).unwrap();
        assert!((found.ratio.unwrap() - 8.0 / 76.0).abs() < 1e-12);
        let Interval { low, high } = found.interval.unwrap();
        assert!(low < 8.0 / 76.0 && 8.0 / 76.0 < high && high < 0.3, "{low} {high}");
        assert_eq!((found.verdict, found.blocks), (Verdict::Better, 10));
    }

    /// Bursts: in a busy window there is ten times the work, and each piece of it costs less.
    fn bursts(cost: f64) -> Vec<Part> {
        let work = |i: usize| if i.is_multiple_of(4) { 1000.0 } else { 100.0 + i as f64 };
        let part = |i| Part { num: cost * work(i).powf(0.8), den: work(i) };
        (0..20).map(part).collect()
    }

    #[test]
    fn a_ratio_of_sums_weighs_a_window_by_what_it_holds() {
        let (base, mut other) = (bursts(1.0), bursts(1.0));
        // Dearer where much is done, cheaper where little is done.
        for (i, part) in other.iter_mut().enumerate() {
            part.num *= if i.is_multiple_of(4) { 1.1 } else { 0.9 };
        }
        let found = super::compare(&base, &other, &rules(Better::Lower)).unwrap();
        let cost = |parts: &[Part]| {
            let (num, den): (f64, f64) =
                parts.iter().fold((0.0, 0.0), |(n, d), part| (n + part.num, d + part.den));
            num / den
        };
        let expected = cost(&other) / cost(&base);
        assert!(expected > 1.0, "{expected}");
        assert!((found.ratio.unwrap() - expected).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn denominators_that_differ_between_arms_do_not_bias() {
        // The arm got twice the work in every other block, at the same cost.
        let base =
            bursts(1.0).iter().map(|p| Part { num: 2.0 * p.den, den: p.den }).collect::<Vec<_>>();
        let mut other = base.clone();
        other.iter_mut().step_by(2).for_each(|p| *p = Part { num: 2.0 * p.num, den: 2.0 * p.den });
        let found = super::compare(&base, &other, &rules(Better::Lower)).unwrap();
        assert_eq!(found.verdict, Verdict::NoDifference, "{found:?}");
        assert!((found.ratio.unwrap() - 1.0).abs() < 1e-12);
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
            assert!((there.low * back.high - 1.0).abs() < 1e-6, "{there:?} {back:?}");
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
