//! `cachelane top`: a live view of all cachelane processes of this host.
//!
//! `collect` makes samples: it asks the processes over their control sockets, and reads `/proc`. A
//! `sample` is plain data, which `record` writes and reads. `model` makes rates and histories of
//! samples, the same whether they are live or replayed. `app` is what is shown of that and what keys
//! do; `table`, `detail` and `plain` are lines of text, which `draw` puts on the screen. `live` is the
//! loop around all this.

mod app;
mod collect;
mod detail;
mod draw;
mod host;
mod live;
mod marks;
mod model;
mod plain;
mod record;
mod sample;
mod screen;
mod table;
mod telling;
#[cfg(test)]
mod testing;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use knobs::Select;
use lanes::LaneMap;

use crate::args::{LanesArg, UntilArg, duration};
use crate::exit::{Exit, usage};
use crate::out;
use crate::run::{Ended, Followed, Foreground};
use crate::terminal;
use app::{App, Replay};
use collect::{Closely, Collector};
use live::From;
use marks::Marks;
use model::Model;
use record::Recorder;
use table::Facts;

/// Watch the running cachelane processes: what they do, and what they cost
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Shows the CPUs by lane, and a line for each process: its share of a CPU, its memory, its most telling \
rates and their history. Enter shows all that is known of a process: its counters with their rates, \
its knobs and who holds them, a relay's listeners and backends. Press ? for the keys.

A process that does not answer is shown as silent, with what it said last; it delays no other.

Users see their own processes. Root sees those of all users.

Examples:
  cachelane top
  cachelane top --once
  cachelane top --record night.jsonl --interval 5s
  cachelane top --replay night.jsonl --speed 20")]
pub(crate) struct Args {
    /// Only the process with this process id
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Only the processes of this name, such as 'relay :8080'
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Time between two looks, at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one view as text and end; it takes one interval, for the rates
    #[arg(long, conflicts_with = "time")]
    once: bool,
    /// Print JSON: one object with --once, else an object on a line of its own each interval
    #[arg(long)]
    json: bool,
    /// Write all that is seen to this file, in place of what is there
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Show what was recorded in this file; with --once, the last of it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "pid", "name", "interval", "lanes"])]
    replay: Option<PathBuf>,
    /// How many times as fast a replay runs, from 0.01 to 1000
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = speed, requires = "replay")]
    speed: f64,
    #[command(flatten)]
    lanes: LanesArg,
    #[command(flatten)]
    until: UntilArg,
}

/// Reads the time between two looks.
fn interval(s: &str) -> Result<Duration, String> {
    const BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(86_400));
    let interval = duration(s)?;
    match interval {
        i if i < BOUNDS.0 => Err("too short (expected at least 100ms)".into()),
        i if i > BOUNDS.1 => Err("too long (expected at most 1 day)".into()),
        i => Ok(i),
    }
}

fn speed(s: &str) -> Result<f64, String> {
    let speed = s.parse().ok().filter(|speed| (0.01..=1000.0).contains(speed));
    speed.ok_or_else(|| format!("'{s}' is no speed (expected a number from 0.01 to 1000)"))
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    if !args.once && !args.json && !std::io::stdout().is_terminal() {
        return Err(usage(
            "stdout is no terminal, so there is no live view (--once prints one view as text, --json \
             prints lines of JSON)"
                .into(),
        ));
    }
    match &args.replay {
        Some(path) => replay(args, live::open(path)?)?,
        None => watch(args)?,
    }
    Ok(Exit::Ok)
}

fn replay(args: &Args, mut recording: record::Recording) -> anyhow::Result<()> {
    let (marks, facts) = (Marks::of_locale(), recording.header.facts.clone());
    let interval = Duration::from_millis(recording.header.interval_ms);
    if args.once {
        let last = recording.len() - 1;
        let model = live::model_at(&mut recording, last)?;
        return Printer { json: args.json, facts, marks, interval }.print(&model).map(drop);
    }
    if args.json {
        let printer = Printer { json: true, facts, marks, interval };
        let mut model = Model::default();
        for place in 0..recording.len() {
            model.take(recording.sample(place)?);
            // The first has no rates, as live.
            if place > 0 && !printer.print(&model)? {
                break;
            }
        }
        return Ok(());
    }
    let mut app = App::new(facts, marks, interval);
    app.replay = Some(Replay { at: 0, of: recording.len(), is_playing: true, speed: args.speed });
    live::show(app, From::Recording(recording), args.until.time)
}

fn watch(args: &Args) -> anyhow::Result<()> {
    let select = Select { pid: args.pid, name: args.name.clone() };
    let facts = Facts { host: host::name(), lanes: lanes(&args.lanes.map()?) };
    let create = |path: &PathBuf| Recorder::create(path, &facts, args.interval);
    let recorder = args.record.as_ref().map(create).transpose()?;
    let marks = Marks::of_locale();
    let collector = Collector::new(select.clone(), args.once);
    if args.once || args.json {
        let printer = Printer { json: args.json, facts, marks, interval: args.interval };
        let (model, left) = (Model::default(), args.once.then_some(1));
        let mut printing =
            Printing { printer, collector, recorder, model, samples: 0, left, ended: None, select };
        let mut foreground = Foreground::new()?;
        return foreground.follow(args.until.time, &mut printing).map(drop);
    }
    let app = App::new(facts, marks, args.interval);
    live::show(app, From::Processes { collector, recorder }, args.until.time)
}

/// The CPUs of each lane.
fn lanes(map: &LaneMap) -> Vec<Vec<usize>> {
    map.lanes().map(|lane| map.cpus(lane).iter().collect()).collect()
}

/// Prints views to stdout.
struct Printer {
    json: bool,
    facts: Facts,
    marks: Marks,
    interval: Duration,
}

impl Printer {
    /// Whether somebody still reads.
    fn print(&self, model: &Model) -> anyhow::Result<bool> {
        let Printer { facts, interval, .. } = self;
        out::try_print(&match self.json {
            true => format!("{}\n", plain::object(facts, model, *interval)),
            false => {
                let more = format!("over {}", humantime::format_duration(*interval));
                plain::text(facts, model, self.marks, terminal::width(), &more)
            }
        })
    }
}

/// What prints a view each interval.
struct Printing {
    printer: Printer,
    collector: Collector,
    recorder: Option<Recorder>,
    model: Model,
    samples: usize,
    /// How many views are left to print; none for no end.
    left: Option<usize>,
    ended: Option<Ended>,
    select: Select,
}

impl Followed for Printing {
    fn ended(&mut self) -> Option<Ended> {
        self.ended
    }

    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        let sample = self.collector.sample(&Closely::All)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&sample)?;
        }
        if self.samples == 0 && sample.processes.is_empty() && !self.select.is_any() {
            return Err(self.collector.search.none(&self.select).into());
        }
        let at = sample.at;
        self.model.take(sample);
        self.samples += 1;
        // The first has no rates.
        if self.samples > 1 {
            if !self.printer.print(&self.model)? {
                self.ended = Some(Ended::Reader);
            }
            self.left = self.left.map(|left| left - 1);
            if self.left == Some(0) {
                self.ended = Some(Ended::Count);
            }
        }
        if self.ended.is_some() {
            return Ok(Some(Duration::ZERO));
        }
        Ok(Some(self.printer.interval.saturating_sub(self.collector.since(at))))
    }

    fn log(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
