//! The closed loop behind [`RrSession`](super::RrSession) and
//! [`ConnectSession`](super::ConnectSession): one thread keeps a fixed number of connections
//! busy with one exchange of a request and a response at a time each.
//!
//! Being closed, it does not ask more of a server that is slow; a connection whose answer never
//! comes shows in [`ExchangeWindow::longest_pending`], not in the histogram.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    Latency, check_cpus, pattern, pin,
    poller::{Poller, Ready},
    reserve_fds,
    slot::{Batch, Next, Plan, Scratch, Slot},
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

/// A running loop; dropping it closes its connections.
#[derive(Debug)]
pub(super) struct Session {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    poller: Poller,
    stop: AtomicBool,
    tally: Mutex<Tally>,
    /// Signalled when `Tally::established` has reached the number of connections.
    complete: Condvar,
}

#[derive(Debug)]
struct Tally {
    since: Instant,
    window: ExchangeWindow,
    /// Connections that have been established at least once.
    established: usize,
}

impl Session {
    pub(super) fn start(host: &Host, plan: Plan) -> Result<Self> {
        if plan.connections == 0 || plan.request == 0 || plan.response == 0 {
            return Err(Error::invalid("exchanges on no connection or of empty messages"));
        }
        if plan.verify && plan.request != plan.response {
            return Err(Error::invalid("only an echo, as long as the request, can be verified"));
        }
        check_cpus(&plan.cpus)?;
        reserve_fds(plan.connections)?;
        let tally = Tally { since: Instant::now(), window: empty_window(), established: 0 };
        let shared = Arc::new(Shared {
            plan,
            poller: Poller::new()?,
            stop: AtomicBool::new(false),
            tally: Mutex::new(tally),
            complete: Condvar::new(),
        });
        let work = shared.clone();
        let thread = host.spawn_thread("exchange", move || Loop::new(&work).run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits until each connection has been established once, at most `limit`.
    pub(super) fn wait_established(&self, limit: Duration) -> Result<()> {
        let all = self.shared.plan.connections;
        let missing = |tally: &mut Tally| tally.established < all;
        let mut tally = self.shared.lock();
        self.shared.complete.wait_while_for(&mut tally, missing, limit);
        if tally.established == all {
            return Ok(());
        }
        let (target, done) = (self.shared.plan.target, tally.established);
        let why = tally.window.last_error.as_deref().unwrap_or("no error");
        let message = format!("{done} of {all} connections to {target} after {limit:?}: {why}");
        Err(Error::timed_out(message))
    }

    pub(super) fn take_window(&self) -> ExchangeWindow {
        let mut tally = self.shared.lock();
        let now = Instant::now();
        let mut window = std::mem::replace(&mut tally.window, empty_window());
        window.elapsed = now - tally.since;
        // Still pending, unless the next scan says otherwise.
        tally.window.longest_pending = window.longest_pending;
        tally.since = now;
        window
    }

    pub(super) fn measure(&self, time: Duration) -> ExchangeWindow {
        self.take_window();
        thread::sleep(time);
        self.take_window()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Relaxed: the wake-up after it goes through the kernel.
        self.shared.stop.store(true, Relaxed);
        self.shared.poller.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed, and a drop could not say more.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock()
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
    fn new(shared: &'a Shared) -> Self {
        let plan = &shared.plan;
        let mut request = pattern(plan.request);
        request.truncate(plan.request);
        Self {
            shared,
            slots: (0..plan.connections).map(Slot::new).collect(),
            to_open: (0..plan.connections).collect(),
            to_retry: VecDeque::new(),
            opening: 0,
            next_scan: Instant::now() + SCAN,
            scratch: Scratch { request, response: vec![0; plan.response.min(READ)] },
            done: Batch::default(),
        }
    }

    fn run(mut self) {
        // A CPU that is not there was refused before.
        if pin(&self.shared.plan.cpus, 0).is_err() {
            return;
        }
        let mut events = Vec::new();
        while !self.shared.stop.load(Relaxed) {
            self.open_due();
            let limit = if self.to_retry.is_empty() { SCAN } else { RETRY };
            let Ok(ready) = self.shared.poller.wait(&mut events, Some(limit)) else { return };
            for Ready { token, .. } in ready {
                self.advance(token as usize);
            }
            self.publish();
        }
    }

    /// Opens the connections that are due, some at a time so that no backlog overflows.
    fn open_due(&mut self) {
        let now = Instant::now();
        while self.to_retry.front().is_some_and(|(due, _)| *due <= now) {
            self.to_open.extend(self.to_retry.pop_front().map(|(_, index)| index));
        }
        let keep = self.shared.plan.close.is_none();
        let most = if keep { OPENING } else { self.slots.len() };
        while self.opening < most {
            let Some(index) = self.to_open.pop_front() else { return };
            match self.slots[index].open(self.shared.plan.target, &self.shared.poller) {
                Ok(()) => self.opening += 1,
                Err(error) => self.failed(index, error),
            }
        }
    }

    /// Takes a connection as far as it goes without waiting.
    fn advance(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let was_opening = slot.is_opening();
        let result = slot.step(&self.shared.plan, &mut self.scratch, &mut self.done);
        let result = result.and_then(|next| match next {
            Next::Wait => slot.watch(&self.shared.poller).map(|()| next),
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
        let mut tally = self.shared.lock();
        let done = &mut self.done;
        tally.window.exchanges += done.latencies.len() as u64;
        done.latencies.drain(..).for_each(|latency| tally.window.latency.record(latency));
        tally.window.corrupt += std::mem::take(&mut done.corrupt);
        tally.window.errors += done.errors.len() as u64;
        if let Some(error) = done.errors.drain(..).next_back() {
            tally.window.last_error = Some(error.to_string());
        }
        tally.established += std::mem::take(&mut done.established);
        if tally.established == self.slots.len() {
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
