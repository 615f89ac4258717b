//! Trials of one subject on many hosts, or at many hours, as one answer.
//!
//! A trial speaks for the host and the hour in which it ran. Those of several hosts say what to expect
//! on average, how much hosts differ, and what to expect on one more. See `pool` for the statistics;
//! docs/combining.md is for readers of the results.
//!
//! Each record's ratio and its variance are computed from its windows, not from what it says that it
//! found. Records of one host are combined first, so that many hours of one host weigh as one host.

mod asked;
mod pool;
mod report;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::measure::Measure;
use crate::outcome::{Ended, Judged};
use crate::record::Record;
use crate::stats::{Comparison, Estimate, Interval, Rules, Tested, Verdict, holm, test_log_ratio};
use asked::{Asked, Counted, Unusable};
use pool::Pooled;

pub use report::{CombinedReport, Source};

/// The largest share of records that may leave room for an effect that their windows do not show, where
/// the verdict is that there is none.
const MOST_HIDDEN: f64 = 0.1;

/// What is to be known of one host's answer.
const ONE_HOST: &str = "of one host: nothing is said of others";

/// An arm against the baseline, by one measure, from the records of all hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Combined {
    /// What was measured.
    pub measure: Measure,
    /// Whether it is the first measure, which decides.
    pub is_first: bool,
    /// The names of the baseline and of the arm.
    pub arms: [String; 2],
    /// What was found: the ratio is the mean over hosts, base and other are geometric means.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// How far from 1 the ratio may be and still make no difference, as a share.
    pub margin: f64,
    /// Where the ratio on one more host is expected, with the confidence of the plans; none from fewer
    /// than three hosts.
    pub prediction: Option<Interval>,
    /// By how much hosts differ, besides their noise: the standard deviation of the logarithm of their
    /// ratios (tau); about a share where small.
    pub spread: f64,
    /// Which share of what hosts differ by is more than their noise (I²), from 0 to 1.
    pub inconsistency: f64,
    /// What each host found.
    pub hosts: Vec<HostRatio>,
    /// Records that do not count, with the reason.
    pub left_out: Vec<LeftOut>,
}

/// What one host found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRatio {
    /// Its records, indices into those that were combined.
    pub records: Vec<usize>,
    /// How many blocks they have.
    pub blocks: usize,
    /// The ratio.
    pub ratio: f64,
    /// Its interval, with the confidence of the plans; none if it has no finite bounds.
    pub interval: Option<Interval>,
    /// How much it counts for; the hosts' sum is 1.
    pub weight: f64,
}

/// A record that does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The record, an index into those that were combined.
    pub record: usize,
    /// Why.
    pub reason: String,
}

/// Combines records of one subject, by every measure and arm that at least two of them have.
///
/// Measures and arms go by their names; the baseline is the first record's. The comparisons by the first
/// record's first measure are one family, those by other measures another, and those by measures that
/// every record only guards a third, as in [`Outcome::judge`](crate::Outcome::judge). Where plans differ, the smallest margin and the highest
/// confidence hold. A single host speaks for itself, and a note says so.
///
/// # Errors
/// [`ErrorKind::InvalidRecord`] without a record, with records of different subjects, with one record
/// twice, or with records that have nothing in common; of a single record as
/// [`Outcome::judge`](crate::Outcome::judge).
pub fn combine(records: &[Record]) -> Result<Vec<Combined>, Error> {
    check(records)?;
    if let [only] = records {
        return alone(only);
    }
    let all = Asked::all(records);
    if all.is_empty() {
        let what = "no two records have a measure and its arms in common; expected the same names";
        return Err(Error::new(ErrorKind::InvalidRecord, what));
    }
    let mut families: [Vec<Asked>; 3] = Default::default();
    for asked in all {
        families[asked.family()].push(asked);
    }
    Ok(families.into_iter().flat_map(|family| judge(records, family)).collect())
}

/// What a single record says: as it was judged on its host.
fn alone(record: &Record) -> Result<Vec<Combined>, Error> {
    let plan = &record.outcome.plan;
    let combined = |Judged { measure, arm, mut comparison }| {
        let note = comparison.note.iter().map(String::as_str).chain([ONE_HOST]);
        comparison.note = Some(note.collect::<Vec<_>>().join("; "));
        let (ratio, interval) = (comparison.ratio, comparison.interval);
        let host = |ratio| HostRatio {
            records: vec![0],
            blocks: comparison.blocks,
            ratio,
            interval,
            weight: 1.0,
        };
        Combined {
            measure: record.outcome.measures[measure].clone(),
            is_first: measure == 0,
            arms: [plan.arms[0].clone(), plan.arms[arm].clone()],
            margin: plan.margin,
            prediction: None,
            spread: 0.0,
            inconsistency: 0.0,
            hosts: ratio.map(host).into_iter().collect(),
            left_out: Vec::new(),
            comparison,
        }
    };
    Ok(record.outcome.judge()?.into_iter().map(combined).collect())
}

