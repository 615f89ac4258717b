//! What the demo found, as a table, as JSON and as a page.

use std::time::Instant;

use serde_json::{Value, json};
use trial::Verdict;
use trial::bench::Host;
use trial::report::{Page, Row};

use crate::say;

/// What was found, and what was not.
#[derive(Debug)]
pub struct Findings {
    pub(super) rows: Vec<Row>,
    /// What a reader should know, such as what the rows are.
    pub notes: Vec<String>,
    /// What this host cannot run, and why.
    left_out: Vec<(String, String)>,
    /// What should have run and broke, and how.
    failed: Vec<(String, String)>,
    seed: u64,
    /// What the reader called.
    command: String,
    started: Instant,
}

impl Findings {
    pub(super) fn new(seed: u64, command: String) -> Findings {
        let (rows, notes) = (Vec::new(), Vec::new());
        let (left_out, failed) = (Vec::new(), Vec::new());
        Findings { rows, notes, left_out, failed, seed, command, started: Instant::now() }
    }

    /// This host cannot run it.
    pub(super) fn leave_out(&mut self, name: &str, reason: String) {
        say(&format!("left out: {name}: {reason}"));
        self.left_out.push((name.into(), reason));
    }

    /// It broke; the others go on.
    pub(super) fn fail(&mut self, name: &str, error: &anyhow::Error) {
        let reason = format!("{error:#}");
        say(&format!("failed: {name}: {reason}"));
        self.failed.push((name.into(), reason));
    }

    /// Whether nothing was found, though nothing broke: this host cannot run any of it.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether something broke that should have run.
    pub fn is_broken(&self) -> bool {
        !self.failed.is_empty()
    }

    /// The table, and the page with plots.
    pub fn page(&self) -> Page {
        let left_out = self.left_out.iter().map(|(name, why)| format!("{name}: {why}"));
        let failed = self.failed.iter().map(|(name, why)| format!("{name}: failed: {why}"));
        Page {
            title: "cachelane demo".into(),
            lead: self.lead(),
            host: Some(Host::detect()),
            rows: self.rows.clone(),
            notes: self.notes.clone(),
            absent: left_out.chain(failed).collect(),
            command: self.command.clone(),
            ..Page::default()
        }
    }

    /// Everything, for programs.
    pub fn to_json(&self) -> Value {
        let list = |of: &[(String, String)]| -> Vec<Value> {
            of.iter().map(|(name, reason)| json!({"name": name, "reason": reason})).collect()
        };
        json!({
            "schema": 1,
            "command": self.command,
            "host": Host::detect(),
            "seed": self.seed,
            "elapsed_s": self.started.elapsed().as_secs_f64(),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "notes": self.notes,
            "left_out": list(&self.left_out),
            "failed": list(&self.failed),
        })
    }

    fn lead(&self) -> String {
        let verdicts =
            [Verdict::Better, Verdict::Worse, Verdict::NoDifference, Verdict::Inconclusive];
        let said = |verdict: Verdict| {
            let count = self.rows.iter().filter(|r| r.comparison.verdict == verdict).count();
            (count > 0).then(|| format!("{verdict} in {count} of {}", self.rows.len()))
        };
        let mut counts = verdicts.into_iter().filter_map(said).collect::<Vec<_>>().join(", ");
        if counts.is_empty() {
            counts = "nothing was measured".into();
        }
        format!(
            "Each mechanism was off and on by turns, in random order, under the same traffic on \
             this host. On against off: {counts}."
        )
    }
}

fn row(row: &Row) -> Value {
    let found = &row.comparison;
    let window = |dot: &trial::report::Dot| {
        let arm = &row.arms[usize::from(dot.is_other)];
        json!({"block": dot.block, "arm": arm, "value": dot.value})
    };
    json!({
        "mechanism": row.mechanism,
        "measure": row.measure,
        "off": found.base,
        "on": found.other,
        "ratio": found.ratio,
        "interval": found.interval,
        "confidence": row.confidence,
        "margin": row.margin,
        "p": found.p,
        "verdict": found.verdict,
        "blocks": found.blocks,
        "note": found.note,
        "windows": row.windows.iter().map(window).collect::<Vec<_>>(),
    })
}
