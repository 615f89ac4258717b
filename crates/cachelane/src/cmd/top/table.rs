//! The head and the rows of the view, as lines of text of one width.

use std::time::Duration;

use super::marks::{Marks, columns};
use super::model::{CpuShare, HISTORY, Model, Track};
use super::telling::Figure;

/// Where the figures are from.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Facts {
    pub(super) host: String,
    /// The CPUs of each lane.
    pub(super) lanes: Vec<Vec<usize>>,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    Cpu,
    Rate,
}

impl Sort {
    pub(super) fn next(self) -> Sort {
        match self {
            Sort::Name => Sort::Cpu,
            Sort::Cpu => Sort::Rate,
            Sort::Rate => Sort::Name,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Cpu => "CPU",
            Sort::Rate => "rate",
        }
    }
}

/// The processes whose names contain the filter, whatever the case, in order.
pub(super) fn ordered<'a>(
    model: &'a Model,
    sort: Sort,
    reverse: bool,
    filter: &str,
) -> Vec<&'a Track> {
    let filter = filter.to_lowercase();
    let is_shown = |track: &&Track| track.process.name.to_lowercase().contains(&filter);
    let mut tracks: Vec<&Track> = model.tracks.values().filter(is_shown).collect();
    // The largest first, and what has none last.
    let descending = |a: Option<f64>, b: Option<f64>| {
        b.unwrap_or(f64::NEG_INFINITY).total_cmp(&a.unwrap_or(f64::NEG_INFINITY))
    };
    tracks.sort_by(|a, b| {
        let by = match sort {
            Sort::Name => std::cmp::Ordering::Equal,
            Sort::Cpu => descending(a.share, b.share),
            Sort::Rate => descending(a.main_rate(), b.main_rate()),
        };
        let (a, b) = (&a.process, &b.process);
        by.then_with(|| a.name.cmp(&b.name)).then_with(|| a.pid.cmp(&b.pid))
    });
    if reverse {
        tracks.reverse();
    }
    tracks
}

/// The columns for a width: the narrower, the fewer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    marks: Marks,
    name: usize,
    kind: usize,
    pid: usize,
    rss: usize,
    figures: usize,
    history: usize,
}

const CPU: usize = 5;

impl Columns {
    pub(super) fn new(marks: Marks, width: usize, model: &Model) -> Columns {
        let widest = |of: fn(&Track) -> usize, least: usize, most: usize| {
            model.tracks.values().map(of).max().unwrap_or(0).clamp(least, most)
        };
        let pid = widest(|track| track.process.pid.to_string().len(), 3, 10);
        let kind = match width {
            0..50 => 0,
            _ => widest(|track| columns(&track.process.kind), 4, 8),
        };
        let rss = if width < 60 { 0 } else { 5 };
        let history = match width {
            0..70 => 0,
            // A wide screen has room for more than the figures.
            _ => (width / 10).max(width.saturating_sub(130)).min(HISTORY),
        };
        let most = (width / 5).clamp(8, 40);
        let name = widest(|track| columns(&track.process.name), 7, most);
        let others = [name, kind, pid, CPU, rss, history].into_iter().filter(|w| *w > 0);
        let used: usize = others.map(|width| width + 1).sum();
        Columns { marks, name, kind, pid, rss, figures: width.saturating_sub(used), history }
    }

    /// The line above the rows.
    pub(super) fn title(&self) -> String {
        self.line(["PROCESS", "KIND", "PID", "CPU%", "RSS", "RATES"].map(Into::into), "HISTORY")
    }

    /// A process in one line.
    pub(super) fn row(&self, track: &Track, now: Duration) -> String {
        let marks = self.marks;
        let process = &track.process;
        let history = marks.history(track.history.iter(), self.history);
        let cells = [
            marks.text(&process.name),
            marks.text(&process.kind),
            process.pid.to_string(),
            percent(track.share),
            process.usage.map_or_else(|| "-".into(), |usage| memory(usage.rss)),
            marks.text(&figures(track, now)),
        ];
        self.line(cells, &history)
    }

