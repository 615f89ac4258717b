//! What the workers of a relay share: settings that can change while it runs, the number of
//! connections, the backends.

use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::access::{Access, Rules};
use crate::access_log::Writer;
use crate::backends::Backends;
use crate::clients::Clients;
use crate::config::{Config, Engine};
use crate::congestion::Congestion;
use crate::connection::Origin;
use crate::files::FileShare;
use crate::repeated::Speaker;
use crate::socket::{Setup, Shares};
use crate::sockmap::Sockmap;
use crate::statistics::Tallies;
use crate::worker::reserve::Reserve;

/// What the workers are to do: a relay goes through these in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Accept nobody: the relay is not in charge yet.
    Begin = 0,
    Run = 1,
    /// Accept who has connected by now, return when the last connection has ended.
    Drain = 2,
    /// Reset what is left, and return.
    Stop = 3,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// As it was at the start: its engine and its CPUs may be others by now.
    pub(crate) config: Config,
    pub(crate) shares: Shares,
    pub(crate) setup: Setup,
    pub(crate) backends: Arc<Backends>,
    pub(crate) access: Access,
    /// Where there is a limit for each.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) files: FileShare,
    pub(crate) reserve: Reserve,
    /// Relaxed: each new connection takes what it reads; nothing else hangs on it.
    engine: AtomicU8,
    /// CPUs that the relay was asked to run on, and workers that there are. Relaxed: they say what
    /// is counted how, and no more.
    cpus: AtomicUsize,
    crew: AtomicUsize,
    /// Release when it is set, Acquire where workers read it: what was done before (counters,
    /// a closed resource) is seen by a worker that sees the new stage.
    stage: AtomicU8,
    /// Relaxed: a count. A worker that stopped accepting at the limit is woken through `wakes`
    /// by the one that brings the count below it.
    active: OwnLine<AtomicUsize>,
    /// Loaded when the engine is first asked for.
    sockmap: OnceLock<Arc<Sockmap>>,
    /// What each worker has counted. Workers take this lock when they begin, and never again.
    tallies: Mutex<Vec<Arc<Tallies>>>,
    pub(crate) access_log: Option<Writer>,
    pub(crate) speaker: Speaker,
    /// Connections of each listener; counted where there is an access log. Relaxed: see `active`.
    on_listener: Box<[OwnLine<AtomicUsize>]>,
    /// An eventfd for each worker.
    wakes: Mutex<Vec<Arc<OwnedFd>>>,
    /// Why a worker is gone for good.
    failure: OnceLock<String>,
    /// Which worker a test wants to panic; none below zero.
    #[cfg(feature = "fuzzing")]
    pub(crate) saboteur: std::sync::atomic::AtomicIsize,
}

/// What all workers write stands apart from what all of them read at each wake-up.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

impl Shared {
    pub(crate) fn new(
        config: Config,
        files: FileShare,
        congestion: Congestion,
        rules: Rules,
        access_log: Option<Writer>,
        speaker: Speaker,
    ) -> Shared {
        let shares = Shares::of(config.budget, lanes::l2_size(&config.cpus));
        #[cfg(feature = "measure")]
        let shares = config.tuning.applied_to(shares);
        let on_listener = config.listen.iter().map(|_| OwnLine::default()).collect();
        Shared {
            shares,
            setup: Setup::new(&config, shares, congestion),
            backends: Arc::new(Backends::new(&config)),
            access: Access::new(rules),
            clients: Clients::new(&config),
            files,
            reserve: Reserve::new(),
            engine: AtomicU8::new(config.engine as u8),
            config,
            stage: AtomicU8::new(Stage::Begin as u8),
            cpus: AtomicUsize::new(0),
            crew: AtomicUsize::new(0),
            active: OwnLine::default(),
            sockmap: OnceLock::new(),
            tallies: Mutex::default(),
            access_log,
            speaker,
            on_listener,
            wakes: Mutex::new(Vec::new()),
            failure: OnceLock::new(),
            #[cfg(feature = "fuzzing")]
            saboteur: (-1).into(),
        }
    }

    pub(crate) fn engine(&self) -> Engine {
        Engine::from_u8(self.engine.load(Relaxed))
    }

