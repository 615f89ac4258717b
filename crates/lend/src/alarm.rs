//! What wakes a borrower that sleeps.
//!
//! An event that only the lender writes, behind an epoll instance that the borrower gets: had it
//! the event itself, it could make it blocking, for the description is shared, and fill it, and the
//! lender's next write would wait for ever. The instance is edge-triggered: who waits on it takes
//! the event, and the lender never has to be told.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::{Result, write};

/// The lender's end.
#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    /// An alarm, and what the borrower waits on.
    pub(crate) fn new() -> Result<(Self, OwnedFd)> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(0), flags)?;
        Ok((Self(event), epoll))
    }

    /// Wakes whoever waits. It does not block, and cannot fail: to fill the event takes 2^64
    /// calls.
    pub(crate) fn ring(&self) {
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::event::Timespec;

    use super::*;

    fn rings(epoll: &OwnedFd) -> bool {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 4];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (events, _) = epoll::wait(epoll, &mut space, Some(&now)).unwrap();
        !events.is_empty()
    }

    #[test]
    fn each_ring_wakes_once_although_nobody_reads_the_event() {
        let (alarm, epoll) = Alarm::new().unwrap();
        assert!(!rings(&epoll));
        for _ in 0..3 {
            alarm.ring();
            assert!(rings(&epoll));
            assert!(!rings(&epoll));
        }
    }
}
