//! How it goes: a line while it runs, a table by CPU, JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};
use steer::{Counters, Reason, Steering};

use crate::args::{ON_OFF, name_of};
use crate::counters::object;
use crate::figures::{of_which, per_second, tight};
use crate::run::{Ended, View};
use crate::terminal::{live_width, table};

/// What is shown of the steering while it runs and when it ends.
pub(super) struct Report<'a> {
    steering: &'a Steering,
    view: View,
    /// At the line before.
    before: Counters,
}

impl<'a> Report<'a> {
    pub(super) fn new(steering: &'a Steering, json: bool, quiet: bool) -> Self {
        let view = View::new(json, None, quiet);
        Self { steering, view, before: Counters::default() }
    }

    /// Shows the next live line if it is time.
    pub(super) fn turn(&mut self) -> anyhow::Result<()> {
        if let Some(span) = self.view.due() {
            let counters = self.steering.counters()?;
            self.view.show(live(&counters, &self.before, span, live_width()));
            self.before = counters;
        }
        Ok(())
    }

    /// What SIGUSR1 asks for.
    pub(super) fn status(&self) -> anyhow::Result<()> {
        let by_cpu = self.steering.counters_by_cpu()?;
        let summary = summary(&self.steering.counters()?);
        tracing::info!("{summary}\n{}", cpu_table(&by_cpu).trim_end());
        self.print("status", None)
    }

    /// What came of it.
    pub(super) fn end(self, ended_by: Ended) -> anyhow::Result<()> {
        self.view.clear();
        tracing::info!("{}", summary(&self.steering.counters()?));
        tracing::debug!("by CPU:\n{}", cpu_table(&self.steering.counters_by_cpu()?).trim_end());
        self.print("end", Some(ended_by))
    }

    fn print(&self, event: &str, ended_by: Option<Ended>) -> anyhow::Result<()> {
        let object = || {
            let mut object = json!({
                "schema": 1,
                "command": "steer",
                "event": event,
                "interface": self.steering.device().name(),
                "seconds": self.view.elapsed().as_secs_f64(),
                "targets": self.steering.targets().to_string(),
                "llc_affinity": name_of(ON_OFF, self.steering.llc_affinity()?),
                "counters": figures(&self.steering.counters()?),
                "cpus": self.steering.counters_by_cpu()?.iter().map(of_cpu).collect::<Vec<_>>(),
            });
            if let Some(ended_by) = ended_by {
                object["ended_by"] = ended_by.name().into();
            }
            Ok(object)
        };
        self.view.print(object).map(drop)
    }
}

/// The counters, for programs.
fn figures(counters: &Counters) -> Map<String, Value> {
    let mut figures = object(Counters::FIELDS, counters.values());
    let kernel = object(Reason::FIELDS, Reason::ALL.map(|reason| counters.kernel(reason)));
    figures.insert("left_alone".into(), counters.left_alone().into());
    figures.insert("kernel".into(), kernel.into());
    figures
}

fn of_cpu((cpu, counters): &(usize, Counters)) -> Value {
    let mut figures = figures(counters);
    figures.insert("cpu".into(), (*cpu).into());
    figures.into()
}

/// The counters, for people.
fn summary(counters: &Counters) -> String {
    let why = of_which(Reason::ALL.iter().map(|why| (why.name(), counters.kernel(*why))));
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
    let tight = |value: u64| tight(value as f64);
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
        tight(per_second(since, span))
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
