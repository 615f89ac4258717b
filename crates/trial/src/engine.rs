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

/// Runs a plan to its end, or until a look decides it, a guard ends it, or `before`, which is told of
/// each window that is about to be set up, breaks it off.
///
/// The arm is left as the last window set it: restoring is the caller's, who knows to what.
///
/// # Errors
/// [`ErrorKind::InvalidPlan`]; [`ErrorKind::Subject`] if the subject fails;
/// [`ErrorKind::InvalidData`] if it gives values that make no sense.
pub fn run(
    plan: &Plan,
    subject: &mut dyn Subject,
    mut before: impl FnMut(&Step<'_>) -> ControlFlow<()>,
) -> Result<Outcome, Error> {
    plan.check()?;
    let measures = subject.measures();
    if let Some(guard) = plan.guards.iter().find(|guard| guard.measure >= measures.len()) {
        let what = format!("guard: no measure {}; there are {}", guard.measure, measures.len());
        return Err(Error::new(ErrorKind::InvalidPlan, what));
    }
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
        block.push(take(plan, subject, slot, &outcome.measures, &place)?);
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

/// Sets up and measures one window; `place` says which, for an error.
pub(crate) fn take(
    plan: &Plan,
    subject: &mut dyn Subject,
    slot: Slot,
    measures: &[Measure],
    place: &str,
) -> Result<Window, Error> {
    let name = &plan.arms[slot.arm];
    let failed = |doing: &str, source: BoxError| {
        Error::subject(format!("cannot {doing} arm '{name}' ({place})"), source)
    };
    subject.set_arm(slot.arm).map_err(|source| failed("set", source))?;
    subject.settle(plan.settle);
    let started = now();
    let sample = subject.measure(plan.window).map_err(|source| failed("measure", source))?;
    check(&sample, measures, &format!("{place}, arm '{name}'"))?;
    let Sample { values, early, exposure, setting, void } = sample;
    let Slot { block, arm } = slot;
    Ok(Window { block, arm, started, ended: now(), values, early, exposure, setting, void })
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn check(sample: &Sample, measures: &[Measure], place: &str) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidData, what));
    if sample.void.is_some() {
        return Ok(());
    }
    for values in std::iter::once(&sample.values).chain(&sample.early) {
        if values.len() != measures.len() {
            let (got, expected) = (values.len(), measures.len());
            return invalid(format!("{got} values in {place}; expected {expected}"));
        }
        for (value, Measure { name, .. }) in values.iter().zip(measures) {
            if let Some(trouble) = value.trouble() {
                return invalid(format!(
                    "measure '{name}' gave {trouble} in {place}; expected finite numbers, 0 or more"
                ));
            }
        }
    }
    match sample.exposure {
        Some(share) if !(0.0..=1.0).contains(&share) => {
            invalid(format!("an exposure of {share} in {place}; expected 0 to 1"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::measure::Better;
    use crate::plan::Guard;
    use crate::stats::Verdict;
    use crate::value::Part;

    /// Arm 0 gives 100, arm 1 gives 120; or both what they are told to.
    #[derive(Default)]
    struct Fake {
        arm: usize,
        calls: Vec<String>,
        fail_at: Option<usize>,
        value: Option<f64>,
        /// As a second measure, of which less is better.
        drops: Option<[f64; 2]>,
        sample: Sample,
    }

    impl Subject for Fake {
        fn measures(&self) -> Vec<Measure> {
            let drops = self.drops.map(|_| Measure::new("drops", "", Better::Lower));
            [Measure::new("rate", "pps", Better::Higher)].into_iter().chain(drops).collect()
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            self.arm = arm;
            self.calls.push(format!("set {arm}"));
            Ok(())
        }
        fn settle(&mut self, duration: Duration) {
            self.calls.push(format!("settle {duration:?}"));
        }
        fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
            self.calls.push(format!("measure {window:?}"));
            if self.fail_at == Some(self.calls.len() / 3 - 1) {
                return Err("the traffic stopped".into());
            }
            let value = Value::from(self.value.unwrap_or(100.0 + 20.0 * self.arm as f64));
            let drops = self.drops.map(|drops| Value::from(drops[self.arm]));
            let values = [value].into_iter().chain(drops).collect();
            Ok(Sample { values, ..self.sample.clone() })
        }
    }

    fn stop_before(window: usize) -> impl FnMut(&Step<'_>) -> ControlFlow<()> {
        move |step| if step.window == window { ControlFlow::Break(()) } else { on(step) }
    }

    fn on(_: &Step<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn plan() -> Plan {
        Plan { blocks: 8, seed: 5, ..Plan::new(["off", "on"]) }
    }

    #[test]
    fn every_window_is_set_settled_and_measured_in_the_plans_order() {
        let mut subject = Fake::default();
        let outcome = run(&plan(), &mut subject, on).unwrap();
        let expected = plan().schedule().into_iter().flat_map(|slot| {
            [format!("set {}", slot.arm), "settle 250ms".into(), "measure 1s".into()]
        });
        assert!(subject.calls.into_iter().eq(expected));
        assert_eq!(outcome.ended, Ended::Plan);
        assert_eq!((outcome.blocks(), outcome.windows.len()), (8, 32));
    }

    #[test]
    fn comparisons_follow_the_measure() {
        let rate = run(&plan(), &mut Fake::default(), on).unwrap().compare(1).unwrap();
        assert_eq!((rate.base, rate.other, rate.blocks), (100.0, 120.0, 8));
        assert!((rate.ratio.unwrap() - 1.2).abs() < 1e-12);
        assert_eq!(rate.verdict, Verdict::Better);
        let mut same = Fake { value: Some(50.0), ..Fake::default() };
        let same = run(&plan(), &mut same, on).unwrap().compare(1).unwrap();
        assert_eq!(same.verdict, Verdict::NoDifference);
    }

    #[test]
    fn stopping_keeps_the_complete_blocks() {
        for (stop, blocks, ended) in [
            (1, 0, Ended::Stopped),
            (4, 1, Ended::Stopped),
            (30, 7, Ended::Stopped),
            (32, 8, Ended::Plan),
        ] {
            let mut subject = Fake::default();
            let outcome = run(&plan(), &mut subject, stop_before(stop)).unwrap();
            assert_eq!((outcome.blocks(), &outcome.ended), (blocks, &ended), "after {stop}");
            let calls = subject.calls.len();
            assert_eq!(calls, 3 * stop, "the window that it stops before is left alone");
            assert_eq!(outcome.windows.len() as u32, 4 * blocks);
        }
    }

    #[test]
    fn a_trial_that_may_end_early_does_at_the_first_look_that_decides() {
        let plan = Plan { blocks: 44, ends_early: true, seed: 5, ..Plan::new(["off", "on"]) };
        let outcome = run(&plan, &mut Fake::default(), on).unwrap();
        assert_eq!((outcome.ended.clone(), outcome.blocks()), (Ended::Decided, 11));
        assert_eq!(outcome.compare(1).unwrap().verdict, Verdict::Better);
        let whole = Plan { ends_early: false, ..plan };
        assert_eq!(run(&whole, &mut Fake::default(), on).unwrap().blocks(), 44);
    }

    #[test]
    fn a_guard_ends_a_trial_that_harms_and_no_other() {
        let guards = vec![Guard { measure: 1, limit: 1.5 }];
        let plan = Plan { blocks: 44, guards, seed: 5, ..Plan::new(["off", "on"]) };
        let drops = |drops| Fake { drops: Some(drops), ..Fake::default() };
        for harmless in [[4.0, 5.0], [0.0, 0.0], [4.0, 0.0]] {
            assert_eq!(run(&plan, &mut drops(harmless), on).unwrap().ended, Ended::Plan);
        }
        for harm in [[4.0, 7.0], [0.0, 1.0]] {
            let outcome = run(&plan, &mut drops(harm), on).unwrap();
            assert_eq!(outcome.ended, Ended::Guard { measure: 1, arm: 1 }, "{harm:?}");
            assert!(outcome.blocks() < 10, "after {} blocks", outcome.blocks());
        }
        let none = Plan { guards: vec![Guard { measure: 2, limit: 1.5 }], ..plan };
        let error = run(&none, &mut drops([0.0, 0.0]), on).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidPlan);
    }

    #[test]
    fn a_trial_without_a_block_has_no_comparison() {
        let outcome = run(&plan(), &mut Fake::default(), stop_before(3)).unwrap();
        assert_eq!(outcome.compare(1).unwrap_err().kind(), ErrorKind::TooFewBlocks);
    }

    #[test]
    fn a_failing_subject_is_named_with_its_place() {
        let mut subject = Fake { fail_at: Some(2), ..Fake::default() };
        let error = run(&plan(), &mut subject, on).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Subject);
        let arm = &plan().arms[plan().schedule()[2].arm].clone();
        let expected = format!("cannot measure arm '{arm}' (window 3 of 32): the traffic stopped");
        assert_eq!(error.to_string(), expected);
        assert!(error.source().is_some());
    }

    #[test]
    fn a_bad_value_is_named_with_its_place() {
        let bad = Some(vec![Value::Part(Part { num: 1.0, den: -2.0 })]);
        for (subject, expected) in [
            (
                Fake { value: Some(f64::NAN), ..Fake::default() },
                "measure 'rate' gave NaN in window",
            ),
            (
                Fake { sample: Sample { early: bad, ..Sample::default() }, ..Fake::default() },
                "measure 'rate' gave -2 in window 1 of 32, arm '",
            ),
            (
                Fake {
                    sample: Sample { exposure: Some(1.5), ..Sample::default() },
                    ..Fake::default()
                },
                "an exposure of 1.5 in window 1",
            ),
        ] {
            let mut subject = subject;
            let error = run(&plan(), &mut subject, on).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn arms_that_do_not_exist_are_refused() {
        let outcome = run(&plan(), &mut Fake::default(), on).unwrap();
        for arm in [0, 2] {
            assert_eq!(outcome.compare(arm).unwrap_err().kind(), ErrorKind::InvalidData, "{arm}");
        }
    }
}
