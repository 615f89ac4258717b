use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::engine::Window;
use crate::measure::Better;
use crate::outcome::Outcome;
use crate::plan::{Plan, Reach};
use crate::value::{Part, Value};

fn normal(rng: &mut Xoshiro256PlusPlus) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// A trial of two measures, both of which the arm makes `ratio` times what they are; a window is off by
/// a percent.
fn record(host: &str, ratio: f64, seed: u64) -> Record {
    trial(host, ratio, seed, &["off", "on"], 12)
}

fn trial(host: &str, ratio: f64, seed: u64, arms: &[&str], blocks: u32) -> Record {
    let plan = Plan { seed, blocks, ..Plan::new(arms.iter().copied()) };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut value = |arm: usize| {
        let effect = if plan.arms[arm] == "on" { ratio } else { 1.0 };
        Value::from(100.0 * effect * (1.0 + 0.01 * normal(&mut rng)))
    };
    let window = |(i, slot): (usize, crate::Slot)| Window {
        block: slot.block,
        arm: slot.arm,
        started: i as f64,
        ended: i as f64 + 1.0,
        values: vec![value(slot.arm), value(slot.arm)],
        early: None,
        exposure: None,
        setting: None,
        void: None,
    };
    let windows = plan.schedule().into_iter().enumerate().map(window).collect();
    let rate = Measure::new("rate", "/s", Better::Higher);
    let measures = vec![rate, Measure::new("cost", "s", Better::Lower)];
    let outcome = Outcome { plan, measures, pilot: None, windows, ended: Ended::Plan };
    let host = crate::bench::Host { id: Some(host.into()), ..crate::bench::Host::default() };
    let record = Record::new("relay.engine", "cachelane trial", outcome, vec![]).unwrap();
    Record { host, started: seed as f64, ..record }
}

/// A record of each of these ratios, from a host of its own.
fn records(ratios: &[f64]) -> Vec<Record> {
    let of = |(i, ratio): (usize, &f64)| record(&format!("host {i}"), *ratio, i as u64);
    ratios.iter().enumerate().map(of).collect()
}

fn first(records: &[Record]) -> Combined {
    combine(records).unwrap().remove(0)
}

fn note(combined: &Combined) -> &str {
    combined.comparison.note.as_deref().unwrap_or_default()
}

#[test]
fn hosts_that_agree_give_a_sharper_answer_than_each() {
    let all = combine(&records(&[1.1; 6])).unwrap();
    let verdicts: Vec<Verdict> = all.iter().map(|one| one.comparison.verdict).collect();
    assert_eq!(verdicts, [Verdict::Better, Verdict::Worse], "more of the cost is worse");
    assert_eq!([all[0].is_first, all[1].is_first], [true, false]);
    let first = &all[0];
    let Interval { low, high } = first.comparison.interval.unwrap();
    assert!(low < 1.1 && 1.1 < high, "{first:?}");
    assert_eq!((first.hosts.len(), first.comparison.blocks), (6, 72));
    for host in &first.hosts {
        let own = host.interval.unwrap();
        assert!(own.high - own.low > high - low, "{own:?} {low} {high}");
    }
    let Comparison { base, other, ratio, .. } = first.comparison;
    assert!((base - 100.0).abs() < 1.0 && (other / base - ratio.unwrap()).abs() < 1e-12);
    assert!(first.left_out.is_empty() && note(first).is_empty(), "{}", note(first));
}

#[test]
fn hosts_that_differ_are_said_to() {
    let found = first(&records(&[0.7, 0.9, 1.0, 1.2, 1.3, 1.1]));
    assert_eq!(found.comparison.verdict, Verdict::Inconclusive);
    assert!(found.inconsistency > 0.9 && found.spread > 0.1, "{found:?}");
    let found = first(&records(&[0.99, 1.2, 1.3, 1.1, 1.2, 1.1, 1.25]));
    assert_eq!(found.comparison.verdict, Verdict::Better);
    let Interval { low, high } = found.prediction.unwrap();
    assert!(low < 1.0 && high > 1.3, "{low} {high}");
    assert!(note(&found).contains("hosts differ: on one more the ratio may be anywhere from 0."));
}

/// Each record measures its cost three more times; in these records those are only guarded.
fn with_guarded(guarded: impl Fn(usize) -> bool) -> Vec<Record> {
    let mut all = records(&[1.1; 4]);
    for (i, record) in all.iter_mut().enumerate() {
        let outcome = &mut record.outcome;
        for more in 0..3 {
            let measure = Measure::new(format!("more {more}"), "s", Better::Lower);
            outcome.measures.push(Measure { only_guarded: guarded(i), ..measure });
        }
        for window in &mut outcome.windows {
            let cost = window.values[1].clone();
            window.values.extend([cost.clone(), cost.clone(), cost]);
        }
    }
    all
}

