//! One open file in reserve: when there are no more, it makes room for an instant in which waiting
//! clients are accepted and reset, one after the other. Without it they would wait, unheard, until
//! they give up.
//!
//! The workers share it: with two files free at a time, a client could be served that nobody counted
//! on. A worker that does not get it goes on without.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SocketFlags;

use crate::listeners::Listener;
use crate::socket;

/// How long clients wait for a file before they are told that there is none.
const PATIENCE: Duration = Duration::from_secs(1);

/// The file in reserve, if it is there.
#[derive(Debug)]
pub(crate) struct Reserve(Mutex<Option<OwnedFd>>);

/// Since when a worker could not accept a client.
#[derive(Debug, Default)]
pub(super) struct Shortage(Option<Instant>);

impl Reserve {
    pub(crate) fn new() -> Reserve {
        Reserve(Mutex::new(spare()))
    }

    /// Resets up to `most` clients that wait at `listener`. Returns how many it were.
    fn turn_away(&self, listener: &Listener, most: usize) -> u64 {
        let Some(mut file) = self.0.try_lock() else { return 0 };
        // Only without it is there a number for an accepted client.
        *file = None;
        let accept = || rustix::net::accept_with(listener, SocketFlags::CLOEXEC).ok();
        let turned_away = std::iter::from_fn(accept).take(most).map(socket::reset).count() as u64;
        *file = spare();
        turned_away
    }

    fn refill(&self) {
        if let Some(mut file) = self.0.try_lock()
            && file.is_none()
        {
            *file = spare();
        }
    }
}

impl Shortage {
    pub(super) fn is_over(&mut self, reserve: &Reserve) {
        if self.0.take().is_some() {
            reserve.refill();
        }
    }

    /// A client could not be accepted. If that has lasted for a while, up to `most` clients are
    /// reset. Returns how many it were.
    pub(super) fn goes_on(
        &mut self,
        now: Instant,
        reserve: &Reserve,
        listener: &Listener,
        most: usize,
    ) -> u64 {
        let since = *self.0.get_or_insert(now);
        if now.saturating_duration_since(since) < PATIENCE {
            return 0;
        }
        reserve.turn_away(listener, most)
    }
}

/// An open file that does nothing.
fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}
