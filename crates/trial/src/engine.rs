//! Walking a plan.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{BoxError, Error, ErrorKind};
use crate::measure::Measure;
use crate::outcome::{Ended, Outcome};
use crate::plan::{Plan, Slot};
use crate::value::Value;

/// What is tried: something whose arm can be set and that can be measured.
pub trait Subject {
    /// What [`measure`](Self::measure) gives, in its order; the first one decides. Asked once,
    /// before the first window.
    fn measures(&self) -> Vec<Measure>;

    /// Sets an arm, an index into the plan's. Called before every window, also where the arm stays:
    /// so all windows have the same history.
    ///
    /// # Errors
    /// Whatever keeps the arm from being set; it ends the trial.
    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError>;

    /// Waits until what the last arm left behind has gone.
    fn settle(&mut self, duration: Duration) {
        thread::sleep(duration);
    }

    /// Measures for `window`.
    ///
    /// # Errors
    /// Whatever keeps the window from being measured; it ends the trial.
    fn measure(&mut self, window: Duration) -> Result<Sample, BoxError>;
}

/// What a [`Subject`] measured in one window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// A value for each measure; none if the window is void.
    pub values: Vec<Value>,
    /// What the first half of the window gave, where that is known.
    pub early: Option<Vec<Value>>,
    /// How much of the window's work, from 0 to 1, ran under its arm; none if all did, or nobody can
    /// tell.
    pub exposure: Option<f64>,
    /// The setting as it was read back at the window's end.
    pub setting: Option<String>,
    /// Why the window says nothing: a counter started again, a device went.
    pub void: Option<String>,
    /// Whether the trial is to end here: nothing else of the sample counts.
    pub stop: bool,
}

impl<V: Into<Value>> From<V> for Sample {
    /// Of the only measure.
    fn from(value: V) -> Self {
        Self { values: vec![value.into()], ..Self::default() }
    }
}

/// Where in the plan a trial is.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The window, from 0.
    pub window: usize,
    /// How many windows the plan has.
    pub windows: usize,
    /// The block and the arm.
    pub slot: Slot,
    /// The arm's name.
    pub arm: &'a str,
    /// What there is so far.
    pub seen: &'a Outcome,
}

/// One measured window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The block, from 0.
    pub block: u32,
    /// The arm, an index into [`Plan::arms`].
    pub arm: usize,
    /// When it began to be measured, in seconds since 1970.
    pub started: f64,
    /// When it ended.
    pub ended: f64,
    /// A value for each measure; none if it is void.
    pub values: Vec<Value>,
    /// What its first half gave, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early: Option<Vec<Value>>,
    /// See [`Sample::exposure`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<f64>,
    /// See [`Sample::setting`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// See [`Sample::void`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
}

