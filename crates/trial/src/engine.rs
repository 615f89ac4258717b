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
    /// What [`measure`](Self::measure) gives, in its order. Asked once, before the first window.
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

    /// Measures for `window` and gives one value per measure: finite, 0 or more.
    ///
    /// # Errors
    /// Whatever keeps the window from being measured; it ends the trial.
    fn measure(&mut self, window: Duration) -> Result<Vec<f64>, BoxError>;
}

/// Who watches a trial, and may stop it.
pub trait Observer {
    /// A window is about to be set up. Breaking stops the trial.
    fn before(&mut self, step: &Step<'_>) -> ControlFlow<()> {
        let _ = step;
        ControlFlow::Continue(())
    }

    /// A window has been measured. Breaking stops the trial.
    fn after(&mut self, step: &Step<'_>, values: &[f64]) -> ControlFlow<()> {
        let _ = (step, values);
        ControlFlow::Continue(())
    }
}

/// Watches nothing and never stops.
impl Observer for () {}

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
    /// One value per measure, in the order of [`Outcome::measures`].
    pub values: Vec<f64>,
}

/// What a trial saw.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What was run.
    pub plan: Plan,
    /// What was measured.
    pub measures: Vec<Measure>,
    /// The windows of the complete blocks, in the order of time.
    pub windows: Vec<Window>,
    /// Whether it ended before its plan did.
    pub stopped: bool,
}

/// Runs a plan to its end, or until the observer stops it.
///
/// A stopped trial keeps its complete blocks, is marked so, and is judged by a stricter rule. The
/// arm is left as the last window set it: restoring is the caller's, who knows to what.
///
/// # Errors
/// [`ErrorKind::InvalidPlan`]; [`ErrorKind::Subject`] if the subject fails;
/// [`ErrorKind::InvalidData`] if it gives another number of values than it has measures.
pub fn run(
    plan: &Plan,
    subject: &mut dyn Subject,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    plan.check()?;
    let measures = subject.measures();
    let schedule = plan.schedule();
    let mut windows = Vec::with_capacity(schedule.len());
    for (window, &slot) in schedule.iter().enumerate() {
        let arm = &plan.arms[slot.arm];
        let step = Step { window, windows: schedule.len(), slot, arm };
        if observer.before(&step).is_break() {
            break;
        }
        let values = measure_slot(plan, subject, &step, measures.len())?;
        let flow = observer.after(&step, &values);
        windows.push(Window { block: slot.block, arm: slot.arm, values });
        if flow.is_break() {
            break;
        }
    }
    let stopped = windows.len() < schedule.len();
    windows.truncate(windows.len() - windows.len() % plan.windows_per_block());
    Ok(Outcome { plan: plan.clone(), measures, windows, stopped })
}

fn measure_slot(
    plan: &Plan,
    subject: &mut dyn Subject,
    step: &Step<'_>,
    expected: usize,
) -> Result<Vec<f64>, Error> {
    let failed = |doing: &str, source: BoxError| {
        let place = format!("window {} of {}", step.window + 1, step.windows);
        let what = format!("cannot {doing} arm '{}' ({place})", step.arm);
        Error::subject(what, source)
    };
    subject.set_arm(step.slot.arm).map_err(|source| failed("set", source))?;
    subject.settle(plan.settle);
    let values = subject.measure(plan.window).map_err(|source| failed("measure", source))?;
    if values.len() != expected {
        let what = format!(
            "window {} of {} gave {} values; expected one for each of {expected} measures",
            step.window + 1,
            step.windows,
            values.len()
        );
        return Err(Error::new(ErrorKind::InvalidData, what));
    }
    Ok(values)
}

impl Outcome {
    /// How many blocks are complete.
    pub fn blocks(&self) -> u32 {
        (self.windows.len() / self.plan.windows_per_block()) as u32
    }

