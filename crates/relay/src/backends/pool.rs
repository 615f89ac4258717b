//! A worker's choice among the servers: which one a new connection tries, or what it waits for.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

use super::balance::{self, Chance};
use super::routes::Route;
use super::server::{Lease, Server, Spec};
use super::{Backends, Waiting};
use crate::addr::Addr;
use crate::config::Balance;

/// How many servers that are down one connection tries when none is up: as HAProxy's `retries`.
pub(super) const LAST_RESORTS: u32 = 3;

/// All servers at a time.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) number: u64,
    pub(super) servers: Vec<Arc<Server>>,
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
    /// To wait for this.
    Wait(Place),
    /// Nothing: there are no more to try.
    Nobody,
}

/// What a connection waits for. Those that wait for the same are served one after the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Any server of the route.
    Of(Route),
    /// This one of them, which is the client's own.
    At(Route, Addr),
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

impl Table {
    pub(super) fn new(number: u64, servers: Vec<Arc<Server>>, routes: usize) -> Table {
        let schedule = |route, backup| {
            let is_of_it = |spec: &Spec| spec.route == route && spec.backend.backup == backup;
            let weight = |s: &Arc<Server>| if is_of_it(&s.spec) { s.spec.weight() } else { 0 };
            balance::schedule(&servers.iter().map(weight).collect::<Vec<_>>())
        };
        let of_route = |route| [schedule(route, false), schedule(route, true)];
        let schedules = (0..routes).map(Route).map(of_route).collect();
        Table { number, servers, schedules }
    }

    /// Whether a connection that has `tried` in vain may try this one.
    fn is_up(&self, index: usize, tried: &Tried, now: Instant) -> bool {
        let server = &self.servers[index];
        server.spec.is_wanted() && !tried.has(index) && server.is_up(now)
    }

    /// Those of a schedule that are up, the one that the client is fondest of first.
    fn by_fondness(
        &self,
        schedule: &[u32],
        client: IpAddr,
        now: Instant,
        is_up: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let fondness = |index: usize| (balance::fondness(&self.servers[index], client, now), index);
        let mut order: Vec<_> = in_turn(schedule, 0).filter(|&i| is_up(i)).map(fondness).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        order.into_iter().map(|(_, index)| index).collect()
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

    pub(super) fn add(&mut self, lease: &Lease) {
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

    /// What a connection would wait for, if it had to.
    pub(crate) fn place(
        &mut self,
        route: Route,
        tried: &mut Tried,
        client: impl FnOnce() -> Option<IpAddr>,
        now: Instant,
    ) -> Place {
        self.refresh();
        tried.begin(&self.table);
        let table = &self.table;
        let is_up = |index: usize| table.is_up(index, tried, now);
        let first = |client| {
            let mut orders = table.schedules[route.0].iter();
            orders.find_map(|schedule| {
                table.by_fondness(schedule, client, now, is_up).first().copied()
            })
        };
        let client = (self.backends.balance == Balance::Source).then(client).flatten();
        let own = client.and_then(first);
        own.map_or(Place::Of(route), |index| Place::At(route, table.servers[index].addr.clone()))
    }

    /// Which servers are to be had: another number if others are. Nothing where it makes no difference
    /// to what a connection waits for.
    pub(crate) fn offer(&mut self, now: Instant) -> Option<u64> {
        if self.backends.balance != Balance::Source {
            return None;
        }
        self.refresh();
        let mut hasher = DefaultHasher::new();
        self.table.number.hash(&mut hasher);
        for (index, server) in self.table.servers.iter().enumerate() {
            if server.spec.is_wanted() && server.is_up(now) {
                index.hash(&mut hasher);
            }
        }
        Some(hasher.finish())
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
            let is_up = |index: usize| table.is_up(index, tried, now);
            let full = Cell::new(None);
            let take = |index: usize| match servers[index].enter(index, false) {
                // Gives the place back if the server is not to be had.
                Some(lease) => servers[index].claim(now).then_some(lease),
                None => {
                    full.set(Some(index));
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
                    // A full one is waited for: another would not be the client's.
                    let order = table.by_fondness(schedule, client, now, is_up);
                    let mut found = order.into_iter().map(take);
                    found.find(|found| found.is_some() || full.get().is_some()).flatten()
                }
                (Balance::Random, _) if !schedule.is_empty() => {
                    let mut draw = || schedule[chance.below(schedule.len())] as usize;
                    let (a, b) = (draw(), draw());
                    let [load_a, load_b] = [a, b].map(|i| balance::load(&servers[i], now));
                    let pair = if load_a <= load_b { [a, b] } else { [b, a] };
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
            if let Some(index) = full.get() {
                return Choice::Wait(match client {
                    Some(_) => Place::At(route, servers[index].addr.clone()),
                    None => Place::Of(route),
                });
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

    /// Lets one more connection of the route wait, unless too many do.
    pub(crate) fn wait(&self, route: Route) -> Option<Waiting> {
        self.backends.wait(route)
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
