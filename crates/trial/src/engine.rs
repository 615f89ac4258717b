//! Walking a plan.

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use crate::error::{BoxError, Error, ErrorKind};
use crate::measure::Measure;
use crate::plan::{Plan, Slot};
use crate::stats::{Comparison, Rules, compare, mean};

/// What is tried: something whose arm can be set and that can be measured.
pub trait Subject {
    /// What [`measure`](Self::measure) gives. Asked once, before the first window.
    fn measured(&self) -> Measure;

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

    /// Measures for `window`: a finite value, 0 or more.
    ///
    /// # Errors
    /// Whatever keeps the window from being measured; it ends the trial.
    fn measure(&mut self, window: Duration) -> Result<f64, BoxError>;
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
}

/// One measured window.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// The block, from 0.
    pub block: u32,
    /// The arm, an index into [`Plan::arms`].
    pub arm: usize,
    /// What was measured.
    pub value: f64,
}

/// What a trial saw.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What was run.
    pub plan: Plan,
    /// What was measured.
    pub measure: Measure,
    /// The windows of the complete blocks, in the order of time.
    pub windows: Vec<Window>,
    /// Whether it ended before its plan did.
    pub stopped: bool,
}

/// Runs a plan to its end, or until `before`, which is told of each window that is about to be set
/// up, breaks it off.
///
/// A stopped trial keeps its complete blocks, is marked so, and is judged by a stricter rule. The
/// arm is left as the last window set it: restoring is the caller's, who knows to what.
///
/// # Errors
/// [`ErrorKind::InvalidPlan`]; [`ErrorKind::Subject`] if the subject fails.
pub fn run(
    plan: &Plan,
    subject: &mut dyn Subject,
    mut before: impl FnMut(&Step<'_>) -> ControlFlow<()>,
) -> Result<Outcome, Error> {
    plan.check()?;
    let measure = subject.measured();
    let schedule = plan.schedule();
    let mut windows = Vec::with_capacity(schedule.len());
    for (window, &slot) in schedule.iter().enumerate() {
        let arm = &plan.arms[slot.arm];
        let step = Step { window, windows: schedule.len(), slot, arm };
        if before(&step).is_break() {
            break;
        }
        let value = measure_slot(plan, subject, &step)?;
        windows.push(Window { block: slot.block, arm: slot.arm, value });
    }
    let stopped = windows.len() < schedule.len();
    windows.truncate(windows.len() - windows.len() % plan.windows_per_block());
    Ok(Outcome { plan: plan.clone(), measure, windows, stopped })
}

fn measure_slot(plan: &Plan, subject: &mut dyn Subject, step: &Step<'_>) -> Result<f64, Error> {
    let failed = |doing: &str, source: BoxError| {
        let place = format!("window {} of {}", step.window + 1, step.windows);
        let what = format!("cannot {doing} arm '{}' ({place})", step.arm);
        Error::subject(what, source)
    };
    subject.set_arm(step.slot.arm).map_err(|source| failed("set", source))?;
    subject.settle(plan.settle);
    subject.measure(plan.window).map_err(|source| failed("measure", source))
}

impl Outcome {
    /// How many blocks are complete.
    pub fn blocks(&self) -> u32 {
        (self.windows.len() / self.plan.windows_per_block()) as u32
    }

    /// Compares an arm, an index into the plan's, with the first one.
    ///
    /// # Errors
    /// [`ErrorKind::TooFewBlocks`] without a complete block; [`ErrorKind::InvalidData`] if there is
    /// no such arm, or if a value is negative, infinite or not a number.
    pub fn compare(&self, arm: usize) -> Result<Comparison, Error> {
        if arm == 0 || arm >= self.plan.arms.len() {
            let last = self.plan.arms.len() - 1;
            let what = format!("no arm {arm} to compare with the first; expected 1 to {last}");
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        if self.windows.is_empty() {
            let what = "the trial was stopped before its first block was complete";
            return Err(Error::new(ErrorKind::TooFewBlocks, what));
        }
        self.check_values()?;
        let rules = Rules {
            better: self.measure.better,
            margin: self.plan.margin,
            confidence: self.plan.confidence,
            share: self.plan.budget_share(self.blocks()),
            seed: self.plan.seed,
        };
        let (base, other) = (self.block_means(0), self.block_means(arm));
        let found = compare(&base, &other, &rules)?;
        let note =
            self.stop_note().into_iter().chain(found.note).reduce(|a, b| format!("{a}; {b}"));
        Ok(Comparison { note, ..found })
    }

    fn stop_note(&self) -> Option<String> {
        let (done, planned) = (self.blocks(), self.plan.blocks);
        let note =
            format!("stopped after {done} of {planned} blocks, so judged by a stricter rule");
        self.stopped.then_some(note)
    }

    fn block_means(&self, arm: usize) -> Vec<f64> {
        let blocks = self.windows.chunks(self.plan.windows_per_block());
        let values = |block: &[Window]| -> Vec<f64> {
            block.iter().filter(|w| w.arm == arm).map(|w| w.value).collect()
        };
        blocks.map(|block| mean(&values(block))).collect()
    }

    fn check_values(&self) -> Result<(), Error> {
        let is_bad = |window: &Window| !window.value.is_finite() || window.value < 0.0;
        let Some(at) = self.windows.iter().position(is_bad) else { return Ok(()) };
        let Window { arm, value, .. } = self.windows[at];
        let what = format!(
            "measure '{}' gave {value} in window {} (arm '{}'); expected a finite number, 0 or more",
            self.measure.name,
            at + 1,
            self.plan.arms[arm]
        );
        Err(Error::new(ErrorKind::InvalidData, what))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::measure::Better;
    use crate::stats::Verdict;

    /// Arm 0 gives 100, arm 1 gives 120; or both what they are told to.
    #[derive(Default)]
    struct Fake {
        arm: usize,
        calls: Vec<String>,
        fail_at: Option<usize>,
        value: Option<f64>,
    }

    impl Subject for Fake {
        fn measured(&self) -> Measure {
            Measure::new("rate", "pps", Better::Higher)
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            self.arm = arm;
            self.calls.push(format!("set {arm}"));
            Ok(())
        }
        fn settle(&mut self, duration: Duration) {
            self.calls.push(format!("settle {duration:?}"));
        }
        fn measure(&mut self, window: Duration) -> Result<f64, BoxError> {
            self.calls.push(format!("measure {window:?}"));
            if self.fail_at == Some(self.calls.len() / 3 - 1) {
                return Err("the traffic stopped".into());
            }
            Ok(self.value.unwrap_or(100.0 + 20.0 * self.arm as f64))
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
        assert!(!outcome.stopped);
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
        for (stop, blocks, stopped) in [(1, 0, true), (4, 1, true), (30, 7, true), (32, 8, false)] {
            let mut subject = Fake::default();
            let outcome = run(&plan(), &mut subject, stop_before(stop)).unwrap();
            assert_eq!((outcome.blocks(), outcome.stopped), (blocks, stopped), "after {stop}");
            assert_eq!(
                subject.calls.len(),
                3 * stop,
                "the window that it stops before is left alone"
            );
            assert_eq!(outcome.windows.len() as u32, 4 * blocks);
        }
    }

    #[test]
    fn a_stopped_trial_says_so_in_its_comparisons() {
        let outcome = run(&plan(), &mut Fake::default(), stop_before(30)).unwrap();
        let note = outcome.compare(1).unwrap().note.unwrap();
        assert!(note.starts_with("stopped after 7 of 8 blocks"), "{note}");
        let outcome = run(&plan(), &mut Fake::default(), on).unwrap();
        assert_eq!(outcome.compare(1).unwrap().note, None);
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
        let mut subject = Fake { value: Some(f64::NAN), ..Fake::default() };
        let error = run(&plan(), &mut subject, on).unwrap().compare(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let expected = "measure 'rate' gave NaN in window 1 (arm '";
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    #[test]
    fn arms_that_do_not_exist_are_refused() {
        let outcome = run(&plan(), &mut Fake::default(), on).unwrap();
        for arm in [0, 2] {
            assert_eq!(outcome.compare(arm).unwrap_err().kind(), ErrorKind::InvalidData, "{arm}");
        }
    }
}
