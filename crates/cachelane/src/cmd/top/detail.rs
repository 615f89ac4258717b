//! All that is known of one process, as lines of text.

use std::time::Duration;

use super::marks::{Marks, columns};
use super::model::{EndRate, Track};
use super::sample::Meter;
use super::table::{memory, percent, seconds};
use super::telling::{Figure, number};

/// A line, and whether it is the head of what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) is_head: bool,
    pub(super) text: String,
}

/// How a process is shown in full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detail {
    pub(super) marks: Marks,
    pub(super) width: usize,
    /// Counters by rate, and not by name.
    pub(super) by_rate: bool,
    pub(super) reverse: bool,
}

/// Why packets took the other path, by the prefix of such counters; and what these are called.
const REASONS: [(&str, &str); 5] = [
    ("bridge.kernel.", "KERNEL PATH, BY REASON"),
    ("steer.kernel.", "KERNEL PATH, BY REASON"),
    ("lend.refused.", "BORROWERS REFUSED, BY REASON"),
    ("lend.offences.", "OFFENCES OF BORROWERS, BY REASON"),
    ("xsk.drops.", "DROPS, BY REASON"),
];

impl Detail {
    /// The lines about a process.
    pub(super) fn lines(self, track: &Track, now: Duration) -> Vec<Line> {
        let mut lines = vec![self.line(self.who(track))];
        if let Some((why, since)) = track.silent() {
            let since = seconds(now.saturating_sub(since));
            lines.push(self.line(format!("silent since {since}: {why}; what follows is old")));
        }
        let figures: Vec<String> = track.figures.iter().map(Figure::text).collect();
        lines.push(self.line(figures.join("  ")));
        lines.extend(self.paths(track));
        for (prefix, title) in REASONS {
            lines.extend(self.reasons(track, prefix, title));
        }
        lines.extend(self.ends(&track.ends));
        lines.extend(self.knobs(track));
        lines.extend(self.counters(track));
        lines
    }

    fn line(self, text: String) -> Line {
        let text = self.marks.at_most(&self.marks.text(&text), self.width);
        Line { is_head: false, text }
    }

    fn head(self, text: &str) -> Line {
        Line { is_head: true, text: self.marks.at_most(text, self.width) }
    }

    fn who(self, track: &Track) -> String {
        let process = &track.process;
        let usage = process.usage.map_or_else(String::new, |usage| {
            let plural = if usage.threads == 1 { "" } else { "s" };
            format!(", {} resident, {} thread{plural}", memory(usage.rss), usage.threads)
        });
        format!(
            "{} ({}, pid {}, uid {}): {}% of a CPU{usage}",
            process.name,
            process.kind,
            process.pid,
            process.key.uid,
            percent(track.share)
        )
    }

    /// The share of the fast path, where there are two.
    fn paths(self, track: &Track) -> Vec<Line> {
        let sum = |names: &[&str]| {
            let said = track.said.as_ref()?;
            let mut sum = None;
            for (meter, rate) in said.meters.iter().zip(&track.rates) {
                let is_it = names.iter().any(|name| match name.ends_with('.') {
                    true => meter.name.starts_with(name),
                    false => meter.name == *name,
                });
                if let Some(rate) = rate.filter(|_| is_it) {
                    sum = Some(sum.unwrap_or(0.0) + rate);
                }
            }
            sum
        };
        let mut lines = Vec::new();
        for (what, fast, kernel) in [
            ("fast path", ["bridge.straight", "bridge.redirected"], "bridge.kernel."),
            ("steered", ["steer.steered", "steer.steered"], "steer.kernel."),
        ] {
            let (Some(fast), Some(kernel)) = (sum(&fast), sum(&[kernel])) else { continue };
            let all = fast + kernel;
            let share = if all > 0.0 { format!("{:.1}%", fast / all * 100.0) } else { "-".into() };
            let (fast, kernel) = (number(fast), number(kernel));
            let text = format!("{what} {fast} packets/s, kernel path {kernel}/s: {share} {what}");
            lines.push(self.line(text));
        }
        if let (Some(moves), Some(same)) = (sum(&["steer.moves"]), sum(&["steer.same_lane"])) {
            let (moves, same) = (number(moves), number(same));
            lines.push(self.line(format!(
                "went to another CPU {moves} packets/s; records left alone inside the lane {same}/s"
            )));
        }
        lines
    }

    /// The reasons that there were, the most frequent first.
    fn reasons(self, track: &Track, prefix: &str, title: &str) -> Vec<Line> {
        let Some(said) = &track.said else { return Vec::new() };
        let each = said.meters.iter().zip(&said.values).zip(&track.rates);
        let mut reasons: Vec<(&Meter, &str, u64, Option<f64>)> = each
            .filter_map(|((meter, value), rate)| {
                let reason = meter.name.strip_prefix(prefix)?;
                Some((meter, reason, value.filter(|value| *value > 0)?, *rate))
            })
            .collect();
        reasons.sort_by(|a, b| {
            let rate = |it: &(&Meter, &str, u64, Option<f64>)| it.3.unwrap_or(0.0);
            rate(b).total_cmp(&rate(a)).then(b.2.cmp(&a.2))
        });
        let mut lines = Vec::new();
        if !reasons.is_empty() {
            lines.extend([self.line(String::new()), self.head(title)]);
        }
        lines.extend(reasons.into_iter().map(|(meter, reason, value, rate)| {
            let rate = rate.map_or_else(|| "-".into(), |rate| number(rate) + "/s");
            let cells = [reason, &value.to_string(), &rate, &meter.help];
            self.row(&cells, &[20, -14, -10, self.left_of(47).max(0)])
        }));
        lines
    }

