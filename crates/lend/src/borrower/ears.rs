//! What a borrower waits for: the lender's wake-up, and its end.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, Result};

/// The epoll instance that the lender hands out, with its event in it, edge-triggered: each time
/// that the lender writes the event, which nobody reads, is an edge. Our end of the socket is put
/// beside it, so that a sleep is one system call.
#[derive(Debug)]
pub(super) struct Ears {
    epoll: OwnedFd,
    /// Its end is the lender's.
    _socket: OwnedFd,
}

/// What there was to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    /// A wake-up, or a signal.
    Something,
    /// The lender is gone.
    End,
}

/// What the epoll instance says of the socket; of the lender's event it says 0.
const SOCKET: u64 = 1;

impl Ears {
    pub(super) fn new(socket: OwnedFd, wake: OwnedFd) -> Result<Self> {
        let (data, end) = (epoll::EventData::new_u64(SOCKET), epoll::EventFlags::RDHUP);
        epoll::add(&wake, &socket, data, end)?;
        Ok(Self { epoll: wake, _socket: socket })
    }

    /// Waits until there is something, or the time is over; none is no limit.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<Heard> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut space = [const { MaybeUninit::uninit() }; 2];
        let (events, _) = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok(events) => events,
            Err(Errno::INTR) => return Ok(Heard::Something),
            Err(error) => return Err(error),
        };
        let is_end = |event: &epoll::Event| event.data.u64() == SOCKET;
        Ok(match &*events {
            [] => Heard::Nothing,
            events if events.iter().any(is_end) => Heard::End,
            _ => Heard::Something,
        })
    }
}
