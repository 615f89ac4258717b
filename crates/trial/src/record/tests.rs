use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::*;
use crate::engine::{Sample, Step, Subject, run};
use crate::error::BoxError;
use crate::measure::{Better, Measure};
use crate::pilot::pilot;
use crate::plan::{Guard, Plan, Reach};
use crate::stats::Verdict;
use crate::value::{Histogram, Part, Value};

/// Three arms; the second is a tenth faster. A window has a number, another and a histogram.
struct Fake {
    arm: usize,
    windows: usize,
    /// From this window on there are other buckets.
    grows_at: usize,
    /// What the second measure is divided by.
    den: f64,
}

impl Subject for Fake {
    fn measures(&self) -> Vec<Measure> {
        let rate = Measure::new("rate", "pps", Better::Higher);
        let drops = Measure::new("drops", "packets", Better::Lower);
        vec![rate, drops, Measure::new("delay", "s", Better::Lower)]
    }
    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        self.arm = arm;
        Ok(())
    }
    fn settle(&mut self, _: Duration) {}
    fn measure(&mut self, _: Duration) -> Result<Sample, BoxError> {
        self.windows += 1;
        let wobble = 1.0 + 0.001 * (self.windows * 7 % 11) as f64 / 3.0;
        let rate = wobble * if self.arm == 1 { 1.1 } else { 1.0 } / 7.0;
        let mut bounds = vec![1.0, 2.0];
        bounds.extend((self.windows > self.grows_at).then_some(4.0));
        let counts = vec![3.0; bounds.len() + 1];
        let delay = Value::Histogram(Histogram { bounds, counts });
        let drops = Value::Part(Part { num: 1.0, den: self.den });
        let values = vec![rate.into(), drops, delay];
        let setting = Some("as it was".into());
        Ok(Sample { early: Some(values.clone()), values, setting, ..Sample::default() })
    }
}

impl Fake {
    fn new() -> Self {
        Self { arm: 0, windows: 0, grows_at: usize::MAX, den: 0.0 }
    }
}

fn plan() -> Plan {
    let guards = vec![Guard { measure: 0, limit: 0.5 }];
    let plan = Plan::new(["off", "on", "auto"]);
    Plan { blocks: 8, seed: u64::MAX, reach: Reach::Unknown, guards, ..plan }
}

