//! The backends of a relay: who is next, who is down, who has how many connections.
//!
//! Shared by all workers. A worker takes a [`Lease`] on a backend for each connection; dropping
//! it gives the place back. Health is passive: a backend that refuses is left alone for
//! `retry_after`, then one connection tries it again, and while it does the others leave it alone
//! for as long once more; when every backend is down, all are tried, because a refusal costs less
//! than turning a client away unasked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::config::{Balance, Config};

/// The backends, with what the workers know of each.
#[derive(Debug)]
pub(crate) struct Backends {
    all: Vec<Backend>,
    balance: Balance,
    retry_after: Duration,
    /// How long one connection may try a backend that was down before another does.
    trial: Duration,
    start: Instant,
}

/// Written on each connection by any worker, hence on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Backend {
    addr: SocketAddr,
    /// Connections that hold a lease. Relaxed: a number to compare, it orders nothing.
    active: AtomicUsize,
    /// Milliseconds since `start` until which it is left alone; 0: it is up. Relaxed: a worker
    /// that reads an old value tries a dead backend once more, or skips a live one once more.
    down_until: AtomicU64,
}

/// One connection's place at a backend.
#[derive(Debug)]
pub(crate) struct Lease {
    backends: Arc<Backends>,
    index: usize,
}

impl Backends {
    pub(crate) fn new(config: &Config) -> Backends {
        let Config { balance, retry_after, connect_timeout, .. } = *config;
        let all = config
            .backends
            .iter()
            .map(|&addr| Backend {
                addr,
                active: AtomicUsize::new(0),
                down_until: AtomicU64::new(0),
            })
            .collect();
        let trial = retry_after + connect_timeout;
        Backends { all, balance, retry_after, trial, start: Instant::now() }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Backends that are not left alone at the moment.
    pub(crate) fn up(&self, now: Instant) -> usize {
        self.all.iter().filter(|b| self.is_up(b, now)).count()
    }

    /// Chooses a backend, starting the round at `turn`. `tried` has a bit for each of the first
    /// 64 backends that this connection has tried already: those are not chosen again.
    pub(crate) fn choose(self: &Arc<Self>, turn: usize, tried: u64, now: Instant) -> Option<Lease> {
        let n = self.all.len();
        let round = || (0..n).map(|i| (turn + i) % n).filter(|i| !was_tried(tried, *i));
        let up = || round().filter(|&i| self.is_up(&self.all[i], now));
        let index = match self.balance {
            Balance::RoundRobin => up().find(|&i| self.claim(&self.all[i], now)),
            Balance::LeastConnections => {
                let mut up: Vec<usize> = up().collect();
                up.sort_by_key(|&i| self.all[i].active.load(Relaxed));
                up.into_iter().find(|&i| self.claim(&self.all[i], now))
            }
        };
        let index = index.or_else(|| round().next())?;
        self.all[index].active.fetch_add(1, Relaxed);
        Some(Lease { backends: Arc::clone(self), index })
    }

    /// Whether the caller may use a backend that is up. One that was down and is due to be tried
    /// again may be used by one caller: until that one knows more, it is down for the others. A
    /// backend that does not answer would have them all wait for the connect timeout.
    fn claim(&self, backend: &Backend, now: Instant) -> bool {
        let (now, down_until) = (self.millis(now), backend.down_until.load(Relaxed));
        let again = now + self.trial.as_millis() as u64;
        let claim = |until| backend.down_until.compare_exchange(until, again, Relaxed, Relaxed);
        down_until == 0 || (down_until <= now && claim(down_until).is_ok())
    }

    fn is_up(&self, backend: &Backend, now: Instant) -> bool {
        backend.down_until.load(Relaxed) <= self.millis(now)
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_millis() as u64
    }
}

impl Lease {
    pub(crate) fn addr(&self) -> SocketAddr {
        self.backends.all[self.index].addr
    }

