//! What every command in the foreground does: it catches signals, follows what runs until a signal,
//! the time or its own end ends it, shows how it goes, and opens the control socket.

mod view;

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kit::pulse::Watch;
use knobs::{ProcessName, Registry, Server};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use sd_notify::NotifyState;

use crate::{member, passed};
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
    /// All that was to be done is done.
    Done,
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
            Ended::Done => "done",
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

    /// Whether all has started that is to, after a turn.
    fn is_ready(&self) -> bool {
        true
    }

    /// What SIGUSR1 asks for.
    fn log(&mut self) -> anyhow::Result<()>;

    /// What SIGHUP asks for, where it is [heeded](Foreground::heed_hangup).
    fn hang_up(&mut self) {}

    /// What SIGUSR2 asks for, where it is [heeded](Foreground::heed_as_daemon).
    fn upgrade(&mut self) {}
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
    also: Option<OwnedFd>,
    /// How often the service manager is told that this process is alive, and when it was last.
    alive_every: Option<Duration>,
    told: Option<Instant>,
    /// It was told that all has started.
    is_ready: bool,
    /// Sees whether the threads get on.
    watch: Watch,
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
            let alive_every = passed::alive_every();
            let foreground = Foreground {
                signals,
                wake,
                waker,
                also: None,
                alive_every,
                told: None,
                is_ready: false,
                watch: Watch::default(),
            };
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

    /// Has SIGHUP and SIGUSR2 ask for something else than the end, and the end of a child wake it.
    pub(crate) fn heed_as_daemon(&self) -> anyhow::Result<()> {
        let heeded = self.signals.add_signal(SIGUSR2).and_then(|()| self.wake_by(SIGUSR2));
        heeded.and_then(|()| self.wake_by(SIGCHLD)).context("cannot catch signals")?;
        self.heed_hangup()
    }

    /// Has a signal that is caught already end its sleep: handlers run in the order in which they were
    /// registered, so it is there to be seen by then.
    fn wake_by(&self, signal: i32) -> std::io::Result<()> {
        signal_hook::low_level::pipe::register(signal, self.waker.try_clone()?).map(drop)
    }

    /// Does what signals ask for, up to the first that asks this process to end.
    pub(crate) fn heed(&mut self, followed: &mut dyn Followed) -> anyhow::Result<Option<i32>> {
        if self.alive_every.is_some_and(|every| self.told.is_none_or(|at| at.elapsed() >= every)) {
            self.told = Some(Instant::now());
            self.say_how_it_is();
        }
        for signal in self.signals.pending() {
            match signal {
                SIGUSR1 => followed.log()?,
                SIGHUP => followed.hang_up(),
                SIGUSR2 => followed.upgrade(),
                signal => return Ok(Some(signal)),
            }
        }
        Ok(None)
    }

    /// Tells the service manager that this process is alive, or that one of its threads is stuck.
    fn say_how_it_is(&mut self) {
        /// Looks at which a thread is in the same turn: `cachelane up` waits as long for one that says
        /// nothing at all. Until all has started, a turn may last.
        const LOOKS: u32 = 8;
        if !self.is_ready {
            self.watch = Watch::default();
        }
        let stuck = self.watch.look(LOOKS);
        if stuck.is_empty() {
            // Among a thousand members that say so at once, one may not have been heard.
            return passed::notify_alive(self.is_ready && member::name().is_some());
        }
        let why = format!("its thread '{}' is stuck", stuck.join("', '"));
        tracing::error!("{why}");
        passed::notify(&[NotifyState::Status(&why), NotifyState::WatchdogTrigger]);
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
            let pause = [followed.turn()?, left, self.alive_every].into_iter().flatten().min();
            if !self.is_ready && followed.is_ready() {
                self.is_ready = true;
                member::has_started();
                passed::notify(&[NotifyState::Ready]);
            }
            self.sleep(pause).context("cannot wait for signals")?;
        }
    }

    /// Has this being readable end its sleep, too; whoever follows is to read it.
    pub(crate) fn wake_on(&mut self, file: OwnedFd) {
        self.also = Some(file);
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
        let also = self.also.iter().map(|file| PollFd::new(file, PollFlags::IN));
        let mut polled: Vec<_> = also.chain([PollFd::new(&self.wake, PollFlags::IN)]).collect();
        match poll(&mut polled, timeout.as_ref()) {
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
    let registered = register(&registry).and_then(|()| member::register(&registry));
    let opened = registered.and_then(|()| Server::bind(registry));
    match &opened {
        Ok(server) => tracing::debug!("control socket {}", server.path().display()),
        Err(error) => tracing::warn!("no control socket, so no knobs: {error}"),
    }
    opened.ok()
}
