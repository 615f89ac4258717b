//! How a worker comes to its end: it takes over the clients that have connected by then, resets what
//! is left when it has to stop, and begins anew after a panic.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::cause::Cause;
use crate::flow::Resources;

use super::looks::Looks;
use super::queue::Queue;
use super::timers::Timers;
use super::{Worker, new_epoll};

/// How long nobody has to come before a queue to which nobody new is let is closed: more than a
/// round trip around the world, which is how long a handshake may take that had begun before.
const QUIET: Duration = Duration::from_millis(300);

impl Worker {
    /// Takes a place of all that the limit allows, if one is left.
    pub(super) fn enter(&mut self) -> bool {
        let entered = self.shared.enter();
        self.places += usize::from(entered);
        entered
    }

    /// Gives a place back: others may wait for it.
    pub(super) fn leave(&mut self) {
        self.leave_unused();
        // The backend's place is free as well.
        if self.pool.is_waited_for() {
            self.shared.wake_all();
        }
    }

    /// Gives a place back that was taken in vain.
    pub(super) fn leave_unused(&mut self) {
        self.places -= 1;
        if self.shared.leave() {
            self.shared.wake_all();
        }
    }

    /// Goes on to accept those who have connected, as far as the limit lets it, and closes the
    /// listeners when nobody is left and nobody has come for a while. Those that others are in charge
    /// of it leaves to them.
    pub(super) fn empty_queues(&mut self) {
        if self.listeners.iter().any(|listener| !listener.is_in_charge()) {
            self.set_accepting(false);
            self.listeners.retain(|listener| listener.is_in_charge());
        }
        if self.listeners.is_empty() {
            self.quiet_since = None;
            return;
        }
        self.set_accepting(self.may_accept());
        let somebody_waits = self.listeners.iter().any(|listener| listener.waiting() > 0);
        let since = *self.quiet_since.get_or_insert(self.now);
        if somebody_waits {
            self.quiet_since = Some(self.now);
        } else if self.now.duration_since(since) >= QUIET {
            self.close_listeners();
        }
    }

    /// Resets all that is left, and says whom it resets before they were accepted.
    pub(super) fn end_all(&mut self) {
        let ours = self.listeners.iter().filter(|listener| listener.is_in_charge());
        let waiting: usize = ours.map(|listener| listener.turn_away()).sum();
        if waiting > 0 {
            self.resources.counters.queue_reset.add(waiting as u64);
            let index = self.index;
            tracing::warn!("{waiting} clients were reset in the listen queue of worker {index}");
        }
        self.close_listeners();
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.refuse(key, Cause::Killed);
        }
    }

    fn close_listeners(&mut self) {
        self.set_accepting(false);
        self.quiet_since = None;
        self.listeners.clear();
    }

    /// After a panic: resets the connections, whose state nobody knows, and is as when it began, with
    /// the same listeners.
    ///
    /// # Errors
    /// No epoll could be made.
    pub(crate) fn recover(&mut self) -> Result<(), Error> {
        let counters = Arc::clone(&self.resources.counters);
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.refuse(key, Cause::Internal);
        }
        while self.places > 0 {
            self.leave();
        }
        self.queue = Queue::default();
        self.again.clear();
        self.looks = Looks::default();
        self.accepting = false;
        self.accept_again = None;
        self.timers = Timers::new();
        let (sockmap, pipes) = (self.shared.sockmap(), self.shared.files.part());
        self.resources = Resources::new(self.shared.shares, counters, sockmap, pipes);
        self.epoll = new_epoll(&self.wake)?;
        Ok(())
    }

    /// For a test of what a panic does.
    #[cfg(feature = "fuzzing")]
    pub(super) fn panic_if_asked(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        let own = self.index as isize;
        let asked = self.shared.saboteur.compare_exchange(own, -1, Relaxed, Relaxed);
        assert!(asked.is_err(), "a test wanted this worker to panic");
    }
}