    /// Compares an arm with the first one, by one measure; both are indices.
    ///
    /// # Errors
    /// [`ErrorKind::TooFewBlocks`] without a complete block; [`ErrorKind::InvalidData`] if there is
    /// no such arm or measure, or if a value of it is negative, infinite or not a number. The other
    /// measures can still be compared.
    pub fn compare(&self, arm: usize, measure: usize) -> Result<Comparison, Error> {
        let missing = |what| Err(Error::new(ErrorKind::InvalidData, what));
        let Some(of) = self.measures.get(measure) else {
            return missing(format!("no measure {measure}; there are {}", self.measures.len()));
        };
        if arm == 0 || arm >= self.plan.arms.len() {
            let last = self.plan.arms.len() - 1;
            return missing(format!(
                "no arm {arm} to compare with the first; expected 1 to {last}"
            ));
        }
        if self.windows.is_empty() {
            let what = "the trial was stopped before its first block was complete";
            return Err(Error::new(ErrorKind::TooFewBlocks, what));
        }
        self.check_values(measure)?;
        let rules = Rules {
            better: of.better,
            margin: self.plan.margin,
            confidence: self.plan.confidence,
            share: self.plan.budget_share(self.blocks()),
            seed: self.plan.seed,
        };
        let (base, other) = (self.block_means(0, measure), self.block_means(arm, measure));
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

    fn block_means(&self, arm: usize, measure: usize) -> Vec<f64> {
        let blocks = self.windows.chunks(self.plan.windows_per_block());
        let values = |block: &[Window]| -> Vec<f64> {
            block.iter().filter(|w| w.arm == arm).map(|w| w.values[measure]).collect()
        };
        blocks.map(|block| mean(&values(block))).collect()
    }

    fn check_values(&self, measure: usize) -> Result<(), Error> {
        for (i, window) in self.windows.iter().enumerate() {
            let value = window.values[measure];
            if !value.is_finite() || value < 0.0 {
                let what = format!(
                    "measure '{}' gave {value} in window {} (arm '{}'); expected a finite number, \
                     0 or more",
                    self.measures[measure].name,
                    i + 1,
                    self.plan.arms[window.arm]
                );
                return Err(Error::new(ErrorKind::InvalidData, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::measure::Better;
    use crate::stats::Verdict;

    /// Arm 0 gives a rate of 100, arm 1 of 120; both the same CPU.
    #[derive(Default)]
    struct Fake {
        arm: usize,
        calls: Vec<String>,
        fail_at: Option<usize>,
        value: Option<f64>,
    }

    impl Subject for Fake {
        fn measures(&self) -> Vec<Measure> {
            vec![
                Measure::new("rate", "pps", Better::Higher),
                Measure::new("cpu", "%", Better::Lower),
            ]
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            self.arm = arm;
            self.calls.push(format!("set {arm}"));
            Ok(())
        }
        fn settle(&mut self, duration: Duration) {
            self.calls.push(format!("settle {duration:?}"));
        }
        fn measure(&mut self, window: Duration) -> Result<Vec<f64>, BoxError> {
            self.calls.push(format!("measure {window:?}"));
            if self.fail_at == Some(self.calls.len() / 3 - 1) {
                return Err("the traffic stopped".into());
            }
            Ok(vec![100.0 + 20.0 * self.arm as f64, self.value.unwrap_or(50.0)])
        }
    }

    struct StopAfter(usize);

    impl Observer for StopAfter {
        fn after(&mut self, step: &Step<'_>, _: &[f64]) -> ControlFlow<()> {
            stop_at(self.0, step.window + 1)
        }
    }

    fn stop_at(stop: usize, at: usize) -> ControlFlow<()> {
        if at == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn plan() -> Plan {
        Plan { blocks: 8, seed: 5, ..Plan::new(["off", "on"]) }
    }

    #[test]
    fn every_window_is_set_settled_and_measured_in_the_plans_order() {
        let mut subject = Fake::default();
        let outcome = run(&plan(), &mut subject, &mut ()).unwrap();
        let expected = plan().schedule().into_iter().flat_map(|slot| {
            [format!("set {}", slot.arm), "settle 250ms".into(), "measure 1s".into()]
        });
        assert!(subject.calls.into_iter().eq(expected));
        assert!(!outcome.stopped);
        assert_eq!((outcome.blocks(), outcome.windows.len()), (8, 32));
    }

    #[test]
    fn comparisons_follow_the_measure() {
        let outcome = run(&plan(), &mut Fake::default(), &mut ()).unwrap();
        let rate = outcome.compare(1, 0).unwrap();
        assert_eq!((rate.base, rate.other, rate.blocks), (100.0, 120.0, 8));
        assert!((rate.ratio.unwrap() - 1.2).abs() < 1e-12);
        assert_eq!(rate.verdict, Verdict::Better);
        assert_eq!(outcome.compare(1, 1).unwrap().verdict, Verdict::NoDifference);
    }

    #[test]
    fn stopping_keeps_the_complete_blocks() {
        for (stop, blocks, stopped) in [(1, 0, true), (4, 1, true), (30, 7, true), (32, 8, false)] {
            let outcome = run(&plan(), &mut Fake::default(), &mut StopAfter(stop)).unwrap();
            assert_eq!((outcome.blocks(), outcome.stopped), (blocks, stopped), "after {stop}");
            assert_eq!(outcome.windows.len() as u32, 4 * blocks);
        }
    }

    #[test]
    fn stopping_before_a_window_leaves_it_alone() {
        struct StopBefore(usize);
        impl Observer for StopBefore {
            fn before(&mut self, step: &Step<'_>) -> ControlFlow<()> {
                stop_at(self.0, step.window)
            }
        }
        let mut subject = Fake::default();
        let outcome = run(&plan(), &mut subject, &mut StopBefore(4)).unwrap();
        assert_eq!((outcome.blocks(), subject.calls.len()), (1, 12));
    }

    #[test]
    fn a_stopped_trial_says_so_in_its_comparisons() {
        let outcome = run(&plan(), &mut Fake::default(), &mut StopAfter(30)).unwrap();
        let note = outcome.compare(1, 0).unwrap().note.unwrap();
        assert!(note.starts_with("stopped after 7 of 8 blocks"), "{note}");
        let outcome = run(&plan(), &mut Fake::default(), &mut ()).unwrap();
        assert_eq!(outcome.compare(1, 0).unwrap().note, None);
    }

    #[test]
    fn a_trial_without_a_block_has_no_comparison() {
        let outcome = run(&plan(), &mut Fake::default(), &mut StopAfter(3)).unwrap();
        assert_eq!(outcome.compare(1, 0).unwrap_err().kind(), ErrorKind::TooFewBlocks);
    }

    #[test]
    fn a_failing_subject_is_named_with_its_place() {
        let mut subject = Fake { fail_at: Some(2), ..Fake::default() };
        let error = run(&plan(), &mut subject, &mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Subject);
        let arm = &plan().arms[plan().schedule()[2].arm].clone();
        let expected = format!("cannot measure arm '{arm}' (window 3 of 32): the traffic stopped");
        assert_eq!(error.to_string(), expected);
        assert!(error.source().is_some());
    }

    #[test]
    fn a_bad_value_costs_its_measure_only() {
        let mut subject = Fake { value: Some(f64::NAN), ..Fake::default() };
        let outcome = run(&plan(), &mut subject, &mut ()).unwrap();
        let error = outcome.compare(1, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(
            error.to_string().starts_with("measure 'cpu' gave NaN in window 1 (arm '"),
            "{error}"
        );
        assert!(outcome.compare(1, 0).is_ok());
    }

    #[test]
    fn arms_and_measures_that_do_not_exist_are_refused() {
        let outcome = run(&plan(), &mut Fake::default(), &mut ()).unwrap();
        for (arm, measure) in [(0, 0), (2, 0), (1, 2)] {
            let error = outcome.compare(arm, measure).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "arm {arm}, measure {measure}");
        }
    }
}
