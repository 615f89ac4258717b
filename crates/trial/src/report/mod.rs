//! Reports: one HTML page that needs nothing else, or a table for a terminal.
//!
//! A [`Page`] holds what was found: rows of trials, cases and ratios of benches, or both. The page
//! works offline, in light and dark, on paper and on a narrow screen; everything in it is escaped.
//! Its plots are inline SVG whose horizontal places are percentages, so that they fit any width
//! while their text keeps its size.

mod curve;
mod plot;
mod scale;
mod trial;
mod view;

use askama::Template;

use crate::bench::{BenchOutput, Case, Curve, Host, RatioOut};
use crate::error::Error;
use crate::measure::Measure;
use crate::number;
use crate::outcome::{Judged, Outcome};
use crate::stats::{Comparison, Interval, Verdict};
use crate::table::{Align, Table, Tone, one_line};

/// A report.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The headline.
    pub title: String,
    /// One paragraph: what was asked and what came out.
    pub lead: String,
    /// Where it was measured.
    pub host: Option<Host>,
    /// Trials, in the order of the table.
    pub rows: Vec<Row>,
    /// A bench's cases.
    pub cases: Vec<Case>,
    /// A bench's ratios.
    pub ratios: Vec<RatioOut>,
    /// A bench's curves, through its cases.
    pub curves: Vec<Curve>,
    /// What was run and how, by name.
    pub facts: Vec<(String, String)>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// What was not measured, with the reason.
    pub absent: Vec<String>,
    /// The exact command that repeats it; empty for none.
    pub command: String,
}

/// One arm of one trial against its baseline, by one measure.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was tried, e.g. `relay`.
    pub mechanism: String,
    /// What was measured.
    pub measure: Measure,
    /// The names of the baseline and of the arm.
    pub arms: [String; 2],
    /// What was found.
    pub comparison: Comparison,
    /// How far from 1 a ratio may be and still make no difference, as a share.
    pub margin: f64,
    /// The confidence of the interval.
    pub confidence: f64,
    /// Whether the measure is the first one, which decides.
    pub is_first: bool,
    /// The windows of the two arms in the order of time.
    pub windows: Vec<Dot>,
    /// What each host found, where several did.
    pub hosts: Vec<HostLine>,
    /// Where the ratio on one more host is expected.
    pub prediction: Option<Interval>,
    /// What else the figures rest on, in a few words.
    pub detail: String,
}

/// What one host found, in a [`Row`] of several.
#[derive(Debug, Clone, PartialEq)]
pub struct HostLine {
    /// Which host, or where its record is.
    pub name: String,
    /// The ratio.
    pub ratio: f64,
    /// Its interval; none if it has no finite bounds.
    pub interval: Option<Interval>,
    /// How much it counts for; the hosts' sum is 1.
    pub weight: f64,
}

/// One window of a [`Row`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dot {
    /// The block, from 0.
    pub block: u32,
    /// Whether it is the arm's, not the baseline's.
    pub is_other: bool,
    /// What was measured.
    pub value: f64,
}

impl Row {
    /// The row for an arm of a trial, an index into the plan's, by the first measure.
    ///
    /// # Errors
    /// As [`Outcome::compare`].
    pub fn from_outcome(
        mechanism: impl Into<String>,
        outcome: &Outcome,
        arm: usize,
    ) -> Result<Self, Error> {
        let judged = Judged { measure: 0, arm, comparison: outcome.compare(arm)? };
        Ok(Self::from_judged(mechanism, outcome, judged))
    }

    /// The row for one of a trial's comparisons.
    pub fn from_judged(mechanism: impl Into<String>, outcome: &Outcome, judged: Judged) -> Self {
        let Judged { measure, arm, comparison } = judged;
        let plan = &outcome.plan;
        let of = &outcome.measures[measure];
        let windows = outcome.windows.iter().filter(|window| [0, arm].contains(&window.arm));
        let dot = |window: &crate::Window| {
            let value = window.values.get(measure)?.number(of.quantile);
            Some(Dot { block: window.block, is_other: window.arm == arm, value })
        };
        Self {
            mechanism: mechanism.into(),
            measure: of.clone(),
            arms: [plan.arms[0].clone(), plan.arms[arm].clone()],
            margin: plan.margin,
            confidence: comparison.confidence,
            comparison,
            is_first: measure == 0,
            windows: windows.filter_map(dot).collect(),
            hosts: Vec::new(),
            prediction: None,
            detail: String::new(),
        }
    }

    /// What was found, in words.
    pub(crate) fn sentence(&self) -> String {
        let [base, arm] = &self.arms;
        let (name, verdict) = (&self.measure.name, self.comparison.verdict);
        match self.comparison.ratio {
            Some(_) => format!(
                "Under {arm}, {name} is {} times what it is under {base}: {verdict}.",
                self.ratio()
            ),
            None => format!("{name} under {arm} and under {base}: {verdict}."),
        }
    }

    /// Whether nothing of it was seen, under either arm.
    pub(crate) fn is_quiet(&self) -> bool {
        self.comparison.base == 0.0 && self.comparison.other == 0.0
    }

    fn name(&self) -> String {
        if self.mechanism.is_empty() {
            self.measure.name.clone()
        } else {
            format!("{}, {}", self.mechanism, self.measure.name)
        }
    }

