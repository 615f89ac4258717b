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
    /// At which window it gives `sample` as it is.
    sample_at: Option<usize>,
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
        let window = Some(self.calls.len() / 3 - 1);
        if self.fail_at == window {
            return Err("the traffic stopped".into());
        }
        if self.sample_at == window {
            return Ok(self.sample.clone());
        }
        let value = Value::from(self.value.unwrap_or(100.0 + 20.0 * self.arm as f64));
        let drops = self.drops.map(|drops| Value::from(drops[self.arm]));
        let values = [value].into_iter().chain(drops).collect();
        Ok(Sample { values, ..Sample::default() })
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
    let expected = plan()
        .schedule()
        .into_iter()
        .flat_map(|slot| [format!("set {}", slot.arm), "settle 250ms".into(), "measure 1s".into()]);
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
fn the_fewest_blocks_that_a_plan_may_have_find_what_is_plain_and_no_fewer_do() {
    for (arms, fewest) in [(2, 6), (3, 7), (5, 8), (9, 9)] {
        let names = (0..arms).map(|arm| arm.to_string());
        let plan = Plan { blocks: fewest, seed: 5, ..Plan::new(names) };
        let fewer = Plan { blocks: fewest - 1, ..plan.clone() };
        assert_eq!(fewer.check().unwrap_err().kind(), ErrorKind::InvalidPlan, "{arms} arms");
        let found = run(&plan, &mut Fake::default(), on).unwrap();
        let verdicts = |outcome: &Outcome| -> Vec<Verdict> {
            outcome.judge().unwrap().iter().map(|judged| judged.comparison.verdict).collect()
        };
        assert_eq!(verdicts(&found), vec![Verdict::Better; arms - 1]);
        let windows = found.windows[plan.windows_per_block()..].to_vec();
        let found = Outcome { windows, plan: fewer, ..found };
        assert_eq!(verdicts(&found), vec![Verdict::Inconclusive; arms - 1]);
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
fn a_sample_may_stop_the_trial_even_in_its_last_window() {
    for (at, blocks) in [(0, 0), (13, 3), (28, 7), (31, 7)] {
        let sample = Sample { stop: true, ..Sample::default() };
        let mut subject = Fake { sample_at: Some(at), sample, ..Fake::default() };
        let outcome = run(&plan(), &mut subject, on).unwrap();
        assert_eq!((outcome.ended.clone(), outcome.blocks()), (Ended::Stopped, blocks), "{at}");
        assert_eq!(subject.calls.len(), 3 * (at + 1), "nothing is measured after it");
    }
}

#[test]
fn a_value_that_makes_no_sense_voids_its_window_and_loses_no_other() {
    let of = |num: f64, den: f64| vec![Value::Part(Part { num, den })];
    let sample = |values| Sample { values, ..Sample::default() };
    for (sample, expected) in [
        (sample(of(f64::NAN, 1.0)), "measure 'rate' gave NaN in window 6 of 64, arm '"),
        (sample(of(f64::INFINITY, 1.0)), "measure 'rate' gave inf in window 6 of 64, arm '"),
        (
            Sample { early: Some(of(1.0, -2.0)), ..sample(of(1.0, 1.0)) },
            "measure 'rate' gave -2 in window 6 of 64, arm '",
        ),
        (
            Sample { exposure: Some(1.5), ..sample(of(1.0, 1.0)) },
            "an exposure of 1.5 in window 6 of 64, arm '",
        ),
    ] {
        let plan = Plan { blocks: 16, ..plan() };
        let mut subject = Fake { sample_at: Some(5), sample, ..Fake::default() };
        let outcome = run(&plan, &mut subject, on).unwrap();
        assert_eq!((outcome.windows.len(), outcome.void_blocks()), (64, 1));
        let window = &outcome.windows[5];
        let said = window.void.as_deref().unwrap();
        assert!(said.starts_with(expected), "'{said}' is not '{expected}'");
        assert!(window.values.is_empty() && window.early.is_none());
        assert_eq!((window.exposure, outcome.exposure()), (None, None));
        let found = outcome.compare(1).unwrap();
        assert_eq!((found.verdict, found.blocks), (Verdict::Better, 15));
    }
}

#[test]
fn a_subject_that_gives_more_or_fewer_values_than_it_has_measures_is_refused() {
    let one = || vec![Value::from(1.0)];
    for (values, early, expected) in [
        (vec![], None, "0 values in window 6 of 32, arm '"),
        ([one(), one()].concat(), None, "2 values in window 6 of 32, arm '"),
        (one(), Some(vec![]), "0 values in window 6 of 32, arm '"),
    ] {
        let sample = Sample { values, early, ..Sample::default() };
        let mut subject = Fake { sample_at: Some(5), sample, ..Fake::default() };
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
