//! What is shown while it runs: a line on a terminal, or lines of JSON.

use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use serde_json::Value;

use crate::out;

/// The live line on stderr, when to show the next one, and what goes to stdout beside it.
pub(crate) struct View {
    bar: ProgressBar,
    json: bool,
    every: Option<Duration>,
    start: Instant,
    last: Instant,
}

impl View {
    /// Shows a line each second or, if it is given, each `interval`: on a terminal, unless `quiet`,
    /// or as JSON.
    pub(crate) fn new(json: bool, interval: Option<Duration>, quiet: bool) -> View {
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
        let every = interval.or(live).filter(|_| terminal || json);
        let shown = terminal.then(|| bar.clone());
        *LIVE.lock() = shown;
        let start = Instant::now();
        View { bar, json, every, start, last: start }
    }

    /// Whether somebody may see the line.
    pub(crate) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Has lines be due each second or `interval`, also where nobody sees them.
    pub(crate) fn keep_time(&mut self, interval: Option<Duration>) {
        self.every.get_or_insert(interval.unwrap_or(Duration::from_secs(1)));
    }

    /// The time since the line before, if the next one is due.
    pub(crate) fn due(&mut self) -> Option<Duration> {
        let (every, span) = (self.every?, self.span());
        if span < every {
            return None;
        }
        // In step with the interval, however late this turn comes.
        self.last += if span > 2 * every { span } else { every };
        Some(span)
    }

    /// The time until the next line is due, if there is one.
    pub(crate) fn left(&self) -> Option<Duration> {
        Some(self.every?.saturating_sub(self.span()))
    }

    /// The time since the line before.
    pub(crate) fn span(&self) -> Duration {
        self.last.elapsed()
    }

    /// The time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Shows the line.
    pub(crate) fn show(&self, line: String) {
        self.bar.set_message(line);
    }

    /// Prints an object beside the line, where JSON was asked for; whether somebody reads it.
    pub(crate) fn print(
        &self,
        object: impl FnOnce() -> anyhow::Result<Value>,
    ) -> anyhow::Result<bool> {
        if !self.json {
            return Ok(true);
        }
        let text = format!("{}\n", object()?);
        // Logs wait meanwhile, so not while a pipe may be full.
        match io::stdout().is_terminal() {
            true => self.bar.suspend(|| out::try_print(&text)),
            false => out::try_print(&text),
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
        *LIVE.lock() = None;
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The line that is shown, for those who write beside it.
static LIVE: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Where logs go: to stderr, beside the live line.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(held) = HELD.lock().as_mut() {
            let room = HELD_MOST.saturating_sub(held.len());
            held.extend_from_slice(&bytes[..bytes.len().min(room)]);
            return Ok(bytes.len());
        }
        let live = LIVE.lock().clone();
        match live {
            Some(bar) => bar.suspend(|| io::stderr().write(bytes)),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// What is logged while something else has the terminal, and how much of that is kept.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);
const HELD_MOST: usize = 64 * 1024;

/// Holds logs back until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldLog(());

/// Holds logs back from a terminal that something else is drawn on. A file gets them at once.
pub(crate) fn hold_log() -> HeldLog {
    if io::stderr().is_terminal() {
        *HELD.lock() = Some(Vec::new());
    }
    HeldLog(())
}

impl Drop for HeldLog {
    fn drop(&mut self) {
        let held = HELD.lock().take();
        // A log that nobody reads any more is no reason to fail.
        let _ = io::stderr().write_all(&held.unwrap_or_default());
    }
}
