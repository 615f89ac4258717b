//! A running relay: starts workers, moves them, changes the engine, drains.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lanes::CpuSet;
use parking_lot::{Mutex, MutexGuard};

use crate::access::Rules;
use crate::access_log::Writer;
use crate::addr::Addr;
use crate::backends::Upkeep;
use crate::baton::Baton;
use crate::config::{Config, Engine, Listen};
use crate::congestion::Congestion;
use crate::counters::Stats;
use crate::crew::{Crew, Hand};
use crate::files::FileShare;
use crate::handover::Handover;
use crate::inherited::Inherited;
use crate::listeners::{Duplicates, Listener, Listeners};
use crate::repeated::Speaker;
use crate::shared::{Shared, Stage};
use crate::sockmap::{self, Sockmap};
use crate::statistics::{Statistics, Traffic};
use crate::{BackendSettings, Error, ErrorKind, source};

/// The most directions that the sockmap engine holds at a time.
const SOCKMAP_SLOTS: usize = 65_536;

/// A relay at work. Dropping it resets its connections and ends its workers.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    listening_on: Vec<Addr>,
    /// Those of them that are of IP.
    addrs: Vec<SocketAddr>,
    /// Held while anything begins or ends. Locked before `listeners`.
    crew: Mutex<Crew>,
    listeners: Mutex<Listeners>,
    gone: Mutex<Gone>,
    announce: mpsc::Sender<()>,
    _upkeep: Upkeep,
    /// Locked before `crew`.
    pub(crate) handover: Handover,
}

/// The workers that have returned.
#[derive(Debug)]
struct Gone {
    count: usize,
    /// One message when a worker returns.
    messages: Receiver<()>,
}

impl Relay {
    /// Starts a relay: every listener is bound and every worker runs when this returns.
    ///
    /// # Errors
    /// A configuration that cannot work; an address in use or not of this host; a CPU that this
    /// process may not run on; a limit on open files below what `max_connections` needs; the
    /// sockmap engine asked for on a host without it.
    pub fn start(config: Config) -> Result<Relay, Error> {
        Relay::start_on(config, Vec::new())
    }

