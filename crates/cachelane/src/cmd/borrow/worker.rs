//! One connection's thread: receives, does what it is for, gives back.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lend::{Borrower, Loan, Wait};

use super::meter::Meter;
use super::pcap::Capture;
use crate::cmd::xsk::idle::{LONGEST, Patience};

/// The most loans that are handled in one go.
const BATCH: usize = 256;

/// What is done with packets.
pub(super) enum Task {
    /// They are counted.
    Count,
    /// Every byte is read.
    Read,
    /// They are written to a file.
    Capture(Box<Capture>),
}

/// Why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The lender is gone.
    Lender,
    /// Whoever read what it wrote is gone.
    Reader,
    /// It was told to.
    Told,
}

/// When the workers are to end. Relaxed: one that hears of it a turn later is as good.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn end(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_over(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// A connection, and what is done with what comes.
pub(super) struct Worker<'a> {
    pub(super) borrower: Borrower,
    pub(super) task: Task,
    /// It never sleeps.
    pub(super) spin: bool,
    pub(super) stop: Stop,
    pub(super) start: Instant,
    pub(super) meter: &'a Meter,
}

impl Worker<'_> {
    /// Works until the lender ends, or it is told to end.
    pub(super) fn run(mut self) -> anyhow::Result<Ended> {
        let mut loans = Vec::with_capacity(BATCH);
        let mut patience = Patience::default();
        let mut looked = self.start;
        let ended = loop {
            if self.stop.is_over() {
                break Ended::Told;
            }
            let now = Instant::now();
            self.borrower.receive(&mut loans, BATCH)?;
            let received = !loans.is_empty();
            if received {
                self.work(&loans)?;
                self.borrower.give_back(loans.drain(..));
                self.meter.saw_packets(now - self.start);
            }
            if let Task::Capture(capture) = &self.task
                && capture.is_closed()
            {
                break Ended::Reader;
            }
            if self.rest(&mut patience, received, now, &mut looked)? == Wait::Closed {
                break Ended::Lender;
            }
        };
        self.meter.dropped(self.borrower.dropped());
        if let Task::Capture(capture) = &mut self.task {
            capture.flush()?;
        }
        Ok(ended)
    }

    /// Between two looks at the rings: sleeps, if it may and there was nothing for a while.
    fn rest(
        &mut self,
        patience: &mut Patience,
        received: bool,
        now: Instant,
        looked: &mut Instant,
    ) -> anyhow::Result<Wait> {
        /// So often one that has no reason to wait looks whether the lender is there.
        const LOOK: Duration = Duration::from_millis(20);
        if !self.spin && patience.is_over(now, received) {
            if let Task::Capture(capture) = &mut self.task {
                capture.flush()?;
            }
            self.meter.dropped(self.borrower.dropped());
            return Ok(self.borrower.wait(Some(LONGEST))?);
        }
        if now - *looked < LOOK {
            return Ok(Wait::Ready);
        }
        *looked = now;
        self.meter.dropped(self.borrower.dropped());
        Ok(self.borrower.wait(Some(Duration::ZERO))?)
    }

    /// Does what it is for with whole packets.
    fn work(&mut self, loans: &[Loan]) -> anyhow::Result<()> {
        let packets = loans.iter().filter(|loan| !loan.more()).count();
        let bytes: usize = loans.iter().map(Loan::len).sum();
        match &mut self.task {
            Task::Count => {}
            Task::Read => {
                let sum = loans.iter().map(|loan| sum(self.borrower.bytes(loan)));
                black_box(sum.fold(0, u64::wrapping_add));
            }
            Task::Capture(capture) => {
                for packet in loans.split_inclusive(|loan| !loan.more()) {
                    write(capture, &self.borrower, packet)?;
                }
            }
        }
        self.meter.packets.add(packets as u64);
        self.meter.bytes.add(bytes as u64);
        Ok(())
    }
}

/// Writes the parts of one packet.
fn write(capture: &mut Capture, borrower: &Borrower, packet: &[Loan]) -> anyhow::Result<()> {
    match packet {
        [] => Ok(()),
        [loan] => capture.packet(loan.time(), &[borrower.bytes(loan)]),
        [first, ..] => {
            let parts: Vec<&[u8]> = packet.iter().map(|loan| borrower.bytes(loan)).collect();
            capture.packet(first.time(), &parts)
        }
    }
}

/// Reads every byte once.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    words.chain(rest.iter().map(|&byte| u64::from(byte))).fold(0, u64::wrapping_add)
}
