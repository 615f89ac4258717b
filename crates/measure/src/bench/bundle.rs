//! What `cachelane bench all` found on a machine, with the machine's description, as one JSON object:
//! to keep, or to send to somebody else.
//!
//! It has no host name, no addresses, no serial numbers and no names of users. Which machine it is,
//! is said by [`Host::id`] alone.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use doctor::Cpus;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use sources::pmu::Pmu;
use trial::bench::{BenchOutput, Host, SCHEMA as OUTPUT_SCHEMA};

use super::driver::Outcome;
use super::experiment::Plan;
use super::list::{Listed, ListedPart};

/// The version of the shape, in [`Bundle::schema`].
pub const SCHEMA: u32 = 1;

/// What all experiments found on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    /// The version of this shape: [`SCHEMA`].
    pub schema: u32,
    /// cachelane's version.
    pub version: String,
    /// Whether cachelane was built with assertions for debugging, which makes it slow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub debug: bool,
    /// The command line that made it, without names of files.
    pub command: String,
    /// When the first experiment began, in seconds since 1970.
    pub started: f64,
    /// How long all of it took so far.
    pub seconds: f64,
    /// Where it ran.
    pub machine: Machine,
    /// The experiments that were asked for, in the order in which they ran.
    pub experiments: Vec<Entry>,
    /// Whether it ended before everything was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

/// A machine, without saying whose it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its CPUs, memory and kernel.
    #[serde(flatten)]
    pub host: Host,
    /// The CPUs of each lane: `0-7|8-15`.
    pub lanes: String,
    /// What the lanes follow from, such as `L3`.
    pub lanes_from: String,
    /// Whether it shows that a hypervisor runs it.
    pub hypervisor: bool,
    /// Whether the CPUs' own counters can be read.
    pub pmu: bool,
    /// Why they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_pmu: Option<String>,
}

/// An experiment that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Times that each case was to be measured.
    pub rounds: usize,
    /// Length of one measurement, in seconds.
    pub window_s: f64,
    /// Whether these are fewer rounds or shorter windows than if nobody says otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub short: bool,
    /// What it was to compare.
    pub parts: Vec<ListedPart>,
    /// How long it took; none if it did not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<BenchOutput>,
    /// Why it ended early, or found nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why a text is no bundle that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

impl Bundle {
    /// One of this machine, from now on, still without experiments.
    ///
    /// # Errors
    /// What the system reports where it shows no CPUs.
    pub(super) fn new(command: String) -> anyhow::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").into(),
            debug: cfg!(debug_assertions),
            command,
            started: now.as_secs_f64(),
            seconds: 0.0,
            machine: Machine::detect()?,
            experiments: Vec::new(),
            incomplete: true,
        })
    }

    /// Adds what came of the experiment of this number, and hands its error back.
    pub(super) fn add(
        &mut self,
        number: usize,
        outcome: anyhow::Result<Outcome>,
        took: Duration,
        since_start: Duration,
    ) -> Option<anyhow::Error> {
        let (output, error) = match outcome {
            Ok(Outcome { output, error }) => (Some(output), error),
            Err(error) => (None, Some(error)),
        };
        let private = Private::of_this_host();
        let entry = &mut self.experiments[number];
        entry.seconds = Some(took.as_secs_f64());
        entry.error = error.as_ref().map(|error| private.hide(&format!("{error:#}")));
        entry.output = output.map(|mut output| {
            output.notes.iter_mut().for_each(|note| *note = private.hide(note));
            for said in &mut output.absent {
                let reason = entry.reason_in(said).map(str::len);
                // The name of a ratio stays, whatever the host is called.
                let (name, reason) = said.split_at(said.len() - reason.unwrap_or(said.len()));
                *said = format!("{name}{}", private.hide(reason));
            }
            output
        });
        self.seconds = since_start.as_secs_f64();
        self.incomplete = self.experiments.iter().any(Entry::is_incomplete);
        error
    }

    /// Whether no experiment has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.experiments.iter().all(|entry| entry.seconds.is_none())
    }

    /// Reads a bundle, and checks that it holds together.
    ///
    /// # Errors
    /// Where the text is something else, of another [`SCHEMA`] or damaged.
    pub fn read(text: &str) -> Result<Self, Unusable> {
        /// What tells a bundle from other files, whatever its schema.
        #[derive(Deserialize)]
        struct Head {
            schema: Option<u64>,
            version: Option<String>,
            experiment: Option<IgnoredAny>,
            experiments: Option<IgnoredAny>,
            machine: Option<IgnoredAny>,
            windows: Option<IgnoredAny>,
        }
        const EXPECTED: &str = "expected what 'cachelane bench all --bundle FILE' writes";
        let damaged = |error: serde_json::Error| {
            Unusable(format!("no bundle, or a damaged one: {error}; {EXPECTED}"))
        };
        let head: Head = serde_json::from_str(text).map_err(damaged)?;
        let found = match head {
            Head { experiment: Some(_), .. } => "the result of a single experiment",
            Head { windows: Some(_), .. } => "the record of a trial",
            Head { experiments: Some(_), machine: Some(_), .. } => "",
            _ => "something else",
        };
        if !found.is_empty() {
            return Err(Unusable(format!("{found}, not a bundle; {EXPECTED}")));
        }
        let of_schema = |found: Option<u64>, expected: u32| {
            let by = head.version.as_ref().map_or(String::new(), |by| format!(" (cachelane {by})"));
            let age = match found {
                Some(found) if found == u64::from(expected) => return Ok(()),
                Some(found) if found > u64::from(expected) => "newer: use a cachelane as new",
                _ => "older: run 'cachelane bench all' again, or use the cachelane that wrote it",
            };
            let found = found.map_or("none".into(), |found| found.to_string());
            Err(Unusable(format!(
                "schema: {found}; this cachelane reads {expected}; the bundle is {age}{by}"
            )))
        };
        of_schema(head.schema, SCHEMA)?;
        let bundle: Self = serde_json::from_str(text).map_err(damaged)?;
        for output in bundle.experiments.iter().filter_map(|entry| entry.output.as_ref()) {
            of_schema(Some(output.schema.into()), OUTPUT_SCHEMA)?;
        }
        bundle.check().map_err(|what| Unusable(format!("damaged: {what}")))?;
        Ok(bundle)
    }

    /// Whether the parts fit each other.
    fn check(&self) -> Result<(), String> {
        for (number, entry) in self.experiments.iter().enumerate() {
            let name = &entry.name;
            if self.experiments[..number].iter().any(|earlier| earlier.name == *name) {
                return Err(format!("experiment '{name}': twice; expected once"));
            }
            if let Some(output) = entry.output.as_ref().filter(|output| output.experiment != *name)
            {
                let found = &output.experiment;
                return Err(format!("experiment '{name}': output of '{found}'; expected its own"));
            }
            let ratios = entry.output.iter().flat_map(|output| &output.ratios);
            for ratio in ratios {
                if !(ratio.low <= ratio.median && ratio.median <= ratio.high) {
                    return Err(format!("'{}': a median outside of its interval", ratio.name));
                }
            }
        }
        // Of years from 1970 to 9999, as dates can be written.
        match (0.0..253_402_300_800.0).contains(&self.started) {
            true => Ok(()),
            false => Err(format!("started: {}; expected seconds since 1970", self.started)),
        }
    }
}

