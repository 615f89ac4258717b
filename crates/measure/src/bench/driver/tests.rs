use std::time::Duration;

use super::*;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Step, Time};

/// A made-up experiment; what its steps come to in each round.
struct Made {
    take: fn(step: usize, now: &Now<'_>) -> anyhow::Result<Vec<f64>>,
    there_and_back: bool,
}

impl Experiment for Made {
    type Ground = Made;
    const NAME: &'static str = "made";
    const EXTENT: (usize, Duration) = (6, Duration::from_secs(1));

    fn parts(&self) -> Vec<Part<Made>> {
        let time = Time { once: 1.0, steps: 3, windows: 1.0, more: 0.5 };
        let part = Part::new("all", "a, b and c", time)
            .claims([Claim::ratio("a / b", "a", "b"), Claim::ratio("a / c", "a", "c")])
            .stage(|made: &Made, _| {
                let step = |(_, case): &(usize, &str)| Step::of(*case, "s");
                let cases = ["a", "b", "c"].into_iter().enumerate();
                let measure = Measure::new(cases, step, |(step, _), now| (made.take)(*step, now));
                Ok(Measure { there_and_back: made.there_and_back, ..measure })
            });
        let none = Part::new("none", "what no host has", time)
            .claims([Claim::ratio("d / e", "d", "e")])
            .stage(|_: &Made, _| Err(Absent("no host has it".into()).into()));
        vec![part, none]
    }

    fn ground(&self, _: &mut Found) -> anyhow::Result<Made> {
        Ok(Made { ..*self })
    }
}

fn once(take: fn(step: usize, now: &Now<'_>) -> anyhow::Result<Vec<f64>>) -> Made {
    Made { take, there_and_back: false }
}

fn plan(rounds: usize) -> Plan {
    let window = Duration::from_secs(1);
    Plan { parts: Vec::new(), rounds, window, seed: 1, quiet: true }
}

fn run_made(made: &Made) -> anyhow::Result<Outcome> {
    run(made, &plan(6), &Stop::on_signals()?)
}

#[test]
fn an_empty_window_costs_the_ratios_of_its_case() {
    let made = |step: usize, now: &Now<'_>| match (step, now.round) {
        (2, 3) => Err(Absent("no packets".into()).into()),
        _ => Ok(vec![step as f64 + 1.0]),
    };
    let Outcome { output, error } = run_made(&once(made)).unwrap();
    assert!(error.is_none() && !output.incomplete);
    let ratios: Vec<_> = output.ratios.iter().map(|ratio| (&*ratio.name, ratio.median)).collect();
    assert_eq!(ratios, [("a / b", 0.5)]);
    assert_eq!(output.absent, ["a / c: c: no packets", "d / e: no host has it"]);
    assert_eq!(output.cases.iter().map(|case| case.runs.len()).collect::<Vec<_>>(), [6, 6, 5]);
}

#[test]
fn an_error_ends_the_run_and_what_was_measured_stays() {
    let made = |step: usize, now: &Now<'_>| match now.round {
        4 => anyhow::bail!("broken"),
        _ => Ok(vec![step as f64 + 1.0]),
    };
    let Outcome { output, error } = run_made(&once(made)).unwrap();
    assert!(format!("{:#}", error.unwrap()).ends_with("broken"));
    assert!(output.incomplete);
    assert_eq!(output.ratios.iter().map(|ratio| ratio.runs).collect::<Vec<_>>(), [4, 4]);
    let at_once = |_: usize, _: &Now<'_>| anyhow::bail!("broken");
    assert!(run_made(&once(at_once)).is_err(), "there is nothing to print");
}

#[test]
fn there_and_back_takes_each_step_twice_and_counts_it_once() {
    let made = |step: usize, now: &Now<'_>| {
        Ok(if now.is_last_turn { vec![step as f64 + 1.0] } else { Vec::new() })
    };
    let Outcome { output, .. } = run_made(&Made { there_and_back: true, ..once(made) }).unwrap();
    assert_eq!(output.cases.iter().map(|case| case.runs.len()).collect::<Vec<_>>(), [6, 6, 6]);
    assert_eq!(output.ratios.len(), 2);
}

#[test]
fn the_time_is_that_of_the_parts_that_were_asked_for() {
    let made = once(|_, _| Ok(Vec::new()));
    assert_eq!(seconds(&made, &plan(2)), 0.5 + 2.0 * (1.0 + 6.0 * 1.5));
    let one = Plan { parts: vec!["all".into()], ..plan(2) };
    assert_eq!(seconds(&made, &one), 0.5 + 10.0);
}