    fn line(&self, [name, kind, pid, cpu, rss, figures]: [String; 6], history: &str) -> String {
        let marks = self.marks;
        let left = |text: &str, width| (width, marks.fit(text, width));
        let middle = |text: &str, width| (width, marks.fit_middle(text, width));
        let right = |text: &str, width| (width, marks.fit_right(text, width));
        let cells = [
            middle(&name, self.name),
            left(&kind, self.kind),
            right(&pid, self.pid),
            right(&cpu, CPU),
            right(&rss, self.rss),
            left(&figures, self.figures),
            right(history, self.history),
        ];
        let shown = cells.into_iter().filter(|(width, _)| *width > 0).map(|(_, cell)| cell);
        shown.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }
}

/// What a process does, or that it is silent and what it did before.
fn figures(track: &Track, now: Duration) -> String {
    let figures: Vec<String> = track.figures.iter().map(Figure::text).collect();
    let figures = figures.join(" ");
    match track.silent() {
        None => figures,
        Some((why, since)) => {
            let was = if figures.is_empty() { figures } else { format!(", was {figures}") };
            format!("silent since {}{was} ({why})", seconds(now.saturating_sub(since)))
        }
    }
}

/// A share of a CPU.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.1}", share * 100.0))
}

/// Bytes in few characters, by powers of 1024.
pub(super) fn memory(bytes: u64) -> String {
    match bytes as f64 / 1024.0 {
        kib if kib < 1023.5 => format!("{kib:.0}K"),
        kib if kib < 1023.5 * 1024.0 => format!("{:.0}M", kib / 1024.0),
        kib => format!("{:.1}G", kib / 1024.0 / 1024.0),
    }
}

/// A time in few characters.
pub(super) fn seconds(time: Duration) -> String {
    let whole = Duration::from_secs(time.as_secs());
    humantime::format_duration(whole).to_string().replace(' ', "")
}

/// The first line: whose figures these are, and what cachelane costs.
pub(super) fn first(
    facts: &Facts,
    model: &Model,
    more: &str,
    marks: Marks,
    width: usize,
) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_millis(model.unix_ms);
    let time = humantime::format_rfc3339_seconds(time).to_string();
    // The day is known.
    let time = time.split_once('T').map_or(time.as_str(), |(_, time)| time);
    let left = format!("cachelane top  {}  {time}  {more}", marks.text(&facts.host));
    let count = model.tracks.len();
    let plural = if count == 1 { "" } else { "es" };
    let own = percent(model.own);
    let all = percent(Some(model.share()));
    let right = format!("{count} process{plural} {all}% of a CPU, top {own}%");
    let blanks = width.saturating_sub(columns(&left) + columns(&right)).max(2);
    marks.at_most(&format!("{left}{}{right}", " ".repeat(blanks)), width)
}

/// The CPUs by lane, in at most so many lines: each by itself or, if there are too many, each lane, or
/// all together.
pub(super) fn cpus(
    facts: &Facts,
    model: &Model,
    marks: Marks,
    width: usize,
    lines: usize,
) -> Vec<String> {
    let of = |lane: &[usize]| -> Vec<CpuShare> {
        let is_of = |cpu: &&CpuShare| lane.contains(&cpu.cpu);
        model.cpus.iter().filter(is_of).copied().collect()
    };
    let lanes: Vec<Vec<CpuShare>> = facts.lanes.iter().map(|lane| of(lane)).collect();
    const CELL: usize = 36;
    let label = |lane: usize| format!("lane {lane:<3}");
    let per_line = (width.saturating_sub(columns(&label(0))) / CELL).max(1);
    let needed: usize = lanes.iter().map(|cpus| cpus.len().div_ceil(per_line)).sum();
    let mut text = Vec::new();
    if needed <= lines {
        for (lane, cpus) in lanes.iter().enumerate() {
            for (at, some) in cpus.chunks(per_line).enumerate() {
                let label = if at == 0 { label(lane) } else { " ".repeat(columns(&label(lane))) };
                let cells: String = some.iter().map(|cpu| cell(cpu, marks)).collect();
                text.push(label + &cells);
            }
        }
    } else if lanes.len() <= lines {
        let there = lanes.iter().enumerate().filter(|(_, cpus)| !cpus.is_empty());
        text.extend(there.map(|(lane, cpus)| label(lane) + &together(cpus, marks)));
    } else if lines > 0 && needed > 0 {
        text.push(format!("{:<8}", "all") + &together(&lanes.concat(), marks));
    }
    text.iter().map(|line| marks.at_most(line.trim_end(), width)).collect()
}

