//! The backends of a relay, and which of them a new connection gets.
//!
//! **Where threads meet.** A backend of the configuration has one server for each of its addresses.
//! All servers stand in a [`Table`], which never changes: when addresses or weights do, there is a
//! new one. A worker holds the table that it has seen last and looks at a number to find out that
//! there is a newer one. It takes it if nobody holds the lock, and uses the old one otherwise. So a
//! thread that resolves names or sets a knob and is stopped meanwhile makes no worker wait. What
//! changes with each connection is atomic, and in the server.
//!
//! **Waiting.** If servers are up and all are full, a connection waits in its worker's queue. Whoever
//! gives a place back while somebody waits wakes the workers.

mod balance;
pub(crate) mod checks;
mod names;
pub(crate) mod routes;
mod server;
pub(crate) mod settings;

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Release, SeqCst},
};
use std::time::Instant;

use parking_lot::Mutex;

use crate::Error;
use crate::addr::Addr;
use crate::config::{Balance, Config, Target};
use crate::socket::Setup;
use balance::Chance;
use checks::Checks;
use names::Names;
use routes::{Route, Routes};
pub use server::BackendState;
use server::Times;
pub(crate) use server::{Lease, Server, Spec};

/// How many servers that are down one connection tries when none is up: as HAProxy's `retries`.
const LAST_RESORTS: u32 = 3;

/// What the workers share.
#[derive(Debug)]
pub(crate) struct Backends {
    pub(crate) specs: Vec<Arc<Spec>>,
    pub(crate) routes: Routes,
    balance: Balance,
    times: Times,
    /// The most connections that may wait.
    most_waiting: usize,
    table: Mutex<Arc<Table>>,
    /// The number of the newest table. Release where it is set, Acquire where a worker looks: the
    /// table is there before its number.
    newest: AtomicU64,
    /// Connections that wait for a place, in all workers. SeqCst, as places at servers with a
    /// maximum are: either the one that waits sees a place, or the one that gives it back sees it wait.
    waiting: AtomicUsize,
}

/// All servers at a time.
#[derive(Debug)]
struct Table {
    number: u64,
    servers: Vec<Arc<Server>>,
    /// Indices by weight, of those that are no backups, and of the backups, for each route.
    schedules: Vec<[Vec<u32>; 2]>,
}

/// One worker's view of the backends.
#[derive(Debug)]
pub(crate) struct Pool {
    backends: Arc<Backends>,
    table: Arc<Table>,
    turn: usize,
    chance: Chance,
}

/// What a connection is to do.
#[derive(Debug)]
pub(crate) enum Choice {
    /// To try this one.
    Try(Lease),
    /// To wait for a place.
    Wait,
    /// Nothing: there are no more to try.
    Nobody,
}

/// The servers that a connection has tried in vain. Takes no memory until there is one.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    /// Of which table the bits are.
    table: u64,
    /// A bit for each server, up to the last one that was tried.
    bits: Vec<u64>,
    last_resorts: u32,
}

/// A connection that waits for a place.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Backends>);

/// The threads that keep the backends up to date: they resolve names, and check.
#[derive(Debug)]
pub(crate) struct Upkeep {
    _names: Names,
    _checks: Option<Checks>,
}

impl Upkeep {
    /// Before a relay on `listen` serves anybody.
    pub(crate) fn start(
        backends: &Arc<Backends>,
        config: &Config,
        listen: &[Addr],
        setup: &Setup,
    ) -> Result<Upkeep, Error> {
        let names = Names::start(backends, listen, config.resolve_every, names::system)?;
        Ok(Upkeep { _names: names, _checks: Checks::start(backends, setup)? })
    }
}

