//! What a trial saw, and what follows from it.

use serde::{Deserialize, Serialize};

use crate::engine::Window;
use crate::error::{Error, ErrorKind};
use crate::measure::{Better, Measure};
use crate::pilot::Pilot;
use crate::plan::{Guard, Plan, Reach};
use crate::series;
use crate::stats::{
    self, Comparison, Estimate, Interval, Rules, Tested, Verdict, against_quantile,
    estimate_quantile, holm, test_quantile,
};
use crate::value::{Histogram, Part, Value};

/// The least share of a window's work that must have run under its arm.
const LEAST_EXPOSURE: f64 = 0.9;

/// The largest share of blocks that may be void.
const MOST_VOID: f64 = 0.1;

/// What a trial saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was run.
    pub plan: Plan,
    /// What was measured; the first measure decides.
    pub measures: Vec<Measure>,
    /// What went before, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot: Option<Pilot>,
    /// The windows of the complete blocks, in the order of time.
    pub windows: Vec<Window>,
    /// How it ended.
    pub ended: Ended,
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// As planned.
    Plan,
    /// At a look that decided it.
    Decided,
    /// Broken off.
    Stopped,
    /// By a guard.
    Guard {
        /// What got worse, an index into the measures.
        measure: usize,
        /// Under which arm.
        arm: usize,
    },
}

/// An arm against the baseline, by one measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The measure, an index into [`Outcome::measures`].
    pub measure: usize,
    /// The arm, an index into [`Plan::arms`].
    pub arm: usize,
    /// What was found.
    #[serde(flatten)]
    pub comparison: Comparison,
}

impl Outcome {
    pub(crate) fn new(plan: Plan, measures: Vec<Measure>) -> Self {
        Self { plan, measures, pilot: None, windows: Vec::new(), ended: Ended::Plan }
    }

    /// Of a trial that ended with its pilot: by a guard, or as it was broken off.
    pub fn of_pilot(plan: Plan, measures: Vec<Measure>, pilot: Pilot) -> Self {
        let guard = pilot.harmed.map(|(measure, arm)| Ended::Guard { measure, arm });
        let ended = guard.unwrap_or(Ended::Stopped);
        Self { pilot: Some(pilot), ended, ..Self::new(plan, measures) }
    }

    /// How many blocks are complete.
    pub fn blocks(&self) -> u32 {
        (self.windows.len() / self.plan.windows_per_block()) as u32
    }

    /// How many of them hold a window that is void, and so count for nothing.
    pub fn void_blocks(&self) -> usize {
        self.all_blocks().filter(|block| is_void(block)).count()
    }

    fn first_void(&self) -> Option<&str> {
        self.windows.iter().find_map(|window| window.void.as_deref())
    }

    /// Compares an arm, an index into the plan's, with the first one, by the first measure and as if
    /// there were no other arm.
    ///
    /// # Errors
    /// [`ErrorKind::TooFewBlocks`] without a complete block that counts; [`ErrorKind::InvalidData`] if
    /// there is no such arm.
    pub fn compare(&self, arm: usize) -> Result<Comparison, Error> {
        Ok(self.judge_family(&[(0, arm)])?.remove(0).comparison)
    }

