//! Where things stand in the plots; `page.html` draws them.

use super::scale::{Percent, Scale, Tick};
use super::view::detail;
use super::{HostLine, Page, Row};
use crate::bench::{Bar, Case, RatioOut};
use crate::number;
use crate::stats::{Interval, Verdict, mean};

/// The height of a windows plot in pixels, and the room above and below its dots.
const HEIGHT: f64 = 120.0;
const ROOM: f64 = 8.0;

/// Ratios on one axis.
pub(super) struct Forest {
    /// What it is of; empty if it is of all rows.
    pub(super) title: String,
    /// What it rests on.
    pub(super) detail: String,
    pub(super) ticks: Vec<Tick>,
    /// Where the ratio is 1.
    pub(super) one: Percent,
    pub(super) rows: Vec<ForestRow>,
}

pub(super) struct ForestRow {
    pub(super) name: String,
    pub(super) text: String,
    /// The verdict, or the claim and whether it is met.
    pub(super) word: String,
    /// The CSS class that goes with it.
    pub(super) tone: &'static str,
    pub(super) point: Option<Percent>,
    pub(super) interval: Option<(Percent, Percent)>,
    /// Where the ratio on one more host is expected.
    pub(super) prediction: Option<(Percent, Percent)>,
    /// The margin within which there is no difference: start and width.
    pub(super) margin: Option<(Percent, Percent)>,
    /// The sides of what was claimed.
    pub(super) bars: Vec<Percent>,
}

/// Cases of one unit on one axis.
pub(super) struct Strips {
    pub(super) ticks: Vec<Tick>,
    pub(super) rows: Vec<Strip>,
}

pub(super) struct Strip {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) dots: Vec<Percent>,
    pub(super) median: Option<Percent>,
}

/// The windows of a row in the order of time.
pub(super) struct Windows {
    pub(super) height: f64,
    pub(super) dots: Vec<WindowDot>,
    /// Every other block, start and width.
    pub(super) shaded: Vec<(Percent, Percent)>,
    /// The arms' CSS classes and the heights of their means.
    pub(super) means: Vec<(&'static str, f64)>,
    pub(super) ticks: Vec<(f64, String)>,
}

pub(super) struct WindowDot {
    pub(super) x: Percent,
    pub(super) y: f64,
    pub(super) is_other: bool,
}

impl Forest {
    /// Rows of several hosts have a forest of their own, with a line for each host; all others share one.
    pub(super) fn all(page: &Page) -> Vec<Self> {
        let (alone, of_hosts): (Vec<&Row>, Vec<&Row>) =
            page.rows.iter().partition(|row| row.hosts.is_empty());
        let shared = Self::shared(&alone, &page.ratios);
        let of_hosts = of_hosts.into_iter().map(Self::of_hosts);
        of_hosts.chain((!shared.rows.is_empty()).then_some(shared)).collect()
    }

    fn shared(rows: &[&Row], ratios: &[RatioOut]) -> Self {
        let scale = Scale::ratios(shown_ratios(rows, ratios));
        let several = rows.iter().any(|row| row.arms != rows[0].arms);
        let named = |row: &&Row| match several {
            true => format!("{}, {}", row.name(), row.arms[1]),
            false => row.name(),
        };
        let trials =
            rows.iter().map(|row| ForestRow { name: named(row), ..trial_row(row, &scale) });
        let benches = ratios.iter().map(|ratio| bench_row(ratio, &scale));
        let rows = trials.chain(benches).collect();
        Self {
            title: String::new(),
            detail: String::new(),
            one: scale.at(1.0),
            rows,
            ticks: scale.ticks,
        }
    }

