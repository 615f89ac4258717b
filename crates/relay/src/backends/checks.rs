//! Active checks: one thread connects to each backend that is to be checked, sends and expects what
//! its [`Check`] says, and takes the backend out of use or back.
//!
//! The thread waits for nobody: its sockets do not block, and at most [`AT_ONCE`] checks are under
//! way. Those that are due first come first, and servers that did not answer the last time get no more
//! than half of the places, so that they do not hold up the others. If the thread is stopped, the
//! backends stay as they are.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::{Backends, Server};
use crate::Error;
use crate::config::Check;
use crate::socket::{self, Setup, Started};

/// The most checks at a time: they need open files.
pub(crate) const AT_ONCE: usize = 64;

/// How soon it notices a new server, or that it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// The longest answer that is looked at.
const LONGEST: usize = 64 * 1024;

/// The thread that checks a relay's backends. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Checks {
    _stop: Sender<()>,
}

/// A server, and its checks so far.
struct Watched {
    server: Arc<Server>,
    check: Check,
    due: Instant,
    attempt: Option<Attempt>,
    is_down: bool,
    /// Checks in a row that said the other thing.
    streak: u32,
    checked: bool,
    /// The last check ended without an answer in time.
    silent: bool,
}

/// A check under way.
struct Attempt {
    socket: OwnedFd,
    until: Instant,
    connected: bool,
    sent: usize,
    answer: Vec<u8>,
}

type Outcome = Result<(), String>;

impl Checks {
    pub(crate) fn start(backends: &Arc<Backends>, setup: &Setup) -> Result<Option<Checks>, Error> {
        if backends.specs.iter().all(|spec| spec.backend.check.is_none()) {
            return Ok(None);
        }
        let (stop, stopped) = channel();
        let (backends, setup) = (Arc::downgrade(backends), setup.clone());
        thread::Builder::new()
            .name("relay-checks".into())
            .spawn(move || {
                let mut all = Vec::new();
                while stopped.try_recv() == Err(TryRecvError::Empty)
                    && turn(&mut all, &backends, &setup)
                {}
            })
            .map_err(|e| Error::io("cannot start the thread that checks backends", e))?;
        Ok(Some(Checks { _stop: stop }))
    }
}

/// Whether there is to be another.
fn turn(all: &mut Vec<Watched>, backends: &Weak<Backends>, setup: &Setup) -> bool {
    let Some(backends) = backends.upgrade() else { return false };
    follow(all, &backends.servers());
    drop(backends);
    let now = Instant::now();
    for index in next(all, now) {
        all[index].begin(now, setup);
    }
    wait(all);
    let now = Instant::now();
    all.iter_mut().for_each(|watched| watched.go_on(now));
    true
}

/// Which checks to begin, those that have been due for the longest first.
fn next(all: &[Watched], now: Instant) -> Vec<usize> {
    let under_way = || all.iter().filter(|watched| watched.attempt.is_some());
    let mut places = AT_ONCE.saturating_sub(under_way().count());
    let mut for_silent = (AT_ONCE / 2).saturating_sub(under_way().filter(|w| w.silent).count());
    let is_due = |index: &usize| all[*index].attempt.is_none() && all[*index].due <= now;
    let mut due: Vec<usize> = (0..all.len()).filter(is_due).collect();
    due.sort_by_key(|&index| all[index].due);
    due.retain(|&index| {
        let silent = usize::from(all[index].silent);
        let begins = places > 0 && for_silent >= silent;
        if begins {
            (places, for_silent) = (places - 1, for_silent - silent);
        }
        begins
    });
    due
}

/// Watches the servers that there are now.
fn follow(all: &mut Vec<Watched>, servers: &[Arc<Server>]) {
    let is_there = |watched: &Watched| servers.iter().any(|s| Arc::ptr_eq(s, &watched.server));
    all.retain(is_there);
    for server in servers {
        if let Some(check) = &server.spec.backend.check
            && !all.iter().any(|watched| Arc::ptr_eq(server, &watched.server))
        {
            all.push(Watched {
                server: Arc::clone(server),
                check: check.clone(),
                due: Instant::now(),
                attempt: None,
                // One that was away for a while may have been down before.
                is_down: server.is_failing(),
                streak: 0,
                checked: false,
                silent: false,
            });
        }
    }
}

