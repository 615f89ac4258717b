//! What a bench prints: one JSON object, or tables for a terminal.
//!
//! The same shape for every experiment, so that results of different days and hosts can be kept and
//! compared. [`crate::report::Page::from_bench`] draws it.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::host::Host;
use crate::measure::Better;
use crate::number;
use crate::stats::{Ratio, Verdict, median};
use crate::table::{Align, Table, Tone, one_line};

/// The version of the shape, in [`BenchOutput::schema`].
pub const SCHEMA: u32 = 1;

/// Everything that one experiment found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchOutput {
    /// The version of this shape: [`SCHEMA`].
    pub schema: u32,
    /// The experiment's name.
    pub experiment: String,
    /// Where it ran.
    pub host: Host,
    /// What was measured.
    pub cases: Vec<Case>,
    /// How cases compare.
    pub ratios: Vec<RatioOut>,
    /// How cases grow with a number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
    /// What a reader should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Peers and ratios that are not there, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// Whether the run ended before everything was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

/// What a reader of an incomplete run is told.
const INCOMPLETE: &str = "incomplete: the run ended before everything was measured";

/// One case of an experiment and all its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Its name, e.g. `haproxy`.
    pub name: String,
    /// The unit of its runs, e.g. `B/s`.
    pub unit: String,
    /// What each run gave, in the order of time.
    pub runs: Vec<f64>,
    /// The median of the runs; 0 without runs.
    pub median: f64,
}

/// One case relative to another, paired by run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RatioOut {
    /// What is compared, e.g. `relay / haproxy`.
    pub name: String,
    /// The median of the paired ratios.
    pub median: f64,
    /// The lower bound of its 95 % interval.
    pub low: f64,
    /// The upper bound of its 95 % interval.
    pub high: f64,
    /// How many pairs there are.
    pub runs: usize,
    /// What was claimed, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// Whether the median meets the claim; the interval says how sure that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// Whether the first of the two is better or worse than the second; inconclusive where the
    /// interval holds both. None where that is no question, as with a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// How a figure grows with a number, such as that of connections. The values are the cases'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What is measured, e.g. `requests a second`.
    pub name: String,
    /// What there is more and more of, e.g. `connections`.
    pub along: String,
    /// One line for each of those that are compared.
    pub lines: Vec<Line>,
}

/// A line of a [`Curve`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Whose it is, e.g. `haproxy`.
    pub name: String,
    /// Its points, by ascending number.
    pub points: Vec<Point>,
}

/// A point of a [`Line`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// How many there are; above 0.
    pub at: f64,
    /// The name of the case that says what was measured there.
    pub case: String,
}

/// What a ratio was claimed to be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// At least the first and at most the second.
    Between(f64, f64),
}

impl BenchOutput {
    /// An experiment on this host, still without cases.
    pub fn new(experiment: impl Into<String>, host: Host) -> Self {
        Self {
            schema: SCHEMA,
            experiment: experiment.into(),
            host,
            cases: Vec::new(),
            ratios: Vec::new(),
            curves: Vec::new(),
            notes: Vec::new(),
            absent: Vec::new(),
            incomplete: false,
        }
    }

    /// Tables of the cases and of the ratios, at most `width` characters wide, then what was absent
    /// and the notes. Colour only if asked for.
    pub fn to_table(&self, width: usize, colour: bool) -> String {
        let mut out = cases_table(&self.cases).render(width, colour);
        if !self.ratios.is_empty() {
            out.push('\n');
            out.push_str(&ratios_table(&self.ratios).render(width, colour));
        }
        let absent = self.absent.iter().map(|peer| format!("absent: {}\n", one_line(peer)));
        let notes = self.remarks();
        let notes = notes.iter().map(|note| format!("note: {}\n", one_line(note)));
        let incomplete = self.incomplete.then(|| format!("{INCOMPLETE}\n"));
        let remarks: String = incomplete.into_iter().chain(absent).chain(notes).collect();
        if remarks.is_empty() { out } else { format!("{out}\n{remarks}") }
    }

