//! Wakes a thread that sleeps on sockets when another has put something into its ring.
//!
//! The sleeper sets its flag and then looks at the ring once more; the other puts something in and
//! then looks at the flag. A sequentially consistent fence on both sides, between the writing and
//! the looking, makes sure that at least one of the two sees what the other wrote: either the
//! sleeper finds the ring filled, or the other finds it asleep and rings.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use anyhow::Context as _;
use rustix::event::{EventfdFlags, eventfd};

/// One thread's bell.
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    asleep: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> anyhow::Result<Bell> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let fd = eventfd(0, flags).context("cannot make an eventfd")?;
        Ok(Bell { fd, asleep: AtomicBool::new(false) })
    }

    /// What the sleeper waits for, besides its sockets.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Called by the sleeper: it is about to look at its ring for the last time, and to sleep if
    /// there is nothing.
    pub(super) fn lie_down(&self) {
        // Relaxed: the fence orders it.
        self.asleep.store(true, Ordering::Relaxed);
        // With the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// Called by the sleeper once it is awake.
    pub(super) fn get_up(&self) {
        // Relaxed: somebody who sees it late rings once too often.
        self.asleep.store(false, Ordering::Relaxed);
        // It may not have rung.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// Called by others once they have put something in.
    #[inline]
    pub(super) fn ring(&self) {
        // With the fence in `lie_down`.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it.
        if self.asleep.load(Ordering::Relaxed) {
            // Fails only if it has rung 2^64 times unheard.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn no_ring_is_slept_through() {
        const ITEMS: u64 = 200_000;
        let bell = Arc::new(Bell::new().expect("an eventfd"));
        let (mut to, mut from) = rtrb::RingBuffer::new(4);
        let ringer = Arc::clone(&bell);
        let producer = std::thread::spawn(move || {
            for item in 0..ITEMS {
                while to.push(item).is_err() {
                    std::thread::yield_now();
                }
                ringer.ring();
            }
        });
        let mut next = 0;
        while next < ITEMS {
            while let Ok(item) = from.pop() {
                assert_eq!(item, next);
                next += 1;
            }
            bell.lie_down();
            if next < ITEMS && from.is_empty() {
                let asked = Instant::now();
                let mut fds = [PollFd::new(bell.fd(), PollFlags::IN)];
                poll(&mut fds, None).expect("it waits");
                assert!(asked.elapsed() < Duration::from_secs(20));
            }
            bell.get_up();
        }
        producer.join().expect("no panic");
    }
}
