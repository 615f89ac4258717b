//! What drivers are made of: threads that go on until they are stopped, and epoll that ends its
//! wait then.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, epoll, eventfd},
    io::Errno,
};

use crate::{Error, Host, Result};

pub(crate) use rustix::event::epoll::EventFlags;

/// Threads inside a host, each with what it comes to. Dropping it stops them and waits for their
/// end.
#[derive(Debug)]
pub(crate) struct Threads<T = ()> {
    stop: Arc<Stop>,
    joins: Vec<thread::JoinHandle<T>>,
}

/// Whether threads are to end.
#[derive(Debug)]
pub(crate) struct Stop {
    flag: AtomicBool,
    /// Readable from then on.
    event: OwnedFd,
}

impl<T: Send + 'static> Threads<T> {
    pub(crate) fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| Error::io("making an eventfd", error))?;
        let stop = Arc::new(Stop { flag: AtomicBool::new(false), event });
        Ok(Self { stop, joins: Vec::new() })
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Starts one more, pinned to this CPU or, for none, where the scheduler puts it.
    pub(crate) fn start(
        &mut self,
        host: &Host,
        name: &str,
        cpu: Option<usize>,
        work: impl FnOnce(&Stop) -> T + Send + 'static,
    ) -> Result<()> {
        let (stop, pin) = (self.stop.clone(), move || cpu.map_or(Ok(()), pin));
        self.joins.push(host.spawn_after(name, pin, move || work(&stop))?);
        Ok(())
    }

    /// Stops them, and returns what each has come to that has not panicked, which it has printed.
    pub(crate) fn finish(&mut self) -> Vec<T> {
        self.stop.set();
        self.joins.drain(..).filter_map(|thread| thread.join().ok()).collect()
    }
}

impl<T> Drop for Threads<T> {
    fn drop(&mut self) {
        self.stop.set();
        for thread in self.joins.drain(..) {
            // A panic has been printed, and a drop could not say more.
            let _ = thread.join();
        }
    }
}

impl Stop {
    pub(crate) fn set(&self) {
        // Relaxed: what waits is woken through the kernel, and a join orders the rest.
        self.flag.store(true, Relaxed);
        // Fails only if the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Relaxed)
    }
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    lanes::pin(cpu).map_err(|error| Error::invalid(error.to_string()))
}

/// The token of the stop; no other may use it.
const STOP: u64 = u64::MAX;

/// An epoll instance of one thread.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// One whose waits end at once when it is to stop.
    pub(crate) fn new(stop: &Stop) -> Result<Self> {
        let context = |error: Errno| Error::io("making an epoll instance", error);
        let poller = Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(context)? };
        poller.add(&stop.event, STOP, EventFlags::IN).map_err(context)?;
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

    /// Waits for events, at most `limit`, and returns the tokens of what is ready.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        limit: Option<Duration>,
    ) -> Result<impl Iterator<Item = u64>> {
        events.clear();
        events.reserve(256);
        let limit = limit.map(crate::timespec);
        match epoll::wait(&self.epoll, spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting for events", error)),
        }
        Ok(events.iter().map(|event| event.data.u64()).filter(|token| *token != STOP))
    }
}
