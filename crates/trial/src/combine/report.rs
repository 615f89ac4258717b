//! Combined records as a table, JSON or a page.

use serde::{Deserialize, Serialize};

use super::{Combined, HostRatio, combine};
use crate::bench::Host;
use crate::error::Error;
use crate::number;
use crate::outcome::Ended;
use crate::record::Record;
use crate::report::{HostLine, Page, Row};

/// The version of the shape, in [`CombinedReport::schema`].
const SCHEMA: u32 = 1;

/// What several records say together, and where they come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CombinedReport {
    /// The version of this shape: 1.
    pub schema: u32,
    /// What was tried.
    pub subject: String,
    /// The command line that combined the records.
    pub command: String,
    /// The records, in the order that [`HostRatio::records`] and [`LeftOut::record`](crate::LeftOut)
    /// count in.
    pub sources: Vec<Source>,
    /// What they say, the first measure first.
    pub combined: Vec<Combined>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A record that was combined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Its file, or another name that tells it from the others.
    pub name: String,
    /// Where it ran.
    pub host: Host,
    /// When it began, in seconds since 1970.
    pub started: f64,
    /// How many blocks are complete.
    pub blocks: u32,
    /// How it ended.
    pub ended: Ended,
}

impl CombinedReport {
    /// Combines records; `names` are their files, in the same order.
    ///
    /// # Errors
    /// As [`combine`].
    pub fn new(
        records: &[Record],
        names: &[String],
        command: impl Into<String>,
    ) -> Result<Self, Error> {
        let combined = combine(records)?;
        let source = |(i, record): (usize, &Record)| Source {
            name: names.get(i).cloned().unwrap_or_else(|| format!("record {}", i + 1)),
            host: record.host.clone(),
            started: record.started,
            blocks: record.outcome.blocks(),
            ended: record.outcome.ended.clone(),
        };
        Ok(Self {
            schema: SCHEMA,
            subject: records[0].subject.clone(),
            command: command.into(),
            sources: records.iter().enumerate().map(source).collect(),
            combined,
            notes: notes(records),
        })
    }

    /// The report as a page, which is also a table for a terminal.
    pub fn page(&self) -> Page {
        let records = self.sources.len();
        let hosts = self.combined.first().map_or(0, |first| first.hosts.len());
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let rows: Vec<Row> = self.combined.iter().map(|combined| self.row(combined)).collect();
        let found = rows.iter().filter(|row| row.is_first).map(Row::sentence);
        let lead = format!("{} of {}. ", count(records, "record"), count(hosts, "host"));
        Page {
            title: format!("Trials of {}, combined", self.subject),
            lead: lead + &found.collect::<Vec<_>>().join(" "),
            rows,
            notes: self.left_out().into_iter().chain(self.notes.clone()).collect(),
            command: self.command.clone(),
            ..Page::default()
        }
    }

    fn row(&self, combined: &Combined) -> Row {
        let line = |host: &HostRatio| HostLine {
            name: self.host_name(host),
            ratio: host.ratio,
            interval: host.interval,
            weight: host.weight,
        };
        Row {
            mechanism: String::new(),
            measure: combined.measure.clone(),
            arms: combined.arms.clone(),
            is_first: combined.is_first,
            comparison: combined.comparison.clone(),
            margin: combined.margin,
            confidence: combined.comparison.confidence,
            windows: Vec::new(),
            hosts: combined.hosts.iter().map(line).collect(),
            prediction: combined.prediction,
            detail: detail(combined),
        }
    }

    fn host_name(&self, host: &HostRatio) -> String {
        let first = &self.sources[host.records[0]].name;
        match host.records.len() {
            1 => first.clone(),
            n => format!("{first} and {} more", n - 1),
        }
    }

    /// What was left out of what, and why: once where it is the same for all measures and arms.
    fn left_out(&self) -> Vec<String> {
        let mut all: Vec<(usize, &str, Vec<String>)> = Vec::new();
        for combined in &self.combined {
            let of = format!("{} under {}", combined.measure.name, combined.arms[1]);
            for left in &combined.left_out {
                let same = |(record, reason, _): &&mut (usize, &str, Vec<String>)| {
                    (*record, *reason) == (left.record, left.reason.as_str())
                };
                match all.iter_mut().find(same) {
                    Some((.., from)) => from.push(of.clone()),
                    None => all.push((left.record, &left.reason, vec![of.clone()])),
                }
            }
        }
        let text = |(record, reason, from): (usize, &str, Vec<String>)| {
            let everywhere = from.len() == self.combined.len();
            let of = if everywhere { String::new() } else { format!(" of {}", from.join(", ")) };
            format!("{} is left out{of}: {reason}", self.sources[record].name)
        };
        all.into_iter().map(text).collect()
    }
}

/// What the combined figures rest on.
fn detail(combined: &Combined) -> String {
    let hosts = combined.hosts.len();
    if hosts < 2 {
        return String::new();
    }
    let prediction = combined.prediction.map(|interval| {
        format!("; expected on one more: {:.3} to {:.3}", interval.low, interval.high)
    });
    format!(
        "{hosts} hosts, which differ by {} besides their noise (I² {}){}",
        number::quantity(100.0 * combined.spread, "%"),
        number::quantity(100.0 * combined.inconsistency, "%"),
        prediction.unwrap_or_default()
    )
}

/// What is to be known of the records.
fn notes(records: &[Record]) -> Vec<String> {
    let unknown = records.iter().filter(|record| record.host.id.is_none()).count();
    let unknown = (unknown > 0 && records.len() > 1).then(|| {
        format!(
            "{unknown} of {} records do not say which host they are of (no /etc/machine-id); each \
             counts as a host of its own",
            records.len()
        )
    });
    let plans = || records.iter().map(|record| &record.outcome.plan);
    let first = plans().next().map(|plan| (plan.margin, plan.confidence));
    let differ = plans().any(|plan| Some((plan.margin, plan.confidence)) != first);
    let differ = differ.then(|| {
        "the plans have different margins or confidences; the smallest margin and the highest \
         confidence hold"
            .to_owned()
    });
    unknown.into_iter().chain(differ).collect()
}
