//! Connections that wait for a place at a backend: those that are up are full. Those that wait for the
//! same place stand in one line: first come, first served, within a worker.
//!
//! With the balance `source`, which line is a client's own depends on which servers are to be had. When
//! that changes, all that wait choose anew, [`ANEW`] in a turn, and keep their age.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::Worker;
use super::timeouts::ticks;
use crate::backends::{Choice, Place};
use crate::cause::Cause;
use crate::connection::{Phase, Queued, Search};
use crate::repeated::say;

/// How many choose anew in one turn: each looks at all servers.
const ANEW: usize = 64;

/// Keys of connections, by what they wait for and by who came first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<(Place, u64), usize>,
    tickets: u64,
    /// Which servers were to be had when those that wait last began to choose anew.
    offer: Option<u64>,
    /// The last one that has chosen anew, while others have not yet.
    chosen: Option<Option<(Place, u64)>>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Behind all that have come before.
    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn add(&mut self, place: Place, ticket: u64, key: usize) {
        self.waiting.insert((place, ticket), key);
    }

    /// It waits no more.
    pub(super) fn remove(&mut self, queued: &Queued) {
        self.waiting.remove(&(queued.place.clone(), queued.ticket));
    }

    /// Who is first in that line.
    fn first(&self, place: &Place) -> Option<usize> {
        self.waiting
            .range((place.clone(), 0)..=(place.clone(), u64::MAX))
            .next()
            .map(|(_, key)| *key)
    }

    /// Begins to choose anew if another offer is there than the last time.
    fn note_offer(&mut self, offer: u64) {
        if self.offer.replace(offer) != Some(offer) {
            self.chosen = Some(None);
        }
    }

    /// Whether there are some that have not chosen anew yet.
    pub(super) fn is_choosing(&self) -> bool {
        self.chosen.is_some() && !self.is_empty()
    }

    /// The next ones that are to choose anew, at most [`ANEW`].
    fn next_to_choose(&mut self) -> Vec<(Place, u64, usize)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let Some(last) = self.chosen.take() else { return Vec::new() };
        let rest = self.waiting.range((last.map_or(Unbounded, Excluded), Unbounded));
        let next: Vec<_> =
            rest.take(ANEW).map(|((place, ticket), key)| (place.clone(), *ticket, *key)).collect();
        if next.len() == ANEW {
            self.chosen = next.last().map(|(place, ticket, _)| Some((place.clone(), *ticket)));
        }
        next
    }

    /// What is waited for behind this.
    fn place_after(&self, place: Option<Place>) -> Option<Place> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = place.map_or(Unbounded, |place| Excluded((place, u64::MAX)));
        self.waiting.range((from, Unbounded)).next().map(|((place, _), _)| place.clone())
    }
}

impl Worker {
    /// Has a connection wait, if it may, and if there is no place after all. `behind`: those that wait
    /// for this have the next place.
    pub(super) fn wait_for_place(&mut self, key: usize, mut search: Search, behind: Option<Place>) {
        let Some(waiting) = self.pool.wait(search.route) else {
            self.resources.counters.queue_full.add(1);
            self.connections[key].session.seeks(self.now);
            say!(WARN, "a client was refused: all backends are full, and so is the queue");
            return self.refuse(key, Cause::Server);
        };
        // Who gives a place back from now on sees that somebody waits; what was given back before is
        // seen here.
        let choice = behind.map(Choice::Wait);
        let place = match choice.unwrap_or_else(|| self.next_backend(key, &mut search)) {
            Choice::Wait(place) => place,
            Choice::Try(lease) => {
                drop(waiting);
                return self.connect_to(key, lease, search);
            }
            Choice::Nobody => return self.refuse_without_backend(key, search.failed),
        };
        self.resources.counters.queued.add(1);
        // What it may take begins when it has a place.
        search.deadline = self.tick.wrapping_add(ticks(Duration::MAX) / 2);
        let ticket = self.queue.ticket();
        let connection = &mut self.connections[key];
        connection.active = self.tick;
        let queued = Queued { search, place: place.clone(), ticket, _waiting: waiting };
        connection.phase = Phase::Queued(Box::new(queued));
        self.queue.add(place, ticket, key);
        self.set_timer(key);
    }

