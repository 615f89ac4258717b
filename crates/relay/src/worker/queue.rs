//! Connections that wait for a place at a backend: those that are up are full. First come, first
//! served, within a worker.

use std::collections::VecDeque;
use std::time::Duration;

use super::Worker;
use super::timeouts::ticks;
use crate::backends::Choice;
use crate::cause::Cause;
use crate::config::Balance;
use crate::connection::{Phase, Queued, Search};
use crate::repeated::say;

/// Connections by key and generation; some of them may have ended.
pub(super) type Queue = VecDeque<(usize, u32)>;

impl Worker {
    /// Has a connection wait, if it may, and if there is no place after all. `behind`: those before it
    /// have the next place.
    pub(super) fn wait_for_place(&mut self, key: usize, mut search: Search, behind: bool) {
        let Some(waiting) = self.pool.wait() else {
            self.resources.counters.queue_full.add(1);
            self.connections[key].session.seeks(self.now);
            say!(WARN, "a client was refused: all backends are full, and so is the queue");
            return self.refuse(key, Cause::Server);
        };
        // Who gives a place back from now on sees that somebody waits; what was given back before is
        // seen here.
        let choice = if behind { Choice::Wait } else { self.next_backend(key, &mut search) };
        match choice {
            Choice::Wait => {}
            Choice::Try(lease) => {
                drop(waiting);
                return self.connect_to(key, lease, search);
            }
            Choice::Nobody => return self.refuse_without_backend(key, search.failed),
        }
        self.resources.counters.queued.add(1);
        // What it may take begins when it has a place.
        search.deadline = self.tick.wrapping_add(ticks(Duration::MAX) / 2);
        let connection = &mut self.connections[key];
        connection.active = self.tick;
        connection.phase = Phase::Queued(Box::new(Queued { search, _waiting: waiting }));
        self.queue.push_back((key, connection.generation));
        self.set_timer(key);
    }

    /// Whether a new connection is to wait behind others for the next place, whichever that is.
    pub(super) fn is_behind_others(&self) -> bool {
        !self.queue.is_empty() && !self.each_has_its_own()
    }

    /// Whether a place that one connection waits for may be none for another.
    fn each_has_its_own(&self) -> bool {
        self.shared.config.balance == Balance::Source || self.shared.backends.routes.ask_for_name()
    }

    /// Gives the places that there are to those that wait.
    pub(super) fn serve_queue(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        // Those that wait for a backend of their own, while others may have theirs.
        let mut kept = Queue::new();
        while let Some((key, generation)) = queue.pop_front() {
            let Some(connection) = self.live(key, generation) else { continue };
            let phase = std::mem::replace(&mut connection.phase, Phase::Moving);
            let Phase::Queued(mut queued) = phase else {
                connection.phase = phase;
                continue;
            };
            match self.next_backend(key, &mut queued.search) {
                Choice::Try(lease) => {
                    let mut search = queued.search;
                    search.deadline = self.tick.wrapping_add(self.limits.deadline);
                    self.connect_to(key, lease, search);
                }
                Choice::Nobody => self.refuse_without_backend(key, queued.search.failed),
                Choice::Wait => {
                    self.connections[key].phase = Phase::Queued(queued);
                    if !self.each_has_its_own() {
                        queue.push_front((key, generation));
                        break;
                    }
                    kept.push_back((key, generation));
                }
            }
        }
        // Those that have come meanwhile, because an attempt failed, stand at the end.
        let late = std::mem::take(&mut self.queue);
        self.queue = kept.into_iter().chain(queue).chain(late).collect();
    }
}