fn on(_: &Step<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn record() -> Record {
    let mut fake = Fake::new();
    let seen = pilot(&plan(), &mut fake, 4, Duration::from_secs(1), on).unwrap();
    let outcome = run(&plan(), &mut fake, on).unwrap();
    let outcome = Outcome { pilot: Some(seen), ..outcome };
    let notes = vec!["a note".into()];
    let record = Record::new("relay.engine", "cachelane trial", outcome, notes).unwrap();
    Record { kept: Some("on".into()), ..record }
}

fn text(record: &Record) -> String {
    serde_json::to_string(record).unwrap()
}

#[test]
fn a_record_comes_back_as_it_was() {
    let record = record();
    assert_eq!(record.judged.len(), 6);
    assert_eq!(record.judged[0].comparison.verdict, Verdict::Better);
    assert!(record.judged[2].comparison.base.is_infinite(), "drops for nothing");
    assert_eq!(Record::read(&text(&record)).unwrap(), record);
    assert_eq!(record.started, record.outcome.pilot.as_ref().unwrap().windows[0].started);
}

#[test]
fn a_trial_without_a_block_that_counts_is_a_record_with_a_note() {
    let stop = |step: &Step<'_>| match step.window {
        3 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let none = run(&plan(), &mut Fake::new(), stop).unwrap();
    let mut void = run(&plan(), &mut Fake::new(), on).unwrap();
    for window in &mut void.windows {
        (window.values, window.early, window.void) = (vec![], None, Some("it rained".into()));
    }
    for (outcome, note) in [(none, "before its first block was complete"), (void, "it rained")] {
        let record = Record::new("x", "x", outcome, vec![]).unwrap();
        assert_eq!(record.judged, []);
        assert!(record.notes[0].contains(note), "{:?}", record.notes);
        assert!(record.started > 1e9);
        assert_eq!(Record::read(&text(&record)).unwrap(), record);
    }
}

#[test]
fn buckets_that_change_void_windows_and_lose_nothing_else() {
    let mut fake = Fake { grows_at: 10, den: 1.0, ..Fake::new() };
    let outcome = run(&plan(), &mut fake, on).unwrap();
    assert!(outcome.windows[10].void.as_ref().unwrap().contains("'delay' has other buckets"));
    let record = Record::new("x", "x", outcome, vec![]).unwrap();
    assert!(record.judged.iter().all(|j| j.comparison.verdict == Verdict::Withheld));
    assert_eq!(Record::read(&text(&record)).unwrap(), record);
}

#[test]
fn a_record_of_a_pilot_whose_buckets_change_is_read() {
    let mut fake = Fake { grows_at: 10, den: 1.0, ..Fake::new() };
    let seen = pilot(&plan(), &mut fake, 4, Duration::from_secs(1), on).unwrap();
    let void = seen.windows.iter().filter(|window| window.void.is_some()).count();
    assert_eq!(void, seen.windows.len() - 10);
    let record = Record::new("x", "x", Outcome { pilot: Some(seen), ..record().outcome }, vec![]);
    let record = record.unwrap();
    assert_eq!(Record::read(&text(&record)).unwrap(), record);
}

#[test]
fn a_record_says_which_guard_ended_its_pilot() {
    let Record { outcome, .. } = record();
    let Outcome { plan, measures, pilot, .. } = outcome;
    let harmed = Pilot { harmed: Some((2, 1)), stopped: true, ..pilot.unwrap() };
    let outcome = Outcome::of_pilot(plan, measures, harmed);
    let record = Record::new("x", "x", outcome, vec![]).unwrap();
    assert_eq!(record.outcome.ended, Ended::Guard { measure: 2, arm: 1 });
    assert_eq!(Record::read(&text(&record)).unwrap(), record);
    let text = text(&record).replace("\"harmed\":[2,1]", "\"harmed\":[3,1]");
    let error = Record::read(&text).unwrap_err();
    assert!(error.to_string().contains("measure 3; expected less than 3"), "{error}");
}

/// The record with what is at this place replaced.
fn with(place: &str, value: Json) -> String {
    let mut json = serde_json::to_value(record()).unwrap();
    match json.pointer_mut(place) {
        Some(there) => *there = value,
        None => {
            let (parent, name) = place.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[name] = value;
        }
    }
    json.to_string()
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    let one = json!({"num": 1.0, "den": 1.0});
    let histogram = json!({"bounds": [9.0], "counts": [1.0, 1.0]});
    for (place, value, expected) in [
        ("/plan/blocks", json!(1_000_000_000), "blocks: 1000000000; expected 7 to 10000"),
        ("/plan/blocks", json!(7), "windows: 48; expected a multiple of 6, at most 42"),
        ("/plan/looks", json!(4_000_000_000_u32), "looks: 4000000000"),
        ("/plan/arms", json!(["off"]), "at least two arms"),
        ("/plan/arms", json!([]), "at least two arms"),
        ("/plan/arms", json!(["off", "on"]), "arm 2; expected less than 2"),
        ("/plan/guards/0/measure", json!(3), "measure 3; expected less than 3"),
        ("/plan/margin", json!(null), "expected f64"),
        ("/plan/window", json!({"secs": u64::MAX, "nanos": u32::MAX}), "overflow"),
        ("/measures", json!([]), "measures: 0; expected 1 to 1000"),
        ("/measures/0/quantile", json!(1.0), "measure 'rate': quantile 1;"),
        ("/windows/5/arm", json!(3), "two of every arm"),
        ("/windows/5/arm", json!(-1), "-1"),
        ("/windows/5/block", json!(1), "block 0: expected 6 windows of that block"),
        ("/windows/5/values", json!([]), "0 values in window 6 of 48; expected 3"),
        ("/windows/5/values", json!([one, one, one]), "6 of 48: 'delay' has other buckets"),
        ("/windows/5/values/2", histogram, "6 of 48: 'delay' has other buckets"),
        ("/windows/5/values/2/counts", json!([]), "buckets out of order or missing"),
        ("/windows/5/values/0/num", json!(-1.0), "measure 'rate' gave -1 in window 6 of 48"),
        ("/windows/5/values/0/num", json!(null), "did not match"),
        ("/windows/5/early", json!([one]), "1 values in window 6 of 48; expected 3"),
        ("/windows/5/void", json!("gone"), "3 values in window 6 of 48; expected 0"),
        ("/windows/5/exposure", json!(2), "an exposure of 2 in window 6 of 48"),
        ("/windows/5", json!({}), "missing field"),
        ("/pilot/holds/0/arm", json!(3), "arm 3; expected less than 3"),
        ("/pilot/noise", json!([]), "noise of 0 measures; expected 3"),
        ("/pilot/windows/0/arm", json!(9), "arm 9; expected less than 3"),
        ("/pilot/windows/1/values", json!([]), "0 values in pilot's window 2 of"),
        ("/judged/0/measure", json!(usize::MAX), "measure 18446744073709551615; expected"),
        ("/judged/0/verdict", json!("splendid"), "splendid"),
        ("/ended", json!({"guard": {"measure": 0, "arm": 7}}), "arm 7; expected less than 3"),
        ("/kept", json!("sideways"), "kept: 'sideways'; expected an arm"),
        ("/schema", json!(2), "schema: 2; this cachelane reads 1"),
        ("/schema", json!(null), "schema: none; this cachelane reads 1"),
        ("/experiment", json!("relay"), "the result of a bench, not the record of a trial"),
        ("/plan", json!(null), "something else, not the record of a trial"),
    ] {
        let error = Record::read(&with(place, value.clone())).map(|_| ()).expect_err(place);
        assert_eq!(error.kind(), ErrorKind::InvalidRecord, "{place} {value}");
        let said = error.to_string();
        assert!(said.contains(expected), "{place} {value}: '{said}' lacks '{expected}'");
    }
}

#[test]
fn what_is_not_a_record_is_refused() {
    let deep = "[".repeat(100_000);
    let infinite = text(&record()).replacen("\"num\":1.0", "\"num\":1e999", 1);
    for other in ["", "{", "[]", "7", "{}", "\u{0}", "<html>", &deep, &infinite] {
        let error = Record::read(other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRecord);
        assert!(error.to_string().contains("not the record of a trial"), "{error}");
    }
}

#[test]
fn numbers_at_the_edge_of_what_there_is_give_answers_or_errors() {
    for number in [f64::MAX, f64::MIN_POSITIVE / 4.0, 1e300, 0.0] {
        let mut record = record();
        let windows = record.outcome.windows.iter_mut();
        for (i, value) in windows.flat_map(|window| &mut window.values).enumerate() {
            match value {
                Value::Part(part) if i % 2 == 0 => part.num = number,
                Value::Part(part) => part.den = number,
                Value::Histogram(histogram) => histogram.counts[i % 2] = number,
            }
        }
        let read = Record::read(&text(&record)).unwrap();
        let again = Record::new("x", "x", read.outcome, vec![]);
        assert!(again.is_ok_and(|record| record.judged.len() == 6) || number > 1e299);
    }
}
