//! The page of results that is made from [`Bundle`]s: a table for each experiment, a row for each
//! ratio, a column for each machine.
//!
//! What a ratio came to is said in the same words and the same type, whether it is a gain or a loss.
//! A ratio that is not there has its reason below the table.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use trial::Verdict;
use trial::bench::{Bar, RatioOut};

use super::bundle::{Bundle, Entry};
use super::driver::in_words;
use super::list::{ListedPart, ListedRatio};

/// The most characters of a reason or a note: a compiler's last words can be pages.
const LONGEST: usize = 400;

/// How the page begins.
const HEAD: &str = "\
# Results

What each experiment of `cachelane bench` found on each machine, losses as well as gains.
`cachelane bench all --bundle FILE` measures a machine, `cachelane bench results FILE...` makes this
page. Do not edit it.

A ratio `a / b` is the median of its runs' ratios, with its 95 % interval; `a - b` is a difference.
**better** and **worse** say what a is beside b: the whole interval lies on that side of 1, or of 0 for
a difference. **inconclusive**: it holds both sides. A share, which has no b, has no such word. **met**
and **not met** say what became of the claim, by the median. The interval of fewer than 6 runs is their
range, which is less sure than 95 %; the number of runs then stands beside it.
";

/// The page, of bundles with the names of their files.
pub fn markdown(bundles: &[(String, Bundle)]) -> String {
    let mut page = format!("{HEAD}\n## Machines\n\n");
    machines(&mut page, bundles);
    let mut names: Vec<&str> = Vec::new();
    for entry in bundles.iter().flat_map(|(_, bundle)| &bundle.experiments) {
        if !names.contains(&entry.name.as_str()) {
            names.push(&entry.name);
        }
    }
    for name in names {
        let columns: Vec<Column<'_>> = columns(bundles, name).collect();
        experiment(&mut page, name, &columns);
    }
    page
}

/// A machine in the table of an experiment.
struct Column<'a> {
    /// From 1.
    number: usize,
    bundle: &'a Bundle,
    /// The experiment, if the bundle has it.
    entry: Option<&'a Entry>,
}

fn columns<'a>(
    bundles: &'a [(String, Bundle)],
    name: &'a str,
) -> impl Iterator<Item = Column<'a>> + 'a {
    (1..).zip(bundles).map(move |(number, (_, bundle))| {
        let entry = bundle.experiments.iter().find(|entry| entry.name == name);
        Column { number, bundle, entry }
    })
}

/// What is in a table's cell.
enum Cell<'a> {
    Found(&'a RatioOut),
    Absent(String),
}

impl Column<'_> {
    fn head(&self) -> String {
        let machine = &self.bundle.machine;
        let host = &machine.host;
        let [cpus, lanes] = [(host.cpus, "CPU"), (machine.lane_count(), "lane")].map(counted);
        let (number, cpu, kernel) = (self.number, &host.cpu, &host.kernel);
        escaped(&format!("{number}: {cpu}, {cpus}, {lanes}, Linux {kernel}"))
    }

    fn cell(&self, part: &str, row: &ListedRatio) -> Cell<'_> {
        let Some(entry) = self.entry else { return Cell::Absent("not asked for".into()) };
        let of_part = entry.parts.iter().filter(|one| one.name == part);
        if !of_part.flat_map(|one| &one.ratios).any(|one| one == row) {
            let version = &self.bundle.version;
            return Cell::Absent(format!("cachelane {version} does not have it, or claims other"));
        }
        let found = entry.output.iter().flat_map(|output| &output.ratios);
        match found.into_iter().find(|ratio| ratio.name == row.name) {
            Some(ratio) => Cell::Found(ratio),
            None => Cell::Absent(entry.why_absent(&row.name).into()),
        }
    }
}

