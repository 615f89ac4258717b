//! How it goes: a line while it runs, a table by CPU, JSON.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use steer::{Counters, Reason, Steering};

use crate::cmd::xsk::live::{per_second, si, width};
use crate::table::table;

/// What is shown of the steering while it runs and when it ends.
pub(super) struct Report<'a> {
    steering: &'a Steering,
    json: bool,
    bar: ProgressBar,
    start: Instant,
    last: (Instant, Counters),
}

impl<'a> Report<'a> {
    pub(super) fn new(steering: &'a Steering, json: bool, quiet: bool) -> Self {
        let bar = ProgressBar::no_length();
        bar.set_draw_target(match io::stderr().is_terminal() && !quiet {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        });
        // The template is fixed and parses.
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        let start = Instant::now();
        Self { steering, json, bar, start, last: (start, Counters::default()) }
    }

    /// Shows the next live line, where somebody sees it.
    pub(super) fn turn(&mut self) -> anyhow::Result<()> {
        if self.bar.is_hidden() {
            return Ok(());
        }
        let (now, counters) = (Instant::now(), self.steering.counters()?);
        self.bar.set_message(live(&counters, &self.last.1, now - self.last.0, width()));
        self.last = (now, counters);
        Ok(())
    }

    /// Logs something, beside the live line.
    pub(super) fn log(&self, log: impl FnOnce()) {
        self.bar.suspend(log);
    }

    /// What SIGUSR1 asks for.
    pub(super) fn status(&self) -> anyhow::Result<()> {
        let by_cpu = self.steering.counters_by_cpu()?;
        let summary = summary(&self.steering.counters()?);
        self.log(|| tracing::info!("{summary}\n{}", cpu_table(&by_cpu).trim_end()));
        self.print("status", None)
    }

    /// What came of it.
    pub(super) fn end(&self, ended_by: &str) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        tracing::info!("{}", summary(&self.steering.counters()?));
        tracing::debug!("by CPU:\n{}", cpu_table(&self.steering.counters_by_cpu()?).trim_end());
        self.print("end", Some(ended_by))
    }

    fn print(&self, event: &str, ended_by: Option<&str>) -> anyhow::Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut object = json!({
            "schema": 1,
            "command": "steer",
            "event": event,
            "interface": self.steering.device().name(),
            "seconds": self.start.elapsed().as_secs_f64(),
            "targets": self.steering.targets().to_string(),
            "llc_affinity": if self.steering.llc_affinity()? { "on" } else { "off" },
            "counters": figures(&self.steering.counters()?),
            "cpus": self.steering.counters_by_cpu()?.iter().map(of_cpu).collect::<Vec<_>>(),
        });
        if let Some(ended_by) = ended_by {
            object["ended_by"] = ended_by.into();
        }
        let line = format!("{object}\n");
        let mut out = io::stdout().lock();
        self.log(|| ());
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("cannot print")
    }
}

/// The counters, for programs.
fn figures(counters: &Counters) -> Map<String, Value> {
    let named = Counters::FIELDS.iter().zip(counters.values());
    let mut figures: Map<String, Value> =
        named.map(|((name, ..), value)| ((*name).to_owned(), value.into())).collect();
    let kernel =
        Reason::ALL.map(|reason| (reason.name().to_owned(), counters.kernel(reason).into()));
    figures.insert("left_alone".into(), counters.left_alone().into());
    figures.insert("kernel".into(), Map::from_iter(kernel).into());
    figures
}

fn of_cpu((cpu, counters): &(usize, Counters)) -> Value {
    let mut figures = figures(counters);
    figures.insert("cpu".into(), (*cpu).into());
    figures.into()
}