impl Entry {
    /// One that has not begun.
    pub(super) fn new(listed: Listed, plan: &Plan) -> Self {
        Self {
            name: listed.name.into(),
            rounds: plan.rounds,
            window_s: plan.window.as_secs_f64(),
            short: plan.rounds < listed.rounds || plan.window < listed.window,
            parts: listed.parts,
            seconds: None,
            output: None,
            error: None,
        }
    }

    /// Whether something of it was not run.
    pub fn is_incomplete(&self) -> bool {
        self.output.as_ref().is_none_or(|output| output.incomplete)
    }

    /// Why a ratio is not there.
    pub fn why_absent(&self, ratio: &str) -> &str {
        let said = self.output.iter().flat_map(|output| &output.absent);
        let mut reasons = said.filter_map(|said| said.strip_prefix(ratio)?.strip_prefix(": "));
        reasons.next().or(self.error.as_deref()).unwrap_or(match self.seconds {
            Some(_) => "the bundle does not say why",
            None => "the run ended before it",
        })
    }

    /// The reason in what is said of a ratio that is not there.
    fn reason_in<'a>(&self, said: &'a str) -> Option<&'a str> {
        let ratios = self.parts.iter().flat_map(|part| &part.ratios);
        let reasons =
            ratios.filter_map(|ratio| said.strip_prefix(&*ratio.name)?.strip_prefix(": "));
        // The longest name that fits.
        reasons.min_by_key(|reason| reason.len())
    }
}

impl Machine {
    /// This one.
    fn detect() -> anyhow::Result<Self> {
        let cpus = Cpus::here()?;
        let no_pmu = Pmu::detect().err();
        Ok(Self {
            host: Host::detect(),
            lanes: cpus.lanes.to_string(),
            lanes_from: cpus.source.to_string(),
            hypervisor: cpus.hypervisor,
            pmu: no_pmu.is_none(),
            no_pmu,
        })
    }

    /// How many lanes it has.
    pub fn lane_count(&self) -> usize {
        self.lanes.split('|').filter(|lane| !lane.is_empty()).count()
    }
}

/// What no text of a bundle may have.
struct Private {
    /// As the host is called.
    host: String,
    /// The folder of this user.
    home: Option<String>,
}

impl Private {
    fn of_this_host() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, home: std::env::var("HOME").ok() }
    }

    /// The text without it: neither the host's name nor the names of folders of users.
    fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if let Some(home) = self.home.as_ref().filter(|home| home.len() > 1) {
            text = text.replace(home.as_str(), "~");
        }
        let mut parts = text.split("/home/");
        let first = parts.next().unwrap_or_default().to_owned();
        text = parts.fold(first, |text, part| {
            let ends = |c: char| c.is_whitespace() || "/:;,'\")`".contains(c);
            let rest = part.find(ends).map_or("", |at| &part[at..]);
            format!("{text}/home/USER{rest}")
        });
        if self.host.is_empty() {
            return text;
        }
        let whole = |at: usize| {
            let before = text[..at].chars().next_back();
            let after = text[at + self.host.len()..].chars().next();
            ![before, after].into_iter().flatten().any(is_of_name)
        };
        let places: Vec<_> = text.match_indices(&self.host).map(|(at, _)| at).collect();
        let mut hidden = text.clone();
        for at in places.into_iter().rev().filter(|at| whole(*at)) {
            hidden.replace_range(at..at + self.host.len(), "HOST");
        }
        hidden
    }
}

/// Whether it can be part of a label of a host's name.
fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '-' || c == '_'
}

#[cfg(test)]
pub(super) mod tests;