    /// What a page says first of a run that is incomplete.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.incomplete.then_some(INCOMPLETE)
    }

    /// The notes, and what follows from the figures themselves.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let few = self.ratios.iter().any(|ratio| ratio.runs < 6);
        let few = few.then(|| {
            "An interval of fewer than 6 runs is their range, which is less sure than 95 %.".into()
        });
        self.notes.iter().cloned().chain(few).collect()
    }
}

impl Case {
    /// A case and its median.
    pub fn new(name: impl Into<String>, unit: impl Into<String>, runs: Vec<f64>) -> Self {
        let mut sorted = runs.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let median = if sorted.is_empty() { 0.0 } else { median(&sorted) };
        Self { name: name.into(), unit: unit.into(), runs, median }
    }
}

impl RatioOut {
    /// A ratio of which nothing was claimed.
    pub fn new(name: impl Into<String>, ratio: &Ratio) -> Self {
        Self {
            name: name.into(),
            median: ratio.median,
            low: ratio.low,
            high: ratio.high,
            runs: ratio.runs,
            bar: None,
            met: None,
            verdict: None,
        }
    }

    /// The same with what was claimed, and whether the median meets it.
    #[must_use]
    pub fn with_bar(self, bar: Bar) -> Self {
        let met = bar.is_met_by(self.median);
        Self { bar: Some(bar), met: Some(met), ..self }
    }

    /// The same with its verdict, where the two are equal at `even`: 1 of a ratio, 0 of a difference.
    #[must_use]
    pub fn judged(self, better: Better, even: f64) -> Self {
        let (above, below) = match better {
            Better::Higher => (Verdict::Better, Verdict::Worse),
            Better::Lower => (Verdict::Worse, Verdict::Better),
        };
        let verdict = match (self.low > even, self.high < even) {
            (true, _) => above,
            (_, true) => below,
            _ => Verdict::Inconclusive,
        };
        Self { verdict: Some(verdict), ..self }
    }

    /// What was claimed and whether it is met, in words and as such; none if nothing was.
    pub(crate) fn claim(&self) -> Option<(String, bool)> {
        let met = self.met == Some(true);
        Some((format!("{}: {}", self.bar?, if met { "met" } else { "not met" }), met))
    }

    /// The median and its interval, to the digits that this leaves certain: `1.42 [1.37, 1.48]`.
    pub fn text(&self) -> String {
        number::ratio(self.median, Some((self.low, self.high)))
    }
}

impl Bar {
    /// Whether a ratio is on the right side of it; the bar itself is.
    pub fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bar) => ratio >= bar,
            Self::AtMost(bar) => ratio <= bar,
            Self::Between(low, high) => (low..=high).contains(&ratio),
        }
    }

    /// Where it stands on an axis; a bar with two sides, twice.
    pub(crate) fn values(self) -> Vec<f64> {
        match self {
            Self::AtLeast(bar) | Self::AtMost(bar) => vec![bar],
            Self::Between(low, high) => vec![low, high],
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(f, "at least {bar}"),
            Self::AtMost(bar) => write!(f, "at most {bar}"),
            Self::Between(low, high) => write!(f, "between {low} and {high}"),
        }
    }
}

fn cases_table(cases: &[Case]) -> Table {
    let mut table = Table::new([
        ("case", Align::Left),
        ("median", Align::Right),
        ("least", Align::Right),
        ("most", Align::Right),
        ("runs", Align::Right),
    ]);
    for case in cases {
        let plain = |text: String| (text, Tone::Plain);
        let cell = |value: Option<f64>| {
            plain(value.map_or("-".into(), |value| number::quantity(value, &case.unit)))
        };
        let runs = || case.runs.iter().copied();
        table.row([
            plain(case.name.clone()),
            cell(runs().next().map(|_| case.median)),
            cell(runs().reduce(f64::min)),
            cell(runs().reduce(f64::max)),
            plain(case.runs.len().to_string()),
        ]);
    }
    table
}

