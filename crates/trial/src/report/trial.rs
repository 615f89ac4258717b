//! The page of one trial.

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use humantime::{format_duration, format_rfc3339_seconds};

use super::{Page, Row};
use crate::number;
use crate::outcome::{Ended, Outcome};
use crate::pilot::{Hold, Pilot};
use crate::record::Record;

impl Page {
    /// The page of one trial: a row for each of its comparisons, what was run and how, what the pilot saw.
    pub fn from_record(record: &Record) -> Self {
        let row = |judged: &crate::Judged| Row::from_judged("", &record.outcome, judged.clone());
        let (quiet, rows): (Vec<Row>, Vec<Row>) =
            record.judged.iter().map(row).partition(|row| !row.is_first && row.is_quiet());
        let quiet = (!quiet.is_empty()).then(|| {
            let mut names: Vec<&str> = quiet.iter().map(|row| row.measure.name.as_str()).collect();
            names.dedup();
            format!("0 under every arm: {}", names.join(", "))
        });
        let sentences = rows.iter().filter(|row| row.is_first).map(Row::sentence);
        let lead = sentences.collect::<Vec<_>>().join(" ");
        Self {
            title: format!("Trial of {}", record.subject),
            lead: if lead.is_empty() { "Nothing could be judged.".into() } else { lead },
            host: Some(record.host.clone()),
            rows,
            facts: facts(record),
            notes: quiet.iter().chain(&record.remarks).chain(&record.notes).cloned().collect(),
            command: record.command.clone(),
            ..Self::default()
        }
    }
}

/// What was run and how, by name.
fn facts(record: &Record) -> Vec<(String, String)> {
    let outcome = &record.outcome;
    let plan = &outcome.plan;
    let mut facts = vec![
        ("began".into(), date(record.started)),
        ("arms".into(), plan.arms.join(", ") + "; the first is the baseline"),
        (
            "plan".into(),
            format!(
                "{} blocks of {} windows of {} after {} to settle; margin ±{}, confidence {}, seed {}",
                plan.blocks,
                plan.windows_per_block(),
                format_duration(plan.window),
                format_duration(plan.settle),
                number::percent(plan.margin),
                number::percent(plan.confidence),
                plan.seed
            ),
        ),
        ("ended".into(), ended(outcome)),
    ];
    if let Some(exposure) = outcome.exposure() {
        let share = number::quantity(100.0 * exposure, "%");
        facts.push(("exposure".into(), format!("{share} of the work ran under its arm")));
    }
    facts.extend(settings(outcome).map(|settings| ("read back".into(), settings)));
    if let Some(kept) = &record.kept {
        facts.push(("left in force".into(), kept.clone()));
    }
    facts.extend(outcome.pilot.iter().flat_map(|pilot| pilot_facts(pilot, outcome)));
    facts
}

fn ended(outcome: &Outcome) -> String {
    let how = match outcome.ended {
        Ended::Plan => "as planned".into(),
        Ended::Decided => "early, at a look that decided it".into(),
        Ended::Stopped => "broken off".into(),
        Ended::Guard { measure, arm } => {
            let (measure, arm) = (&outcome.measures[measure].name, &outcome.plan.arms[arm]);
            format!("by the guard of {measure}, under {arm}")
        }
    };
    let void = match outcome.void_blocks() {
        0 => String::new(),
        void => format!(", {void} of them void"),
    };
    format!("{how}, after {} of {} blocks{void}", outcome.blocks(), outcome.plan.blocks)
}

/// What the setting was at the ends of each arm's windows, where that is known.
fn settings(outcome: &Outcome) -> Option<String> {
    let of_arm = |(arm, name): (usize, &String)| {
        let windows = outcome.windows.iter().filter(|window| window.arm == arm);
        let all: BTreeSet<&str> = windows.filter_map(|window| window.setting.as_deref()).collect();
        let all = all.into_iter().collect::<Vec<_>>().join(" or ");
        (!all.is_empty()).then(|| format!("{name}: {all}"))
    };
    let settings: Vec<String> = outcome.plan.arms.iter().enumerate().filter_map(of_arm).collect();
    (!settings.is_empty()).then(|| settings.join(", "))
}

fn pilot_facts(pilot: &Pilot, outcome: &Outcome) -> Vec<(String, String)> {
    let plan = &outcome.plan;
    let names = || outcome.measures.iter().map(|measure| &measure.name);
    let noise = names().zip(&pilot.noise).filter(|(_, noise)| **noise > 0.0);
    let noise =
        noise.map(|(name, noise)| format!("{name} {}", number::quantity(100.0 * noise, "%")));
    let noise = noise.collect::<Vec<_>>().join(", ");
    let smallest = 100.0 * pilot.smallest_effect(plan);
    let smallest = number::quantity(smallest, "%");
    let (blocks, first) = (plan.blocks, &outcome.measures[0].name);
    let mut facts = vec![(
        "pilot: smallest effect".into(),
        format!("{blocks} blocks find one of {smallest} on {first} nine times out of ten"),
    )];
    if !noise.is_empty() {
        facts.insert(0, ("pilot: noise of a window".into(), noise));
    }
    for (arm, name) in plan.arms.iter().enumerate().skip(1) {
        let holds = pilot.holds.iter().filter(|hold| hold.arm == arm);
        let told =
            holds.map(|hold| format!("{} {}", outcome.measures[hold.measure].name, held(hold)));
        let told: Vec<String> = told.collect();
        if !told.is_empty() {
            facts.push((format!("pilot: {name} held for long"), told.join(", ")));
        }
    }
    facts
}

/// What holding an arm did by one measure.
fn held(hold: &Hold) -> String {
    let interval = hold.interval.map(|interval| (interval.low, interval.high));
    let ratio = hold.ratio.map_or("-".into(), |ratio| number::ratio(ratio, interval));
    match hold.settles {
        _ if hold.unsettled => format!("{ratio}, still growing at the end"),
        Some(seconds) => format!("{ratio}, there after {}", number::quantity(seconds, "s")),
        None => ratio,
    }
}

/// To the second, in UTC; as a number where no calendar has it.
fn date(seconds: f64) -> String {
    // The year 9999 is the last that can be written.
    const LAST: f64 = 253_402_300_799.0;
    if (0.0..LAST).contains(&seconds) {
        format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs_f64(seconds)).to_string()
    } else {
        format!("{seconds} s after 1970")
    }
}
