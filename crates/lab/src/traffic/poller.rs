//! epoll with a way to wake it.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, epoll, eventfd},
    io::Errno,
};

use crate::{Error, Result};

pub(crate) use rustix::event::epoll::EventFlags;

/// The token of the wake-up; no other may use it.
const WAKE: u64 = u64::MAX;

/// An epoll instance. Any thread may add to it or wake it; one waits.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
}

/// What happened to the descriptor that was added with `token`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) flags: EventFlags,
}

impl Poller {
    pub(crate) fn new() -> Result<Self> {
        let context = |error: Errno| Error::io("making an epoll instance", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(context)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let poller = Self { epoll, wake: eventfd(0, flags).map_err(context)? };
        poller.add(&poller.wake, WAKE, EventFlags::IN).map_err(context)?;
        Ok(poller)
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    pub(crate) fn modify(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.epoll, fd)
    }

    /// Makes this and all later waits return at once.
    pub(crate) fn wake(&self) {
        // Fails only if the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits for events, at most `limit`, and replaces those in `ready` by them.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        limit: Option<Duration>,
    ) -> Result<impl Iterator<Item = Ready>> {
        events.clear();
        events.reserve(256);
        let limit = limit.map(crate::timespec);
        match epoll::wait(&self.epoll, spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting for events", error)),
        }
        let ready =
            events.iter().map(|event| Ready { token: event.data.u64(), flags: event.flags });
        Ok(ready.filter(|ready| ready.token != WAKE))
    }
}