fn ratios_table(ratios: &[RatioOut]) -> Table {
    let mut table = Table::new([
        ("ratio", Align::Left),
        ("median [95 % interval]", Align::Left),
        ("runs", Align::Right),
        ("claim", Align::Left),
    ]);
    for ratio in ratios {
        let tone = |met| if met { Tone::Good } else { Tone::Bad };
        let claim = ratio.claim().map(|(text, met)| (text, tone(met))).unwrap_or_default();
        let plain = |text: String| (text, Tone::Plain);
        let runs = ratio.runs.to_string();
        table.row([plain(ratio.name.clone()), plain(ratio.text()), plain(runs), claim]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stats::paired_ratio;

    fn output() -> BenchOutput {
        let copy = Case::new("copy", "B/s", vec![2.3e9, 2.5e9, 2.4e9, 2.2e9, 2.6e9, 2.4e9]);
        let peer = Case::new("haproxy", "B/s", vec![1.0e9, 1.1e9, 0.9e9, 1.0e9, 1.2e9, 1.0e9]);
        let ratio = paired_ratio(&peer.runs, &copy.runs).unwrap();
        let host = Host {
            kernel: "6.18.5".into(),
            cpu: "AMD EPYC".into(),
            cpus: 2,
            hz: Some(250),
            memory: 1 << 34,
            id: None,
        };
        let mut output = BenchOutput::new("relay", host);
        output.cases = vec![copy, peer];
        output.ratios = vec![
            RatioOut::new("copy / haproxy", &ratio).with_bar(Bar::AtLeast(2.0)),
            RatioOut::new("copy / haproxy, again and under a name that is much too long", &ratio)
                .with_bar(Bar::AtMost(2.0)),
        ];
        output.absent = vec!["nginx: no stream module".into()];
        output
    }

    #[test]
    fn json_has_the_documented_shape() {
        let mut output = output();
        output.ratios.truncate(1);
        let value = serde_json::to_value(&output).unwrap();
        assert_eq!(
            value,
            json!({
                "schema": 1,
                "experiment": "relay",
                "host": {
                    "kernel": "6.18.5", "cpu": "AMD EPYC", "cpus": 2, "hz": 250,
                    "memory": 17_179_869_184_u64
                },
                "cases": [
                    {"name": "copy", "unit": "B/s", "median": 2.4e9,
                     "runs": [2.3e9, 2.5e9, 2.4e9, 2.2e9, 2.6e9, 2.4e9]},
                    {"name": "haproxy", "unit": "B/s", "median": 1.0e9,
                     "runs": [1.0e9, 1.1e9, 0.9e9, 1.0e9, 1.2e9, 1.0e9]}
                ],
                "ratios": [{
                    "name": "copy / haproxy",
                    "median": output.ratios[0].median, "low": output.ratios[0].low,
                    "high": output.ratios[0].high, "runs": 6,
                    "bar": {"at_least": 2.0}, "met": true
                }],
                "absent": ["nginx: no stream module"]
            })
        );
    }

    #[test]
    fn json_comes_back_as_it_was() {
        let text = serde_json::to_string(&output()).unwrap();
        assert_eq!(serde_json::from_str::<BenchOutput>(&text).unwrap(), output());
    }

    #[test]
    fn json_without_the_optional_fields_is_read() {
        let text = r#"{"schema":1,"experiment":"x","host":{"kernel":"6.6","cpu":"c","cpus":1,
            "memory":0},"cases":[],"ratios":[{"name":"r","median":1,"low":1,"high":1,"runs":3}]}"#;
        let output: BenchOutput = serde_json::from_str(text).unwrap();
        assert_eq!((output.host.hz, output.ratios[0].bar), (None, None));
    }

    #[test]
    fn tables_fit_and_say_what_was_met_and_what_was_absent() {
        let text = output().to_table(80, false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("copy     2.40 GB/s  2.20 GB/s  2.60 GB/s     6"), "{text}");
        assert!(text.contains("at least 2: met"), "{text}");
        assert!(text.contains("at most 2: not met"), "{text}");
        assert!(text.contains('…'), "{text}");
        assert!(text.ends_with("\nabsent: nginx: no stream module\n"), "{text}");
    }

    #[test]
    fn an_incomplete_run_says_so() {
        let mut output = output();
        assert!(serde_json::to_value(&output).unwrap().get("incomplete").is_none());
        output.incomplete = true;
        assert_eq!(serde_json::to_value(&output).unwrap()["incomplete"], true);
        let text = output.to_table(80, false);
        assert!(text.contains("\nincomplete: the run ended before"), "{text}");
    }

    #[test]
    fn a_case_without_runs_is_shown_as_such() {
        let mut output = output();
        output.cases = vec![Case::new("broken", "B/s", vec![])];
        assert!(output.to_table(80, false).contains("broken       -      -     -     0"));
    }

    #[test]
    fn too_few_runs_for_the_promised_interval_are_said_to_be() {
        let mut output = output();
        assert!(!output.to_table(80, false).contains("fewer than 6 runs"));
        output.ratios[0].runs = 5;
        assert!(output.to_table(80, false).contains("note: An interval of fewer than 6 runs"));
    }

    #[test]
    fn bars_include_themselves() {
        assert!(Bar::AtLeast(1.0).is_met_by(1.0) && Bar::AtMost(1.0).is_met_by(1.0));
        assert!(!Bar::AtLeast(1.0).is_met_by(0.99) && !Bar::AtMost(1.0).is_met_by(1.01));
        for (ratio, met) in [(0.94, false), (0.95, true), (1.0, true), (1.05, true), (1.06, false)]
        {
            assert_eq!(Bar::Between(0.95, 1.05).is_met_by(ratio), met, "{ratio}");
        }
    }

    #[test]
    fn a_verdict_needs_the_whole_interval_on_one_side() {
        use Better::{Higher, Lower};
        for (low, high, better, even, expected) in [
            (1.01, 1.5, Higher, 1.0, Verdict::Better),
            (1.01, 1.5, Lower, 1.0, Verdict::Worse),
            (0.5, 0.99, Higher, 1.0, Verdict::Worse),
            (0.5, 0.99, Lower, 1.0, Verdict::Better),
            (0.99, 1.01, Higher, 1.0, Verdict::Inconclusive),
            (1.0, 1.5, Higher, 1.0, Verdict::Inconclusive),
            (0.1, 0.2, Higher, 0.0, Verdict::Better),
            (0.0, 0.0, Lower, 0.0, Verdict::Inconclusive),
        ] {
            let ratio = Ratio { median: low, low, high, runs: 6, p: 1.0 };
            let found = RatioOut::new("a / b", &ratio).judged(better, even).verdict;
            assert_eq!(found, Some(expected), "{low} to {high}, {better:?}, {even}");
        }
    }

    #[test]
    fn a_bar_with_two_sides_says_both() {
        let ratio = paired_ratio(&[1.0; 6], &[1.1; 6]).unwrap();
        let ratio = RatioOut::new("on / off", &ratio).with_bar(Bar::Between(0.95, 1.05));
        let value = serde_json::to_value(&ratio).unwrap();
        assert_eq!(value["bar"], json!({"between": [0.95, 1.05]}));
        assert_eq!(serde_json::from_value::<RatioOut>(value).unwrap(), ratio);
        let mut output = output();
        output.ratios = vec![ratio];
        let text = output.to_table(80, false);
        assert!(text.contains("between 0.95 and 1.05: not met"), "{text}");
    }
}