fn check(records: &[Record]) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidRecord, what));
    let Some(first) = records.first() else {
        return invalid("no record to combine; expected at least one".into());
    };
    for (i, record) in records.iter().enumerate() {
        if record.subject != first.subject {
            let (one, other) = (&first.subject, &record.subject);
            return invalid(format!(
                "record 1 is of '{one}', record {} of '{other}'; expected one subject",
                i + 1
            ));
        }
        let is_same = |other: &Record| {
            let of = |record: &Record| (record.started, record.outcome.plan.seed);
            of(other) == of(record) && other.host == record.host
        };
        if let Some(earlier) = records[..i].iter().position(is_same) {
            return invalid(format!(
                "records {} and {} are the same trial; expected each once",
                earlier + 1,
                i + 1
            ));
        }
    }
    Ok(())
}

/// The records of one host that count, by one measure.
struct Host {
    records: Vec<usize>,
    blocks: usize,
    /// What they say together, with the degrees of freedom of their interval.
    own: Estimate,
    /// The variance of that as a part of more.
    noise: f64,
    /// The logarithm of the baseline's value.
    base: f64,
}

/// What there is by one measure for one arm, before it is judged.
struct Gathered<'a> {
    asked: Asked,
    records: &'a [Record],
    counted: Vec<(usize, Counted)>,
    left_out: Vec<(usize, Unusable)>,
    hosts: Vec<Host>,
    /// What they say together, and the rest of it if there are several.
    mean: Option<Estimate>,
    pooled: Option<Pooled>,
    rules: Rules,
}

/// Judges comparisons that share the error budget.
fn judge(records: &[Record], family: Vec<Asked>) -> Vec<Combined> {
    let gathered = family.into_iter().map(|asked| Gathered::new(records, asked));
    let gathered: Vec<Gathered<'_>> = gathered.collect();
    let tested: Vec<Tested> = gathered.iter().map(Gathered::test).collect();
    gathered.into_iter().zip(holm(tested)).map(|(one, found)| one.combined(found)).collect()
}

impl<'a> Gathered<'a> {
    fn new(records: &'a [Record], asked: Asked) -> Self {
        let (mut counted, mut left_out) = (Vec::new(), Vec::new());
        for (i, record) in records.iter().enumerate() {
            match asked.estimate(record) {
                Ok(one) => counted.push((i, one)),
                Err(why) => left_out.push((i, why)),
            }
        }
        let mut groups: Vec<Vec<&(usize, Counted)>> = Vec::new();
        for one in &counted {
            let id = |one: &(usize, Counted)| records[one.0].host.id.as_ref();
            let of_host =
                groups.iter_mut().find(|group| id(one).is_some() && id(group[0]) == id(one));
            match of_host {
                Some(group) => group.push(one),
                None => groups.push(vec![one]),
            }
        }
        let hosts: Vec<Host> = groups.iter().map(|group| Host::of(group)).collect();
        let pooled = (hosts.len() > 1).then(|| {
            Pooled::of(&hosts.iter().map(|host| (host.own.value, host.noise)).collect::<Vec<_>>())
        });
        let plans = || records.iter().map(|record| &record.outcome.plan);
        let rules = Rules {
            better: asked.measure.better,
            margin: plans().map(|plan| plan.margin).fold(1.0, f64::min),
            confidence: plans().map(|plan| plan.confidence).fold(0.0, f64::max),
            share: 1.0,
            seed: 0,
        };
        let alone = || hosts.first().map(|host| host.own);
        let mean = pooled.as_ref().map(|pooled| pooled.mean).or_else(alone);
        Self { asked, records, counted, left_out, hosts, mean, pooled, rules }
    }

    fn weights(&self) -> Vec<f64> {
        self.pooled.as_ref().map_or(vec![1.0; self.hosts.len()], |pooled| pooled.weights.clone())
    }

    fn test(&self) -> Tested {
        let blocks = self.hosts.iter().map(|host| host.blocks).sum();
        let base = self.hosts.iter().zip(self.weights()).map(|(host, weight)| weight * host.base);
        test_log_ratio(self.mean, base.sum::<f64>().exp(), blocks, &self.rules)
    }

    fn combined(self, mut found: Comparison) -> Combined {
        if let Some(reason) = self.withheld(&found) {
            found.verdict = Verdict::Withheld;
            found.note = Some(reason);
        } else {
            let notes: Vec<String> = self.notes(&found);
            found.note = (!notes.is_empty()).then(|| notes.join("; "));
        }
        let (rules, weights) = (self.rules, self.weights());
        let host = |(host, weight): (Host, f64)| HostRatio {
            ratio: host.own.value.exp(),
            interval: interval(host.own.interval(rules.confidence)),
            records: host.records,
            blocks: host.blocks,
            weight,
        };
        let left_out = |(record, why): (usize, Unusable)| LeftOut { record, reason: why.reason };
        let pooled = self.pooled.as_ref();
        Combined {
            prediction: pooled.and_then(|p| p.prediction(rules.confidence)).and_then(interval),
            spread: pooled.map_or(0.0, |pooled| pooled.between.sqrt()),
            inconsistency: pooled.map_or(0.0, |pooled| pooled.inconsistency),
            measure: self.asked.measure,
            is_first: self.asked.is_first,
            arms: self.asked.arms,
            comparison: found,
            margin: rules.margin,
            hosts: self.hosts.into_iter().zip(weights).map(host).collect(),
            left_out: self.left_out.into_iter().map(left_out).collect(),
        }
    }

