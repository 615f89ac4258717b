//! What the template fills in.

use askama::Template;

use super::curve::CurvePlot;
use super::plot::{Forest, Strips, Windows, tone};
use super::{Page, Row};
use crate::measure::Better;
use crate::number;

#[derive(Template)]
#[template(path = "page.html")]
pub(super) struct View<'a> {
    page: &'a Page,
    host: String,
    what: &'static str,
    headings: (String, String),
    interval_heading: String,
    rows: Vec<RowView<'a>>,
    forests: Vec<Forest>,
    has_windows: bool,
    has_predictions: bool,
    strips: Vec<Strips>,
    curves: Vec<CurvePlot>,
}

struct RowView<'a> {
    row: &'a Row,
    name: String,
    /// Which direction is the good one, and whether the measure decides.
    direction: String,
    means: [String; 2],
    ratio: String,
    tone: &'static str,
    detail: String,
    windows: Windows,
}

impl<'a> View<'a> {
    pub(super) fn new(page: &'a Page) -> Self {
        let (base, other) = page.headings().unwrap_or(("baseline", "arm"));
        let named = page.headings().is_none();
        Self {
            page,
            host: page.host.as_ref().map(ToString::to_string).unwrap_or_default(),
            headings: (base.to_owned(), other.to_owned()),
            interval_heading: page.interval_heading(),
            what: if page.what() == "measure" { "Measure" } else { "Mechanism" },
            rows: page.rows.iter().map(|row| RowView::new(row, named, page.has_others())).collect(),
            forests: Forest::all(page),
            has_windows: page.rows.iter().any(|row| !row.windows.is_empty()),
            has_predictions: page.rows.iter().any(|row| row.prediction.is_some()),
            strips: Strips::by_unit(&page.cases),
            curves: CurvePlot::all(&page.curves, &page.cases),
        }
    }
}

impl<'a> RowView<'a> {
    fn new(row: &'a Row, named: bool, has_others: bool) -> Self {
        let direction = match row.measure.better {
            Better::Higher => "more is better",
            Better::Lower => "less is better",
        };
        let decides = if row.is_first && has_others { "; decides" } else { "" };
        Self {
            row,
            name: row.name(),
            direction: format!("{direction}{decides}"),
            means: row.means(named),
            ratio: row.ratio(),
            tone: tone(row.comparison.verdict),
            detail: detail(row),
            windows: Windows::new(row),
        }
    }
}

/// What a verdict rests on.
pub(super) fn detail(row: &Row) -> String {
    let found = &row.comparison;
    let p = number::probability(found.p);
    let p = if p.starts_with('<') { format!("p {p}") } else { format!("p = {p}") };
    let margin = number::percent(row.margin);
    let plural = if found.blocks == 1 { "" } else { "s" };
    let other = if row.detail.is_empty() { String::new() } else { format!("; {}", row.detail) };
    let note = found.note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
    format!("{} block{plural}, {p}, margin ±{margin}{other}{note}", found.blocks)
}