/// Sleeps until a check can go on, or for [`LOOK`].
fn wait(all: &[Watched]) {
    let mut polled: Vec<_> = all
        .iter()
        .filter_map(|watched| watched.attempt.as_ref().map(|attempt| (watched, attempt)))
        .map(|(watched, attempt)| {
            let writes = !attempt.connected || attempt.sent < watched.check.send.len();
            let flags = if writes { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&attempt.socket, flags)
        })
        .collect();
    let next = all.iter().map(|w| w.attempt.as_ref().map_or(w.due, |a| a.until)).min();
    let left = next.map_or(LOOK, |at| at.saturating_duration_since(Instant::now()));
    // Not at once again: a check that is due may wait for one of those under way.
    let wait = left.clamp(Duration::from_millis(1), LOOK);
    // A signal only makes the look an early one.
    let _ = poll(&mut polled, wait.try_into().ok().as_ref());
}

/// The end of that time, or of a year.
fn after(now: Instant, time: Duration) -> Instant {
    now + time.min(Duration::from_secs(365 * 24 * 3600))
}

impl Watched {
    fn begin(&mut self, now: Instant, setup: &Setup) {
        self.due = after(now, self.check.interval);
        match socket::start_connect(&self.server.addr, setup, &self.server.spec.sources, None) {
            Ok(Started::Full) => self.note(Err("its queue is full".into()), now),
            Ok(Started::Socket(socket)) => {
                let until = after(now, self.check.timeout);
                let (connected, sent, answer) = (false, 0, Vec::new());
                self.attempt = Some(Attempt { socket, until, connected, sent, answer });
            }
            Err(e) if socket::is_local(e, &self.server.addr) => {
                tracing::debug!("backend {} cannot be checked: {e}", self.server.addr);
            }
            Err(e) => self.note(Err(e.to_string()), now),
        }
    }

    fn go_on(&mut self, now: Instant) {
        let Some(attempt) = &mut self.attempt else { return };
        let answered = attempt.go_on(&self.check);
        let silent = answered.is_none();
        let outcome = match answered {
            None if now >= attempt.until => Err(attempt.what_is_missing()),
            None => return,
            Some(outcome) => outcome,
        };
        (self.attempt, self.silent) = (None, silent);
        self.note(outcome, now);
    }

    /// The first check decides alone: nothing is known before it.
    fn note(&mut self, outcome: Outcome, now: Instant) {
        let (addr, first) = (&self.server.addr, !std::mem::replace(&mut self.checked, true));
        if outcome.is_ok() != self.is_down {
            self.streak = 0;
            return;
        }
        self.streak += 1;
        let needed = if self.is_down { self.check.rise } else { self.check.fall };
        if self.streak < needed && !first {
            return;
        }
        let streak = std::mem::take(&mut self.streak);
        self.is_down = outcome.is_err();
        if !self.server.set_failing(self.is_down, now) {
            return;
        }
        match outcome {
            Ok(()) => tracing::info!("backend {addr} is up: {streak} checks in a row succeeded"),
            Err(why) => {
                tracing::warn!("backend {addr} is down: {streak} checks in a row failed: {why}");
            }
        }
    }
}

impl Attempt {
    /// Does what can be done now. `None`: it is not over.
    fn go_on(&mut self, check: &Check) -> Option<Outcome> {
        let failed = |e: Errno| Some(Err(e.to_string()));
        if !self.connected {
            let mut polled = [PollFd::new(&self.socket, PollFlags::OUT)];
            if poll(&mut polled, Some(&Default::default())) != Ok(1) {
                return None;
            }
            match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => self.connected = true,
                Ok(Err(e)) | Err(e) => return failed(e),
            }
        }
        while self.sent < check.send.len() {
            match rustix::net::send(&self.socket, &check.send[self.sent..], SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN | Errno::INTR) => return None,
                Err(e) => return failed(e),
            }
        }
        if check.expect.is_empty() {
            return Some(Ok(()));
        }
        self.receive(&check.expect)
    }

    fn receive(&mut self, expect: &[u8]) -> Option<Outcome> {
        let mut chunk = [0; 4096];
        loop {
            match rustix::net::recv(&self.socket, &mut chunk, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Some(Err("it closed before the answer was there".into())),
                Ok((n, _)) => self.answer.extend(&chunk[..n]),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return None,
                Err(e) => return Some(Err(e.to_string())),
            }
            if self.answer.windows(expect.len()).any(|bytes| bytes == expect) {
                return Some(Ok(()));
            }
            if self.answer.len() > LONGEST {
                return Some(Err(format!(
                    "its answer has not what was expected in {LONGEST} bytes"
                )));
            }
        }
    }

    fn what_is_missing(&self) -> String {
        if !self.connected {
            return "no answer in time".into();
        }
        let answer = String::from_utf8_lossy(&self.answer[..self.answer.len().min(64)]);
        format!("not the expected answer in time, but {answer:?}")
    }
}
