//! What is shown while it runs: a line on a terminal, or lines of JSON.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use frames::FramePool;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::live::{self, Sample};
use super::meter::{Meters, Totals};
use super::options::RunArgs;
use super::report;
use super::session::Beside;

/// What is shown, and when.
pub(in crate::cmd) struct View<'a> {
    command: &'static str,
    json: bool,
    every: Option<Duration>,
    meters: &'a Meters,
    pool: &'a FramePool,
    beside: &'a dyn Beside,
    bar: ProgressBar,
    start: Instant,
    last: (Instant, Totals),
}

impl<'a> View<'a> {
    pub(in crate::cmd) fn new(
        command: &'static str,
        run: &RunArgs,
        quiet: bool,
        meters: &'a Meters,
        pool: &'a FramePool,
        beside: &'a dyn Beside,
    ) -> View<'a> {
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
        let start = Instant::now();
        let last = (start, Totals::default());
        View { command, json: run.json, every, meters, pool, beside, bar, start, last }
    }

    /// Shows the next line if it is time.
    pub(in crate::cmd) fn turn(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let Some(every) = self.every.filter(|&every| now >= self.last.0 + every) else {
            return Ok(());
        };
        let sample = self.sample(now);
        // In step with the interval, however late this turn comes.
        let at = if now > self.last.0 + 2 * every { now } else { self.last.0 + every };
        self.last = (at, sample.totals);
        self.bar.set_message(self.line(&sample, live::width()));
        if self.json {
            let fields = self.beside.fields();
            let mut line = report::sample(self.command, &sample, fields).to_string();
            line.push('\n');
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("cannot print")?;
        }
        Ok(())
    }

    fn line(&self, sample: &Sample, width: usize) -> String {
        live::line(sample, self.beside.words().as_deref(), width)
    }

    fn sample(&self, now: Instant) -> Sample {
        let census = self.pool.census();
        let totals = self.meters.totals();
        let (seconds, span) = (now - self.start, now - self.last.0);
        Sample { seconds, span, totals, before: self.last.1, census }
    }

    pub(in crate::cmd) fn log(&self) {
        let line = self.line(&self.sample(Instant::now()), usize::MAX);
        self.bar.suspend(|| tracing::info!("{line}"));
    }

    pub(in crate::cmd) fn close(&self) {
        self.bar.finish_and_clear();
    }
}