    /// Why the records do not answer the question, if they do not.
    fn withheld(&self, found: &Comparison) -> Option<String> {
        let (all, out) = (self.records.len(), self.left_out.len());
        if let Some((record, why)) = self.left_out.first().filter(|_| 2 * out > all) {
            let (record, why) = (record + 1, &why.reason);
            return Some(format!("{out} of {all} records do not count; record {record}: {why}"));
        }
        // Which way the ratio goes, where the verdict says so.
        let up = found.ratio.map(|ratio| ratio > 1.0).filter(|_| found.is_difference());
        let settled = up.is_some() || found.verdict == Verdict::NoDifference;
        let against =
            |(_, why): &&(usize, Unusable)| why.points_up.is_some_and(|to| Some(to) != up);
        if let Some((record, why)) = self.left_out.iter().find(against).filter(|_| settled) {
            let (record, why) = (record + 1, &why.reason);
            return Some(format!(
                "a record that cannot be counted points elsewhere; record {record}: {why}"
            ));
        }
        if found.verdict != Verdict::NoDifference {
            return None;
        }
        let hidden = self.counted.iter().filter_map(|(record, one)| {
            let arms = one.arms.iter().filter(|arm| **arm > 0);
            let outcome = &self.records[*record].outcome;
            let why = arms.filter_map(|&arm| outcome.hidden(one.measure, arm)).next()?;
            Some((record + 1, why))
        });
        let hidden: Vec<(usize, String)> = hidden.collect();
        let (many, counted) = (hidden.len(), self.counted.len());
        let (record, why) = hidden.first()?;
        (many as f64 > MOST_HIDDEN * counted as f64).then(|| {
            format!("{many} of {counted} records may hide an effect; record {record}: {why}")
        })
    }

    /// What a reader should know of a verdict that stands.
    fn notes(&self, found: &Comparison) -> Vec<String> {
        let mut notes: Vec<String> = found.note.iter().cloned().collect();
        let (all, out) = (self.records.len(), self.left_out.len());
        if self.hosts.len() == 1 {
            notes.push(ONE_HOST.into());
        }
        if out > 0 {
            notes.push(format!("{out} of {all} records do not count"));
        }
        let counted = || self.counted.iter().map(|(record, one)| (&self.records[*record], one));
        let guarded = |record: &Record| matches!(record.outcome.ended, Ended::Guard { .. });
        let guarded = self.records.iter().filter(|record| guarded(record)).count();
        if guarded > 0 {
            notes.push(format!("a guard ended {guarded} of {all} trials"));
        }
        if found.is_difference() {
            let lower = |(record, one): (&Record, &Counted)| match (one.arms, found.interval) {
                ([0, arm], Some(seen)) => record.outcome.lower_bound(one.measure, arm, seen),
                _ => None,
            };
            let lower: Vec<String> = counted().filter_map(lower).collect();
            if let Some(why) = lower
                .first()
                .filter(|_| lower.len() as f64 > MOST_HIDDEN * self.counted.len() as f64)
            {
                notes.push(format!("in {} of {} records {why}", lower.len(), self.counted.len()));
            }
        }
        notes.extend(self.difference_of_hosts(found));
        notes
    }

    /// That one more host may be on the other side of 1, if it may and the mean is not.
    fn difference_of_hosts(&self, found: &Comparison) -> Option<String> {
        let pooled = self.pooled.as_ref().filter(|_| found.is_difference())?;
        let Interval { low, high } = interval(pooled.prediction(self.rules.confidence)?)?;
        (low < 1.0 && high > 1.0).then(|| {
            format!(
                "hosts differ: on one more the ratio may be anywhere from {low:.3} to {high:.3}"
            )
        })
    }
}

impl Host {
    /// At least one record.
    fn of(group: &[&(usize, Counted)]) -> Self {
        let each: Vec<(f64, f64)> =
            group.iter().map(|(_, one)| (one.estimate.value, pool::noise(&one.estimate))).collect();
        let (own, noise, weights) = match (group, each.as_slice()) {
            ([(_, only)], &[(_, noise)]) => (only.estimate, noise, vec![1.0]),
            _ => {
                let pooled = Pooled::of(&each);
                (pooled.mean, pooled.mean.variance, pooled.weights)
            }
        };
        Self {
            records: group.iter().map(|(record, _)| *record).collect(),
            blocks: group.iter().map(|(_, one)| one.blocks).sum(),
            base: group.iter().zip(weights).map(|((_, one), weight)| weight * one.base.ln()).sum(),
            own,
            noise,
        }
    }
}

/// Of ratios, from that of their logarithms; none if it has no finite bounds.
fn interval(logarithms: [f64; 2]) -> Option<Interval> {
    let [low, high] = logarithms.map(f64::exp);
    high.is_finite().then_some(Interval { low, high })
}

#[cfg(test)]
mod tests;
