//! A running relay: starts workers, moves them, changes the engine, drains.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lanes::CpuSet;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Pid;
use rustix::thread::gettid;

use crate::access_log::Writer;
use crate::backends::Upkeep;
use crate::config::{Config, Engine};
use crate::congestion::Congestion;
use crate::counters::{Counters, Stats};
use crate::files::FileBudget;
use crate::shared::{Shared, Stage};
use crate::sockmap::Sockmap;
use crate::statistics::{Statistics, Traffic};
use crate::worker::Worker;
use crate::{BackendSettings, Error, ErrorKind, socket};

/// The most directions that the sockmap engine holds at a time.
const SOCKMAP_SLOTS: usize = 65_536;

/// A relay at work. Dropping it resets its connections and ends its workers.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    addrs: Vec<SocketAddr>,
    crew: Mutex<Crew>,
    gone: Mutex<Gone>,
    announce: mpsc::Sender<()>,
    _upkeep: Upkeep,
}

/// The workers' threads, and where they run.
#[derive(Debug, Default)]
struct Crew {
    cpus: CpuSet,
    workers: Vec<Hand>,
}

/// The workers that have returned.
#[derive(Debug)]
struct Gone {
    count: usize,
    /// One message when a worker returns.
    messages: Receiver<()>,
}

#[derive(Debug)]
struct Hand {
    thread: JoinHandle<()>,
    tid: Pid,
    counters: Arc<Counters>,
    /// The CPU that it was given. Relaxed: see `worker/exposure.rs`.
    cpu: Arc<AtomicUsize>,
}

impl Relay {
    /// Starts a relay: every listener is bound and every worker runs when this returns.
    ///
    /// # Errors
    /// A configuration that cannot work; an address in use or not of this host; a CPU that this
    /// process may not run on; a limit on open files below what `max_connections` needs; the
    /// sockmap engine asked for on a host without it.
    pub fn start(config: Config) -> Result<Relay, Error> {
        config.check()?;
        let files = FileBudget::of(&config)?;
        let addrs: Vec<_> = config.listen.iter().map(|&a| claim(a)).collect::<Result<_, _>>()?;
        let (announce, messages) = mpsc::channel();
        let gone = Mutex::new(Gone { count: 0, messages });
        let (engine, cpus) = (config.engine, config.cpus.clone());
        let crew = Mutex::default();
        let congestion = Congestion::find(&config.congestion_control)?;
        let names = addrs.iter().map(SocketAddr::to_string).collect();
        let log = config.access_log.clone().map(|log| Writer::start(log, names)).transpose()?;
        let shared = Arc::new(Shared::new(config, files, congestion, log));
        let upkeep = Upkeep::start(&shared.backends, &shared.config, &addrs, &shared.setup)?;
        let relay = Relay { shared, addrs, crew, gone, announce, _upkeep: upkeep };
        relay.set_engine(engine)?;
        relay.set_cpus(&cpus)?;
        Ok(relay)
    }

    /// Checks what [`Relay::start`] checks before it serves anybody: the configuration, the
    /// addresses, the limit on open files. Nothing is left behind.
    ///
    /// # Errors
    /// As for [`Relay::start`].
    pub fn check(config: &Config) -> Result<(), Error> {
        config.check()?;
        FileBudget::of(config)?;
        Congestion::find(&config.congestion_control)?;
        config.cpus.iter().try_for_each(check_cpu)?;
        config.listen.iter().try_for_each(|&a| claim(a).map(drop))
    }

    /// The addresses that it listens on, with the ports that the kernel chose.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// The most connections at a time.
    pub fn max_connections(&self) -> usize {
        self.shared.limit
    }

    /// Connections at this moment.
    pub fn active(&self) -> usize {
        self.shared.active()
    }

    /// Addresses of backends in all, and of these the ones that are up.
    pub fn backends(&self) -> (usize, usize) {
        self.shared.backends.count(Instant::now())
    }

    /// Which backends get new connections, and their weights.
    pub fn backend_settings(&self) -> BackendSettings {
        self.shared.backends.settings()
    }

    /// Changes these of some backends, for new connections.
    ///
    /// # Errors
    /// A backend that is none of this relay's. Nothing is changed then.
    pub fn set_backends(&self, settings: &BackendSettings) -> Result<(), Error> {
        self.shared.backends.set(settings)
    }