#[test]
fn measures_that_every_record_only_guards_do_not_weaken_the_others() {
    for (guarded, among) in
        [((|_| true) as fn(usize) -> bool, 1.0), (|_| false, 4.0), (|record| record > 0, 4.0)]
    {
        let all = combine(&with_guarded(guarded)).unwrap();
        let names: Vec<&str> = all.iter().map(|one| one.measure.name.as_str()).collect();
        assert_eq!(names, ["rate", "cost", "more 0", "more 1", "more 2"]);
        assert!(all.iter().all(|one| one.hosts.len() == 4 && one.left_out.is_empty()));
        let only_guarded = all.iter().filter(|one| one.measure.only_guarded).count();
        assert_eq!(only_guarded, if among == 1.0 { 3 } else { 0 });
        let expected = 1.0 - 0.05 / among;
        let cost = all[1].comparison.confidence;
        assert!((cost - expected).abs() < 1e-12, "among {among}: {cost}");
    }
}

#[test]
fn no_difference_needs_the_whole_interval_within_the_margin() {
    assert_eq!(first(&records(&[1.0; 8])).comparison.verdict, Verdict::NoDifference);
    assert_eq!(first(&records(&[1.0; 2])).comparison.verdict, Verdict::Inconclusive);
}

#[test]
fn many_hours_of_one_host_are_one_host() {
    let mut all = records(&[1.0, 1.01, 0.99, 1.0]);
    all.extend((0..24).map(|hour| record("busy", 1.3, 100 + hour)));
    let found = first(&all);
    assert_eq!(found.hosts.len(), 5);
    let busy = found.hosts.last().unwrap();
    assert_eq!((busy.records.len(), busy.blocks), (24, 24 * 12));
    assert!(busy.weight < 0.25, "{}", busy.weight);
    assert_eq!(found.comparison.verdict, Verdict::Inconclusive);
    for (i, record) in all.iter_mut().enumerate() {
        record.host.id = Some(i.to_string());
    }
    assert_eq!(first(&all).comparison.verdict, Verdict::Better, "what it guards against");
}

#[test]
fn records_without_a_host_are_hosts_of_their_own() {
    let mut all = records(&[1.1; 4]);
    all.iter_mut().for_each(|record| record.host.id = None);
    assert_eq!(first(&all).hosts.len(), 4);
    let report = CombinedReport::new(&all, &[], "cachelane trial combine").unwrap();
    assert!(report.notes[0].starts_with("4 of 4 records do not say which host"), "{report:?}");
}

#[test]
fn one_host_speaks_for_itself() {
    let only = record("a", 1.1, 1);
    let found = combine(std::slice::from_ref(&only)).unwrap();
    for (combined, judged) in found.iter().zip(&only.judged) {
        assert_eq!(combined.comparison.verdict, judged.comparison.verdict);
        assert_eq!(combined.comparison.interval, judged.comparison.interval);
        assert_eq!(note(combined), ONE_HOST);
    }
    let hours: Vec<Record> = (0..6).map(|hour| record("a", 1.1, hour)).collect();
    let found = first(&hours);
    assert_eq!((found.hosts.len(), found.comparison.verdict), (1, Verdict::Better));
    assert!(note(&found).contains(ONE_HOST) && found.prediction.is_none());
}

#[test]
fn arms_and_measures_go_by_their_names() {
    let mut all = records(&[1.2; 3]);
    all.push(trial("swapped", 1.2, 50, &["on", "off"], 12));
    all.push(trial("three", 1.2, 51, &["off", "auto", "on"], 12));
    all[1].outcome.measures.swap(0, 1);
    let found = combine(&all).unwrap();
    let names: Vec<(&str, &str)> =
        found.iter().map(|one| (one.measure.name.as_str(), one.arms[1].as_str())).collect();
    assert_eq!(names, [("rate", "on"), ("cost", "on")], "one record alone has 'auto'");
    for one in &found {
        assert!(one.left_out.is_empty() && one.hosts.len() == 5, "{one:?}");
        assert!(one.hosts.iter().all(|host| (1.15..1.25).contains(&host.ratio)), "{one:?}");
    }
}

#[test]
fn records_that_do_not_count_are_listed_with_the_reason() {
    let mut all = records(&[1.1; 7]);
    all[1].outcome.windows.iter_mut().for_each(|window| window.exposure = Some(0.5));
    for window in &mut all[2].outcome.windows[..8] {
        (window.values, window.void) = (vec![], Some("a device went".into()));
    }
    all[3].outcome.windows.truncate(5 * 4);
    let found = first(&all);
    let reasons: Vec<(usize, &str)> =
        found.left_out.iter().map(|left| (left.record, left.reason.as_str())).collect();
    assert!(reasons[0].0 == 1 && reasons[0].1.starts_with("only 50 % of the work"), "{reasons:?}");
    assert!(reasons[1].0 == 2 && reasons[1].1.contains("a device went"), "{reasons:?}");
    assert_eq!(reasons[2], (3, "5 blocks; expected at least 6"));
    assert_eq!(found.comparison.verdict, Verdict::Better);
    assert!(note(&found).contains("3 of 7 records do not count"), "{}", note(&found));
    all[4].outcome.windows.clear();
    let found = first(&all);
    assert_eq!(found.comparison.verdict, Verdict::Withheld);
    assert!(note(&found).starts_with("4 of 7 records do not count; record 2: only 50 %"));
    all.iter_mut().for_each(|record| record.outcome.windows.clear());
    let found = first(&all);
    assert_eq!((found.comparison.verdict, found.comparison.ratio), (Verdict::Withheld, None));
}

