//! One trial as it is kept: what was run, where, every window, and what was found.
//!
//! `cachelane trial --json` prints a record. [`combine`](crate::combine()) takes those of many hosts.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::bench::Host;
use crate::engine::Window;
use crate::error::{Error, ErrorKind};
use crate::outcome::{Ended, Judged, Outcome};
use crate::pilot::Pilot;

/// The version of the shape, in [`Record::schema`].
pub const SCHEMA: u32 = 1;

/// The most measures that a record may have.
const MOST_MEASURES: usize = 1000;

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The version of this shape: [`SCHEMA`].
    pub schema: u32,
    /// What was tried, e.g. `relay.engine`, `sysctl:net.core.skb_defer_max` or `commands`.
    pub subject: String,
    /// The command line that ran it.
    pub command: String,
    /// Where it ran.
    pub host: Host,
    /// When its first window began to be measured, in seconds since 1970.
    pub started: f64,
    /// What it saw.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What follows, for every arm but the first by every measure.
    pub judged: Vec<Judged>,
    /// What is to be known about the traffic: see [`Outcome::remarks`].
    pub remarks: Vec<String>,
    /// What else a reader should know.
    pub notes: Vec<String>,
    /// The arm that was left in force; none if the setting was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

impl Record {
    /// The record of a trial that ran on this host. One without a complete block that counts has no
    /// judgements, and a note that says so.
    ///
    /// # Errors
    /// As [`Outcome::judge`], but for [`ErrorKind::TooFewBlocks`].
    pub fn new(
        subject: impl Into<String>,
        command: impl Into<String>,
        outcome: Outcome,
        mut notes: Vec<String>,
    ) -> Result<Self, Error> {
        let judged = match outcome.judge() {
            Err(error) if error.kind() == ErrorKind::TooFewBlocks => {
                notes.push(error.to_string());
                Vec::new()
            }
            judged => judged?,
        };
        let pilot = outcome.pilot.iter().flat_map(|pilot| &pilot.windows);
        let first = pilot.chain(&outcome.windows).map(|window| window.started).next();
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            schema: SCHEMA,
            subject: subject.into(),
            command: command.into(),
            host: Host::detect(),
            started: first.unwrap_or_else(|| now().as_secs_f64()),
            judged,
            remarks: outcome.remarks(),
            notes,
            kept: None,
            outcome,
        })
    }

    /// Reads a record, and checks that it holds together: whoever wrote it, what is read can be judged
    /// and shown.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRecord`] if the text is not a record of this [`SCHEMA`], or contradicts
    /// itself.
    pub fn read(text: &str) -> Result<Self, Error> {
        /// What tells a record from other files, whatever its schema.
        #[derive(Deserialize)]
        struct Head {
            schema: Option<u64>,
            experiment: Option<IgnoredAny>,
            plan: Option<IgnoredAny>,
            windows: Option<IgnoredAny>,
        }
        let broken = |error: serde_json::Error| {
            let what = format!(
                "not the record of a trial: {error}; expected what 'cachelane trial --json' prints"
            );
            invalid(what)
        };
        let head: Head = serde_json::from_str(text).map_err(broken)?;
        let found = match head {
            Head { experiment: Some(_), .. } => "the result of a bench",
            Head { plan: Some(_), windows: Some(_), .. } => "",
            _ => "something else",
        };
        if !found.is_empty() {
            return Err(invalid(format!(
                "{found}, not the record of a trial; expected what 'cachelane trial --json' prints"
            )));
        }
        if head.schema != Some(u64::from(SCHEMA)) {
            let schema = head.schema.map_or("none".into(), |schema| schema.to_string());
            return Err(invalid(format!(
                "schema: {schema}; this cachelane reads {SCHEMA}: use the one that wrote the record"
            )));
        }
        let record: Self = serde_json::from_str(text).map_err(broken)?;
        record.check()?;
        Ok(record)
    }

    /// Whether the parts fit each other.
    fn check(&self) -> Result<(), Error> {
        let Outcome { plan, measures, pilot, windows, ended } = &self.outcome;
        plan.check().map_err(|error| invalid(error.to_string()))?;
        if measures.is_empty() || measures.len() > MOST_MEASURES {
            let found = measures.len();
            return Err(invalid(format!("measures: {found}; expected 1 to {MOST_MEASURES}")));
        }
        if let Some(bad) = measures.iter().find(|m| !(m.quantile > 0.0 && m.quantile < 1.0)) {
            let (name, quantile) = (&bad.name, bad.quantile);
            return Err(invalid(format!(
                "measure '{name}': quantile {quantile}; expected more than 0, less than 1"
            )));
        }
        let guards = plan.guards.iter().map(|guard| (guard.measure, 0));
        let judged = self.judged.iter().map(|judged| (judged.measure, judged.arm));
        let ended = match *ended {
            Ended::Guard { measure, arm } => Some((measure, arm)),
            Ended::Plan | Ended::Decided | Ended::Stopped => None,
        };
        for (measure, arm) in guards.chain(judged).chain(ended) {
            self.check_places(measure, arm)?;
        }
        if let Some(kept) = self.kept.as_ref().filter(|kept| !plan.arms.contains(kept)) {
            return Err(invalid(format!("kept: '{kept}'; expected an arm")));
        }
        self.check_blocks()?;
        if let Some(pilot) = pilot {
            self.check_pilot(pilot)?;
        }
        self.check_windows(windows, "window")
    }

    fn check_places(&self, measure: usize, arm: usize) -> Result<(), Error> {
        let Outcome { plan, measures, .. } = &self.outcome;
        for (what, place, count) in
            [("measure", measure, measures.len()), ("arm", arm, plan.arms.len())]
        {
            if place >= count {
                return Err(invalid(format!("{what} {place}; expected less than {count}")));
            }
        }
        Ok(())
    }

    /// Whether the windows come in complete blocks that have every arm twice.
    fn check_blocks(&self) -> Result<(), Error> {
        let Outcome { plan, windows, .. } = &self.outcome;
        let each = plan.windows_per_block();
        let most = plan.blocks as usize * each;
        if windows.len() > most || !windows.len().is_multiple_of(each) {
            let found = windows.len();
            return Err(invalid(format!(
                "windows: {found}; expected a multiple of {each}, at most {most}"
            )));
        }
        for (number, block) in windows.chunks(each).enumerate() {
            let twice = |arm| block.iter().filter(|window| window.arm == arm).count() == 2;
            let same = block.iter().all(|window| window.block as usize == number);
            if !same || !(0..plan.arms.len()).all(twice) {
                return Err(invalid(format!(
                    "block {number}: expected {each} windows of that block, two of every arm"
                )));
            }
        }
        Ok(())
    }

    fn check_pilot(&self, pilot: &Pilot) -> Result<(), Error> {
        let holds = pilot.holds.iter().map(|hold| (hold.measure, hold.arm));
        for (measure, arm) in holds.chain(pilot.harmed) {
            self.check_places(measure, arm)?;
        }
        let (found, expected) = (pilot.noise.len(), self.outcome.measures.len());
        if found != expected {
            return Err(invalid(format!("noise of {found} measures; expected {expected}")));
        }
        self.check_windows(&pilot.windows, "pilot's window")
    }

    fn check_windows(&self, windows: &[Window], which: &str) -> Result<(), Error> {
        let measures = &self.outcome.measures;
        let first = windows.iter().find(|window| window.void.is_none());
        for (number, window) in windows.iter().enumerate() {
            self.check_places(0, window.arm)?;
            let place = format!("{which} {} of {}", number + 1, windows.len());
            window.check(measures, &place).map_err(|error| invalid(error.to_string()))?;
            if let Some(measure) = first.and_then(|first| window.unlike(&first.values)) {
                let name = &measures[measure].name;
                return Err(invalid(format!(
                    "{place}: '{name}' has other buckets than before, or another kind"
                )));
            }
        }
        Ok(())
    }
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidRecord, what)
}

#[cfg(test)]
mod tests;
