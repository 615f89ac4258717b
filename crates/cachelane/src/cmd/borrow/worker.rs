//! One connection's thread: receives, does what it is for, gives back.

use std::hint::black_box;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::Expression;
use lend::{Borrower, Loan};

use super::connection::{Connection, Rested};
use super::pcap::Capture;
use crate::packets::idle::{LONGEST, Patience, nap};
use crate::packets::session::Context;
use crate::run::Ended;

/// The most loans that are handled in one go.
const BATCH: usize = 256;

/// How long a worker waits where others may have all that is left to take.
const WAIT: Duration = Duration::from_millis(1);

/// What is done with packets.
pub(super) enum Task {
    /// They are counted.
    Count,
    /// Every byte is read.
    Read,
    /// They are written to a file.
    Capture(Box<Capture>),
}

impl Task {
    /// Whether nobody reads any more what is written.
    fn is_closed(&self) -> bool {
        matches!(self, Task::Capture(capture) if capture.is_closed())
    }

    /// What is to be done now and then.
    fn turn(&mut self, now: Instant) -> anyhow::Result<()> {
        if let Task::Capture(capture) = self { capture.turn(now) } else { Ok(()) }
    }

    /// Nothing more comes, of which so much was dropped.
    fn finish(&mut self, dropped: u64) -> anyhow::Result<()> {
        let Task::Capture(capture) = self else { return Ok(()) };
        capture.lost(dropped);
        capture.finish()
    }
}

/// A connection, and what is done with what comes.
pub(super) struct Worker {
    pub(super) connection: Connection,
    pub(super) task: Task,
    /// What packets have to match.
    pub(super) filter: Option<Arc<Expression>>,
    /// It never sleeps.
    pub(super) spin: bool,
}

impl Worker {
    /// Works until the lender ends and it is not to wait for another one, or it is told to end.
    pub(super) fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        let worked = self.work_on(context);
        let dropped = self.connection.dropped();
        context.over_quota(dropped);
        context.write_down([]);
        // Also where something failed: what came before that is whole.
        let finished = self.task.finish(dropped);
        worked.and(finished)
    }

    fn work_on(&mut self, context: &mut Context) -> anyhow::Result<()> {
        let mut loans = Vec::with_capacity(BATCH);
        let mut patience = Patience::sparing();
        let mut looked = Instant::now();
        while !context.control.is_over() {
            let now = Instant::now();
            self.task.turn(now)?;
            let claimed = context.control.claim(BATCH);
            if claimed == 0 {
                // Other workers have claimed what is left, or leave some of it.
                context.turn(now, []);
                nap(WAIT);
                continue;
            }
            self.connection.borrower().receive(&mut loans, claimed)?;
            let received = !loans.is_empty();
            if received {
                self.sift(&mut loans, context);
                let packets = self.work(&loans, context, now)?;
                self.connection.borrower().give_back(loans.drain(..));
                context.control.settle(packets, claimed - packets);
            } else {
                context.control.settle(0, claimed);
            }
            context.turn(now, []);
            if context.control.is_over() {
                break;
            }
            if self.task.is_closed() {
                context.control.ends(Ended::Reader);
                break;
            }
            let sleeps = !self.spin && patience.is_over(now, received);
            match self.rest(sleeps, now, &mut looked, context)? {
                Rested::Ready => {}
                Rested::Lost if self.renew(context)? => context.reconnected(),
                // It is told to end, or nobody reads any more.
                Rested::Lost => {
                    if self.task.is_closed() {
                        context.control.ends(Ended::Reader);
                    }
                    break;
                }
                Rested::Closed => {
                    context.control.ends(Ended::Lender);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Between two looks at the rings: sleeps, if it is to.
    fn rest(
        &mut self,
        sleeps: bool,
        now: Instant,
        looked: &mut Instant,
        context: &mut Context,
    ) -> anyhow::Result<Rested> {
        /// So often one that has no reason to wait looks whether the lender is there.
        const LOOK: Duration = Duration::from_millis(20);
        if !sleeps && now - *looked < LOOK {
            return Ok(Rested::Ready);
        }
        match &mut self.task {
            Task::Capture(capture) if sleeps => capture.flush()?,
            _ => {}
        }
        *looked = now;
        context.over_quota(self.connection.dropped());
        let timeout = if sleeps { LONGEST } else { Duration::ZERO };
        self.connection.wait(timeout)
    }

    /// Waits for another lender, with nothing left to write meanwhile; whether there is one.
    fn renew(&mut self, context: &Context) -> anyhow::Result<bool> {
        if let Task::Capture(capture) = &mut self.task {
            capture.flush()?;
        }
        let (task, mut turned) = (&mut self.task, Ok(()));
        let connected = self.connection.renew(|| {
            turned = task.turn(Instant::now());
            turned.is_err() || context.control.is_over() || task.is_closed()
        });
        turned.and(connected)
    }

    /// Gives back what does not match the filter, which looks into the first part of a packet.
    fn sift(&mut self, loans: &mut Vec<Loan>, context: &mut Context) {
        let Some(filter) = &self.filter else { return };
        let borrower = &*self.connection.borrower();
        let matches = |packet: &[Loan]| {
            let len = packet.iter().map(Loan::len).sum();
            let matches = filter.matches(borrower.bytes(&packet[0]), len);
            iter::repeat_n(matches, packet.len())
        };
        let packets = loans.split_inclusive(|loan| !loan.more());
        let mut matches: Vec<bool> = packets.flat_map(matches).collect();
        let mut matches = matches.drain(..);
        let others = loans.extract_if(.., |_| !matches.next().unwrap_or(true));
        let others: Vec<Loan> = others.collect();
        context.filtered(others.iter().filter(|loan| !loan.more()).count() as u64);
        self.connection.borrower().give_back(others);
    }

    /// Does what it is for with whole packets; how many there were.
    fn work(
        &mut self,
        loans: &[Loan],
        context: &mut Context,
        now: Instant,
    ) -> anyhow::Result<usize> {
        if loans.is_empty() {
            return Ok(0);
        }
        let packets = loans.iter().filter(|loan| !loan.more()).count();
        let bytes: usize = loans.iter().map(Loan::len).sum();
        let borrower = &*self.connection.borrower();
        match &mut self.task {
            Task::Count => {}
            Task::Read => {
                let sum = loans.iter().map(|loan| sum(borrower.bytes(loan)));
                black_box(sum.fold(0, u64::wrapping_add));
            }
            Task::Capture(capture) => {
                for packet in loans.split_inclusive(|loan| !loan.more()) {
                    write(capture, borrower, packet)?;
                }
                // What is dropped comes after what there was room for.
                capture.lost(self.connection.dropped());
            }
        }
        context.received(packets, bytes as u64, now);
        Ok(packets)
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
