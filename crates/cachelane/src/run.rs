//! What every command in the foreground does: it catches signals, follows what runs until a signal,
//! the time or its own end ends it, shows how it goes, and opens the control socket.

mod view;

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use knobs::{ProcessName, Registry, Server};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

pub(crate) use view::{HeldLog, Log, View, hold_log};

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Count,
    Time,
    /// Of this number.
    Signal(i32),
    /// The lender that it borrows from has ended.
    Lender,
    /// Another process has taken over.
    Replaced,
    /// Whoever read what it printed or wrote is gone.
    Reader,
    /// Something failed.
    Error,
}

impl Ended {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Ended::Count => "count",
            Ended::Time => "time",
            Ended::Signal(_) => "signal",
            Ended::Lender => "lender",
            Ended::Replaced => "replaced",
            Ended::Reader => "reader",
            Ended::Error => "error",
        }
    }
}

/// What runs, as a command looks after it.
pub(crate) trait Followed {
    /// Why it has ended by itself, if it has.
    fn ended(&mut self) -> Option<Ended> {
        None
    }

    /// Looks after it once; how soon to do so again, or none to wait for a signal.
    fn turn(&mut self) -> anyhow::Result<Option<Duration>>;

    /// What SIGUSR1 asks for.
    fn log(&mut self) -> anyhow::Result<()>;

    /// What SIGHUP asks for, where it is [heeded](Foreground::heed_hangup).
    fn hang_up(&mut self) {}
}

static ASKED_TO_END: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether a signal that was caught has asked this process to end.
pub(crate) fn is_asked_to_end() -> bool {
    // Relaxed: it orders nothing.
    ASKED_TO_END.load(Relaxed)
}

/// Makes a lost terminal and SIGQUIT ask this process to end as well, unless whoever started it has them
/// ignored (nohup).
pub(crate) fn end_on_hangup() -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read signals")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    for signal in [SIGHUP, SIGQUIT] {
        if ignored & (1 << (signal - 1)) == 0 {
            signal_hook::flag::register(signal, Arc::clone(&ASKED_TO_END))
                .context("cannot catch signals")?;
        }
    }
    Ok(())
}

/// This process in the foreground, with its signals caught.
pub(crate) struct Foreground {
    signals: Signals,
    /// Readable when a signal has come, or when somebody called a waker.
    wake: UnixStream,
    waker: UnixStream,
}

impl Foreground {
    /// Catches signals from now on.
    pub(crate) fn new() -> anyhow::Result<Foreground> {
        let caught = || {
            let signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
            for signal in [SIGINT, SIGTERM] {
                signal_hook::flag::register(signal, Arc::clone(&ASKED_TO_END))?;
            }
            let (wake, waker) = UnixStream::pair()?;
            wake.set_nonblocking(true)?;
            waker.set_nonblocking(true)?;
            let foreground = Foreground { signals, wake, waker };
            [SIGINT, SIGTERM, SIGUSR1].into_iter().try_for_each(|s| foreground.wake_by(s))?;
            Ok::<_, std::io::Error>(foreground)
        };
        caught().context("cannot catch signals")
    }

    /// Has SIGHUP ask for something else than the end.
    pub(crate) fn heed_hangup(&self) -> anyhow::Result<()> {
        let heeded = self.signals.add_signal(SIGHUP).and_then(|()| self.wake_by(SIGHUP));
        heeded.context("cannot catch SIGHUP")
    }

    /// Has a signal that is caught already end its sleep: handlers run in the order in which they were
    /// registered, so it is there to be seen by then.
    fn wake_by(&self, signal: i32) -> std::io::Result<()> {
        signal_hook::low_level::pipe::register(signal, self.waker.try_clone()?).map(drop)
    }

    /// Does what signals ask for, up to the first that asks this process to end.
    pub(crate) fn heed(&mut self, followed: &mut dyn Followed) -> anyhow::Result<Option<i32>> {
        for signal in self.signals.pending() {
            match signal {
                SIGUSR1 => followed.log()?,
                SIGHUP => followed.hang_up(),
                signal => return Ok(Some(signal)),
            }
        }
        Ok(None)
    }

    /// Follows it until the first of: a signal, its own end, the time.
    pub(crate) fn follow(
        &mut self,
        time: Option<Duration>,
        followed: &mut dyn Followed,
    ) -> anyhow::Result<Ended> {
        let start = Instant::now();
        loop {
            if let Some(signal) = self.heed(followed)? {
                return Ok(Ended::Signal(signal));
            }
            if let Some(ended) = followed.ended() {
                return Ok(ended);
            }
            let left = time.map(|time| time.saturating_sub(start.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Ended::Time);
            }
            let pause = [followed.turn()?, left].into_iter().flatten().min();
            self.sleep(pause).context("cannot wait for signals")?;
        }
    }

    /// Ends its sleep, from any thread.
    pub(crate) fn waker(&self) -> anyhow::Result<impl Fn() + Send + Sync + 'static> {
        let waker = self.waker.try_clone().context("cannot duplicate a file")?;
        // A pipe that is full wakes it as well.
        Ok(move || drop((&waker).write(&[0])))
    }

    /// Sleeps until a signal comes or somebody wakes it, or for this long.
    pub(crate) fn sleep(&mut self, pause: Option<Duration>) -> std::io::Result<()> {
        let timeout = pause.and_then(|pause| pause.try_into().ok());
        match poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match self.wake.read(&mut [0; 64]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

/// Opens the control socket of this process, with what `register` adds to its knobs and counters. A
/// mechanism is worth running without one, so trouble is only said.
pub(crate) fn open_control(
    process: &str,
    name: ProcessName,
    register: impl FnOnce(&Registry) -> Result<(), knobs::Error>,
) -> Option<Server> {
    let registry = Registry::named(process, name);
    let opened = register(&registry).and_then(|()| Server::bind(registry));
    match &opened {
        Ok(server) => tracing::debug!("control socket {}", server.path().display()),
        Err(error) => tracing::warn!("no control socket, so no knobs: {error}"),
    }
    opened.ok()
}
