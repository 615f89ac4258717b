//! Requests and responses, a closed loop: one thread keeps a fixed number of connections busy with
//! one exchange at a time each.
//!
//! Being closed, it does not ask more of a server that is slow; a connection whose answer never
//! comes shows in [`ExchangeWindow::longest_pending`], not in the histogram.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{
    Latency, pattern, reserve_fds,
    slot::{Batch, Next, Scratch, Slot},
    threads::{Poller, Stop, Threads},
};
use crate::{Error, Host, Result};

/// Connections being opened at a time where they are opened to stay.
const OPENING: usize = 256;
/// How long a connection that failed waits before it is opened again.
const RETRY: Duration = Duration::from_millis(10);
/// How often the connections are looked through for the longest pending exchange.
const SCAN: Duration = Duration::from_millis(100);
/// Most bytes a read.
const READ: usize = 256 << 10;

/// What is exchanged. The server is an [`EchoServer`](super::EchoServer) of the same requests.
#[derive(Clone, Debug)]
pub struct RrOptions {
    /// Connections, all served by one thread, each with one request in flight.
    pub connections: usize,
    /// Bytes a request, 1 or more, which come back as its response.
    pub request: usize,
    /// Compare the response with the request.
    pub verify: bool,
    /// What comes after an exchange.
    pub then: Then,
    /// The CPU that the thread is pinned to; none: not pinned.
    pub cpu: Option<usize>,
    /// How long it may take until all connections are ready.
    pub connect_limit: Duration,
}

/// What a connection does after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The next exchange. It is ready when it is open.
    Again,
    /// The client closes it, and opens another one in its place.
    ///
    /// It keeps the connection's ports in TIME_WAIT for a minute. A lab's hosts have 55,000 local
    /// ports for each destination and reuse one that has been in TIME_WAIT for a second, so a client
    /// can open about 55,000 connections a second to one address.
    Reopen,
    /// Nothing. It is ready after its one exchange, which proves that it reaches the server: one
    /// through a proxy holds a connection on both sides of it.
    Rest,
}

impl Default for RrOptions {
    fn default() -> Self {
        Self {
            connections: 1,
            request: 64,
            verify: false,
            then: Then::Again,
            cpu: None,
            connect_limit: Duration::from_secs(10),
        }
    }
}

/// What happened since the last window was taken.
#[derive(Clone, Debug)]
pub struct ExchangeWindow {
    /// The window's length.
    pub elapsed: Duration,
    /// Exchanges completed.
    pub exchanges: u64,
    /// Connections that failed to open or broke. Each is opened again.
    pub errors: u64,
    /// Responses that were not what was sent, where that was to be verified.
    pub corrupt: u64,
    /// The message of the last error, if there was one.
    pub last_error: Option<String>,
    /// How long each completed exchange took; with one exchange per connection, from the
    /// connect on.
    pub latency: Latency,
    /// The age of the oldest exchange that was not complete when last looked at, which is at
    /// least ten times a second.
    pub longest_pending: Duration,
}

impl ExchangeWindow {
    /// Completed exchanges a second.
    pub fn rate(&self) -> f64 {
        self.exchanges as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Exchanges going on; dropping it closes the connections.
#[derive(Debug)]
pub struct RrSession {
    shared: Arc<Shared>,
    _threads: Threads,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    options: RrOptions,
    tally: Mutex<Tally>,
    /// Signalled when `Tally::ready` has reached the number of connections.
    complete: Condvar,
}

#[derive(Debug)]
struct Tally {
    since: Instant,
    window: ExchangeWindow,
    /// Connections that have been ready at least once.
    ready: usize,
}

impl RrSession {
    /// Opens the connections from `host` to `target` and, once all are ready, starts the first
    /// window.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range or more
    /// connections than this process may open files;
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), with the last reason, if not all
    /// connections come to be ready.
    pub fn start(host: &Host, target: SocketAddr, options: &RrOptions) -> Result<Self> {
        if options.connections == 0 || options.request == 0 {
            return Err(Error::invalid("exchanges on no connection or of empty messages"));
        }
        reserve_fds(options.connections)?;
        let tally = Tally { since: Instant::now(), window: empty_window(), ready: 0 };
        let (tally, complete) = (Mutex::new(tally), Condvar::new());
        let shared = Arc::new(Shared { target, options: options.clone(), tally, complete });
        let mut threads = Threads::new()?;
        let (work, poller) = (shared.clone(), Poller::new(threads.stop())?);
        threads.start(host, "exchange", options.cpu, move |stop| {
            Loop::new(&work, &poller).run(stop);
        })?;
        let session = Self { shared, _threads: threads };
        session.wait_ready()?;
        session.take_window();
        Ok(session)
    }

    fn wait_ready(&self) -> Result<()> {
        let Shared { target, options, .. } = &*self.shared;
        let (all, limit) = (options.connections, options.connect_limit);
        let mut tally = self.shared.tally.lock();
        self.shared.complete.wait_while_for(&mut tally, |tally| tally.ready < all, limit);
        if tally.ready == all {
            return Ok(());
        }
        let (done, why) = (tally.ready, tally.window.last_error.as_deref().unwrap_or("no error"));
        let message = format!("{done} of {all} connections to {target} after {limit:?}: {why}");
        Err(Error::timed_out(message))
    }

    /// What happened since the start or the last window taken.
    pub fn take_window(&self) -> ExchangeWindow {
        let mut tally = self.shared.tally.lock();
        let now = Instant::now();
        let mut window = std::mem::replace(&mut tally.window, empty_window());
        window.elapsed = now - tally.since;
        // Still pending, unless the next scan says otherwise.
        tally.window.longest_pending = window.longest_pending;
        tally.since = now;
        window
    }

    /// What happens in the next `time`.
    pub fn measure(&self, time: Duration) -> ExchangeWindow {
        self.take_window();
        thread::sleep(time);
        self.take_window()
    }
}

fn empty_window() -> ExchangeWindow {
    ExchangeWindow {
        elapsed: Duration::ZERO,
        exchanges: 0,
        errors: 0,
        corrupt: 0,
        last_error: None,
        latency: Latency::new(),
        longest_pending: Duration::ZERO,
    }
}

/// The thread's state.
struct Loop<'a> {
    shared: &'a Shared,
    poller: &'a Poller,
    slots: Vec<Slot>,
    /// Slots to open, in order, and those to open again, by time.
    to_open: VecDeque<usize>,
    to_retry: VecDeque<(Instant, usize)>,
    opening: usize,
    next_scan: Instant,
    scratch: Scratch,
    /// Of the batch of events at hand; moved to the shared tally once per batch.
    done: Batch,
}