    /// The two means, under the arms' names where the heading does not hold them.
    fn means(&self, named: bool) -> [String; 2] {
        let values = [self.comparison.base, self.comparison.other];
        std::array::from_fn(|i| {
            let value = number::quantity(values[i], &self.measure.unit);
            if named { format!("{}: {value}", self.arms[i]) } else { value }
        })
    }

    fn hosts_table(&self) -> Table {
        let mut table = Table::new([
            (&format!("{}, {}", self.name(), self.arms[1]), Align::Left),
            ("ratio [interval]", Align::Left),
            ("counts for", Align::Right),
        ]);
        for host in &self.hosts {
            let cells = [host.name.clone(), host.ratio(), host.weight()];
            table.row(cells.map(|text| (text, Tone::Plain)));
        }
        table
    }

    fn ratio(&self) -> String {
        let interval = self.comparison.interval.map(|interval| (interval.low, interval.high));
        self.comparison.ratio.map_or("-".into(), |ratio| number::ratio(ratio, interval))
    }
}

impl HostLine {
    fn ratio(&self) -> String {
        let interval = self.interval.map(|interval| (interval.low, interval.high));
        number::ratio(self.ratio, interval)
    }

    fn weight(&self) -> String {
        number::quantity(100.0 * self.weight, "%")
    }
}

impl Page {
    /// The page of a bench's output, and the command that repeats it.
    pub fn from_bench(output: &BenchOutput, command: impl Into<String>) -> Self {
        Self {
            title: format!("Bench: {}", output.experiment),
            lead: output.warning().unwrap_or_default().into(),
            host: Some(output.host.clone()),
            cases: output.cases.clone(),
            ratios: output.ratios.clone(),
            curves: output.curves.clone(),
            notes: output.remarks(),
            absent: output.absent.clone(),
            command: command.into(),
            ..Self::default()
        }
    }

    /// The page as HTML.
    pub fn render(&self) -> String {
        view::View::new(self).render().expect("writing to a String does not fail")
    }

    /// The page as text: the table, the hosts of what decides, then what there is to say of its rows, facts
    /// and notes. Tables are at most `width` characters wide. Colour only if asked for.
    pub fn to_text(&self, width: usize, colour: bool) -> String {
        let of_hosts = self.rows.iter().filter(|row| row.is_first && row.hosts.len() > 1);
        let of_hosts = of_hosts.map(|row| row.hosts_table().render_named(width, colour));
        let said = |row: &Row| {
            let said = [row.detail.clone(), row.comparison.note.clone().unwrap_or_default()];
            let said = said.into_iter().filter(|said| !said.is_empty());
            said.map(|said| format!("{}: {said}", row.name())).collect::<Vec<_>>()
        };
        let facts = self.facts.iter().map(|(name, fact)| format!("{name}: {fact}"));
        let notes = self.notes.iter().map(|note| format!("note: {note}"));
        let absent = self.absent.iter().map(|absent| format!("absent: {absent}"));
        let lines = self.rows.iter().flat_map(said).chain(facts).chain(notes).chain(absent);
        let lines: String = lines.map(|line| one_line(&line) + "\n").collect();
        let parts = std::iter::once(self.to_table(width, colour)).chain(of_hosts).chain([lines]);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// The trials as a table, at most `width` characters wide. Colour only if asked for.
    pub fn to_table(&self, width: usize, colour: bool) -> String {
        let (base, other) = self.headings().unwrap_or(("baseline", "arm"));
        let ratio = format!("ratio {}", self.interval_heading());
        let mut table = Table::new([
            (self.what(), Align::Left),
            (base, Align::Right),
            (other, Align::Right),
            (&ratio, Align::Left),
            ("verdict", Align::Left),
        ]);
        for row in &self.rows {
            let [base, other] = row.means(self.headings().is_none());
            let tone = match row.comparison.verdict {
                Verdict::Better => Tone::Good,
                Verdict::Worse => Tone::Bad,
                Verdict::NoDifference | Verdict::Inconclusive | Verdict::Withheld => Tone::Plain,
            };
            let plain = |text| (text, Tone::Plain);
            let verdict = (row.comparison.verdict.to_string(), tone);
            let decides = if row.is_first && self.has_others() { " (decides)" } else { "" };
            let name = row.name() + decides;
            table.row([plain(name), plain(base), plain(other), plain(row.ratio()), verdict]);
        }
        table.render_named(width, colour)
    }

    /// What the rows are.
    fn what(&self) -> &'static str {
        let measures = self.rows.iter().all(|row| row.mechanism.is_empty());
        if measures { "measure" } else { "mechanism" }
    }

    /// Whether there are rows of measures that do not decide.
    fn has_others(&self) -> bool {
        self.rows.iter().any(|row| !row.is_first)
    }

    /// The names of the arms, if all rows have the same.
    fn headings(&self) -> Option<(&str, &str)> {
        let [base, other] = &self.rows.first()?.arms;
        let same = self.rows.iter().all(|row| row.arms == [base.as_str(), other.as_str()]);
        same.then_some((base, other))
    }

    /// `[95 %]`, or `[interval]` if the rows differ in confidence.
    fn interval_heading(&self) -> String {
        let first = self.rows.first().map_or(0.95, |row| row.confidence);
        let same = self.rows.iter().all(|row| row.confidence == first);
        if same { format!("[{}]", number::percent(first)) } else { "[interval]".into() }
    }
}

#[cfg(test)]
mod tests;