    /// `tried` with this backend's bit set.
    pub(crate) fn mark_tried(&self, tried: u64) -> u64 {
        tried | 1u64.checked_shl(self.index as u32).unwrap_or(0)
    }

    /// The backend accepted a connection. Returns whether it was down before.
    pub(crate) fn succeeded(&self) -> bool {
        let backend = &self.backends.all[self.index];
        // Read first: a line that everybody reads is not written when nothing changes.
        backend.down_until.load(Relaxed) != 0 && backend.down_until.swap(0, Relaxed) != 0
    }

    /// The backend refused or did not answer. Returns whether it was up before.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        let until = self.backends.millis(now) + self.backends.retry_after.as_millis() as u64;
        self.backends.all[self.index].down_until.swap(until.max(1), Relaxed) == 0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.backends.all[self.index].active.fetch_sub(1, Relaxed);
    }
}

fn was_tried(tried: u64, index: usize) -> bool {
    index < 64 && tried & (1 << index) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(n: u16, balance: Balance) -> Arc<Backends> {
        let addrs: Vec<_> = (1..=n).map(|p| SocketAddr::from(([127, 0, 0, 1], p))).collect();
        let retry_after = Duration::from_secs(2);
        let cpus = [0].into_iter().collect();
        let config = Config { balance, retry_after, ..Config::new(addrs.clone(), addrs, cpus) };
        Arc::new(Backends::new(&config))
    }

    #[test]
    fn round_robin_takes_each_in_turn() {
        let all = backends(3, Balance::RoundRobin);
        let ports: Vec<u16> =
            (0..6).map(|turn| all.choose(turn, 0, Instant::now()).unwrap().addr().port()).collect();
        assert_eq!(ports, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn least_connections_takes_the_emptiest_and_leases_give_back() {
        let all = backends(2, Balance::LeastConnections);
        let now = Instant::now();
        let first = all.choose(0, 0, now).unwrap();
        let second = all.choose(0, 0, now).unwrap();
        assert_eq!((first.addr().port(), second.addr().port()), (1, 2));
        drop(second);
        assert_eq!(all.choose(0, 0, now).unwrap().addr().port(), 2);
    }

    #[test]
    fn a_dead_backend_is_skipped_and_retried_later() {
        let all = backends(2, Balance::RoundRobin);
        let now = Instant::now();
        assert!(all.choose(0, 0, now).unwrap().failed(now));
        assert_eq!(all.up(now), 1);
        assert_eq!(all.choose(0, 0, now).unwrap().addr().port(), 2);
        let later = now + Duration::from_millis(2001);
        let again = all.choose(0, 0, later).unwrap();
        assert_eq!(again.addr().port(), 1);
        assert!(again.succeeded());
        assert_eq!(all.up(now), 2);
    }

    #[test]
    fn a_backend_that_is_due_is_tried_by_one_connection() {
        for balance in [Balance::RoundRobin, Balance::LeastConnections] {
            let all = backends(2, balance);
            let now = Instant::now();
            all.choose(0, 0, now).unwrap().failed(now);
            let later = now + Duration::from_millis(2001);
            let trial = all.choose(0, 0, later).unwrap();
            let others = [0, 0].map(|turn| all.choose(turn, 0, later).unwrap().addr().port());
            assert_eq!((trial.addr().port(), others), (1, [2, 2]));
            // Its client may have given up before it knew.
            drop(trial);
            let much_later = later + all.trial;
            assert_eq!(all.choose(0, 0, much_later).unwrap().addr().port(), 1);
        }
    }

    #[test]
    fn when_all_are_down_each_is_still_tried_once() {
        let all = backends(2, Balance::RoundRobin);
        let now = Instant::now();
        let mut tried = 0;
        for expected in [1, 2] {
            let lease = all.choose(0, tried, now).unwrap();
            assert_eq!(lease.addr().port(), expected);
            lease.failed(now);
            tried = lease.mark_tried(tried);
        }
        assert!(all.choose(0, tried, now).is_none());
    }
}
