//! The backends of a relay: who is next, who is down, who has how many connections.
//!
//! Shared by all workers. A worker takes a [`Lease`] on a backend for each connection; dropping
//! it gives the place back. Health is passive: a backend that refuses is left alone for
//! `retry_after`, then one connection tries it again, and while it does the others leave it alone
//! for as long once more. When every backend is down, a connection tries [`LAST_RESORTS`] of them,
//! because a refusal costs less than turning a client away unasked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::config::{Balance, Config};

/// How many backends that are down one connection tries when none is up: as HAProxy's `retries`.
pub(crate) const LAST_RESORTS: u32 = 3;

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
    /// The backend was down, and no other was up.
    last_resort: bool,
}

/// The backends that a connection has tried in vain. Takes no memory until there is one.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    /// A bit for each backend, up to the last one that was tried.
    bits: Vec<u64>,
    last_resorts: u32,
}

impl Tried {
    fn has(&self, index: usize) -> bool {
        self.bits.get(index / 64).is_some_and(|bits| bits & 1 << (index % 64) != 0)
    }

    pub(crate) fn add(&mut self, lease: &Lease) {
        let (word, bit) = (lease.index / 64, lease.index % 64);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << bit;
        self.last_resorts += u32::from(lease.last_resort);
    }
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

    /// Each one's address, whether it is up, and how many connections hold a lease on it.
    pub(crate) fn each(&self, now: Instant) -> impl Iterator<Item = (SocketAddr, bool, usize)> {
        self.all.iter().map(move |b| (b.addr, self.is_up(b, now), b.active.load(Relaxed)))
    }

    /// Chooses a backend that was not `tried`, starting the round at `turn`. `None`: the
    /// connection has no more to try.
    pub(crate) fn choose(
        self: &Arc<Self>,
        turn: usize,
        tried: &Tried,
        now: Instant,
    ) -> Option<Lease> {
        let n = self.all.len();
        let round = || (0..n).map(|i| (turn + i) % n).filter(|&i| !tried.has(i));
        let up = || round().filter(|&i| self.is_up(&self.all[i], now));
        let index = match self.balance {
            Balance::RoundRobin => up().find(|&i| self.claim(&self.all[i], now)),
            Balance::LeastConnections => {
                let mut up: Vec<usize> = up().collect();
                up.sort_by_key(|&i| self.all[i].active.load(Relaxed));
                up.into_iter().find(|&i| self.claim(&self.all[i], now))
            }
        };
        let last_resort = index.is_none();
        let may_try_more = || (tried.last_resorts < LAST_RESORTS).then(|| round().next()).flatten();
        let index = index.or_else(may_try_more)?;
        self.all[index].active.fetch_add(1, Relaxed);
        Some(Lease { backends: Arc::clone(self), index, last_resort })
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
    /// The backend's place in the configuration.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.backends.all[self.index].addr
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
        let ports: Vec<u16> = (0..6)
            .map(|turn| all.choose(turn, &Tried::default(), Instant::now()).unwrap().addr().port())
            .collect();
        assert_eq!(ports, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn least_connections_takes_the_emptiest_and_leases_give_back() {
        let all = backends(2, Balance::LeastConnections);
        let now = Instant::now();
        let first = all.choose(0, &Tried::default(), now).unwrap();
        let second = all.choose(0, &Tried::default(), now).unwrap();
        assert_eq!((first.addr().port(), second.addr().port()), (1, 2));
        drop(second);
        assert_eq!(all.choose(0, &Tried::default(), now).unwrap().addr().port(), 2);
    }

    #[test]
    fn a_dead_backend_is_skipped_and_retried_later() {
        let all = backends(2, Balance::RoundRobin);
        let now = Instant::now();
        assert!(all.choose(0, &Tried::default(), now).unwrap().failed(now));
        assert_eq!(all.up(now), 1);
        assert_eq!(all.choose(0, &Tried::default(), now).unwrap().addr().port(), 2);
        let later = now + Duration::from_millis(2001);
        let again = all.choose(0, &Tried::default(), later).unwrap();
        assert_eq!(again.addr().port(), 1);
        assert!(again.succeeded());
        assert_eq!(all.up(now), 2);
    }

    #[test]
    fn a_backend_that_is_due_is_tried_by_one_connection() {
        for balance in [Balance::RoundRobin, Balance::LeastConnections] {
            let all = backends(2, balance);
            let now = Instant::now();
            all.choose(0, &Tried::default(), now).unwrap().failed(now);
            let later = now + Duration::from_millis(2001);
            let trial = all.choose(0, &Tried::default(), later).unwrap();
            let others = [0, 0]
                .map(|turn| all.choose(turn, &Tried::default(), later).unwrap().addr().port());
            assert_eq!((trial.addr().port(), others), (1, [2, 2]));
            // Its client may have given up before it knew.
            drop(trial);
            let much_later = later + all.trial;
            assert_eq!(all.choose(0, &Tried::default(), much_later).unwrap().addr().port(), 1);
        }
    }

    #[test]
    fn any_number_of_backends_is_tried_once_each() {
        for n in [2, 64, 65, 200] {
            let all = backends(n, Balance::RoundRobin);
            let (now, mut tried) = (Instant::now(), Tried::default());
            for expected in 1..=n {
                let lease = all.choose(0, &tried, now).unwrap();
                assert_eq!(lease.addr().port(), expected);
                lease.failed(now);
                tried.add(&lease);
            }
            assert!(all.choose(0, &tried, now).is_none());
        }
    }

    #[test]
    fn when_all_are_down_a_few_are_still_tried() {
        let all = backends(100, Balance::RoundRobin);
        let now = Instant::now();
        for turn in 0..100 {
            all.choose(turn, &Tried::default(), now).unwrap().failed(now);
        }
        let mut tried = Tried::default();
        for expected in [98, 99, 100] {
            let lease = all.choose(97, &tried, now).unwrap();
            assert_eq!(lease.addr().port(), expected);
            tried.add(&lease);
        }
        assert!(all.choose(97, &tried, now).is_none());
    }
}