impl<'a> Loop<'a> {
    fn new(shared: &'a Shared, poller: &'a Poller) -> Self {
        let RrOptions { connections, request: size, .. } = shared.options;
        let mut request = pattern(size);
        request.truncate(size);
        Self {
            shared,
            poller,
            slots: (0..connections).map(Slot::new).collect(),
            to_open: (0..connections).collect(),
            to_retry: VecDeque::new(),
            opening: 0,
            next_scan: Instant::now() + SCAN,
            scratch: Scratch { request, response: vec![0; size.min(READ)] },
            done: Batch::default(),
        }
    }

    fn run(mut self, stop: &Stop) {
        let mut events = Vec::new();
        while !stop.is_set() {
            self.open_due();
            let limit = if self.to_retry.is_empty() { SCAN } else { RETRY };
            let Ok(ready) = self.poller.wait(&mut events, Some(limit)) else { return };
            ready.for_each(|token| self.advance(token as usize));
            self.publish();
        }
    }

    /// Opens the connections that are due, some at a time so that no backlog overflows.
    fn open_due(&mut self) {
        let now = Instant::now();
        while self.to_retry.front().is_some_and(|(due, _)| *due <= now) {
            self.to_open.extend(self.to_retry.pop_front().map(|(_, index)| index));
        }
        let reopen = self.shared.options.then == Then::Reopen;
        let most = if reopen { self.slots.len() } else { OPENING };
        while self.opening < most {
            let Some(index) = self.to_open.pop_front() else { return };
            match self.slots[index].open(self.shared.target, self.poller) {
                Ok(()) => self.opening += 1,
                Err(error) => self.failed(index, error),
            }
        }
    }

    /// Takes a connection as far as it goes without waiting.
    fn advance(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let was_opening = slot.is_opening();
        let result = slot.step(&self.shared.options, &mut self.scratch, &mut self.done);
        let result = result.and_then(|next| match next {
            Next::Wait => slot.watch(self.poller).map(|()| next),
            Next::Close => Ok(next),
        });
        self.opening -= usize::from(was_opening);
        match result {
            Ok(Next::Wait) => {}
            Ok(Next::Close) => {
                slot.close();
                self.to_open.push_back(index);
            }
            Err(error) => self.failed(index, error),
        }
    }

    fn failed(&mut self, index: usize, error: io::Error) {
        self.slots[index].close();
        self.done.errors.push(error);
        self.to_retry.push_back((Instant::now() + RETRY, index));
    }

    /// Moves what the batch did to the shared tally.
    fn publish(&mut self) {
        let mut tally = self.shared.tally.lock();
        let done = &mut self.done;
        tally.window.exchanges += done.latencies.len() as u64;
        done.latencies.drain(..).for_each(|latency| tally.window.latency.record(latency));
        tally.window.corrupt += std::mem::take(&mut done.corrupt);
        tally.window.errors += done.errors.len() as u64;
        if let Some(error) = done.errors.drain(..).next_back() {
            tally.window.last_error = Some(error.to_string());
        }
        tally.ready += std::mem::take(&mut done.ready);
        if tally.ready == self.slots.len() {
            self.shared.complete.notify_all();
        }
        let now = Instant::now();
        if now >= self.next_scan {
            self.next_scan = now + SCAN;
            let oldest = self.slots.iter().filter_map(Slot::began).min();
            tally.window.longest_pending = oldest.map_or(Duration::ZERO, |began| now - began);
        }
    }
}