/// The counters, for people.
fn summary(counters: &Counters) -> String {
    let kernel: Vec<String> = Reason::ALL
        .iter()
        .filter(|reason| counters.kernel(**reason) > 0)
        .map(|reason| format!("{} {}", reason.name(), counters.kernel(*reason)))
        .collect();
    let why = if kernel.is_empty() { String::new() } else { format!(" ({})", kernel.join(", ")) };
    let lost = match counters.overflows {
        0 => String::new(),
        lost => format!("; lost {lost} as a CPU's queue was full"),
    };
    format!(
        "steered {} packets, {} moves, {} held back for order; left {} to the kernel{why}{lost}; \
         {} records written, {} not as the consumer stayed in its lane",
        counters.steered,
        counters.moves,
        counters.held,
        counters.left_alone(),
        counters.written,
        counters.same_lane,
    )
}

/// The counters of the CPUs on which anything happened.
fn cpu_table(by_cpu: &[(usize, Counters)]) -> String {
    let busy = by_cpu.iter().filter(|(_, counters)| *counters != Counters::default());
    let tight = |value: u64| si(value as f64).replace(' ', "");
    let row = |(cpu, counters): &(usize, Counters)| {
        let Counters { steered, moves, held, receives, written, same_lane, overflows, .. } =
            *counters;
        let all = [steered, moves, held, counters.left_alone(), receives, written, same_lane];
        let [steered, moves, held, left, receives, written, same_lane] = all.map(tight);
        [
            cpu.to_string(),
            steered,
            moves,
            held,
            left,
            receives,
            written,
            same_lane,
            tight(overflows),
        ]
    };
    let rows: Vec<[String; 9]> = busy.map(row).collect();
    let head =
        ["CPU", "STEERED", "MOVES", "HELD", "KERNEL", "USES", "WRITTEN", "SAME LANE", "LOST"];
    table(head, &rows)
}

/// What happened between two looks, in at most `width` characters.
fn live(now: &Counters, before: &Counters, span: Duration, width: usize) -> String {
    let rate = |read: fn(&Counters) -> u64| {
        let since = read(now).wrapping_sub(read(before));
        si(per_second(since, span)).replace(' ', "")
    };
    let mut parts = vec![
        format!("steered {}/s", rate(|c| c.steered)),
        format!("kernel {}/s", rate(Counters::left_alone)),
        format!("records {}/s", rate(|c| c.written)),
        format!("filtered {}/s", rate(|c| c.same_lane)),
        format!("moves {}/s", rate(|c| c.moves)),
    ];
    if now.overflows > before.overflows {
        parts.insert(0, format!("lost {}/s", rate(|c| c.overflows)));
    }
    while parts.len() > 1 && parts.join(", ").chars().count() > width {
        parts.pop();
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> Counters {
        let mut counters = Counters::default();
        (counters.steered, counters.written, counters.same_lane) = (2_000_000, 20, 200);
        counters.kernel[Reason::Fragment as usize] = 3;
        counters
    }

    #[test]
    fn the_live_line_keeps_to_the_width_and_says_what_is_lost_first() {
        let mut now = counters();
        let line =
            |now: &Counters, width| live(now, &Counters::default(), Duration::from_secs(2), width);
        assert_eq!(
            line(&now, 80),
            "steered 1.00M/s, kernel 2/s, records 10/s, filtered 100/s, moves 0/s"
        );
        assert_eq!(line(&now, 30), "steered 1.00M/s, kernel 2/s");
        now.overflows = 2;
        assert_eq!(line(&now, 30), "lost 1/s, steered 1.00M/s");
    }

    #[test]
    fn the_summary_and_the_table_say_what_there_was() {
        let summary = summary(&counters());
        assert!(summary.contains("left 3 to the kernel (fragment 3);"), "{summary}");
        let table = cpu_table(&[(0, Counters::default()), (7, counters())]);
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        let figures = figures(&counters());
        assert_eq!(
            (&figures["steered"], &figures["kernel"]["fragment"]),
            (&2_000_000.into(), &3.into())
        );
        assert_eq!(figures["left_alone"], 3);
    }
}