/// The machines, and how many of their ratios came out in which way.
fn machines(page: &mut String, bundles: &[(String, Bundle)]) {
    *page += "| | CPU | CPUs | lanes | memory | kernel | HZ | hypervisor | PMU | cachelane | measured |\n";
    *page += "|---|---|---|---|---|---|---|---|---|---|---|\n";
    for (number, (_, bundle)) in (1..).zip(bundles) {
        let (machine, host) = (&bundle.machine, &bundle.machine.host);
        let same = bundles
            .iter()
            .take(number - 1)
            .position(|(_, earlier)| host.id.is_some() && earlier.machine.host.id == host.id);
        let same = same.map_or(String::new(), |at| format!(" (the machine of {})", at + 1));
        let hz = host.hz.map_or("?".into(), |hz| hz.to_string());
        let yes = |is: bool| if is { "yes" } else { "no" };
        let when = UNIX_EPOCH + Duration::from_secs_f64(bundle.started);
        let when = humantime::format_rfc3339_seconds(when).to_string();
        row(
            page,
            [
                format!("{number}{same}"),
                host.cpu.clone(),
                host.cpus.to_string(),
                format!("{} by {}", machine.lane_count(), machine.lanes_from),
                format!("{:.1} GiB", host.memory as f64 / f64::from(1 << 30)),
                host.kernel.clone(),
                hz,
                yes(machine.hypervisor).into(),
                yes(machine.pmu).into(),
                bundle.version.clone(),
                format!(
                    "{}, {}",
                    &when[..when.find('T').unwrap_or(when.len())],
                    in_words(bundle.seconds)
                ),
            ],
        );
    }
    *page += "\n| | claims met | not met | better | worse | inconclusive | absent |\n";
    *page += "|---|---|---|---|---|---|---|\n";
    for (number, (_, bundle)) in (1..).zip(bundles) {
        let counts = Counts::of(number, bundle);
        let Counts { met, not_met, better, worse, inconclusive, absent } = counts;
        let cells = [number, met, not_met, better, worse, inconclusive, absent];
        row(page, cells.map(|count| count.to_string()));
    }
    *page += "\n";
    for (number, (file, bundle)) in (1..).zip(bundles) {
        let incomplete = if bundle.incomplete { "; incomplete" } else { "" };
        let short = bundle.experiments.iter().any(|entry| entry.short);
        let short = if short { "; short: fewer rounds or shorter windows than usual" } else { "" };
        let debug = if bundle.debug { "; a debug build, which is slow" } else { "" };
        let (file, command) = (code(file), code(&bundle.command));
        let _ = writeln!(page, "{number}. {file}: {command}{incomplete}{short}{debug}");
    }
}

/// How many ratios of a bundle came out in which way.
#[derive(Default)]
struct Counts {
    met: usize,
    not_met: usize,
    better: usize,
    worse: usize,
    inconclusive: usize,
    absent: usize,
}

impl Counts {
    fn of(number: usize, bundle: &Bundle) -> Counts {
        let mut counts = Counts::default();
        for entry in &bundle.experiments {
            let column = Column { number, bundle, entry: Some(entry) };
            for (part, ratio) in ratios(&entry.parts) {
                counts.count(&column.cell(part, ratio));
            }
        }
        counts
    }

    fn count(&mut self, cell: &Cell<'_>) {
        let Cell::Found(ratio) = cell else { return self.absent += 1 };
        match ratio.met {
            Some(true) => self.met += 1,
            Some(false) => self.not_met += 1,
            None => {}
        }
        match ratio.verdict {
            Some(Verdict::Better) => self.better += 1,
            Some(Verdict::Worse) => self.worse += 1,
            Some(_) => self.inconclusive += 1,
            None => {}
        }
    }
}

/// The ratios of parts, with the names of the parts.
fn ratios(parts: &[ListedPart]) -> impl Iterator<Item = (&str, &ListedRatio)> {
    parts.iter().flat_map(|part| part.ratios.iter().map(|ratio| (part.name.as_str(), ratio)))
}