    /// Compares every arm with the first one by every measure.
    ///
    /// The comparisons by the first measure are one family, those by the others are another, and those
    /// by measures that are only guarded are a third: in each the error budget is shared out by Holm's
    /// procedure, and an interval has the confidence that its comparison was tested at.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    pub fn judge(&self) -> Result<Vec<Judged>, Error> {
        let others = 1..self.measures.len();
        let (guarded, others) = others.partition(|&measure| self.measures[measure].only_guarded);
        let mut all = Vec::new();
        for family in [vec![0], others, guarded] {
            all.extend(self.judge_family(&self.pairs(&family))?);
        }
        all.sort_by_key(|judged| judged.measure);
        Ok(all)
    }

    /// These measures with every arm but the first.
    fn pairs(&self, measures: &[usize]) -> Vec<(usize, usize)> {
        let arms = 1..self.plan.arms.len();
        measures.iter().flat_map(|&measure| arms.clone().map(move |arm| (measure, arm))).collect()
    }

    /// Compares by pairs of a measure and an arm, which share the error budget.
    fn judge_family(&self, pairs: &[(usize, usize)]) -> Result<Vec<Judged>, Error> {
        let (blocks, share) = self.plan.look(self.blocks()).unwrap_or((self.blocks(), 1.0));
        let test = |&(measure, arm): &(usize, usize)| {
            self.test(blocks, measure, arm, &self.rules(measure, share), pairs.len())
        };
        let tested: Vec<Tested> = pairs.iter().map(test).collect::<Result<_, _>>()?;
        let judged = pairs.iter().zip(holm(tested)).map(|(&(measure, arm), found)| {
            let comparison = self.with_notes(measure, arm, found);
            Judged { measure, arm, comparison }
        });
        Ok(judged.collect())
    }

    /// The comparison with what else there is to say, which may take its verdict away.
    fn with_notes(&self, measure: usize, arm: usize, mut found: Comparison) -> Comparison {
        let mut notes: Vec<String> = found.note.take().into_iter().collect();
        match (self.plan.look(self.blocks()), self.plan.blocks) {
            (None, _) => {
                found.verdict = Verdict::Inconclusive;
                let (done, first) = (self.blocks(), self.plan.looks_after()[0]);
                let early = format!("ended after {done} blocks; the first look is after {first}");
                notes.insert(0, early);
            }
            (Some((blocks, _)), planned) if blocks < planned => {
                let early =
                    format!("judged after {blocks} of {planned} blocks, by a stricter rule");
                notes.insert(0, early);
            }
            _ => {}
        }
        let withheld = self.withheld().or_else(|| {
            let none = found.verdict == Verdict::NoDifference;
            none.then(|| self.hidden(measure, arm)).flatten()
        });
        if let Some(reason) = withheld {
            found.verdict = Verdict::Withheld;
            notes.insert(0, reason);
        } else if found.is_difference() {
            notes.extend(found.interval.and_then(|seen| self.lower_bound(measure, arm, seen)));
        }
        found.note = (!notes.is_empty()).then(|| notes.join("; "));
        found
    }

    fn rules(&self, measure: usize, share: f64) -> Rules {
        let Plan { margin, confidence, seed, .. } = self.plan;
        Rules { better: self.measures[measure].better, margin, confidence, share, seed }
    }

    /// Tests an arm by a measure, in the first blocks, as one of a family of so many comparisons.
    fn test(
        &self,
        blocks: u32,
        measure: usize,
        arm: usize,
        rules: &Rules,
        family: usize,
    ) -> Result<Tested, Error> {
        if arm == 0 || arm >= self.plan.arms.len() {
            let last = self.plan.arms.len() - 1;
            let what = format!("no arm {arm} to compare with the first; expected 1 to {last}");
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let quantile = self.measures[measure].quantile;
        match self.arms(blocks, measure, [0, arm])? {
            Arms::Parts(base, other) => stats::test(&base, &other, rules, family),
            Arms::Histograms(base, other) => test_quantile(base, other, quantile, rules, family),
        }
    }

    /// What two arms come to by a measure, and the logarithm of the second's ratio to the first, from all
    /// blocks that count; none if there is no such ratio.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    pub(crate) fn estimate(
        &self,
        measure: usize,
        arms: [usize; 2],
    ) -> Result<([f64; 2], Option<Estimate>), Error> {
        match self.arms(self.blocks(), measure, arms)? {
            Arms::Parts(base, other) => Ok(stats::estimate(&base, &other)),
            Arms::Histograms(base, other) => {
                estimate_quantile(base, other, self.measures[measure].quantile)
            }
        }
    }

    /// What two arms come to by a measure, block by block.
    fn arms(&self, blocks: u32, measure: usize, arms: [usize; 2]) -> Result<Arms, Error> {
        let [base, other] = arms.map(|arm| self.of_blocks(blocks, measure, arm));
        Arms::of(base?, other?).map_err(|why| self.mixed(measure, why))
    }

    /// What an arm's windows add up to in each block that is not void.
    fn of_blocks(&self, blocks: u32, measure: usize, arm: usize) -> Result<Vec<Value>, Error> {
        let mut all = Vec::new();
        for block in self.all_blocks().take(blocks as usize).filter(|block| !is_void(block)) {
            let mut values = block.iter().filter(|w| w.arm == arm).map(|w| &w.values[measure]);
            let mut sum = values.next().cloned().unwrap_or(Value::Part(Part::default()));
            values.try_for_each(|value| sum.add(value)).map_err(|why| self.mixed(measure, why))?;
            all.push(sum);
        }
        if all.is_empty() {
            let what = match self.first_void() {
                Some(why) => format!("every block is void, the first because {why}"),
                None => "the trial ended before its first block was complete".into(),
            };
            return Err(Error::new(ErrorKind::TooFewBlocks, what));
        }
        Ok(all)
    }

    fn mixed(&self, measure: usize, why: &str) -> Error {
        let what = format!("measure '{}' cannot be added up: {why}", self.measures[measure].name);
        Error::new(ErrorKind::InvalidData, what)
    }

    fn all_blocks(&self) -> impl Iterator<Item = &[Window]> {
        self.windows.chunks_exact(self.plan.windows_per_block())
    }

    /// Why what was measured does not answer the question, whatever it says.
    pub(crate) fn withheld(&self) -> Option<String> {
        let void = self.void_blocks();
        if void as f64 > MOST_VOID * f64::from(self.blocks()) {
            let why = self.first_void().unwrap_or("no reason given");
            return Some(format!(
                "{void} of {} blocks are void, the first because {why}",
                self.blocks()
            ));
        }
        self.exposure().filter(|share| *share < LEAST_EXPOSURE).map(|exposure| {
            format!(
                "only {:.0} % of the work ran under its arm, the rest under the other one; let arms \
                 settle for longer, or have connections renewed",
                100.0 * exposure
            )
        })
    }

    /// Why there may be an effect that windows do not show, if anything says so.
    pub(crate) fn hidden(&self, measure: usize, arm: usize) -> Option<String> {
        if let Some(trouble) = self.transient(measure, arm) {
            return Some(trouble);
        }
        if self.plan.reach == Reach::AtOnce {
            return None;
        }
        match self.pilot.as_ref().and_then(|pilot| pilot.hold(measure, arm)) {
            None => Some(
                "nothing shows that effects appear within a window: no pilot held the arms".into(),
            ),
            Some(hold) => hold.leaves_room(self.plan.margin),
        }
    }

    /// Why the effect may be larger than what was seen of it, if anything says so.
    pub(crate) fn lower_bound(&self, measure: usize, arm: usize, seen: Interval) -> Option<String> {
        let held = || self.pilot.as_ref()?.hold(measure, arm)?.outlasts(seen);
        self.transient(measure, arm).or_else(held).map(|why| format!("a lower bound: {why}"))
    }

    /// Whether halves of windows after a change of the arm differ otherwise than after none.
    fn transient(&self, measure: usize, arm: usize) -> Option<String> {
        let p = series::transient(&self.windows, measure, arm)?;
        (p < 0.01).then(|| {
            "the first and second halves of windows differ more after a change of the arm than \
             after none, so effects last longer than arms were given to settle"
                .into()
        })
    }

    /// How much of all windows' work ran under its arm, where that is known.
    pub fn exposure(&self) -> Option<f64> {
        let known: Vec<f64> = self.windows.iter().filter_map(|window| window.exposure).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }

    /// What a reader should know about the traffic: its drift and whether windows resemble the ones
    /// before them, by the first measure. Neither harms the verdict, for blocks cancel them.
    pub fn remarks(&self) -> Vec<String> {
        series::remarks(&self.windows, &self.measures[0])
    }

    /// Whether what there is ends the trial, after a block.
    pub(crate) fn decides(&self) -> Result<Option<Ended>, Error> {
        let done = self.blocks();
        if done == self.plan.blocks {
            return Ok(None);
        }
        if let Some(alpha) = self.plan.guard_alpha(done) {
            for guard in &self.plan.guards {
                for arm in 1..self.plan.arms.len() {
                    if self.is_harmed(guard, arm, alpha)? {
                        return Ok(Some(Ended::Guard { measure: guard.measure, arm }));
                    }
                }
            }
        }
        let looks = self.plan.ends_early && self.plan.looks_after().contains(&done);
        if !looks {
            return Ok(None);
        }
        let is_clear = |judged: &Judged| {
            use Verdict::{Better, NoDifference, Worse};
            matches!(judged.comparison.verdict, Better | Worse | NoDifference)
        };
        let first = self.judge_family(&self.pairs(&[0]))?;
        Ok(first.iter().all(is_clear).then_some(Ended::Decided))
    }

    /// Whether an arm is certainly beyond a guard's limit, at a look with this error budget.
    fn is_harmed(&self, guard: &Guard, arm: usize, alpha: f64) -> Result<bool, Error> {
        if self.void_blocks() as u32 == self.blocks() {
            return Ok(false);
        }
        let arms = self.arms(self.blocks(), guard.measure, [0, arm])?;
        guard.is_exceeded(arms, &self.measures[guard.measure], alpha, self.plan.seed)
    }
}