    pub(crate) fn set_engine(&self, engine: Engine) {
        self.engine.store(engine as u8, Relaxed);
    }

    /// What a connection that is accepted now comes under.
    pub(crate) fn origin(&self) -> Origin {
        Origin { engine: self.engine(), crew: self.crew.load(Relaxed) }
    }

    /// CPUs that the relay was asked to run on.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus.load(Relaxed)
    }

    pub(crate) fn set_cpus(&self, cpus: usize) {
        self.cpus.store(cpus, Relaxed);
    }

    /// One more worker is there.
    pub(crate) fn join(&self) {
        self.crew.fetch_add(1, Relaxed);
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Acquire) {
            0 => Stage::Begin,
            1 => Stage::Run,
            2 => Stage::Drain,
            _ => Stage::Stop,
        }
    }

    /// Goes on to `stage`, never back, and wakes every worker.
    pub(crate) fn advance(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Release);
        self.wake_all();
    }

    pub(crate) fn sockmap(&self) -> Option<Arc<Sockmap>> {
        self.sockmap.get().cloned()
    }

    pub(crate) fn offer_sockmap(&self, sockmap: Sockmap) {
        // Set by one thread, the relay's owner; a second set changes nothing.
        let _ = self.sockmap.set(Arc::new(sockmap));
    }

    /// Counts a connection in, unless the limit is reached.
    pub(crate) fn enter(&self) -> bool {
        // Never above the limit, not even for a moment: who is woken because the count fell below
        // it, and then reads it too high, would not be woken again.
        let one_more = |active| (active < self.limit()).then_some(active + 1);
        self.active.0.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    /// Counts a connection out. True: it was at the limit, and those who wait must be woken.
    pub(crate) fn leave(&self) -> bool {
        self.active.0.fetch_sub(1, Relaxed) == self.limit() || self.files.grew()
    }

    /// The most connections at a time.
    pub(crate) fn limit(&self) -> usize {
        self.files.connections()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.active() >= self.limit()
    }

    pub(crate) fn active(&self) -> usize {
        self.active.0.load(Relaxed)
    }

    /// Counts for one more worker.
    pub(crate) fn new_tallies(&self) -> Arc<Tallies> {
        let tallies = Arc::new(Tallies::new(self.config.listen.len(), self.backends.specs.len()));
        self.tallies.lock().push(Arc::clone(&tallies));
        tallies
    }

    /// What each worker has counted.
    pub(crate) fn tallies(&self) -> Vec<Arc<Tallies>> {
        self.tallies.lock().clone()
    }

    /// Connections of a listener, where there is an access log.
    pub(crate) fn on_listener(&self, index: usize) -> &AtomicUsize {
        &self.on_listener[index].0
    }

    /// A worker is gone for good. The first reason is kept.
    pub(crate) fn fail(&self, reason: String) {
        let _ = self.failure.set(reason);
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(crate) fn add_wake(&self, wake: Arc<OwnedFd>) {
        self.wakes.lock().push(wake);
    }

    pub(crate) fn wake_all(&self) {
        for wake in self.wakes.lock().iter() {
            // An eventfd that is full has woken its worker already.
            let _ = rustix::io::write(&**wake, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(limit: usize) -> Shared {
        let addrs: Vec<std::net::SocketAddr> = vec!["192.0.2.1:1".parse().unwrap()];
        let config = Config::new(addrs.clone(), addrs, [0].into_iter().collect());
        let rules = Rules::read(&config).unwrap();
        Shared::new(
            config,
            FileShare::alone(limit),
            Congestion::default(),
            rules,
            None,
            Speaker::new(),
        )
    }

    #[test]
    fn the_last_of_a_full_house_to_leave_says_so() {
        let shared = shared(2);
        assert!(shared.enter() && shared.enter());
        assert!(!shared.enter());
        assert!(shared.is_full());
        assert!(shared.leave());
        assert!(!shared.leave());
        assert_eq!(shared.active(), 0);
    }

    #[test]
    fn a_relay_that_stops_does_not_go_back_to_draining() {
        let shared = shared(1);
        shared.advance(Stage::Stop);
        shared.advance(Stage::Drain);
        assert_eq!(shared.stage(), Stage::Stop);
    }
}
