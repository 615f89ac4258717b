//! Pinned threads that begin together, how they wait for each other, and when they look at the
//! clock: as `peers/peer.h` and `peers/patterns.h` do it, so that what differs is the pools.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::experiment::Absent;

/// Turns of waiting before a thread offers its CPU to another.
const SPINS: u32 = 256;

/// A thread's part of a measurement: how many objects went through it.
pub(super) type Work<'a> = Box<dyn FnOnce(&Run) -> u64 + Send + 'a>;

/// What the threads of one measurement share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) threads: usize,
    window: Duration,
    ready: Barrier,
    started: OnceLock<Instant>,
    ended: AtomicUsize,
}

/// A thread that waits for another.
#[derive(Debug, Default)]
pub(super) struct Waiting(u32);

/// Runs one thread for each piece of work, pinned to the CPUs by turns. The answer is the wall time
/// in seconds, from when all are ready to when the last has ended, over the objects of all.
pub(super) fn measure(
    work: Vec<Work<'_>>,
    cpus: &[usize],
    window: Duration,
) -> anyhow::Result<f64> {
    let run = Run {
        threads: work.len(),
        window,
        ready: Barrier::new(work.len()),
        started: OnceLock::new(),
        ended: AtomicUsize::new(0),
    };
    let results = thread::scope(|scope| {
        let one = |(number, work): (usize, Work<'_>)| {
            lanes::pin(cpus[number % cpus.len()])?;
            run.begin();
            let count = work(&run);
            anyhow::Ok((count, Instant::now()))
        };
        let threads: Vec<_> =
            work.into_iter().enumerate().map(|each| scope.spawn(move || one(each))).collect();
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let started = *run.started.get().context("no thread has begun")?;
    let ended = results.iter().map(|(_, ended)| *ended).max().unwrap_or(started);
    let count: u64 = results.iter().map(|(count, _)| count).sum();
    anyhow::ensure!(count > 0, Absent("nothing was done".into()));
    Ok((ended - started).as_secs_f64() / count as f64)
}

impl Run {
    /// Whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.started.get().is_none_or(|started| started.elapsed() >= self.window)
    }

    /// Works until the time is over, looking at the clock after each block.
    #[inline]
    pub(super) fn repeat(&self, mut block: impl FnMut()) {
        loop {
            block();
            if self.is_over() {
                break;
            }
        }
    }

    /// This thread will send no more.
    pub(super) fn end_sending(&self) {
        // Release: what it sent is seen by who sees that it ended.
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// How many threads will send no more.
    pub(super) fn ended(&self) -> usize {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for all threads.
    fn begin(&self) {
        if self.ready.wait().is_leader() {
            self.started.get_or_init(Instant::now);
        }
        // No thread begins before all are ready and the time is known.
        self.ready.wait();
    }
}

impl Waiting {
    /// One turn.
    pub(super) fn turn(&mut self) {
        self.0 += 1;
        if self.0 < SPINS {
            std::hint::spin_loop();
        } else {
            self.0 = 0;
            thread::yield_now();
        }
    }
}

/// The result of a thread, whose panic goes on here.
pub(super) fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