    /// What a new connection is to wait for because others do, who came before.
    pub(super) fn awaited_by_others(&mut self, key: usize, search: &mut Search) -> Option<Place> {
        if self.queue.is_empty() {
            return None;
        }
        let client = self.client_of(key, search);
        let place = self.pool.place(search.route, &mut search.tried, client, self.now);
        self.queue.first(&place).map(|_| place)
    }

    /// The address that decides where a client goes, if one does.
    pub(super) fn client_of(
        &self,
        key: usize,
        search: &Search,
    ) -> impl FnOnce() -> Option<IpAddr> + use<> {
        let own = self.connections[key].session.client.as_ref().and_then(|client| client.ip());
        let named = search.client.or(own);
        move || named
    }

    /// Looks whether other servers are to be had than before, for those that wait.
    pub(super) fn look_at_offer(&mut self) {
        if let Some(offer) = self.pool.offer(self.now) {
            self.queue.note_offer(offer);
        }
    }

    /// Has some of those that wait choose anew.
    fn choose_anew(&mut self) {
        for (line, ticket, key) in self.queue.next_to_choose() {
            let phase = std::mem::replace(&mut self.connections[key].phase, Phase::Moving);
            if let Phase::Queued(mut queued) = phase {
                let client = self.client_of(key, &queued.search);
                let search = &mut queued.search;
                let place = self.pool.place(search.route, &mut search.tried, client, self.now);
                if place != line {
                    self.queue.remove(&queued);
                    queued.place = place.clone();
                    self.queue.add(place, ticket, key);
                }
                self.connections[key].phase = Phase::Queued(queued);
            }
        }
    }

    /// Gives the places that there are to those that wait.
    pub(super) fn serve_queue(&mut self) {
        self.choose_anew();
        let mut place = self.queue.place_after(None);
        while let Some(line) = place {
            while let Some(key) = self.queue.first(&line)
                && self.serve(key, &line)
            {}
            place = self.queue.place_after(Some(line));
        }
    }

    /// Serves the first one of a line. False: it still waits.
    fn serve(&mut self, key: usize, line: &Place) -> bool {
        let phase = std::mem::replace(&mut self.connections[key].phase, Phase::Moving);
        let Phase::Queued(mut queued) = phase else { return false };
        let choice = self.next_backend(key, &mut queued.search);
        if let Choice::Wait(place) = choice {
            // If its own server has gone, it waits for another, before those who came later.
            self.queue.remove(&queued);
            let is_another = place != *line;
            queued.place = place.clone();
            self.queue.add(place, queued.ticket, key);
            self.connections[key].phase = Phase::Queued(queued);
            return is_another;
        }
        self.queue.remove(&queued);
        let mut search = queued.search;
        search.deadline = self.tick.wrapping_add(self.limits.deadline);
        match choice {
            Choice::Try(lease) => self.connect_to(key, lease, search),
            _ => self.refuse_without_backend(key, search.failed),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::backends::routes::Route;

    #[test]
    fn each_line_is_served_by_who_came_first_and_costs_the_others_nothing() {
        let own = |n: u8| Place::At(Route::default(), SocketAddr::from(([10, 0, 0, n], 80)).into());
        let mut queue = Queue::default();
        for key in 0..6 {
            let ticket = queue.ticket();
            queue.add(own(key as u8 % 2), ticket, key);
        }
        let any = || Place::Of(Route::default());
        queue.add(any(), 7, 6);
        let places =
            std::iter::successors(queue.place_after(None), |p| queue.place_after(Some(p.clone())));
        assert_eq!(places.collect::<Vec<_>>(), [any(), own(0), own(1)]);
        assert_eq!(
            [any(), own(0), own(1), own(2)].map(|p| queue.first(&p)),
            [Some(6), Some(0), Some(1), None]
        );
    }
}