    /// As [`start`](Self::start), on these sockets for the addresses of the configuration that they
    /// are on.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_on(config: Config, sockets: Vec<Inherited>) -> Result<Relay, Error> {
        let relay = Relay::begin(config, sockets, Handover::new(Baton::new()?))?;
        relay.serve()?;
        Ok(relay)
    }

    /// Starts a relay that is ready to [`serve`](Self::serve), and not in charge of the sockets that it
    /// was given.
    pub(crate) fn begin(
        config: Config,
        sockets: Vec<Inherited>,
        handover: Handover,
    ) -> Result<Relay, Error> {
        config.check()?;
        source::check(&config)?;
        let rules = Rules::read(&config)?;
        let files = FileShare::claim(&config)?;
        config.cpus.iter().try_for_each(check_cpu)?;
        let listeners = Listeners::claim(&config.listen, sockets, config.backlog)?;
        let (announce, messages) = mpsc::channel();
        let gone = Mutex::new(Gone { count: 0, messages });
        let (engine, cpus) = (config.engine, config.cpus.clone());
        let congestion = Congestion::find(&config.congestion_control)?;
        let listening_on: Vec<_> = listeners.addrs().cloned().collect();
        let addrs = listening_on.iter().filter_map(Addr::ip).collect();
        let names = listening_on.iter().map(Addr::to_string).collect();
        let speaker = Speaker::new();
        let log =
            config.access_log.clone().map(|log| Writer::start(log, names, speaker)).transpose()?;
        let shared = Arc::new(Shared::new(config, files, congestion, rules, log, speaker));
        let upkeep = Upkeep::start(&shared.backends, &shared.config, &listening_on, &shared.setup)?;
        let relay = Relay {
            shared,
            listening_on,
            addrs,
            crew: Mutex::default(),
            listeners: Mutex::new(listeners),
            gone,
            announce,
            _upkeep: upkeep,
            handover,
        };
        relay.set_engine(engine)?;
        relay.set_cpus(&cpus)?;
        Ok(relay)
    }

    /// Checks what [`Relay::start`] checks before it serves anybody: the configuration, the
    /// addresses, the limit on open files. Nothing is left behind. `open` are addresses for which
    /// there are sockets to be taken over.
    ///
    /// # Errors
    /// As for [`Relay::start`].
    pub fn check(config: &Config, open: &[Addr]) -> Result<(), Error> {
        config.check()?;
        source::check(config)?;
        Rules::read(config)?;
        FileShare::check(config)?;
        Congestion::find(&config.congestion_control)?;
        config.cpus.iter().try_for_each(check_cpu)?;
        if config.engine == Engine::Sockmap {
            sockmap::needs_kernel()?;
        }
        let is_new = |listen: &&Listen| !open.contains(&listen.addr);
        let new: Vec<_> = config.listen.iter().filter(is_new).cloned().collect();
        Listeners::check(&new)
    }

    /// Everything that it listens on.
    pub fn listening_on(&self) -> &[Addr] {
        &self.listening_on
    }

    /// The addresses of TCP that it listens on, with the ports that the kernel chose.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// The most connections at a time. Without [`Config::max_connections`] it changes when another relay of
    /// this process starts or stops.
    pub fn max_connections(&self) -> usize {
        self.shared.limit()
    }

    /// Connections at this moment.
    pub fn active(&self) -> usize {
        self.shared.active()
    }

    /// Clients that wait to be accepted at this moment, because the limit is reached or no worker
    /// has come to it yet.
    pub fn waiting(&self) -> usize {
        self.listeners.lock().waiting()
    }

    /// Clients that have connections at this moment, and others that are remembered for their rate.
    /// Counted where there are limits for each client.
    pub fn clients(&self) -> [usize; 2] {
        self.shared.clients.as_ref().map_or([0, 0], |clients| clients.count())
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
            self.listening_on.iter().map(|a| Traffic::new(a.to_string(), true, 0)).collect();
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

    /// Reads the lists of addresses again that are in files, for new connections.
    ///
    /// # Errors
    /// A file that cannot be read, or has a line that is no address. The lists stay as they were then.
    pub fn reread_addresses(&self) -> Result<(), Error> {
        if self.shared.config.has_address_files() {
            let entries = self.shared.access.reread(&self.shared.config)?;
            tracing::info!("the lists of addresses were read again: {entries} entries");
        }
        Ok(())
    }

    /// Each worker's counters, in the order of [`Relay::worker_threads`].
    pub fn worker_stats(&self) -> Vec<Stats> {
        self.crew().stats()
    }

    /// Thread ids of the workers, for accounting of their CPU time.
    pub fn worker_threads(&self) -> Vec<u32> {
        self.crew().threads()
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
            if self.shared.config.has_unix_sockets() {
                tracing::info!("engine sockmap moves no Unix sockets: theirs is auto");
            }
        }
        self.shared.set_engine(engine);
        Ok(())
    }

    /// The CPUs that forwarding runs on.
    pub fn cpus(&self) -> CpuSet {
        self.crew().cpus().clone()
    }

    /// Moves the workers to `cpus`, at once, with the connections that they hold. If there are
    /// more CPUs than workers, workers are added, but not any more once the relay drains; if fewer,
    /// some CPUs get several.
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
        let wanted = if self.shared.stage() < Stage::Drain { cpus.len() } else { 0 };
        let recruits = (crew.len()..wanted)
            .map(|index| Hand::hire(index, &self.shared, self.announce.clone()))
            .collect::<Result<_, _>>()?;
        crew.move_to(cpus, recruits, |workers| {
            let set_up = |socket: &_, addr: &_| self.shared.setup.set_up_listener(socket, addr);
            let listeners = self.listeners.lock().deal(workers, &set_up)?;
            // Before they accept anybody.
            (0..workers).for_each(|_| self.shared.join());
            Ok(listeners)
        })?;
        self.shared.set_cpus(cpus.len());
        Ok(())
    }

    /// Looks after the workers, which somebody should do every second or so: brings back to its CPU
    /// a worker that the kernel took from it, because the CPU went offline or out of this process's
    /// cpuset, or to another CPU of the set for as long as that lasts.
    ///
    /// # Errors
    /// A worker that ended and could not begin anew: its share of the clients waits in vain, and the
    /// relay should be dropped. So does a listening socket that another process shut down.
    pub fn tend(&self) -> Result<(), Error> {
        self.settle(true)?;
        if self.shared.files.grew() {
            self.shared.wake_all();
        }
        self.check_listeners()?;
        self.crew().follow();
        match self.shared.failure() {
            Some(failure) => Err(Error::new(ErrorKind::Io, failure)),
            None => Ok(()),
        }
    }

    /// Lets in the clients that have connected by now and no others, and waits for all to end, at
    /// most `timeout`. Returns whether all of them ended by themselves; the rest is still there until
    /// the relay is dropped, and may be waited for again.
    pub fn drain(&self, timeout: Duration) -> bool {
        if let Err(error) = self.settle(false) {
            tracing::warn!("{error}");
        }
        let workers = {
            // Nobody is hired meanwhile, nor later.
            let crew = self.crew();
            self.listeners.lock().retire();
            self.shared.advance(Stage::Drain);
            crew.len()
        };
        let mut gone = self.gone.lock();
        let deadline = Instant::now() + timeout.min(Duration::from_secs(u32::MAX.into()));
        while gone.count < workers {
            let left = deadline.saturating_duration_since(Instant::now());
            if gone.messages.recv_timeout(left).is_err() {
                return false;
            }
            gone.count += 1;
        }
        true
    }

    /// Has a worker panic, for a test of what comes of that; it does when this returns.
    #[cfg(feature = "fuzzing")]
    pub fn sabotage(&self, worker: usize) {
        use std::sync::atomic::Ordering::Relaxed;
        self.shared.saboteur.store(worker as isize, Relaxed);
        self.shared.wake_all();
        while self.shared.saboteur.load(Relaxed) != -1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        self.shared.stage()
    }

    /// Duplicates of the sockets on these addresses.
    pub(crate) fn duplicates(&self, addrs: &[Addr]) -> Result<Duplicates, Error> {
        self.listeners.lock().duplicates(addrs)
    }

    /// Whether no socket was shut down, by another process that has it open.
    pub(crate) fn all_listen(&self) -> bool {
        self.listeners.lock().all_listen()
    }

    /// Leaves these sockets to another relay, and lets nobody new come to the others.
    pub(crate) fn hand_over(&self, sockets: &[Weak<Listener>]) {
        let _crew = self.crew();
        let mut listeners = self.listeners.lock();
        sockets.iter().filter_map(Weak::upgrade).for_each(|socket| socket.hand_over());
        listeners.retire();
        self.shared.advance(Stage::Drain);
    }

    /// Makes the sockets that it was given its own, and accepts.
    pub(crate) fn serve(&self) -> Result<(), Error> {
        let setup = &self.shared.setup;
        self.listeners
            .lock()
            .take_charge(&|socket: &_, addr: &_| setup.set_up_listener(socket, addr))?;
        self.shared.advance(Stage::Run);
        Ok(())
    }

    fn crew(&self) -> MutexGuard<'_, Crew> {
        self.crew.lock()
    }

    fn load_sockmap(&self) -> Result<(), Error> {
        if self.shared.sockmap().is_none() {
            let slots = self.shared.limit().min(SOCKMAP_SLOTS) as u32;
            self.shared.offer_sockmap(Sockmap::load(slots)?);
        }
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Err(error) = self.settle(false) {
            tracing::warn!("{error}");
        }
        let mut crew = self.crew();
        self.listeners.lock().retire();
        self.shared.advance(Stage::Stop);
        crew.join();
    }
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
