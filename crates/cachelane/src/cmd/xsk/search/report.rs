//! What a search has found so far: as text, as JSON, and as a page.

use std::fs;
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use trial::bench::{Case, Curve, Host, Line, Point};
use trial::report::Page;

use super::super::template::Template;
use super::super::turns::Turns;
use super::super::values::Rate;
use super::Args;
use super::bisection::Highest;
use super::stage::Found;
use crate::figures::si;
use crate::packets::job::{Beside, Report};
use crate::terminal::{command_line, table};

/// What was found, for all who look.
#[derive(Clone, Debug)]
pub(super) struct Results(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    sizes: Vec<Size>,
    /// The size that is being searched, and the rate that is tried; none: as fast as can be.
    now: Option<(usize, Option<f64>)>,
    /// The highest rate to try, where it was given.
    most: Rate,
    from: String,
    to: Option<String>,
    loss: f64,
    turns: Option<Arc<Turns>>,
}

/// What was found for a size.
#[derive(Debug)]
struct Size {
    bytes: usize,
    trials: Vec<Trial>,
    highest: Option<Highest>,
}

#[derive(Debug)]
struct Trial {
    asked: Option<f64>,
    found: Found,
    has_passed: bool,
}

/// Bytes on a cable beside those of a packet: preamble, checksum, and the gap between two.
const CABLE: usize = 24;

impl Size {
    /// The trial that the highest rate is of.
    fn best(&self) -> Option<&Found> {
        let rate = match self.highest? {
            Highest::Found(rate) | Highest::AtLeast(rate) => rate,
            Highest::Below(_) => return None,
        };
        let passed = self.trials.iter().filter(|trial| trial.has_passed);
        passed.map(|trial| &trial.found).find(|found| found.rate == rate)
    }

    fn bits(&self, rate: f64, beside: usize) -> f64 {
        rate * 8.0 * (self.bytes + beside) as f64
    }

    /// What the rate ends at, for programs.
    fn limit(&self, most: Rate) -> &'static str {
        // As near as what was sent may be to what was asked.
        let most = most.packets(self.bytes as f64) * 0.95;
        match self.highest {
            Some(Highest::Found(_) | Highest::Below(_)) => "loss",
            Some(Highest::AtLeast(rate)) if most > 0.0 && rate >= most => "max-rate",
            Some(Highest::AtLeast(_)) => "sender",
            None => "unfinished",
        }
    }

    /// The same for people.
    fn words(&self, most: Rate) -> String {
        match (self.limit(most), self.highest) {
            (_, Some(Highest::Below(rate))) => format!("packets are lost even at {}pps", si(rate)),
            ("loss", _) => "packets are lost above".into(),
            ("max-rate", _) => "not above --max-rate".into(),
            ("sender", _) => "this host sends no faster".into(),
            _ => "not finished".into(),
        }
    }

    fn latency(&self, quantile: &str) -> Option<f64> {
        self.best()?.latency.as_ref()?[quantile].as_f64()
    }

    fn object(&self, most: Rate) -> Value {
        let best = self.best();
        let trial = |Trial { asked, found, has_passed }: &Trial| {
            json!({
                "asked_pps": asked,
                "pps": found.rate,
                "sent": found.sent,
                "lost": found.lost,
                "corrupt": found.corrupt,
                "passed": has_passed,
            })
        };
        json!({
            "size": self.bytes,
            "pps": best.map(|found| found.rate),
            "bits_per_second": best.map(|found| self.bits(found.rate, 0)),
            "cable_bits_per_second": best.map(|found| self.bits(found.rate, CABLE)),
            "limit": self.limit(most),
            "loss_percent": best.map(|found| found.loss() * 100.0),
            "latency_us": best.and_then(|found| found.latency.clone()),
            "trials": self.trials.iter().map(trial).collect::<Vec<_>>(),
        })
    }

    fn row(&self, most: Rate) -> [String; 7] {
        let micros =
            |quantile| self.latency(quantile).map_or("-".into(), |us| format!("{us:.1} us"));
        let rates = self.best().map_or(["-".into(), "-".into()], |found| {
            let bits = self.bits(found.rate, CABLE);
            [format!("{}pps", si(found.rate)), format!("{}bit/s", si(bits))]
        });
        let [rate, bits] = rates;
        let limit = self.words(most);
        [self.bytes.to_string(), rate, bits, micros("median"), micros("p99"), micros("max"), limit]
    }
}

impl Results {
    pub(super) fn new(
        args: &Args,
        templates: &[Arc<Template>],
        turns: Option<Arc<Turns>>,
    ) -> Results {
        let size = |template: &Arc<Template>| Size {
            bytes: template.bytes().len(),
            trials: Vec::new(),
            highest: None,
        };
        Results(Arc::new(Mutex::new(State {
            sizes: templates.iter().map(size).collect(),
            now: None,
            most: args.trials.max_rate,
            from: args.interface.clone(),
            to: args.receive.clone(),
            loss: args.trials.loss,
            turns,
        })))
    }

    /// This rate is being tried.
    pub(super) fn tries(&self, size: usize, rate: Option<f64>) {
        self.0.lock().now = Some((size, rate));
    }