    fn ends(self, ends: &[EndRate]) -> Vec<Line> {
        if ends.is_empty() {
            return Vec::new();
        }
        let addr = wide(ends.iter().map(|end| end.end.addr.as_str()), 15, 38) + 2;
        let widths = [addr, 5, -6, -7, -7, -7, -9, -9];
        let head =
            ["LISTENER, BACKEND", "STATE", "OPEN", "CONN/S", "REFUSED", "FAILED", "UP", "DOWN"];
        let mut lines = vec![self.line(String::new()), self.row_head(&head, &widths)];
        lines.extend(ends.iter().map(|one| {
            let end = &one.end;
            let state = match (end.is_backend, end.is_up) {
                (false, _) => "open",
                (true, true) => "up",
                (true, false) => "DOWN",
            };
            let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), number);
            let bytes = |bytes| format!("{}B/s", rate(bytes));
            let cells = [
                match end.is_backend {
                    true => format!("  {}", end.addr),
                    false => end.addr.clone(),
                },
                state.to_owned(),
                end.active.to_string(),
                rate(one.connections),
                end.refused.to_string(),
                end.failed.to_string(),
                bytes(one.up),
                bytes(one.down),
            ];
            self.row(&cells.each_ref().map(String::as_str), &widths)
        }));
        lines
    }

    fn knobs(self, track: &Track) -> Vec<Line> {
        let knobs = &track.knobs;
        if knobs.is_empty() {
            return Vec::new();
        }
        let name = wide(knobs.iter().map(|knob| knob.name.as_str()), 12, 32);
        let value = wide(knobs.iter().map(|knob| knob.value.as_str()), 8, 24);
        let widths = [name, value, self.left_of(name + value + 2).max(0)];
        let mut lines = vec![self.line(String::new())];
        lines.push(self.row_head(&["KNOB", "VALUE", "TAKES"], &widths));
        lines.extend(knobs.iter().map(|knob| {
            let takes = match &knob.held {
                Some(holder) => format!("held by {holder}; {}", knob.takes),
                None => knob.takes.clone(),
            };
            self.row(&[&knob.name, &knob.value, &takes], &widths)
        }));
        lines
    }

    /// All counters and gauges.
    fn counters(self, track: &Track) -> Vec<Line> {
        let Some(said) = &track.said else { return Vec::new() };
        let each = said.meters.iter().zip(&said.values).zip(&track.rates);
        let mut each: Vec<_> = each.map(|((meter, value), rate)| (meter, *value, *rate)).collect();
        each.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        if self.by_rate {
            each.sort_by(|a, b| b.2.unwrap_or(-1.0).total_cmp(&a.2.unwrap_or(-1.0)));
        }
        if self.reverse {
            each.reverse();
        }
        let name = wide(each.iter().map(|(meter, ..)| meter.name.as_str()), 17, 34);
        let history = if self.width < 60 { 0 } else { (self.width / 8).max(8) };
        let is = self.left_of(name + 14 + 9 + history as isize + 4).max(0);
        let widths = [name, -14, -9, -(history as isize), is];
        let by = if self.by_rate { "by rate" } else { "by name" };
        let head = [&format!("COUNTER ({by})"), "VALUE", "RATE", "HISTORY", "IS"];
        let mut lines = vec![self.line(String::new()), self.row_head(&head, &widths)];
        lines.extend(each.into_iter().map(|(meter, value, rate)| {
            let value = value.map_or_else(|| "unreadable".into(), |value| value.to_string());
            let rate = match (meter.is_counter(), rate) {
                (true, Some(rate)) => number(rate) + "/s",
                (true, None) => "-".into(),
                // A gauge is what it is.
                (false, _) => String::new(),
            };
            let rates = track.history_of(&meter.name);
            let history = rates.map(|rates| self.marks.history(rates.iter(), history));
            let is = format!("{} ({})", meter.help, meter.unit);
            self.row(&[&meter.name, &value, &rate, &history.unwrap_or_default(), &is], &widths)
        }));
        lines
    }

    /// Cells in columns of these widths: a negative one has its cells on the right.
    fn row(self, cells: &[&str], widths: &[isize]) -> Line {
        let marks = self.marks;
        let columns = cells.iter().zip(widths).filter(|(_, width)| **width != 0);
        let cells = columns.map(|(cell, width)| match width {
            0.. => marks.fit(&marks.text(cell), width.unsigned_abs()),
            _ => marks.fit_right(&marks.text(cell), width.unsigned_abs()),
        });
        let text = cells.collect::<Vec<_>>().join(" ");
        Line { is_head: false, text: marks.at_most(text.trim_end(), self.width) }
    }

    fn row_head(self, cells: &[&str], widths: &[isize]) -> Line {
        Line { is_head: true, ..self.row(cells, widths) }
    }

    /// What is left of the width behind other columns.
    fn left_of(self, used: isize) -> isize {
        self.width as isize - used
    }
}

/// The width of a column that holds all of these, within bounds.
fn wide<'a>(cells: impl Iterator<Item = &'a str>, least: usize, most: usize) -> isize {
    cells.map(columns).max().unwrap_or(0).clamp(least, most) as isize
}
