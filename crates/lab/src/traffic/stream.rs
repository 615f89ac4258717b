//! What both sides of a bulk transfer share: streams, their threads, and how they end.
//!
//! A thread blocks in a read or a write; shutting its socket down from outside is what wakes
//! it. Shutting down only the sending direction ends a transfer in order: what was written
//! still arrives, followed by the end of the stream.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{PATTERN_PERIOD, pattern};
use crate::{Error, Result};

/// What one side of a transfer has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Bytes that the kernel took from this side.
    pub sent: u64,
    /// Bytes that this side read.
    pub received: u64,
    /// Streams on which this side read a byte that was not the one sent there. Looked for only
    /// with [`BulkOptions::verify`](super::BulkOptions::verify).
    pub corrupt: u64,
    /// Streams that ended by an error, such as a reset, instead of an end of the stream.
    pub failed: u64,
}

/// One stream's counters. Only its threads write them and they are read now and then, so they
/// are Relaxed; the alignment keeps streams off each other's cache lines, of which x86-64
/// prefetches pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    corrupt: AtomicU64,
    failed: AtomicU64,
}

/// All streams of one side.
#[derive(Debug, Default)]
pub(super) struct Streams {
    state: Mutex<State>,
    /// Signalled when `State::threads` sinks and when `State::stopping` is set.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads own the sockets: one is closed when its last thread ends.
    streams: Vec<(Weak<TcpStream>, Arc<Counters>)>,
    joins: Vec<thread::JoinHandle<()>>,
    threads: usize,
    /// Sending has been ended from here.
    ended: bool,
    stopping: bool,
}

/// What the threads of a stream do.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) sends: bool,
    pub(super) receives: bool,
    pub(super) write_size: usize,
    pub(super) read_size: usize,
    /// Bytes a second.
    pub(super) receive_rate: Option<u64>,
    pub(super) verify: bool,
    pub(super) cpus: Vec<usize>,
}

/// The body of a stream's thread.
type Run = fn(&Streams, &TcpStream, &Counters, &Work);

impl Streams {
    /// Starts the threads of a stream; the calling thread's namespace is theirs.
    pub(super) fn add(self: &Arc<Self>, stream: TcpStream, work: &Work) -> Result<()> {
        let stream = Arc::new(stream);
        let counters = Arc::new(Counters::default());
        let mut state = self.lock();
        if state.stopping {
            return Ok(());
        }
        let index = state.streams.len();
        state.streams.push((Arc::downgrade(&stream), counters.clone()));
        let runs: [(bool, &str, Run); 2] =
            [(work.sends, "bulk-send", send), (work.receives, "bulk-receive", receive)];
        for (_, name, run) in runs.into_iter().filter(|(wanted, ..)| *wanted) {
            let (streams, work) = (self.clone(), work.clone());
            let (stream, counters) = (stream.clone(), counters.clone());
            let thread = thread::Builder::new().name(name.into()).spawn(move || {
                // A CPU that is not there was refused before the first stream.
                if super::pin(&work.cpus, index).is_ok() {
                    run(&streams, &stream, &counters, &work);
                }
                // Closed before it counts as ended.
                drop(stream);
                streams.lock().threads -= 1;
                streams.changed.notify_all();
            });
            let thread = thread.map_err(|error| Error::io("starting a stream", error))?;
            state.threads += 1;
            state.joins.push(thread);
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    pub(super) fn totals(&self) -> StreamTotals {
        self.lock().streams.iter().fold(StreamTotals::default(), |sum, (_, one)| StreamTotals {
            sent: sum.sent + one.sent.load(Relaxed),
            received: sum.received + one.received.load(Relaxed),
            corrupt: sum.corrupt + one.corrupt.load(Relaxed),
            failed: sum.failed + one.failed.load(Relaxed),
        })
    }

    /// Ends the sending direction of all streams; what was written still arrives.
    pub(super) fn end_sending(&self) {
        self.lock().ended = true;
        self.shut(Shutdown::Write);
    }

    /// Waits until there have been `count` streams and all have ended, at most `limit`.
    pub(super) fn wait(&self, count: usize, limit: Duration) -> Result<StreamTotals> {
        let go_on = |state: &mut State| state.threads > 0 || state.streams.len() < count;
        let mut state = self.lock();
        self.changed.wait_while_for(&mut state, go_on, limit);
        if go_on(&mut state) {
            let (seen, left) = (state.streams.len(), state.threads);
            return Err(Error::timed_out(format!(
                "after {limit:?}, {seen} of {count} streams were seen and {left} threads go on"
            )));
        }
        drop(state);
        Ok(self.totals())
    }

    /// Ends all streams at once and waits for their threads.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
        self.shut(Shutdown::Both);
        let joins = std::mem::take(&mut self.lock().joins);
        for thread in joins {
            // A panic has been printed, and a drop could not say more.
            let _ = thread.join();
        }
    }

    fn shut(&self, how: Shutdown) {
        for stream in self.lock().streams.iter().filter_map(|(stream, _)| stream.upgrade()) {
            // Fails only where the stream has ended already.
            let _ = stream.shutdown(how);
        }
    }

    /// Sleeps until `due` or until the streams are stopped.
    fn pause(&self, due: Instant) {
        let wait = due.saturating_duration_since(Instant::now());
        self.changed.wait_while_for(&mut self.lock(), |state| !state.stopping, wait);
    }

    /// Counts a stream that ended by an error, unless it was this side that ended it.
    fn failed(&self, counters: &Counters, sending: bool) {
        let state = self.lock();
        let ours = state.stopping || (sending && state.ended);
        if !ours {
            counters.failed.fetch_add(1, Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn send(streams: &Streams, mut stream: &TcpStream, counters: &Counters, work: &Work) {
    let bytes = pattern(work.write_size);
    let mut offset = 0;
    loop {
        match stream.write(&bytes[offset..offset + work.write_size]) {
            Ok(sent) => {
                offset = (offset + sent) % PATTERN_PERIOD;
                counters.sent.fetch_add(sent as u64, Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The way in which `end_sending` wakes this thread, unless the other side is gone.
            Err(_) => return streams.failed(counters, true),
        }
    }
}

fn receive(streams: &Streams, mut stream: &TcpStream, counters: &Counters, work: &Work) {
    // Fiftieths of a second make a slow receiver steady without waking it often.
    let paced = |rate: u64| usize::try_from(rate / 50).unwrap_or(usize::MAX).max(1);
    let chunk = work.receive_rate.map_or(work.read_size, |rate| work.read_size.min(paced(rate)));
    let expected = if work.verify { pattern(chunk) } else { Vec::new() };
    let mut buffer = vec![0; chunk];
    let started = Instant::now();
    let (mut total, mut corrupt) = (0u64, false);
    loop {
        let received = match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return streams.failed(counters, false),
        };
        if work.verify && !corrupt {
            let offset = (total % PATTERN_PERIOD as u64) as usize;
            corrupt = buffer[..received] != expected[offset..offset + received];
            counters.corrupt.fetch_add(u64::from(corrupt), Relaxed);
        }
        total += received as u64;
        counters.received.fetch_add(received as u64, Relaxed);
        if let Some(rate) = work.receive_rate {
            streams.pause(started + Duration::from_secs_f64(total as f64 / rate as f64));
        }
    }
}
