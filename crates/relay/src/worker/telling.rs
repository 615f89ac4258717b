//! What a worker tells of its connections: to the statistics while they run, to those and to the access
//! log when they have ended.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::Worker;
use crate::cause::Cause;
use crate::connection::{Connection, Phase, Relaying};
use crate::flow::State;
use crate::repeated::say;
use crate::session::{Client, Record, Session};
use crate::statistics::Tallies;

impl Worker {
    /// A client was accepted.
    pub(super) fn begin(&self, client: Option<Client>, listener: usize) -> Session {
        if let Some(tally) = self.tallies.listeners.get(listener) {
            tally.connections.add(1);
        }
        if self.log.is_some() {
            self.shared.on_listener(listener).fetch_add(1, Relaxed);
        }
        Session::new(client, listener, self.now)
    }

    /// A backend could not be reached.
    pub(super) fn note_failed(&self, backend: usize) {
        if let Some(tally) = self.tallies.backends.get(backend) {
            tally.connect_failed.add(1);
        }
    }

    /// A connection ends: its lease is still held, its place is not given back yet.
    pub(super) fn tell(&mut self, connection: &Connection, cause: Cause) {
        let record = self.record(connection, cause);
        if let Some(tally) = self.tallies.listeners.get(record.session.listener as usize) {
            tally.ends(&record);
        }
        if let Phase::Relaying(relaying) = &connection.phase
            && let Some(tally) = self.tallies.backends.get(relaying.lease.backend())
        {
            tally.ends(&record);
        }
        let Some(log) = &mut self.log else { return };
        self.shared.on_listener(record.session.listener as usize).fetch_sub(1, Relaxed);
        if !log.send(record) {
            self.resources.counters.access_log_lost.add(1);
            say!(WARN, "the access log loses lines: it cannot keep up");
        }
    }

    fn record(&self, connection: &Connection, cause: Cause) -> Record {
        let session = connection.session.clone();
        let (bytes, own) = match &connection.phase {
            Phase::Relaying(relaying) => (relaying.moved(), 1),
            Phase::Connecting(_) => ([0, 0], 1),
            Phase::Header(_) | Phase::Hello(_) | Phase::Queued(_) | Phase::Moving => ([0, 0], 0),
        };
        let mut record = Record {
            total: self.now.saturating_duration_since(session.accepted),
            session,
            bytes,
            cause,
            stage: stage(connection, cause),
            active: [0, 0],
            leased: [0, 0],
        };
        if self.log.is_none() {
            return record;
        }
        let here = self.shared.on_listener(record.session.listener as usize).load(Relaxed);
        record.active = [self.shared.active() as u64, here as u64];
        record.leased = self.pool.leases(record.session.backend.as_ref());
        record.leased = record.leased.map(|leases| leases.saturating_sub(own));
        record
    }
}

/// A backend has accepted a connection.
pub(super) fn note_connected(tallies: &Tallies, backend: usize) {
    if let Some(tally) = tallies.backends.get(backend) {
        tally.connections.add(1);
    }
}

/// A connection's flows have moved bytes since they had moved `before`.
pub(super) fn note_moved(
    tallies: &Tallies,
    session: &mut Session,
    relaying: &Relaying,
    before: [u64; 2],
    now: Instant,
) {
    let [up, down] = relaying.moved();
    let moved = [up - before[0], down - before[1]];
    if moved[1] > 0 {
        session.is_answered(now);
    }
    let listener = tallies.listeners.get(session.listener as usize);
    let backend = tallies.backends.get(relaying.lease.backend());
    for tally in listener.into_iter().chain(backend) {
        tally.moved(moved);
    }
}

/// HAProxy's letter for how far a connection had come when it ended.
fn stage(connection: &Connection, cause: Cause) -> char {
    match &connection.phase {
        _ if cause == Cause::Normal => '-',
        // The backend had said all, and the client had yet to take it or to end.
        Phase::Relaying(relaying) if relaying.flows()[1].state != State::Open => 'L',
        Phase::Relaying(_) => 'D',
        Phase::Queued(_) => 'Q',
        _ if connection.session.has_sought() => 'C',
        _ => 'R',
    }
}
