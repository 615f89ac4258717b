//! What a trial saw, and what follows from it.

use serde::{Deserialize, Serialize};

use crate::engine::Window;
use crate::error::{Error, ErrorKind};
use crate::measure::{Better, Measure};
use crate::pilot::Pilot;
use crate::plan::{Plan, Reach};
use crate::series;
use crate::stats::{Comparison, Rules, Verdict, compare, compare_quantiles};
use crate::value::{Histogram, Part, Value};

/// The least share of a window's work that must have run under its arm.
const LEAST_EXPOSURE: f64 = 0.9;

/// The largest share of blocks that may be void.
const MOST_VOID: f64 = 0.1;

/// How sure a guard is before it ends a trial.
const GUARDED: f64 = 0.99;

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

    /// How many blocks are complete.
    pub fn blocks(&self) -> u32 {
        (self.windows.len() / self.plan.windows_per_block()) as u32
    }

    /// How many of them hold a window that is void, and so count for nothing.
    pub fn void_blocks(&self) -> usize {
        self.all_blocks().filter(|block| is_void(block)).count()
    }

    /// Compares an arm, an index into the plan's, with the first one, by the first measure and as if
    /// there were no other arm.
    ///
    /// # Errors
    /// [`ErrorKind::TooFewBlocks`] without a complete block; [`ErrorKind::InvalidData`] if there is
    /// no such arm.
    pub fn compare(&self, arm: usize) -> Result<Comparison, Error> {
        self.compare_by(0, arm, 1)
    }

    /// Compares every arm with the first one by every measure.
    ///
    /// The comparisons by the first measure are one family, those by all others are another: in each
    /// the error budget is shared out by Holm's procedure, and an interval has the confidence that its
    /// comparison was tested at.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    pub fn judge(&self) -> Result<Vec<Judged>, Error> {
        let mut all = self.judge_family(0..1)?;
        all.extend(self.judge_family(1..self.measures.len())?);
        Ok(all)
    }

    fn judge_family(&self, measures: std::ops::Range<usize>) -> Result<Vec<Judged>, Error> {
        let arms = 1..self.plan.arms.len();
        let pairs: Vec<_> = measures.flat_map(|m| arms.clone().map(move |arm| (m, arm))).collect();
        let alone = |&(measure, arm): &(usize, usize)| self.compare_by(measure, arm, 1);
        let p: Vec<f64> =
            pairs.iter().map(|pair| Ok(alone(pair)?.p)).collect::<Result<_, Error>>()?;
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
        let mut judged = Vec::new();
        let mut among = pairs.len();
        for place in order {
            let (measure, arm) = pairs[place];
            let comparison = self.compare_by(measure, arm, among)?;
            // Past the first that is not certain nothing is.
            if comparison.p < 1.0 - self.plan.confidence {
                among = among.saturating_sub(1).max(1);
            }
            judged.push(Judged { measure, arm, comparison });
        }
        judged.sort_by_key(|judged| (judged.measure, judged.arm));
        Ok(judged)
    }

    /// Compares by one measure, as one of `among` comparisons that share the error budget.
    fn compare_by(&self, measure: usize, arm: usize, among: usize) -> Result<Comparison, Error> {
        if arm == 0 || arm >= self.plan.arms.len() {
            let last = self.plan.arms.len() - 1;
            let what = format!("no arm {arm} to compare with the first; expected 1 to {last}");
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let look = self.plan.look(self.blocks());
        let (blocks, share) = look.unwrap_or((self.blocks(), 1.0));
        let rules = self.rules(measure, share / among as f64);
        let mut found = self.compare_blocks(blocks, measure, arm, &rules)?;
        let mut notes: Vec<String> = found.note.take().into_iter().collect();
        if look.is_none() {
            found.verdict = Verdict::Inconclusive;
            let first = self.plan.looks_after()[0];
            notes
                .insert(0, format!("ended after {blocks} blocks; the first look is after {first}"));
        } else if blocks < self.plan.blocks {
            let planned = self.plan.blocks;
            notes.insert(
                0,
                format!("judged after {blocks} of {planned} blocks, by a stricter rule"),
            );
        }
        if let Some(reason) = self.withheld(measure, arm, &found) {
            found.verdict = Verdict::Withheld;
            notes.insert(0, reason);
        } else if let Some(reason) = self.lower_bound(measure, arm, &found) {
            notes.push(reason);
        }
        found.note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(found)
    }

    fn rules(&self, measure: usize, share: f64) -> Rules {
        let Plan { margin, confidence, seed, .. } = self.plan;
        Rules { better: self.measures[measure].better, margin, confidence, share, seed }
    }

    fn compare_blocks(
        &self,
        blocks: u32,
        measure: usize,
        arm: usize,
        rules: &Rules,
    ) -> Result<Comparison, Error> {
        let base = self.of_blocks(blocks, measure, 0)?;
        let other = self.of_blocks(blocks, measure, arm)?;
        match (base, other) {
            (Values::Parts(base), Values::Parts(other)) => compare(&base, &other, rules),
            (Values::Histograms(base), Values::Histograms(other)) => {
                compare_quantiles(&base, &other, self.measures[measure].quantile, rules)
            }
            _ => {
                Err(self
                    .mixed(measure, "it is a number under one arm, a histogram under the other"))
            }
        }
    }

    /// What an arm's windows add up to in each block that is not void.
    fn of_blocks(&self, blocks: u32, measure: usize, arm: usize) -> Result<Values, Error> {
        let mut all = Vec::new();
        for block in self.all_blocks().take(blocks as usize).filter(|block| !is_void(block)) {
            let mut values = block.iter().filter(|w| w.arm == arm).map(|w| &w.values[measure]);
            let mut sum = values.next().cloned().unwrap_or(Value::Part(Part::default()));
            values.try_for_each(|value| sum.add(value)).map_err(|why| self.mixed(measure, why))?;
            all.push(sum);
        }
        if all.is_empty() {
            let what = "the trial ended before its first block was complete";
            return Err(Error::new(ErrorKind::TooFewBlocks, what));
        }
        Values::of(all).map_err(|why| self.mixed(measure, why))
    }

    fn mixed(&self, measure: usize, why: &str) -> Error {
        let what = format!("measure '{}' cannot be added up: {why}", self.measures[measure].name);
        Error::new(ErrorKind::InvalidData, what)
    }

    fn all_blocks(&self) -> impl Iterator<Item = &[Window]> {
        self.windows.chunks_exact(self.plan.windows_per_block())
    }

    /// Why what was measured does not answer the question, if it does not.
    fn withheld(&self, measure: usize, arm: usize, found: &Comparison) -> Option<String> {
        let void = self.void_blocks();
        if void as f64 > MOST_VOID * f64::from(self.blocks()) {
            let why =
                self.windows.iter().find_map(|w| w.void.as_deref()).unwrap_or("no reason given");
            return Some(format!(
                "{void} of {} blocks are void, the first because {why}",
                self.blocks()
            ));
        }
        if let Some(exposure) = self.exposure().filter(|share| *share < LEAST_EXPOSURE) {
            return Some(format!(
                "only {:.0} % of the work ran under its arm, the rest under the other one; let arms \
                 settle for longer, or have connections renewed",
                100.0 * exposure
            ));
        }
        if found.verdict != Verdict::NoDifference {
            return None;
        }
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

    /// Why the effect may be larger than it was found to be, if anything says so.
    fn lower_bound(&self, measure: usize, arm: usize, found: &Comparison) -> Option<String> {
        if !matches!(found.verdict, Verdict::Better | Verdict::Worse) {
            return None;
        }
        let held = || {
            let hold = self.pilot.as_ref()?.hold(measure, arm)?;
            hold.outlasts(found.interval?)
        };
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
        for guard in &self.plan.guards {
            for arm in 1..self.plan.arms.len() {
                if self.is_harmed(guard.measure, arm, guard.limit)? {
                    return Ok(Some(Ended::Guard { measure: guard.measure, arm }));
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
        Ok(self.judge_family(0..1)?.iter().all(is_clear).then_some(Ended::Decided))
    }

    /// Whether an arm is certainly beyond a guard's limit, or harms where the baseline never did.
    fn is_harmed(&self, measure: usize, arm: usize, limit: f64) -> Result<bool, Error> {
        if self.void_blocks() as u32 == self.blocks() {
            return Ok(false);
        }
        // Half of the budget is for the other side, which a guard does not look at.
        let confidence = 1.0 - 2.0 * (1.0 - GUARDED);
        let rules = Rules { confidence, share: 1.0, ..self.rules(measure, 1.0) };
        let found = self.compare_blocks(self.blocks(), measure, arm, &rules)?;
        let Some(interval) = found.interval else {
            let from_nothing = found.ratio.is_none() && found.verdict == Verdict::Worse;
            return Ok(from_nothing);
        };
        Ok(match self.measures[measure].better {
            Better::Lower => interval.low > limit,
            Better::Higher => interval.high < limit,
        })
    }
}

/// An arm's blocks by one measure.
enum Values {
    Parts(Vec<Part>),
    Histograms(Vec<Histogram>),
}

impl Values {
    fn of(all: Vec<Value>) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut histograms: Vec<Histogram> = Vec::new();
        for value in all {
            match value {
                Value::Part(part) => parts.push(part),
                Value::Histogram(one) => {
                    if histograms.first().is_some_and(|first| first.bounds != one.bounds) {
                        return Err("its buckets changed");
                    }
                    histograms.push(one);
                }
            }
        }
        match (parts.is_empty(), histograms.is_empty()) {
            (_, true) => Ok(Self::Parts(parts)),
            (true, false) => Ok(Self::Histograms(histograms)),
            (false, false) => Err("it changed from a histogram to a number, or back"),
        }
    }
}

fn is_void(block: &[Window]) -> bool {
    block.iter().any(|window| window.void.is_some())
}
