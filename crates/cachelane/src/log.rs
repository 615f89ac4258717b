//! The log, on stderr. A thread of its own writes it, so that whoever logs, such as a thread that
//! moves packets, never waits for somebody who does not read: lines that find the queue full are lost
//! and counted.

use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tracing_subscriber::EnvFilter;

use crate::cmd::Command;
use crate::{member, run};

/// What is logged where nobody says what.
pub(crate) const DEFAULT: &str = "info";

/// Lines that wait to be written at most.
const QUEUE: usize = 4096;

/// The environment variable with a filter.
pub(crate) const FILTER: &str = "CACHELANE_LOG";

/// How long, at the end, a stderr that takes nothing is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread that writes. When it is dropped, what was logged has been written, unless nobody reads.
#[derive(Debug)]
pub(crate) struct Log {
    queue: SyncSender<Message>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    End,
}

/// Logs from now on. A bench flips knobs and moves ports thousands of times: what it logs of that
/// would bury what it says of itself.
pub(crate) fn to_stderr(quiet: bool, verbose: u8, of: &Command) -> Log {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) if of.is_bench() => "warn",
        (false, 0) => DEFAULT,
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    // What the user says is over what a configuration does.
    let is_set = quiet || verbose > 0 || std::env::var_os(FILTER).is_some();
    let level = member::filter().filter(|_| !is_set).unwrap_or_else(|| level.into());
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(level));
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (queue, lines) = sync_channel(QUEUE);
    let lost = Arc::new(AtomicU64::new(0));
    let to = Queued { queue: queue.clone(), lost: Arc::clone(&lost) };
    let thread = std::thread::Builder::new().name("log".into());
    let writer = thread.spawn(move || write(&lines, &lost)).ok();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || to.clone())
        .with_ansi(colour)
        .with_target(false)
        // A log that nobody reads any more is no reason to end.
        .log_internal_errors(false);
    if !of.sets_filter() {
        subscriber.init();
    } else {
        let subscriber = subscriber.with_filter_reloading();
        let handle = subscriber.reload_handle();
        if !is_set {
            let set = move |filter: &str| drop(handle.reload(EnvFilter::new(filter)));
            // It is the first and only one.
            let _ = SET_FILTER.set(Box::new(set));
        }
        subscriber.init();
    }
    Log { queue, writer }
}

/// What takes a line at once, or counts it as lost.
#[derive(Clone, Debug)]
struct Queued {
    queue: SyncSender<Message>,
    /// Relaxed: a count.
    lost: Arc<AtomicU64>,
}

impl Write for Queued {
    /// A whole line: the subscriber writes each in one go.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Message::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has this filter decide what is logged from now on, where the command
/// [sets one](Command::sets_filter), unless the environment or the command line has another.
pub(crate) fn set_filter(filter: &str) {
    if let Some(set) = SET_FILTER.get() {
        set(filter);
    }
}

type SetFilter = Box<dyn Fn(&str) + Send + Sync>;
/// None where something else has one.
static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

fn write(lines: &Receiver<Message>, lost: &AtomicU64) {
    let whose = member::name().map(|name| format!("{name} ").into_bytes());
    // Errors: nobody reads any more.
    while let Ok(Message::Line(mut line)) = lines.recv() {
        // In one write, beside those of others.
        if let Some(whose) = &whose {
            line.splice(..0, whose.iter().copied());
        }
        let _ = run::Log.write_all(&line);
        let lost = lost.swap(0, Relaxed);
        if lost > 0 {
            let _ = writeln!(run::Log, "{lost} log lines were lost: stderr was not read in time");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        let mut end = Some(Message::End);
        let mut taken = Instant::now();
        // However long the writer waits for a CPU, it is waited for; nobody who reads is not.
        while !writer.is_finished() && taken.elapsed() < PATIENCE {
            end = end.and_then(|end| self.queue.try_send(end).err()).map(|_| Message::End);
            if takes_more() {
                taken = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether a write to stderr would not wait.
fn takes_more() -> bool {
    let stderr = io::stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    poll(&mut polled, Some(&Default::default())).is_ok_and(|ready| ready > 0)
}
