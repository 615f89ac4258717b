//! From the start of the workers to their end: signals, the time that is up, the live line.

use std::io::{self, IsTerminal as _, Write as _};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lend::Borrower;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::RunArgs;
use super::meter::{Meters, Totals};
use super::report;
use super::worker::{self, Stop, Task, Worker};
use crate::cmd::xsk::live;

/// What is to run.
pub(super) struct Session {
    pub(super) tasks: Vec<(Borrower, Task)>,
    pub(super) spin: bool,
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Lender,
    Reader,
    Time,
    Signal,
    /// Something failed.
    Error,
}

impl Ended {
    pub(super) fn name(self) -> &'static str {
        match self {
            Ended::Lender => "lender",
            Ended::Reader => "reader",
            Ended::Time => "time",
            Ended::Signal => "signal",
            Ended::Error => "error",
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) ended: Ended,
    /// What failed, if that ended it.
    pub(super) error: Option<anyhow::Error>,
    pub(super) time: Duration,
    pub(super) quota: u32,
    pub(super) channels: usize,
    pub(super) workers: Vec<Totals>,
}

type Handle<'scope> = ScopedJoinHandle<'scope, anyhow::Result<worker::Ended>>;

impl Session {
    /// Runs the workers until the lender is gone, the time is up or a signal comes.
    pub(super) fn run(self, run: &RunArgs, quiet: bool) -> anyhow::Result<Outcome> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGUSR1]).context("cannot catch signals")?;
        let meters = Meters::new(self.tasks.len());
        let (quota, channels) = (self.tasks[0].0.quota(), self.tasks[0].0.channels());
        let stop = Stop::default();
        let ended = std::thread::scope(|scope| {
            let mut view = View::new(run, quiet, &meters);
            let followed = self.spawn(scope, &stop, &meters).and_then(|workers| {
                let ended = follow(&workers, run.time, &mut signals, &mut view);
                stop.end();
                join(workers).and_then(|all| Ok(ended?.unwrap_or(all)))
            });
            stop.end();
            view.bar.finish_and_clear();
            followed
        });
        let (ended, error) = match ended {
            Ok(ended) => (ended, None),
            Err(error) => (Ended::Error, Some(error)),
        };
        let (time, workers) = (meters.start.elapsed(), meters.read());
        Ok(Outcome { ended, error, time, quota, channels, workers })
    }

    fn spawn<'scope, 'env>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        stop: &Stop,
        meters: &'env Meters,
    ) -> anyhow::Result<Vec<Handle<'scope>>> {
        let spin = self.spin;
        let spawn = |(number, (borrower, task))| {
            let (others, start, meter) = (stop.clone(), meters.start, meters.of(number));
            let stop = stop.clone();
            let worker = Worker { borrower, task, spin, stop, start, meter };
            let body = move || worker.run().inspect_err(|_| others.end());
            let named = std::thread::Builder::new().name(format!("borrow-{number}"));
            named.spawn_scoped(scope, body).context("cannot start a thread")
        };
        self.tasks.into_iter().enumerate().map(spawn).collect()
    }
}

/// Waits for the first of: a signal, the time, the end of all workers, the failure of one.
fn follow(
    workers: &[Handle<'_>],
    time: Option<Duration>,
    signals: &mut Signals,
    view: &mut View<'_>,
) -> anyhow::Result<Option<Ended>> {
    /// How soon all but the time is heeded.
    const LOOK: Duration = Duration::from_millis(20);
    let start = view.meters.start;
    loop {
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => view.log(),
                _ => return Ok(Some(Ended::Signal)),
            }
        }
        if workers.iter().all(ScopedJoinHandle::is_finished) {
            return Ok(None);
        }
        let left = time.map(|time| time.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Some(Ended::Time));
        }
        view.turn()?;
        std::thread::sleep(left.map_or(LOOK, |left| left.min(LOOK)));
    }
}

/// Waits for all workers: why they ended by themselves, or the first error of them.
fn join(workers: Vec<Handle<'_>>) -> anyhow::Result<Ended> {
    let results: Vec<anyhow::Result<worker::Ended>> = workers
        .into_iter()
        .map(|worker| worker.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked"))))
        .collect();
    let ended = results.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let reader = ended.contains(&worker::Ended::Reader);
    Ok(if reader { Ended::Reader } else { Ended::Lender })
}

/// What is shown while it runs.
struct View<'a> {
    json: bool,
    every: Option<Duration>,
    meters: &'a Meters,
    bar: ProgressBar,
    last: (Instant, Totals),
}

impl<'a> View<'a> {
    fn new(run: &RunArgs, quiet: bool, meters: &'a Meters) -> View<'a> {
        let terminal = io::stderr().is_terminal() && !quiet;
        let bar = ProgressBar::no_length();
        bar.set_draw_target(match terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        });
        // The template is fixed and parses.
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        let live = terminal.then_some(Duration::from_secs(1));
        let every = run.interval.or(live).filter(|_| terminal || run.json);
        View { json: run.json, every, meters, bar, last: (meters.start, Totals::default()) }
    }

    /// Shows the next line if it is time.
    fn turn(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.every.is_none_or(|every| now < self.last.0 + every) {
            return Ok(());
        }
        let totals = self.meters.total();
        let line: String = self.line(now, &totals).chars().take(live::width()).collect();
        self.bar.set_message(line);
        if self.json {
            let span = now - self.last.0;
            let sample = report::sample(now - self.meters.start, span, &totals, &self.last.1);
            let mut out = io::stdout().lock();
            writeln!(out, "{sample}").and_then(|()| out.flush()).context("cannot print")?;
        }
        self.last = (now, totals);
        Ok(())
    }

    fn log(&self) {
        let line = self.line(Instant::now(), &self.meters.total());
        self.bar.suspend(|| tracing::info!("{line}"));
    }

    fn line(&self, now: Instant, totals: &Totals) -> String {
        let (then, before) = &self.last;
        let rate = |count: u64, before: u64| {
            live::per_second(count.saturating_sub(before), now.saturating_duration_since(*then))
        };
        let pps = live::si(rate(totals.packets, before.packets));
        let bits = live::si(rate(totals.bytes, before.bytes) * 8.0);
        let dropped = match totals.dropped - before.dropped {
            0 => "no drops".into(),
            dropped => format!("{dropped} dropped over the quota"),
        };
        let Totals { packets, bytes, .. } = totals;
        format!("{pps}pps {bits}bit/s | {dropped} | {packets} packets, {bytes} bytes so far")
    }
}