/// The measure is zero under this arm, on this host.
fn silence(record: &mut Record, arm: usize) {
    for window in record.outcome.windows.iter_mut().filter(|window| window.arm == arm) {
        window.values[0] = Value::Part(Part { num: 0.0, den: 1.0 });
    }
}

#[test]
fn a_ratio_of_zero_counts_where_it_contradicts() {
    let mut all = records(&[0.5; 6]);
    silence(&mut all[0], 1);
    let found = first(&all);
    assert_eq!(found.left_out[0].reason, "zero in every window of 'on', so there is no ratio");
    assert_eq!(found.comparison.verdict, Verdict::Worse, "the zero says so, too");
    silence(&mut all[0], 0);
    assert_eq!(first(&all).left_out[0].reason, "zero in every window of both arms");
    let mut all = records(&[1.5; 6]);
    silence(&mut all[0], 1);
    let found = first(&all);
    assert_eq!(found.comparison.verdict, Verdict::Withheld);
    assert!(note(&found).contains("points elsewhere; record 1: zero in every window of 'on'"));
}

#[test]
fn what_windows_may_hide_takes_no_difference_away() {
    let mut all = records(&[1.0; 8]);
    all[0].outcome.plan.reach = Reach::Unknown;
    let found = first(&all);
    assert_eq!(found.comparison.verdict, Verdict::Withheld);
    assert!(note(&found).starts_with("1 of 8 records may hide an effect; record 1: nothing shows"));
}

#[test]
fn records_that_do_not_belong_together_are_refused() {
    let refused = |records: &[Record]| {
        let error = combine(records).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRecord);
        error.to_string()
    };
    assert!(refused(&[]).contains("no record to combine"));
    let mut all = records(&[1.0; 3]);
    all[2].subject = "relay.cpus".into();
    assert!(refused(&all).contains("record 1 is of 'relay.engine', record 3 of 'relay.cpus'"));
    let all = [record("a", 1.0, 1), record("b", 1.0, 2), record("a", 1.0, 1)];
    assert!(refused(&all).contains("records 1 and 3 are the same trial"));
    let all = [record("a", 1.0, 1), trial("b", 1.0, 2, &["0", "1"], 12)];
    assert!(refused(&all).contains("no two records have a measure and its arms in common"));
}

#[test]
fn the_strictest_plan_holds() {
    let mut all = records(&[1.004; 8]);
    assert_eq!(first(&all).comparison.verdict, Verdict::NoDifference);
    all[3].outcome.plan.margin = 0.001;
    let found = first(&all);
    assert_ne!(found.comparison.verdict, Verdict::NoDifference);
    assert_eq!(found.margin, 0.001);
    let report = CombinedReport::new(&all, &[], "x").unwrap();
    assert!(report.notes[0].contains("different margins"), "{:?}", report.notes);
}

#[test]
fn a_report_is_json_a_table_and_a_page() {
    let mut all = records(&[1.1, 1.12, 1.08, 1.1]);
    all[2].outcome.windows.clear();
    all.push(Record { started: 9.0, ..record("host 0", 1.1, 9) });
    let names: Vec<String> = (0..5).map(|i| format!("run-{i}.json")).collect();
    let report = CombinedReport::new(&all, &names, "cachelane trial combine").unwrap();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<CombinedReport>(&json).unwrap(), report);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&value["schema"], &value["combined"][0]["verdict"]), (&1.into(), &"better".into()));
    let page = report.page();
    let text = page.to_text(80, false);
    for expected in [
        "measure            off     on  ratio [95 %]",
        "rate (decides)",
        "rate, on               ratio [interval]",
        "run-0.json and 1 more  1.10",
        "run-2.json is left out: 0 blocks; expected at least 6",
        "3 hosts, which differ by",
    ] {
        assert!(text.contains(expected), "no '{expected}' in {text}");
    }
    let html = page.render();
    assert!(html.contains("Trials of relay.engine, combined") && !html.contains("NaN"));
    assert_eq!(html.matches("all hosts").count(), 2 * 2, "a name and a title for each measure");
    assert_eq!(html.matches("class=\"prediction\"").count(), 2);
    assert!(!html.contains("Windows, in the order of time"));
}