    /// It was.
    pub(super) fn tried(&self, size: usize, found: Found, has_passed: bool) {
        let mut state = self.0.lock();
        let asked = state.now.and_then(|(_, asked)| asked);
        let bytes = state.sizes[size].bytes;
        let Found { rate, lost, sent, .. } = found;
        let rate = si(rate);
        tracing::debug!("{bytes} bytes at {rate}pps: {lost} of {sent} packets lost");
        state.sizes[size].trials.push(Trial { asked, found, has_passed });
    }

    /// The highest rate of a size is known.
    pub(super) fn found(&self, size: usize, highest: Highest) {
        let mut state = self.0.lock();
        state.now = None;
        state.sizes[size].highest = Some(highest);
        let [bytes, rate, bits, .., limit] = state.sizes[size].row(state.most);
        tracing::info!("{bytes} bytes: {rate}, {bits} on a cable; {limit}");
    }

    /// Writes the page, where one was asked for.
    pub(super) fn write(&self, args: &Args) -> anyhow::Result<()> {
        let Some(path) = &args.trials.html else { return Ok(()) };
        let page = self.page(args).render();
        fs::write(path, page).with_context(|| format!("--html {}", path.display()))
    }

    fn page(&self, args: &Args) -> Page {
        let state = self.0.lock();
        let (mut cases, mut notes) = (Vec::new(), Vec::new());
        let turns = state.turns.iter();
        notes
            .extend(turns.map(|turns| format!("Flows by the receiver's queue: {}", turns.words())));
        let mut lines: [Vec<Point>; 3] = Default::default();
        for size in &state.sizes {
            let bytes = size.bytes;
            let Some(best) = size.best() else {
                notes.push(format!("{bytes} bytes: {}", size.words(state.most)));
                continue;
            };
            if size.limit(state.most) != "loss" {
                notes.push(format!("{bytes} bytes: {}", size.words(state.most)));
            }
            let micros = |quantile| size.latency(quantile).map(|us| us / 1e6);
            for (line, (name, unit, value)) in lines.iter_mut().zip([
                ("highest rate", "packets/s", Some(best.rate)),
                ("latency, median", "s", micros("median")),
                ("latency, 99th percentile", "s", micros("p99")),
            ]) {
                if let Some(value) = value {
                    let case = format!("{bytes} bytes, {name}");
                    line.push(Point { at: bytes as f64, case: case.clone() });
                    cases.push(Case::new(case, unit, vec![value]));
                }
            }
        }
        let [rates, medians, tails] = lines;
        let line = |name: &str, points| Line { name: name.into(), points };
        let curve = |name: &str, lines| Curve { name: name.into(), along: "bytes".into(), lines };
        let way = match &state.to {
            Some(to) => format!("from {} to {to}", state.from),
            None => format!("from {} and back", state.from),
        };
        let loss = match state.loss {
            0.0 => "no packet was lost".into(),
            loss => format!("at most {loss} % of packets were lost"),
        };
        let trial = humantime::format_duration(args.trials.trial);
        Page {
            title: format!("Highest rates {way}"),
            lead: format!(
                "For each size of packets, the highest rate at which {loss} in a trial of {trial}, as \
                 RFC 2544 has it (section 26.1), and how long packets took at that rate. Sizes are \
                 without the checksum."
            ),
            host: Some(Host::detect()),
            cases,
            curves: vec![
                curve("packets a second", vec![line("highest rate", rates)]),
                curve("latency", vec![line("median", medians), line("99th percentile", tails)]),
            ],
            facts: [
                ("Trial", trial.to_string()),
                ("Loss allowed", format!("{} %", state.loss)),
                ("Exact to", format!("{} %", args.trials.precision)),
                ("Trials that fail before a rate has", args.trials.tries.to_string()),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
            notes,
            command: command_line(),
            ..Page::default()
        }
    }
}

impl Beside for Results {
    fn words(&self) -> Option<String> {
        let state = self.0.lock();
        let (size, rate) = state.now?;
        let size = &state.sizes[size];
        let rate = rate.map_or("as fast as can be".into(), |rate| format!("at {}pps", si(rate)));
        Some(format!("{} bytes {rate}, trial {}", size.bytes, size.trials.len() + 1))
    }

    fn fields(&self) -> Map<String, Value> {
        let state = self.0.lock();
        let now = state.now.map(|(size, rate)| {
            let size = &state.sizes[size];
            json!({"size": size.bytes, "trial": size.trials.len() + 1, "asked_pps": rate})
        });
        Map::from_iter([("trial".to_owned(), now.unwrap_or_default())])
    }

    fn add_to(&self, report: &mut Report) {
        let state = self.0.lock();
        let tried = state.sizes.iter().filter(|size| !size.trials.is_empty());
        let rows: Vec<_> = tried.map(|size| size.row(state.most)).collect();
        let names = ["size", "highest rate", "on a cable", "median", "99 %", "at most", "limit"];
        if !rows.is_empty() {
            report.lines.extend(table(names, &rows).lines().map(str::to_owned));
        }
        let objects = state.sizes.iter().map(|size| size.object(state.most));
        report.fields["results"] = objects.collect();
        if let Some(turns) = &state.turns {
            turns.add_to(report);
        }
        report.findings |=
            state.sizes.iter().any(|size| matches!(size.highest, Some(Highest::Below(_))));
    }
}