/// Runs a plan to its end, or until a look decides it, a guard ends it, `before`, which is told of
/// each window that is about to be set up, breaks it off, or a [`Sample`] does.
///
/// A window whose values make no sense is void. The arm is left as the last window set it: restoring is
/// the caller's, who knows to what.
///
/// # Errors
/// [`ErrorKind::InvalidPlan`]; [`ErrorKind::Subject`] if the subject fails;
/// [`ErrorKind::InvalidData`] if it gives more or fewer values than it has measures.
pub fn run(
    plan: &Plan,
    subject: &mut dyn Subject,
    mut before: impl FnMut(&Step<'_>) -> ControlFlow<()>,
) -> Result<Outcome, Error> {
    plan.check()?;
    let measures = subject.measures();
    plan.check_guards(&measures)?;
    let schedule = plan.schedule();
    let mut outcome = Outcome::new(plan.clone(), measures);
    let mut block = Vec::with_capacity(plan.windows_per_block());
    for (window, &slot) in schedule.iter().enumerate() {
        let arm = &plan.arms[slot.arm];
        let step = Step { window, windows: schedule.len(), slot, arm, seen: &outcome };
        if before(&step).is_break() {
            outcome.ended = Ended::Stopped;
            break;
        }
        let place = format!("window {} of {}", window + 1, schedule.len());
        let first = outcome.windows.iter().chain(&block).find(|window| window.void.is_none());
        let Some(taken) = take(plan, subject, slot, &outcome.measures, first, &place)? else {
            outcome.ended = Ended::Stopped;
            break;
        };
        block.push(taken);
        if block.len() == plan.windows_per_block() {
            outcome.windows.append(&mut block);
            if let Some(ended) = outcome.decides()? {
                outcome.ended = ended;
                break;
            }
        }
    }
    Ok(outcome)
}

/// Sets up and measures one window; none if the subject ends the trial there. `first` is the first
/// window that is not void; `place` says which this is.
pub(crate) fn take(
    plan: &Plan,
    subject: &mut dyn Subject,
    slot: Slot,
    measures: &[Measure],
    first: Option<&Window>,
    place: &str,
) -> Result<Option<Window>, Error> {
    let name = &plan.arms[slot.arm];
    let failed = |doing: &str, source: BoxError| {
        Error::subject(format!("cannot {doing} arm '{name}' ({place})"), source)
    };
    subject.set_arm(slot.arm).map_err(|source| failed("set", source))?;
    subject.settle(plan.settle);
    let started = now();
    let sample = subject.measure(plan.window).map_err(|source| failed("measure", source))?;
    let Slot { block, arm } = slot;
    let Sample { values, early, exposure, setting, void, stop } = sample;
    if stop {
        return Ok(None);
    }
    let window =
        Window { block, arm, started, ended: now(), values, early, exposure, setting, void };
    let window = if window.void.is_some() { window.emptied() } else { window };
    let place = format!("{place}, arm '{name}'");
    window.check_count(measures, &place)?;
    Ok(Some(match window.trouble(measures, &place) {
        Some(trouble) => Window { void: Some(trouble), exposure: None, ..window }.emptied(),
        None => window.compared_with(first, measures),
    }))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Window {
    /// Voids the window if a measure has other buckets than in `first`, or became another kind: the two
    /// cannot be added up.
    fn compared_with(mut self, first: Option<&Self>, measures: &[Measure]) -> Self {
        let first = first.map_or(&[][..], |first| &first.values);
        if let Some(measure) = self.unlike(first) {
            let name = &measures[measure].name;
            self.void = Some(format!("'{name}' has other buckets than before, or another kind"));
            return self.emptied();
        }
        self
    }

    /// The first measure whose value cannot be added to the one in `values`.
    pub(crate) fn unlike(&self, values: &[Value]) -> Option<usize> {
        let halves = std::iter::once(&self.values).chain(&self.early);
        halves.into_iter().find_map(|half| half.iter().zip(values).position(|(a, b)| !a.is_like(b)))
    }

    fn emptied(self) -> Self {
        Self { values: Vec::new(), early: None, ..self }
    }

    /// Whether it has what these measures ask for; `place` says which window it is, for an error.
    pub(crate) fn check(&self, measures: &[Measure], place: &str) -> Result<(), Error> {
        self.check_count(measures, place)?;
        self.trouble(measures, place).map_or(Ok(()), invalid)
    }

    /// Whether it has a value for each measure, or none if it is void.
    fn check_count(&self, measures: &[Measure], place: &str) -> Result<(), Error> {
        let expected = if self.void.is_some() { 0 } else { measures.len() };
        let mut counts = std::iter::once(&self.values).chain(&self.early).map(Vec::len);
        match counts.find(|count| *count != expected) {
            Some(got) => invalid(format!("{got} values in {place}; expected {expected}")),
            None => Ok(()),
        }
    }

    /// Which of its values make no sense, if any do not.
    fn trouble(&self, measures: &[Measure], place: &str) -> Option<String> {
        let halves = std::iter::once(&self.values).chain(&self.early);
        let values = halves.flat_map(|values| measures.iter().zip(values));
        let mut bad = values.filter_map(|(measure, value)| Some((measure, value.trouble()?)));
        if let Some((Measure { name, .. }, trouble)) = bad.next() {
            return Some(format!(
                "measure '{name}' gave {trouble} in {place}; expected finite numbers, 0 or more"
            ));
        }
        let exposure = self.exposure.filter(|share| !(0.0..=1.0).contains(share))?;
        Some(format!("an exposure of {exposure} in {place}; expected 0 to 1"))
    }
}

fn invalid(what: String) -> Result<(), Error> {
    Err(Error::new(ErrorKind::InvalidData, what))
}

#[cfg(test)]
impl Window {
    /// One of a plain number.
    pub(crate) fn simulated(block: u32, arm: usize, value: f64) -> Self {
        Self {
            block,
            arm,
            started: 0.0,
            ended: 1.0,
            values: vec![value.into()],
            early: None,
            exposure: None,
            setting: None,
            void: None,
        }
    }
}

#[cfg(test)]
mod tests;