/// The table of an experiment, with what belongs to it.
fn experiment(page: &mut String, name: &str, columns: &[Column<'_>]) {
    let _ = writeln!(page, "\n## {}\n", escaped(name));
    for Column { number, entry, .. } in columns {
        if let Some(entry) = entry {
            let _ = writeln!(page, "- {number}: {}", extent(entry));
        }
    }
    let heads = columns.iter().map(Column::head);
    let heads: Vec<String> = ["ratio".into(), "claim".into()].into_iter().chain(heads).collect();
    let _ = writeln!(page, "\n| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
    let mut reasons: Vec<String> = Vec::new();
    for part in parts(columns) {
        let about = format!("*{}: {}*", escaped(&part.name), escaped(&part.about));
        let _ = writeln!(page, "| {about} |{}", " |".repeat(heads.len() - 1));
        for ratio in &part.ratios {
            let cells = columns.iter().map(|column| match column.cell(&part.name, ratio) {
                Cell::Found(found) => came_to(found),
                Cell::Absent(reason) => format!("absent ({})", noted(&mut reasons, reason)),
            });
            let cells: Vec<String> = cells.collect();
            let claim = claim(ratio.bar);
            let name = escaped(&ratio.name);
            let _ = writeln!(page, "| {name} | {claim} | {} |", cells.join(" | "));
        }
    }
    if !reasons.is_empty() {
        *page += "\nAbsent:\n\n";
        for (number, reason) in (1..).zip(&reasons) {
            let _ = writeln!(page, "{number}. {}", escaped(reason));
        }
    }
    notes(page, columns);
}

/// How much was measured of an experiment, and whether that was all.
fn extent(entry: &Entry) -> String {
    let window = Duration::try_from_secs_f64(entry.window_s).unwrap_or_default();
    let [rounds] = [(entry.rounds, "round")].map(counted);
    let short = if entry.short { " (short)" } else { "" };
    let took = entry
        .seconds
        .map_or("did not begin".into(), |seconds| format!("took {}", in_words(seconds)));
    let incomplete = if entry.is_incomplete() { ", incomplete" } else { "" };
    let error = entry.error.as_ref().map_or(String::new(), |error| format!(": {error}"));
    escaped(&format!("{rounds} of windows of {window:?}{short}; {took}{incomplete}{error}"))
}

/// All parts that some machine has, each ratio once. A claim that has changed is another row.
fn parts(columns: &[Column<'_>]) -> Vec<ListedPart> {
    let mut all: Vec<ListedPart> = Vec::new();
    for part in columns.iter().filter_map(|column| column.entry).flat_map(|entry| &entry.parts) {
        match all.iter_mut().find(|known| known.name == part.name) {
            None => all.push(part.clone()),
            Some(known) => {
                let new = part.ratios.iter().filter(|ratio| !known.ratios.contains(ratio));
                let new: Vec<_> = new.cloned().collect();
                known.ratios.extend(new);
            }
        }
    }
    all
}

/// What a reader should know, with the machines that it is of where it is not of all.
fn notes(page: &mut String, columns: &[Column<'_>]) {
    let mut notes: Vec<(&str, Vec<String>)> = Vec::new();
    for Column { number, entry, .. } in columns {
        let output = entry.iter().filter_map(|entry| entry.output.as_ref());
        for note in output.flat_map(|output| &output.notes) {
            match notes.iter_mut().find(|(known, _)| known == note) {
                Some((_, numbers)) => numbers.push(number.to_string()),
                None => notes.push((note, vec![number.to_string()])),
            }
        }
    }
    if !notes.is_empty() {
        *page += "\nNotes:\n\n";
    }
    for (note, numbers) in notes {
        let of_all = numbers.len() == columns.len();
        let of = if of_all { String::new() } else { format!("{}: ", numbers.join(", ")) };
        let _ = writeln!(page, "- {of}{}", escaped(note));
    }
}

/// A ratio as a cell has it.
fn came_to(ratio: &RatioOut) -> String {
    let few =
        if ratio.runs < 6 { format!(" ({})", counted((ratio.runs, "run"))) } else { String::new() };
    let verdict = ratio.verdict.map_or(String::new(), |verdict| format!(", {verdict}"));
    let met = match ratio.met {
        Some(true) => ", met",
        Some(false) => ", not met",
        None => "",
    };
    format!("{}{few}{verdict}{met}", ratio.text())
}

fn claim(bar: Option<Bar>) -> String {
    bar.map_or(String::new(), |bar| bar.to_string())
}

/// The number of a reason below the table, from 1.
fn noted(reasons: &mut Vec<String>, reason: String) -> usize {
    let known = reasons.iter().position(|known| *known == reason);
    known.unwrap_or_else(|| {
        reasons.push(reason);
        reasons.len() - 1
    }) + 1
}

fn counted((count, what): (usize, &str)) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn row<const N: usize>(page: &mut String, cells: [String; N]) {
    let cells = cells.map(|cell| escaped(&cell));
    let _ = writeln!(page, "| {} |", cells.join(" | "));
}

/// A text in one line that means nothing to Markdown or HTML: bundles come from anywhere.
fn escaped(text: &str) -> String {
    let line = one_line(text);
    let mut out = String::new();
    for c in line.chars() {
        match c {
            '<' => out += "&lt;",
            '&' => out += "&amp;",
            '\\' | '|' | '*' | '`' | '[' | ']' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

fn code(text: &str) -> String {
    format!("`{}`", one_line(text).replace('`', "'").replace('|', "/"))
}

fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests;