    fn of_hosts(row: &Row) -> Self {
        let of_host =
            |host: &HostLine| host.interval.map(|i| [i.low, i.high]).unwrap_or([host.ratio; 2]);
        let prediction = row.prediction.iter().flat_map(|i| [i.low, i.high]);
        let shown = row.hosts.iter().flat_map(of_host).chain(prediction);
        let scale = Scale::ratios(shown.chain(shown_ratios(&[row], &[])));
        let hosts = row.hosts.iter().map(|host| host_row(host, row, &scale));
        let mean = ForestRow { name: "all hosts".into(), ..trial_row(row, &scale) };
        let rows = hosts.chain([mean]).collect();
        let title = format!("{}, {}", row.name(), row.arms[1]);
        Self { title, detail: detail(row), one: scale.at(1.0), rows, ticks: scale.ticks }
    }
}

fn shown_ratios(rows: &[&Row], ratios: &[RatioOut]) -> Vec<f64> {
    let mut values = Vec::new();
    for row in rows {
        values.extend(row.comparison.ratio);
        values.extend(row.comparison.interval.iter().flat_map(|i| [i.low, i.high]));
    }
    for ratio in ratios {
        values.extend([ratio.median, ratio.low, ratio.high]);
        values.extend(ratio.bar.into_iter().flat_map(Bar::values));
    }
    values
}

fn trial_row(row: &Row, scale: &Scale) -> ForestRow {
    let places = |interval: Option<Interval>| {
        interval.map(|interval| (scale.at(interval.low), scale.at(interval.high)))
    };
    ForestRow {
        name: row.name(),
        text: row.ratio(),
        word: row.comparison.verdict.to_string(),
        tone: tone(row.comparison.verdict),
        point: row.comparison.ratio.map(|ratio| scale.at(ratio)),
        interval: places(row.comparison.interval),
        prediction: places(row.prediction),
        margin: Some(margin(row, scale)),
        bars: Vec::new(),
    }
}

fn host_row(host: &HostLine, row: &Row, scale: &Scale) -> ForestRow {
    ForestRow {
        name: host.name.clone(),
        text: format!("{}, counts for {}", host.ratio(), host.weight()),
        word: String::new(),
        tone: "none",
        point: Some(scale.at(host.ratio)),
        interval: host.interval.map(|interval| (scale.at(interval.low), scale.at(interval.high))),
        prediction: None,
        margin: Some(margin(row, scale)),
        bars: Vec::new(),
    }
}

/// Where the margin starts, and its width.
fn margin(row: &Row, scale: &Scale) -> (Percent, Percent) {
    let (left, right) = (scale.at(1.0 - row.margin), scale.at(1.0 + row.margin));
    (left, Percent(right.0 - left.0))
}

fn bench_row(ratio: &RatioOut, scale: &Scale) -> ForestRow {
    let class = |met| if met { "met" } else { "unmet" };
    let claim = ratio.claim().map(|(word, met)| (word, class(met)));
    let (word, tone) = claim.unwrap_or((String::new(), "none"));
    ForestRow {
        name: ratio.name.clone(),
        text: ratio.text(),
        word,
        tone,
        point: Some(scale.at(ratio.median)),
        interval: Some((scale.at(ratio.low), scale.at(ratio.high))),
        prediction: None,
        margin: None,
        bars: ratio.bar.into_iter().flat_map(Bar::values).map(|at| scale.at(at)).collect(),
    }
}

/// The CSS class of a verdict.
pub(super) fn tone(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference => "none",
        Verdict::Inconclusive | Verdict::Withheld => "unknown",
    }
}

impl Strips {
    /// One for each unit, in the order in which the units appear.
    pub(super) fn by_unit(cases: &[Case]) -> Vec<Self> {
        let mut units: Vec<&str> = Vec::new();
        for case in cases {
            if !units.contains(&case.unit.as_str()) {
                units.push(&case.unit);
            }
        }
        let strips = |unit: &&str| Self::new(cases.iter().filter(|case| case.unit == *unit), unit);
        units.iter().map(strips).collect()
    }

    fn new<'a>(cases: impl Iterator<Item = &'a Case> + Clone, unit: &str) -> Self {
        let scale =
            Scale::values(cases.clone().flat_map(|case| case.runs.clone()), 3).in_unit(unit);
        let strip = |case: &Case| Strip {
            name: case.name.clone(),
            text: match case.runs.is_empty() {
                true => "no runs".into(),
                false => number::quantity(case.median, unit),
            },
            dots: case.runs.iter().map(|&run| scale.at(run)).collect(),
            median: (!case.runs.is_empty()).then(|| scale.at(case.median)),
        };
        Self { rows: cases.map(strip).collect(), ticks: scale.ticks }
    }
}

impl Windows {
    pub(super) fn new(row: &Row) -> Self {
        let values = row.windows.iter().map(|dot| dot.value);
        let scale = Scale::values(values, 3).in_unit(&row.measure.unit);
        let height = |place: Percent| ROOM + (HEIGHT - 2.0 * ROOM) * (1.0 - place.0 / 100.0);
        let width = 100.0 / row.windows.len().max(1) as f64;
        let dot = |(i, dot): (usize, &super::Dot)| WindowDot {
            x: Percent(width * (i as f64 + 0.5)),
            y: height(scale.at(dot.value)),
            is_other: dot.is_other,
        };
        let mean_of = |(class, is_other)| {
            let arm = row.windows.iter().filter(|dot| dot.is_other == is_other);
            let values: Vec<f64> = arm.map(|dot| dot.value).collect();
            (!values.is_empty()).then(|| (class, height(scale.at(mean(values)))))
        };
        Self {
            height: HEIGHT,
            dots: row.windows.iter().enumerate().map(dot).collect(),
            shaded: shaded(row, width),
            means: [("base", false), ("other", true)].into_iter().filter_map(mean_of).collect(),
            ticks: scale.ticks.iter().map(|t| (height(t.at), t.label.clone())).collect(),
        }
    }
}

fn shaded(row: &Row, width: f64) -> Vec<(Percent, Percent)> {
    let mut start = 0;
    let mut shaded = Vec::new();
    for block in row.windows.chunk_by(|a, b| a.block == b.block) {
        if block[0].block % 2 == 1 {
            shaded.push((Percent(width * start as f64), Percent(width * block.len() as f64)));
        }
        start += block.len();
    }
    shaded
}