/// Several CPUs, which are not none: what they did on average, and how busy each was.
fn together(cpus: &[CpuShare], marks: Marks) -> String {
    let each: String = cpus.iter().map(|cpu| marks.level(cpu.busy())).collect();
    let [user, system, softirq] = mean(cpus);
    let plural = if cpus.len() == 1 { " " } else { "s" };
    format!("{:>4} CPU{plural} {}  {each}", cpus.len(), shares(user, system, softirq))
}

fn cell(cpu: &CpuShare, marks: Marks) -> String {
    let bar = marks.bar(cpu.busy(), 8);
    let shares = shares(cpu.user, cpu.system, cpu.softirq);
    format!("{:>3} {bar} {shares} ", cpu.cpu)
}

fn shares(user: f64, system: f64, softirq: f64) -> String {
    let [busy, user, system, softirq] =
        [user + system + softirq, user, system, softirq].map(|share| share * 100.0);
    format!("{busy:>3.0}% us{user:>3.0} sy{system:>3.0} si{softirq:>3.0}")
}

fn mean(cpus: &[CpuShare]) -> [f64; 3] {
    let sum = |of: fn(&CpuShare) -> f64| cpus.iter().map(of).sum::<f64>() / cpus.len() as f64;
    [sum(|cpu| cpu.user), sum(|cpu| cpu.system), sum(|cpu| cpu.softirq)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(cpus: usize) -> Model {
        let share = |cpu| CpuShare { cpu, user: 0.5, system: 0.0, softirq: 0.25 };
        let mut model = Model::default();
        model.cpus = (0..cpus).map(share).collect();
        model
    }

    fn facts(lanes: usize, each: usize) -> Facts {
        let lane = |lane: usize| (lane * each..(lane + 1) * each).collect();
        Facts { host: "h".into(), lanes: (0..lanes).map(lane).collect() }
    }

    #[test]
    fn cpus_are_shown_each_by_lane_or_all_together_as_there_is_room() {
        let shown = |lanes, each, width, lines| {
            cpus(&facts(lanes, each), &model(lanes * each), Marks::ASCII, width, lines)
        };
        let each = shown(2, 3, 80, 4);
        assert_eq!(
            each[0],
            "lane 0    0 ######    75% us 50 sy  0 si 25   1 ######    75% us 50 sy  0 si 25"
        );
        assert_eq!(each[1], "          2 ######    75% us 50 sy  0 si 25");
        assert_eq!(each.len(), 4);
        let lanes = shown(2, 16, 80, 4);
        assert_eq!(lanes[1], "lane 1    16 CPUs  75% us 50 sy  0 si 25  ****************");
        assert_eq!(lanes.len(), 2);
        let all = shown(8, 32, 80, 4);
        assert_eq!(
            all[0],
            format!("all      256 CPUs  75% us 50 sy  0 si 25  {}~", "*".repeat(37))
        );
        assert_eq!(all.len(), 1);
        assert!(shown(2, 2, 80, 0).is_empty() && shown(1, 0, 80, 4).is_empty());
    }

    #[test]
    fn sizes_and_times_are_short() {
        for (bytes, text) in [(0, "0K"), (12 << 20, "12M"), (3 << 29, "1.5G"), (1 << 20, "1M")] {
            assert_eq!(memory(bytes), text);
        }
        assert_eq!(seconds(Duration::from_millis(3_661_900)), "1h1m1s");
        assert_eq!(seconds(Duration::from_millis(900)), "0s");
        assert_eq!((percent(Some(0.4321)), percent(None)), ("43.2".into(), "-".into()));
    }
}