impl Guard {
    /// Whether the second arm is certainly beyond the limit, with this error budget; an empty pair never
    /// is.
    pub(crate) fn is_exceeded(
        &self,
        arms: Arms,
        of: &Measure,
        alpha: f64,
        seed: u64,
    ) -> Result<bool, Error> {
        let limit = self.limit;
        // As much again is for the other side, which a guard does not look at.
        let alpha = 2.0 * alpha;
        let (p, is_above) = match arms {
            Arms::Parts(base, other) if base.is_empty() || other.is_empty() => return Ok(false),
            Arms::Parts(base, other) => stats::against(&base, &other, limit, alpha, seed)?,
            Arms::Histograms(base, other) => {
                against_quantile(base, other, of.quantile, limit, alpha, seed)?
            }
        };
        Ok(p <= alpha && is_above == (of.better == Better::Lower))
    }
}

/// Two arms' blocks by one measure.
pub(crate) enum Arms {
    Parts(Vec<Part>, Vec<Part>),
    Histograms(Vec<Histogram>, Vec<Histogram>),
}

impl Arms {
    /// # Errors
    /// If they are not all of one kind, with the same buckets.
    pub(crate) fn of(base: Vec<Value>, other: Vec<Value>) -> Result<Self, &'static str> {
        let first = base.first().cloned();
        if !base.iter().chain(&other).all(|value| first.as_ref().is_some_and(|f| f.is_like(value)))
        {
            return Err("its buckets changed, or it changed between a number and a histogram");
        }
        let parts = |values: Vec<Value>| values.into_iter().filter_map(Value::part).collect();
        let histograms =
            |values: Vec<Value>| values.into_iter().filter_map(Value::histogram).collect();
        Ok(match first {
            Some(Value::Histogram(_)) => Self::Histograms(histograms(base), histograms(other)),
            _ => Self::Parts(parts(base), parts(other)),
        })
    }
}