    /// All counters, summed over the workers.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.worker_stats().iter().for_each(|one| stats.add(one));
        stats.access_log_lost += self.shared.access_log.as_ref().map_or(0, Writer::lost);
        stats
    }

    /// What was counted of each listener and each backend.
    pub fn statistics(&self) -> Statistics {
        let mut listeners: Vec<_> =
            self.addrs.iter().map(|addr| Traffic::new(addr.to_string(), true, 0)).collect();
        let mut backends: Vec<_> = (self.shared.backends.each(Instant::now()))
            .into_iter()
            .map(|(addr, is_up, active)| Traffic::new(addr, is_up, active as u64))
            .collect();
        for tallies in self.shared.tallies() {
            listeners.iter_mut().zip(&tallies.listeners).for_each(|(sum, one)| sum.add(one));
            backends.iter_mut().zip(&tallies.backends).for_each(|(sum, one)| sum.add(one));
        }
        for listener in &mut listeners {
            // Those that have come and not gone: read one after the other, so not by less than none.
            let ended: u64 = listener.ended.iter().sum();
            listener.active = listener.connections.saturating_sub(ended);
        }
        Statistics { listeners, backends }
    }

    /// Opens the access log's file anew, such as when it was renamed.
    pub fn reopen_access_log(&self) {
        if let Some(log) = &self.shared.access_log {
            log.reopen();
        }
    }

    /// Each worker's counters, in the order of [`Relay::worker_threads`].
    pub fn worker_stats(&self) -> Vec<Stats> {
        self.crew().workers.iter().map(|hand| Stats::from(&*hand.counters)).collect()
    }

    /// Thread ids of the workers, for accounting of their CPU time.
    pub fn worker_threads(&self) -> Vec<u32> {
        self.crew().workers.iter().map(|h| h.tid.as_raw_nonzero().get() as u32).collect()
    }

    /// The engine that new connections get.
    pub fn engine(&self) -> Engine {
        self.shared.engine()
    }

    /// Changes the engine for new connections; those that run keep theirs.
    ///
    /// # Errors
    /// The sockmap engine on a host without it, or without the privilege.
    pub fn set_engine(&self, engine: Engine) -> Result<(), Error> {
        if engine == Engine::Sockmap {
            self.load_sockmap()?;
        }
        self.shared.set_engine(engine);
        Ok(())
    }

    /// The CPUs that forwarding runs on.
    pub fn cpus(&self) -> CpuSet {
        self.crew().cpus.clone()
    }

    /// Moves the workers to `cpus`, at once, with the connections that they hold. If there are
    /// more CPUs than workers, workers are added; if fewer, some CPUs get several.
    ///
    /// # Errors
    /// An empty set; a CPU that is offline or that this process may not run on. The workers then
    /// stay where they are.
    pub fn set_cpus(&self, cpus: &CpuSet) -> Result<(), Error> {
        if cpus.is_empty() {
            return Err(Error::invalid("the set of CPUs is empty (expected at least one CPU)"));
        }
        cpus.iter().try_for_each(check_cpu)?;
        let mut crew = self.crew();
        while crew.workers.len() < cpus.len() {
            let hand = self.hire(crew.workers.len())?;
            crew.workers.push(hand);
        }
        let round: Vec<usize> = cpus.iter().collect();
        for (hand, cpu) in crew.workers.iter().zip(round.iter().cycle()) {
            lanes::pin_thread(hand.tid, *cpu).map_err(unusable)?;
            hand.cpu.store(*cpu, Relaxed);
        }
        self.shared.set_cpus(cpus.len());
        crew.cpus = cpus.clone();
        Ok(())
    }

    /// Accepts no more connections and waits for those there are, at most `timeout`. Returns
    /// whether all of them ended by themselves; the rest is still there until the relay is
    /// dropped, and may be waited for again.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.shared.advance(Stage::Drain);
        let workers = self.crew().workers.len();
        let mut gone = self.gone.lock();
        let deadline = Instant::now() + timeout;
        while gone.count < workers {
            let left = deadline.saturating_duration_since(Instant::now());
            if gone.messages.recv_timeout(left).is_err() {
                return false;
            }
            gone.count += 1;
        }
        true
    }

    fn crew(&self) -> MutexGuard<'_, Crew> {
        self.crew.lock()
    }

    fn load_sockmap(&self) -> Result<(), Error> {
        if self.shared.sockmap().is_none() {
            let slots = self.shared.limit.min(SOCKMAP_SLOTS) as u32;
            self.shared.offer_sockmap(Sockmap::load(slots)?);
        }
        Ok(())
    }

    /// Starts one more worker, not yet pinned.
    fn hire(&self, index: usize) -> Result<Hand, Error> {
        let listeners = self
            .addrs
            .iter()
            .map(|&a| socket::listen(a, self.shared.config.backlog, &self.shared.setup))
            .collect::<Result<Vec<_>, _>>()?;
        let wake = new_wake()?;
        let counters = Arc::new(Counters::default());
        let shared = Arc::clone(&self.shared);
        let cpu = Arc::new(AtomicUsize::new(usize::MAX));
        let (counts, place) = (Arc::clone(&counters), Arc::clone(&cpu));
        let worker = Worker::new(shared, listeners, wake.clone(), counts, place, index)?;
        let (shared, announce) = (Arc::clone(&self.shared), self.announce.clone());
        let (say, hear) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("relay-{index}"))
            .spawn(move || {
                // Before it accepts anybody.
                shared.join();
                // The receiver waits for it, and for `gone` until the relay is dropped.
                let _ = say.send(gettid());
                worker.run();
                let _ = announce.send(());
            })
            .map_err(|e| Error::io("cannot start a worker's thread", e))?;
        let tid = hear.recv().map_err(|_| Error::new(ErrorKind::Io, "a worker did not start"))?;
        self.shared.add_wake(wake);
        Ok(Hand { thread, tid, counters, cpu })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.advance(Stage::Stop);
        for hand in self.crew().workers.drain(..) {
            // A worker that panicked has said so on stderr.
            let _ = hand.thread.join();
        }
    }
}

/// Checks that nobody else listens on `addr`, and lets the kernel choose a port for port 0.
/// `SO_REUSEPORT` alone would share the port with another relay of the same user in silence.
fn claim(addr: SocketAddr) -> Result<SocketAddr, Error> {
    let probe = socket::bind(addr, false)?;
    socket::local_addr(&probe).map_err(|e| Error::io(format!("cannot listen on {addr}"), e))
}

fn new_wake() -> Result<Arc<OwnedFd>, Error> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::io("cannot create an eventfd", e))?;
    Ok(Arc::new(fd))
}

/// Whether this process may run on `cpu`, found out on a thread that tries.
fn check_cpu(cpu: usize) -> Result<(), Error> {
    std::thread::spawn(move || lanes::pin(cpu))
        .join()
        .map_err(|_| Error::new(ErrorKind::Io, "a thread that tries a CPU panicked"))?
        .map_err(unusable)
}

fn unusable(cpu: lanes::Error) -> Error {
    Error::invalid(cpu.to_string())
}
