//! How figures grow with a number: where the lines stand; `page.html` draws them.

use super::scale::{Percent, Scale};
use crate::bench::{Case, Curve, Line};
use crate::number;

/// The height of a plot in pixels, and the room above and below what it shows.
const HEIGHT: f64 = 190.0;
const ROOM: f64 = 8.0;
/// So many lines have a look of their own.
const LOOKS: usize = 4;

/// A curve, on two logarithmic axes.
pub(super) struct CurvePlot {
    pub(super) name: String,
    pub(super) along: String,
    pub(super) height: f64,
    pub(super) lines: Vec<LinePlot>,
    /// The numbers, and the values.
    pub(super) across: Vec<(Percent, String)>,
    pub(super) up: Vec<(f64, String)>,
}

/// A line of it.
pub(super) struct LinePlot {
    pub(super) name: String,
    /// Which look it has, from 0.
    pub(super) look: usize,
    pub(super) points: Vec<PointPlot>,
    /// From each point to the next.
    pub(super) segments: Vec<[(Percent, f64); 2]>,
}

/// A point of it: where it stands, from where to where its runs reach, and what it says.
pub(super) struct PointPlot {
    pub(super) x: Percent,
    pub(super) y: f64,
    pub(super) reach: [f64; 2],
    pub(super) text: String,
}

/// The points of a line that were measured.
type Measured<'a> = Vec<(f64, &'a Case)>;

impl CurvePlot {
    /// Those of which anything was measured.
    pub(super) fn all(curves: &[Curve], cases: &[Case]) -> Vec<Self> {
        let plots = curves.iter().map(|curve| Self::new(curve, cases));
        plots.filter(|plot| !plot.lines.is_empty()).collect()
    }

    fn new(curve: &Curve, cases: &[Case]) -> Self {
        // What a logarithmic axis can show.
        let measured = |name: &str| {
            let case = cases.iter().find(|case| case.name == name)?;
            (case.runs.iter().all(|run| *run > 0.0) && case.median > 0.0).then_some(case)
        };
        let found = |line: &Line| -> Measured<'_> {
            line.points
                .iter()
                .filter_map(|point| Some((point.at, measured(&point.case)?)))
                .collect()
        };
        let lines: Vec<_> = curve.lines.iter().map(|line| (line, found(line))).collect();
        let all = || lines.iter().flat_map(|(_, points)| points);
        let x = Scale::logarithmic(all().map(|(at, _)| *at));
        let unit = all().next().map_or("", |(_, case)| case.unit.as_str());
        let y = Scale::logarithmic(all().flat_map(|(_, case)| case.runs.iter().copied()));
        let y = y.in_unit(unit);
        let height = |value| height_of(y.at(value));
        let mut numbers: Vec<f64> = all().map(|(at, _)| *at).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        let plot = |(look, (line, points)): (usize, &(&Line, Measured<'_>))| {
            let place = |(at, case): &(f64, &Case)| (x.at(*at), height(case.median));
            let point = |found: &(f64, &Case)| {
                let ((x, y), (at, case)) = (place(found), *found);
                let runs = || case.runs.iter().copied();
                let reach = [runs().fold(f64::INFINITY, f64::min), runs().fold(0.0, f64::max)];
                let value = number::quantity(case.median, unit);
                let text = format!("{}, {at} {}: {value}", line.name, curve.along);
                PointPlot { x, y, reach: reach.map(height), text }
            };
            LinePlot {
                name: line.name.clone(),
                look: look % LOOKS,
                points: points.iter().map(point).collect(),
                segments: points
                    .windows(2)
                    .map(|pair| [place(&pair[0]), place(&pair[1])])
                    .collect(),
            }
        };
        let shown = lines.iter().enumerate().filter(|(_, (_, points))| !points.is_empty());
        Self {
            name: curve.name.clone(),
            along: curve.along.clone(),
            height: HEIGHT,
            lines: shown.map(plot).collect(),
            across: numbers.into_iter().map(|at| (x.at(at), at.to_string())).collect(),
            up: y.ticks.iter().map(|tick| (height_of(tick.at), tick.label.clone())).collect(),
        }
    }
}

fn height_of(place: Percent) -> f64 {
    ROOM + (HEIGHT - 2.0 * ROOM) * (1.0 - place.0 / 100.0)
}