fn is_void(block: &[Window]) -> bool {
    block.iter().any(|window| window.void.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight blocks of two arms, whose first two measures differ by a fifth and the other seven not at
    /// all.
    fn outcome(only_guarded: bool) -> Outcome {
        let plan = Plan { blocks: 8, seed: 1, ..Plan::new(["off", "on"]) };
        let measure = |i: usize| {
            let only_guarded = only_guarded && i > 1;
            Measure { only_guarded, ..Measure::new(i.to_string(), "", Better::Higher) }
        };
        let measures: Vec<Measure> = (0..9).map(measure).collect();
        let windows = plan.schedule().into_iter().map(|slot| {
            let value =
                |measure: usize| 100.0 + if measure < 2 { 20.0 * slot.arm as f64 } else { 0.0 };
            let values = (0..measures.len()).map(|i| value(i).into()).collect();
            Window { values, ..Window::simulated(slot.block, slot.arm, 0.0) }
        });
        Outcome { windows: windows.collect(), ..Outcome::new(plan, measures) }
    }

    #[test]
    fn measures_that_are_only_guarded_do_not_weaken_the_others() {
        for (only_guarded, second) in [(false, Verdict::Inconclusive), (true, Verdict::Better)] {
            let judged = outcome(only_guarded).judge().unwrap();
            assert!(judged.iter().map(|judged| judged.measure).eq(0..9), "in their order");
            let verdicts: Vec<Verdict> = judged.iter().map(|j| j.comparison.verdict).collect();
            assert_eq!(verdicts[..2], [Verdict::Better, second], "guarded: {only_guarded}");
            assert_eq!(verdicts[2..], [Verdict::Inconclusive; 7]);
        }
    }

    #[test]
    fn a_measure_says_that_it_is_only_guarded_only_if_it_is() {
        for guarded in [false, true] {
            let measures = outcome(guarded).measures;
            let text = serde_json::to_string(&measures).unwrap();
            assert_eq!(text.matches("only_guarded").count(), if guarded { 7 } else { 0 });
            assert_eq!(serde_json::from_str::<Vec<Measure>>(&text).unwrap(), measures);
        }
    }
}
