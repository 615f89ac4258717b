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
mod pool;
pub(crate) mod routes;
mod server;
pub(crate) mod settings;

use std::net::SocketAddr;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release, SeqCst},
};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use crate::Error;
use crate::addr::Addr;
use crate::config::{Balance, Config, Target};
use crate::socket::Setup;
use checks::Checks;
use names::Names;
use pool::Table;
pub(crate) use pool::{Choice, Place, Pool, Tried};
use routes::{Route, Routes};
pub use server::BackendState;
use server::Times;
pub(crate) use server::{Lease, Server, Spec};

/// What the workers share.
#[derive(Debug)]
pub(crate) struct Backends {
    pub(crate) specs: Vec<Arc<Spec>>,
    pub(crate) routes: Routes,
    balance: Balance,
    times: Times,
    /// The most connections that may wait, of each route: one whose servers are full does not take the
    /// places in the queue from the others.
    most_waiting: usize,
    /// How many do. Relaxed: counts.
    waiting_by_route: Box<[AtomicUsize]>,
    table: Mutex<Arc<Table>>,
    /// The number of the newest table. Release where it is set, Acquire where a worker looks: the
    /// table is there before its number.
    newest: AtomicU64,
    /// Connections that wait for a place, in all workers. SeqCst, as places at servers with a
    /// maximum are: either the one that waits sees a place, or the one that gives it back sees it wait.
    waiting: AtomicUsize,
    /// Servers of addresses that a name had. If it has one again while connections to it are left, they
    /// count, and so does what is known of it.
    former: Mutex<Vec<Weak<Server>>>,
}

/// A connection that waits for a place.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Backends>, Route);

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
        let waiting_by_route = (0..routes.len()).map(|_| AtomicUsize::new(0)).collect();
        Backends {
            specs,
            routes,
            balance,
            times,
            most_waiting: max_queue,
            waiting_by_route,
            table: Mutex::new(Arc::new(table)),
            newest: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            former: Mutex::default(),
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
        let mut former = self.former.lock();
        former.extend(ours.iter().map(Arc::downgrade));
        let known = |addr: &Addr| {
            let all = former.iter().filter_map(Weak::upgrade);
            { all }.find(|server| server.addr == *addr && Arc::ptr_eq(&server.spec, spec))
        };
        servers.extend(addrs.into_iter().map(|addr| {
            let known = known(&addr);
            known.unwrap_or_else(|| Arc::new(Server::new(addr, Arc::clone(spec), self.times)))
        }));
        let is_there = |server: &Arc<Server>| servers.iter().any(|one| Arc::ptr_eq(one, server));
        former.retain(|server| server.upgrade().is_some_and(|server| !is_there(&server)));
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

    /// Lets one more connection of the route wait, unless too many do.
    fn wait(self: &Arc<Self>, route: Route) -> Option<Waiting> {
        let one_more = |waiting| (waiting < self.most_waiting).then_some(waiting + 1);
        self.waiting_of(route).fetch_update(Relaxed, Relaxed, one_more).ok()?;
        self.waiting.fetch_add(1, SeqCst);
        Some(Waiting(Arc::clone(self), route))
    }

    fn waiting_of(&self, route: Route) -> &AtomicUsize {
        &self.waiting_by_route[route.0]
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Waiting(backends, route) = self;
        backends.waiting.fetch_sub(1, SeqCst);
        backends.waiting_of(*route).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
