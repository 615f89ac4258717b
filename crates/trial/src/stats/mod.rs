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

mod estimate;
mod family;
mod paired;
mod quantile;
mod student;
mod subsets;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, ErrorKind};
use crate::measure::Better;
use crate::value::Part;
use subsets::{Found, Item, Subsets};

pub(crate) use estimate::{Estimate, estimate};
pub(crate) use family::{Tested, holm, test_log_ratio};
pub(crate) use paired::median;
pub use paired::{Ratio, paired_difference, paired_ratio};
pub(crate) use quantile::{against_quantile, estimate_quantile, test_quantile};
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
    /// The baseline over all blocks: its numerators' sum over its denominators', or its quantile;
    /// infinite (`null` in JSON) if there is something for nothing.
    #[serde(deserialize_with = "null_is_infinite")]
    pub base: f64,
    /// The same of the arm.
    #[serde(deserialize_with = "null_is_infinite")]
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

fn null_is_infinite<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

impl Comparison {
    pub(crate) fn is_difference(&self) -> bool {
        matches!(self.verdict, Verdict::Better | Verdict::Worse)
    }
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
    Ok(test(base, other, rules, 1)?.conclude(1))
}

/// Tests an arm against the baseline, block by block, as one of a family of so many comparisons.
///
/// # Errors
/// As [`compare`].
pub(crate) fn test(
    base: &[Part],
    other: &[Part],
    rules: &Rules,
    family: usize,
) -> Result<Tested, Error> {
    check_parts(base, other)?;
    let items = items(base, other);
    let subsets = Subsets::new(items.iter().copied(), 1.0);
    // As many as the least share of the budget asks for.
    let mut values = subsets.values(rules.among(family).alpha(), rules.seed);
    let p = values.p().max(student::probability(&items, 1.0));
    let (means, blocks) = ([base, other].map(|parts| sum(parts).ratio()), base.len());
    Ok(Tested::new(p, rules, move |rules| {
        let alpha = rules.alpha();
        let found = student::widen(&items, 1.0, alpha, values.judge(alpha));
        rules.conclude(&found, means, blocks)
    }))
}

/// How likely the blocks are if this is the ratio of the arms, two-sided, and whether the ratio is above
/// it. `alpha` is what the probability will be compared with.
///
/// # Errors
/// As [`compare`].
pub(crate) fn against(
    base: &[Part],
    other: &[Part],
    ratio: f64,
    alpha: f64,
    seed: u64,
) -> Result<(f64, bool), Error> {
    check_parts(base, other)?;
    let items = items(base, other);
    let subsets = Subsets::new(items.iter().copied(), ratio);
    let p = subsets.values(alpha, seed).p().max(student::probability(&items, ratio));
    let excess: f64 = items.iter().map(|item| item.num - ratio * item.den).sum();
    Ok((p, excess > 0.0))
}

fn check_parts(base: &[Part], other: &[Part]) -> Result<(), Error> {
    for of in [|part: &Part| part.num, |part: &Part| part.den] {
        let all = |parts: &[Part]| parts.iter().map(of).collect::<Vec<_>>();
        check(&all(base), &all(other))?;
    }
    Ok(())
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
    /// The rules for one of `among` comparisons that share the budget equally.
    fn among(&self, among: usize) -> Self {
        Self { share: self.share / among as f64, ..*self }
    }

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

pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = values.into_iter();
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

#[cfg(test)]
mod tests;
