//! What ends a connection by time: each phase has its limits, and a relayed connection several.
//!
//! A byte that reaches the other side, in either direction, counts for both legs, as with HAProxy:
//! each of them has just sent or taken something. Where bytes wait for a leg, its timeout alone
//! applies: nothing is expected of the other one.

use std::time::Duration;

use super::hello::LATE;
use super::leaving::has_left;
use super::{TICK, Worker};
use crate::cause::Cause;
use crate::config::Config;
use crate::connection::{Connection, Phase, Relaying};

/// Ticks after a backend has accepted until the kernel is asked to find out if it is gone. That takes five
/// system calls, which most connections save: they are over by then.
const UNWATCHED: u32 = 10;

/// Each limit in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) deadline: u32,
    connect: u32,
    queue: u32,
    idle: Option<u32>,
    client: Option<u32>,
    server: Option<u32>,
    half_closed: Option<u32>,
}

/// Which limit of a relayed connection is the next to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Idle,
    Client,
    Server,
    HalfClosed,
}

impl Limits {
    pub(super) fn of(config: &Config) -> Limits {
        Limits {
            deadline: ticks(config.connect_deadline),
            connect: ticks(config.connect_timeout),
            queue: ticks(config.queue_timeout),
            idle: config.idle_timeout.map(ticks),
            client: config.client_timeout.map(ticks),
            server: config.server_timeout.map(ticks),
            half_closed: config.half_closed_timeout.map(ticks),
        }
    }

    /// The shortest that applies to a relayed connection as it is now.
    pub(super) fn of_relaying(self, relaying: &Relaying) -> Option<(u32, Limit)> {
        let [to_server, to_client] = relaying.flows().map(|flow| flow.holds());
        [
            (self.half_closed.filter(|_| relaying.is_half_closed()), Limit::HalfClosed),
            (self.client.filter(|_| to_client || !to_server), Limit::Client),
            (self.server.filter(|_| to_server || !to_client), Limit::Server),
            (self.idle, Limit::Idle),
        ]
        .into_iter()
        .filter_map(|(limit, which)| Some((limit?, which)))
        .min_by_key(|(limit, _)| *limit)
    }
}

impl Worker {
    /// Sets the connection's timer to when it is next to be looked at.
    pub(super) fn set_timer(&mut self, key: usize) {
        let connection = &self.connections[key];
        let quiet = self.tick.wrapping_sub(connection.active);
        // The first tick at which the whole time has passed for certain.
        let after = |limit: u32| (limit + 1).saturating_sub(quiet);
        let wait = match &connection.phase {
            Phase::Header(_) | Phase::Hello(_) => Some(after(self.limits.connect)),
            Phase::Queued(_) => Some(after(self.limits.queue)),
            Phase::Connecting(connecting) => {
                let left = connecting.search.deadline.wrapping_sub(self.tick) as i32;
                Some(after(self.limits.connect).min(left.max(0) as u32))
            }
            Phase::Relaying(relaying) => {
                let limit = self.limits.of_relaying(relaying).map(|(limit, _)| after(limit));
                let unwatched = (!relaying.watches_backend).then_some(UNWATCHED);
                limit.into_iter().chain(unwatched).min()
            }
            Phase::Moving => None,
        };
        match wait {
            Some(wait) => self.timers.set(key, self.tick, wait),
            None => self.timers.clear(key),
        }
    }

    pub(super) fn look_at_timers(&mut self) {
        while let Some(key) = self.timers.pop(self.tick) {
            if self.is_overdue(&self.connections[key]) {
                self.time_out(key);
            } else {
                self.watch_backend(key);
                self.set_timer(key);
            }
        }
    }

    /// Asks the kernel to find out if the backend is gone, if it was not asked before.
    fn watch_backend(&mut self, key: usize) {
        if let Phase::Relaying(relaying) = &mut self.connections[key].phase
            && !std::mem::replace(&mut relaying.watches_backend, true)
        {
            // Of a broken socket, the flows find out.
            let _ = self.shared.setup.watch_peer(&relaying.backend.socket);
        }
    }

    fn is_overdue(&self, connection: &Connection) -> bool {
        let quiet = self.tick.wrapping_sub(connection.active);
        match &connection.phase {
            Phase::Header(_) | Phase::Hello(_) => quiet > self.limits.connect,
            Phase::Queued(_) => quiet > self.limits.queue,
            Phase::Connecting(connecting) => {
                quiet > self.limits.connect
                    || is_past(connecting.search.deadline, self.tick)
                    || has_left(&connection.client)
            }
            Phase::Relaying(relaying) => {
                self.limits.of_relaying(relaying).is_some_and(|(limit, _)| quiet > limit)
            }
            Phase::Moving => false,
        }
    }

    fn time_out(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        match std::mem::replace(&mut connection.phase, Phase::Moving) {
            Phase::Header(_) => {
                self.refuse_header(key, Cause::ClientTimeout, "it did not come in time");
            }
            Phase::Hello(_) => self.refuse_hello(key, Cause::ClientTimeout, LATE),
            queued @ Phase::Queued(_) => {
                connection.phase = queued;
                self.resources.counters.queue_timeout.add(1);
                self.refuse(key, Cause::ServerTimeout);
            }
            Phase::Connecting(connecting) if has_left(&connection.client) => {
                connection.phase = Phase::Connecting(connecting);
                self.refuse(key, Cause::Client);
            }
            Phase::Connecting(connecting) => {
                self.retry(key, *connecting, Cause::ServerTimeout, "no answer in time");
            }
            relaying => {
                connection.phase = relaying;
                let cause = self.count_timeout(key);
                // By a reset: neither side has ended its stream, so neither may see a good end.
                self.refuse(key, cause);
            }
        }
    }

    fn count_timeout(&self, key: usize) -> Cause {
        let counters = &self.resources.counters;
        let limit = match &self.connections[key].phase {
            Phase::Relaying(relaying) => self.limits.of_relaying(relaying),
            _ => None,
        };
        let (counter, cause) = match limit {
            Some((_, Limit::Client)) => (&counters.client_timeout, Cause::ClientTimeout),
            Some((_, Limit::Server)) => (&counters.server_timeout, Cause::ServerTimeout),
            Some((_, Limit::HalfClosed)) => (&counters.half_closed_timeout, Cause::ClientTimeout),
            Some((_, Limit::Idle)) | None => (&counters.idle_timeout, Cause::ClientTimeout),
        };
        counter.add(1);
        cause
    }
}

/// Whether the tick `now` is at or past `deadline`; ticks wrap.
pub(super) fn is_past(deadline: u32, now: u32) -> bool {
    now.wrapping_sub(deadline) as i32 >= 0
}

/// A time in ticks, rounded up, at most half of what ticks can tell apart.
pub(super) fn ticks(time: Duration) -> u32 {
    let ticks = time.as_millis().div_ceil(TICK.as_millis());
    ticks.min(i32::MAX as u128 - 1) as u32
}