impl Backends {
    pub(crate) fn new(config: &Config) -> Backends {
        let Config { balance, retry_after, connect_timeout, max_queue, .. } = *config;
        let trial = retry_after.saturating_add(connect_timeout);
        let times = Times { start: Instant::now(), retry_after, trial };
        let routes = Routes::new(&config.backends);
        let specs = config.backends.iter().cloned().enumerate();
        let specs: Vec<_> = specs
            .map(|(index, backend)| {
                let route = routes.of(&backend);
                Arc::new(Spec::new(index, route, backend, &config.source))
            })
            .collect();
        let servers: Vec<_> = specs
            .iter()
            .filter_map(|spec| match &spec.backend.target {
                Target::Addr(addr) => {
                    Some(Arc::new(Server::new(addr.clone(), Arc::clone(spec), times)))
                }
                Target::Name { .. } => None,
            })
            .collect();
        let table = Table::new(0, servers, routes.len());
        Backends {
            specs,
            routes,
            balance,
            times,
            most_waiting: max_queue,
            table: Mutex::new(Arc::new(table)),
            newest: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// All servers, and how many of them are up.
    pub(crate) fn count(&self, now: Instant) -> (usize, usize) {
        let table = self.table();
        (table.servers.len(), table.servers.iter().filter(|s| s.is_up(now)).count())
    }

    /// Each backend of the configuration: its name, whether any of its addresses is up, and how many
    /// connections hold a lease on one.
    pub(crate) fn each(&self, now: Instant) -> Vec<(String, bool, usize)> {
        let servers = self.servers();
        let of = |spec: &Arc<Spec>| {
            let own = servers.iter().filter(|server| Arc::ptr_eq(&server.spec, spec));
            own.fold((false, 0), |(up, active), s| (up || s.is_up(now), active + s.active()))
        };
        let all = self.specs.iter().map(|spec| (spec.backend.target.to_string(), of(spec)));
        all.map(|(name, (is_up, active))| (name, is_up, active)).collect()
    }

    /// For threads that may wait.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        self.table().servers.clone()
    }

    /// The backend `spec` has these addresses from now on. Those that it had already keep what is
    /// known of them. Returns whether that is news.
    pub(crate) fn set_addresses(&self, spec: &Arc<Spec>, addrs: &[SocketAddr]) -> bool {
        let mut table = self.table.lock();
        let is_ours = |server: &&Arc<Server>| Arc::ptr_eq(&server.spec, spec);
        let old = table.servers.iter().filter(is_ours).map(|server| &server.addr);
        let addrs: Vec<_> = addrs.iter().map(|&addr| Addr::Ip(addr)).collect();
        if old.eq(&addrs) {
            return false;
        }
        let (ours, mut servers): (Vec<_>, Vec<_>) =
            table.servers.iter().cloned().partition(|s| Arc::ptr_eq(&s.spec, spec));
        servers.extend(addrs.into_iter().map(|addr| {
            let known = ours.iter().find(|server| server.addr == addr).cloned();
            known.unwrap_or_else(|| Arc::new(Server::new(addr, Arc::clone(spec), self.times)))
        }));
        self.publish(&mut table, servers);
        true
    }

    /// Weights have changed.
    pub(crate) fn reschedule(&self) {
        let mut table = self.table.lock();
        let servers = table.servers.clone();
        self.publish(&mut table, servers);
    }

    fn publish(&self, table: &mut Arc<Table>, servers: Vec<Arc<Server>>) {
        let number = table.number + 1;
        *table = Arc::new(Table::new(number, servers, self.routes.len()));
        self.newest.store(number, Release);
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.lock())
    }

