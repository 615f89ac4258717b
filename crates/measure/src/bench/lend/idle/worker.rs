//! The threads of one measurement: workers, and the data thread that feeds them.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lend::{Borrower, Loan, Wait};
use rustix::time::{ClockId, clock_gettime};

use crate::bench::lend::books::Ledger;
use crate::bench::lend::lending::look_at;
use crate::bench::worker::join;

/// Packets that a worker takes at a time.
pub(super) const BATCH: usize = 64;
/// How long a worker sleeps at most: so soon it hears of the end.
pub(super) const NAP: Duration = Duration::from_millis(20);

/// What a measurement came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) offered: u64,
    pub(super) delivered: u64,
    /// The share of their CPUs' time that the workers did not use.
    pub(super) idle: f64,
    /// Times that a worker found nothing and slept, a second, all together.
    pub(super) naps: f64,
}

/// A borrower at work.
pub(super) struct Worker {
    borrower: Borrower,
    loans: Vec<Loan>,
    /// The account that it keeps itself, and the ids that it has.
    ledger: Option<Ledger<Loan>>,
    ids: Vec<u32>,
}

impl Worker {
    pub(super) fn new(borrower: Borrower, ledger: Option<Ledger<Loan>>) -> Worker {
        let (loans, ids) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        Worker { borrower, loans, ledger, ids }
    }

    /// Takes what is there, up to a batch, looks at it, returns it; how many packets.
    fn turn(&mut self) -> anyhow::Result<u64> {
        let count = self.borrower.receive(&mut self.loans, BATCH)?;
        if count == 0 {
            return Ok(0);
        }
        for loan in &self.loans {
            black_box(look_at(self.borrower.bytes(loan)));
        }
        if let Some(ledger) = &self.ledger {
            // The receiving call, and the returning call.
            ledger.take_all(self.loans.drain(..), |id| self.ids.push(id));
            ledger.give_back_all(self.ids.drain(..), |loan| self.loans.push(loan));
        }
        self.borrower.give_back(self.loans.drain(..));
        Ok(count as u64)
    }
}

/// Runs the workers, by turns on these CPUs, while `feed` runs on another; it says how many packets
/// there were, and in which time in seconds.
pub(super) fn run(
    workers: Vec<Worker>,
    feeding: usize,
    working: &[usize],
    feed: impl FnOnce() -> anyhow::Result<(u64, f64)> + Send,
) -> anyhow::Result<Outcome> {
    let ready = Barrier::new(workers.len() + 1);
    let over = AtomicBool::new(false);
    let work = |cpu: usize, mut worker: Worker| {
        let pinned = lanes::pin(cpu);
        ready.wait();
        pinned?;
        let (mut count, mut naps, before) = (0, 0_u64, cpu_time());
        loop {
            match worker.turn()? {
                // Acquire: what was handed out before the end is seen.
                0 if over.load(Ordering::Acquire) => break,
                0 => {
                    naps += 1;
                    if worker.borrower.wait(Some(NAP))? == Wait::Closed {
                        break;
                    }
                }
                some => count += some,
            }
        }
        anyhow::Ok((count, naps, cpu_time() - before))
    };
    thread::scope(|scope| {
        let spawn = |(cpu, worker): (&usize, Worker)| {
            let (thread, work, cpu) = (thread::Builder::new().name("worker".into()), &work, *cpu);
            thread.spawn_scoped(scope, move || work(cpu, worker)).expect("a thread")
        };
        let threads: Vec<_> = working.iter().cycle().zip(workers).map(spawn).collect();
        let feeder = scope.spawn(|| {
            let pinned = lanes::pin(feeding);
            ready.wait();
            let fed = pinned.map_err(Into::into).and_then(|()| feed());
            over.store(true, Ordering::Release);
            fed
        });
        let (offered, seconds) = join(feeder)?;
        let done = threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()?;
        let delivered = done.iter().map(|(count, ..)| count).sum();
        let naps = done.iter().map(|(_, naps, _)| *naps as f64).sum::<f64>() / seconds;
        let used: f64 = done.iter().map(|(.., time)| time.as_secs_f64()).sum();
        Ok(Outcome {
            offered,
            delivered,
            idle: (1.0 - used / seconds / working.len() as f64).max(0.0),
            naps,
        })
    })
}

/// The CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
