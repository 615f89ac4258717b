//! One address of a backend, and a connection's place at it.
//!
//! Any worker may read and change a server's state at any time, without a lock. It is up unless its
//! checks say otherwise, or a connection failed a moment ago: then it is left alone for
//! `retry_after`; after that one connection tries it, and while it does the others leave it alone.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use super::routes::Route;
use crate::addr::Addr;
use crate::config::Backend;
use crate::source::{Source, Sources};

/// A backend of the configuration, and what may change of it while the relay runs.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Its place in the configuration.
    index: usize,
    /// Which of the [`Routes`](super::routes::Routes) leads to it.
    pub(super) route: Route,
    pub(crate) backend: Backend,
    pub(crate) sources: Sources,
    /// Relaxed, both: each choice takes what it reads.
    weight: AtomicU16,
    state: AtomicU8,
}

/// Whether a backend gets new connections, as somebody has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum BackendState {
    /// It does.
    Ready = 0,
    /// It does not; those that it has go on.
    Drain = 1,
}

/// One address of a backend. Written on each connection by any worker, hence on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Server {
    pub(crate) addr: Addr,
    pub(crate) spec: Arc<Spec>,
    times: Times,
    /// Connections that hold a lease. SeqCst where there is a maximum: see `Backends::waiting`.
    active: AtomicUsize,
    /// Milliseconds since `start` until which it is left alone; 0: it is up. Relaxed: a worker
    /// that reads an old value tries a dead server once more, or skips a live one once more.
    down_until: AtomicU64,
    /// Its checks fail. Relaxed, likewise.
    failing: AtomicBool,
    /// Milliseconds since `start` at which it last came up; 0: it has been up from the start.
    up_since: AtomicU64,
}

/// What all servers of a relay have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) start: Instant,
    pub(crate) retry_after: Duration,
    /// How long one connection may try a server that was down before another does.
    pub(crate) trial: Duration,
}

/// One connection's place at a server.
#[derive(Debug)]
pub(crate) struct Lease {
    server: Arc<Server>,
    /// The server was down, and no other was up.
    pub(super) last_resort: bool,
    pub(super) index: usize,
}

impl Spec {
    pub(super) fn new(index: usize, route: Route, backend: Backend, common: &[Source]) -> Spec {
        let weight = AtomicU16::new(backend.weight);
        let sources = Sources::new(&backend.source, common);
        Spec {
            index,
            route,
            backend,
            sources,
            weight,
            state: AtomicU8::new(BackendState::Ready as u8),
        }
    }

    pub(crate) fn weight(&self) -> u16 {
        self.weight.load(Relaxed)
    }

    pub(crate) fn set_weight(&self, weight: u16) {
        self.weight.store(weight, Relaxed);
    }

    pub(crate) fn state(&self) -> BackendState {
        match self.state.load(Relaxed) {
            0 => BackendState::Ready,
            _ => BackendState::Drain,
        }
    }

    pub(crate) fn set_state(&self, state: BackendState) {
        self.state.store(state as u8, Relaxed);
    }

    /// Whether it is to get new connections at all.
    pub(super) fn is_wanted(&self) -> bool {
        self.state() == BackendState::Ready && self.weight() > 0
    }
}

impl Server {
    pub(super) fn new(addr: Addr, spec: Arc<Spec>, times: Times) -> Server {
        Server {
            addr,
            spec,
            times,
            active: AtomicUsize::new(0),
            down_until: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            up_since: AtomicU64::new(0),
        }
    }

    pub(super) fn active(&self) -> usize {
        self.active.load(Relaxed)
    }

    /// Whether it is not left alone at the moment.
    pub(super) fn is_up(&self, now: Instant) -> bool {
        !self.is_failing() && self.down_until.load(Relaxed) <= self.millis(now)
    }

    /// The part of its weight that it gets while it starts slowly: 1 once it has, never 0.
    pub(super) fn warmth(&self, now: Instant) -> f64 {
        let (since, Some(whole)) = (self.up_since.load(Relaxed), self.spec.backend.slow_start)
        else {
            return 1.0;
        };
        let up = self.millis(now).saturating_sub(since) as f64;
        if since == 0 { 1.0 } else { (up / whole.as_millis() as f64).clamp(0.02, 1.0) }
    }

    /// A place, whether the server is up or not.
    pub(super) fn enter(self: &Arc<Self>, index: usize, last_resort: bool) -> Option<Lease> {
        match self.spec.backend.max_connections {
            None => drop(self.active.fetch_add(1, Relaxed)),
            Some(most) => {
                let one_more = |active| (active < most).then_some(active + 1);
                self.active.fetch_update(SeqCst, SeqCst, one_more).ok()?;
            }
        }
        Some(Lease { server: Arc::clone(self), last_resort, index })
    }

    /// Whether the caller may use a server that is up. One that was down and is due to be tried
    /// again may be used by one caller: until that one knows more, it is down for the others. A
    /// server that does not answer would have them all wait for the connect timeout.
    pub(super) fn claim(&self, now: Instant) -> bool {
        let (now, down_until) = (self.millis(now), self.down_until.load(Relaxed));
        let again = now.saturating_add(millis(self.times.trial));
        let claim = |until| self.down_until.compare_exchange(until, again, Relaxed, Relaxed);
        down_until == 0 || (down_until <= now && claim(down_until).is_ok())
    }

    /// Whether its checks fail.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Its checks succeed, or fail, from now on. Returns whether that is news.
    pub(super) fn set_failing(&self, failing: bool, now: Instant) -> bool {
        let is_news = self.failing.swap(failing, Relaxed) != failing;
        if is_news && !failing {
            self.come_up(now);
            self.down_until.store(0, Relaxed);
        }
        is_news
    }

    fn come_up(&self, now: Instant) {
        self.up_since.store(self.millis(now).max(1), Relaxed);
    }

    fn millis(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.times.start))
    }
}

/// As many as there is room for.
fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

impl Lease {
    pub(crate) fn addr(&self) -> &Addr {
        &self.server.addr
    }

    /// Where connections to it come from.
    pub(crate) fn sources(&self) -> &Sources {
        &self.server.spec.sources
    }

    /// The backend's place in the configuration.
    pub(crate) fn backend(&self) -> usize {
        self.server.spec.index
    }

    /// Whether somebody may wait for its place.
    pub(crate) fn is_scarce(&self) -> bool {
        self.server.spec.backend.max_connections.is_some()
    }

    /// The server accepted a connection. Returns whether it was down before.
    pub(crate) fn succeeded(&self, now: Instant) -> bool {
        // Read first: a line that everybody reads is not written when nothing changes.
        let was_down = self.server.down_until.load(Relaxed) != 0
            && self.server.down_until.swap(0, Relaxed) != 0;
        if was_down {
            self.server.come_up(now);
        }
        was_down
    }

    /// The server refused or did not answer. Returns whether it was up before.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        let server = &self.server;
        let until = server.millis(now).saturating_add(millis(server.times.retry_after));
        server.down_until.swap(until.max(1), Relaxed) == 0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SeqCst: a worker that counts itself as waiting, and then finds no room, is seen by the one
        // that makes room and then looks whether anybody waits.
        self.server.active.fetch_sub(1, if self.is_scarce() { SeqCst } else { Relaxed });
    }
}