    /// Lets one more connection wait, unless too many do.
    pub(crate) fn wait(self: &Arc<Self>) -> Option<Waiting> {
        let one_more = |waiting| (waiting < self.most_waiting).then_some(waiting + 1);
        self.waiting.fetch_update(SeqCst, SeqCst, one_more).ok()?;
        Some(Waiting(Arc::clone(self)))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

impl Table {
    fn new(number: u64, servers: Vec<Arc<Server>>, routes: usize) -> Table {
        let schedule = |route, backup| {
            let is_of_it = |spec: &Spec| spec.route == route && spec.backend.backup == backup;
            let weight = |s: &Arc<Server>| if is_of_it(&s.spec) { s.spec.weight() } else { 0 };
            balance::schedule(&servers.iter().map(weight).collect::<Vec<_>>())
        };
        let of_route = |route| [schedule(route, false), schedule(route, true)];
        let schedules = (0..routes).map(Route).map(of_route).collect();
        Table { number, servers, schedules }
    }
}

impl Tried {
    fn has(&self, index: usize) -> bool {
        self.bits.get(index / 64).is_some_and(|bits| bits & 1 << (index % 64) != 0)
    }

    fn begin(&mut self, table: &Table) {
        if self.table != table.number {
            self.table = table.number;
            self.bits.clear();
        }
    }

    fn add(&mut self, lease: &Lease) {
        let (word, bit) = (lease.index / 64, lease.index % 64);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << bit;
        self.last_resorts += u32::from(lease.last_resort);
    }
}

impl Pool {
    /// Workers that begin their rounds at different turns spread their first connections.
    pub(crate) fn new(backends: Arc<Backends>, turn: usize) -> Pool {
        let table = backends.table();
        Pool { backends, table, turn, chance: Chance::new(turn as u64) }
    }

    /// Chooses a server of the route that was not `tried`, and notes it there. `client` is asked for if
    /// the balance hangs on it.
    pub(crate) fn choose(
        &mut self,
        route: Route,
        tried: &mut Tried,
        client: impl FnOnce() -> Option<IpAddr>,
        now: Instant,
    ) -> Choice {
        self.refresh();
        tried.begin(&self.table);
        let client = (self.backends.balance == Balance::Source).then(client).flatten();
        let choice = self.choose_of_those_up(route, tried, client, now);
        let choice = match choice {
            Choice::Nobody if tried.last_resorts < LAST_RESORTS => self.last_resort(route, tried),
            choice => choice,
        };
        if let Choice::Try(lease) = &choice {
            tried.add(lease);
        }
        choice
    }

    fn refresh(&mut self) {
        if self.backends.newest.load(Acquire) != self.table.number
            && let Some(table) = self.backends.table.try_lock()
        {
            self.table = Arc::clone(&table);
        }
    }

    fn choose_of_those_up(
        &mut self,
        route: Route,
        tried: &Tried,
        client: Option<IpAddr>,
        now: Instant,
    ) -> Choice {
        self.turn = self.turn.wrapping_add(1);
        for backups in [0, 1] {
            let Pool { table, turn, chance, .. } = self;
            let Table { servers, schedules, .. } = &**table;
            let schedule = &schedules[route.0][backups];
            let is_up = |index: usize| {
                let server = &servers[index];
                server.spec.is_wanted() && !tried.has(index) && server.is_up(now)
            };
            let is_full = Cell::new(false);
            let take = |index: usize| match servers[index].enter(index, false) {
                // Gives the place back if the server is not to be had.
                Some(lease) => servers[index].claim(now).then_some(lease),
                None => {
                    is_full.set(true);
                    None
                }
            };
            let lease = match (self.backends.balance, client) {
                (Balance::LeastConnections, _) => {
                    // Each load is read once: others change them meanwhile.
                    let load = |index: usize| (balance::load(&servers[index], now), index);
                    let mut order: Vec<_> =
                        in_turn(schedule, *turn).filter(|&i| is_up(i)).map(load).collect();
                    order.sort_by(|a, b| a.0.total_cmp(&b.0));
                    order.into_iter().find_map(|(_, index)| take(index))
                }
                (Balance::Source, Some(client)) => {
                    let fondness =
                        |index: usize| (balance::fondness(&servers[index], client, now), index);
                    let mut order: Vec<_> =
                        in_turn(schedule, 0).filter(|&i| is_up(i)).map(fondness).collect();
                    order.sort_by(|a, b| b.0.total_cmp(&a.0));
                    // A full one is waited for: another would not be the client's.
                    let found = order.into_iter().map(|(_, index)| take(index));
                    { found }.find(|found| found.is_some() || is_full.get()).flatten()
                }
                (Balance::Random, _) if !schedule.is_empty() => {
                    let mut draw = || schedule[chance.below(schedule.len())] as usize;
                    let (a, b) = (draw(), draw());
                    let order = balance::by_load(now)(&servers[a], &servers[b]);
                    let pair = if order.is_le() { [a, b] } else { [b, a] };
                    let rest = in_turn(schedule, chance.below(schedule.len()));
                    pair.into_iter().chain(rest).filter(|&i| is_up(i)).find_map(take)
                }
                _ => {
                    let mut warm = |index: usize| chance.comes(servers[index].warmth(now));
                    in_turn(schedule, *turn)
                        .filter(|&i| is_up(i) && warm(i))
                        .find_map(take)
                        .or_else(|| in_turn(schedule, *turn).filter(|&i| is_up(i)).find_map(take))
                }
            };
            if let Some(lease) = lease {
                return Choice::Try(lease);
            }
            // As it was when it was tried: if a place has been given back since, whoever waits is told.
            if is_full.get() {
                return Choice::Wait;
            }
        }
        Choice::Nobody
    }

    /// Any that is wanted, although it is down.
    fn last_resort(&self, route: Route, tried: &Tried) -> Choice {
        let servers = &self.table.servers;
        let n = servers.len();
        (0..n)
            .map(|i| self.turn.wrapping_add(i) % n)
            .filter(|&index| {
                let spec = &servers[index].spec;
                spec.route == route && spec.is_wanted() && !tried.has(index)
            })
            .find_map(|index| servers[index].enter(index, true))
            .map_or(Choice::Nobody, Choice::Try)
    }

    /// Lets one more connection wait, unless too many do.
    pub(crate) fn wait(&self) -> Option<Waiting> {
        self.backends.wait()
    }

    /// Connections that hold a lease: in all, and on the server of this address.
    pub(crate) fn leases(&self, addr: Option<&Addr>) -> [u64; 2] {
        self.table.servers.iter().fold([0, 0], |[all, own], server| {
            let active = server.active() as u64;
            [all + active, if addr == Some(&server.addr) { active } else { own }]
        })
    }

    /// Whether a connection waits for a place, of this worker or another.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.backends.waiting() > 0
    }
}

/// The indices of a schedule, from its `turn`th on, once round.
fn in_turn(schedule: &[u32], turn: usize) -> impl Iterator<Item = usize> + '_ {
    let n = schedule.len();
    (0..n).map(move |i| schedule[turn.wrapping_add(i) % n] as usize)
}

#[cfg(test)]
mod tests;
