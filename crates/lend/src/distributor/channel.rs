//! What a distributor has with one borrower.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use frames::{Frame, LoanTable};

use super::copies::Copies;
use crate::layout::{Ending, Layout, Loan};
use crate::lender::{ChannelTally, Tally};
use crate::memory::Memory;
use crate::ring::{self, LoanWriter, OutOfStep, TokenReader};
use crate::wake::WakeOnce;
use crate::waker::Waker;

/// A borrower that has joined, as all distributors have it.
#[derive(Debug)]
pub(crate) struct JoinedBorrower {
    /// The memory that the lender writes.
    pub(crate) out: Arc<Memory>,
    /// The memory that the borrower writes.
    pub(crate) back: Arc<Memory>,
    pub(crate) waker: Arc<Waker>,
    /// What it did that no honest borrower does, in all channels together.
    pub(crate) offences: AtomicU32,
    /// As many are forgiven.
    pub(crate) forgiven: u32,
}

impl JoinedBorrower {
    /// Has its connection ended, which says why.
    pub(crate) fn end(&self, why: Ending) {
        ring::say_why(&self.out, why);
        self.waker.end();
    }
}

/// One borrower's rings of one distributor.
#[derive(Debug)]
pub(crate) struct Channel {
    out: LoanWriter,
    back: TokenReader,
    wake_once: WakeOnce,
    borrower: Arc<JoinedBorrower>,
    tally: Arc<ChannelTally>,
    /// Of a borrower with an area of its own.
    copies: Option<Copies>,
    /// Since it was last published.
    lent: u32,
    dropped: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// How many tokens that are gone from the borrower's account.
    pub(crate) tokens: usize,
    /// The borrower offended too often, or in a way that nothing can be taken from it any more.
    pub(crate) must_go: bool,
}

impl Channel {
    pub(crate) fn new(
        layout: Layout,
        channel: u32,
        borrower: Arc<JoinedBorrower>,
        tally: Arc<ChannelTally>,
        copies: Option<Copies>,
    ) -> Self {
        Self {
            out: LoanWriter::new(&borrower.out, layout, channel),
            back: TokenReader::new(&borrower.back, layout, channel),
            wake_once: WakeOnce::default(),
            borrower,
            tally,
            copies,
            lent: 0,
            dropped: 0,
        }
    }

    /// Puts a loan into the ring; there is room.
    #[inline]
    pub(crate) fn push(&mut self, loan: Loan) {
        self.out.push(loan);
        self.lent += 1;
    }

    #[inline]
    pub(crate) fn copies(&self) -> Option<&Copies> {
        self.copies.as_ref()
    }

    /// Copies a part of a packet into the borrower's own area and puts the loan of that, which is
    /// otherwise as `loan`, into the ring; there is room.
    #[inline]
    pub(crate) fn push_copy(&mut self, bytes: &[u8], loan: Loan) {
        match self.copies.as_mut().and_then(|copies| copies.copy(bytes)) {
            Some((addr, token)) => self.push(Loan { addr, token, ..loan }),
            None => debug_assert!(false, "no room for {} bytes", bytes.len()),
        }
    }

    #[inline]
    pub(crate) fn drop_one(&mut self) {
        self.dropped += 1;
    }

    /// Publishes what was put in, and counts. The borrower has `out` loans now.
    pub(crate) fn publish(&mut self, out: u32, tally: &Tally) {
        self.out.publish();
        let (lent, dropped) = (u64::from(self.lent), u64::from(self.dropped));
        (self.lent, self.dropped) = (0, 0);
        if dropped > 0 {
            self.out.count_dropped(dropped);
            self.tally.dropped.add(dropped);
            tally.counts.dropped.add(dropped);
        }
        self.tally.lent.add(lent);
        tally.counts.lent.add(lent);
        self.tell_out(out);
    }

    #[inline]
    pub(crate) fn tell_out(&self, out: u32) {
        self.tally.out.set(out.into());
    }

    /// Takes what the borrower in this slot has returned; frames that nobody has any more go to
    /// `free`.
    #[inline]
    pub(crate) fn take_back(
        &mut self,
        slot: u8,
        table: &mut LoanTable,
        free: &mut Vec<Frame>,
        tally: &Tally,
    ) -> Taken {
        let mut refused = 0;
        let (tokens, is_out_of_step) = match self.back.take() {
            // Nearly always: nothing is written.
            Ok(returned) if returned.len() == 0 => return Taken::default(),
            Ok(returned) => {
                let count = returned.len();
                let mut refuse = |reason| {
                    refused += 1;
                    tally.offences.of(reason).add(1);
                };
                match &mut self.copies {
                    None => {
                        table.give_back_many(returned, slot, |frame| free.push(frame), refuse);
                    }
                    Some(copies) => {
                        let given = returned.map(|token| copies.give_back(token));
                        given.filter_map(Result::err).for_each(&mut refuse);
                    }
                }
                (count - refused as usize, false)
            }
            Err(OutOfStep { .. }) => {
                refused = 1;
                tally.offences.index.add(1);
                (0, true)
            }
        };
        if tokens > 0 {
            self.tally.returned.add(tokens as u64);
            tally.counts.returned.add(tokens as u64);
        }
        let must_go = refused > 0 && (self.blame(refused) || is_out_of_step);
        Taken { tokens, must_go }
    }

    /// Counts offences; whether there are more than are forgiven.
    #[cold]
    fn blame(&self, offences: u32) -> bool {
        // Relaxed: a number that guards no memory. If it ever wraps, so many were forgiven.
        let before = self.borrower.offences.fetch_add(offences, Ordering::Relaxed);
        before.saturating_add(offences) > self.borrower.forgiven
    }

    /// Wakes the borrower if it sleeps: after what it was lent was published.
    pub(crate) fn wake(&mut self) {
        if self.wake_once.must_wake(self.borrower.back.word(Layout::ASLEEP)) {
            self.borrower.waker.wake();
        }
    }

    /// Says that nothing will follow, and why, and wakes the borrower if it sleeps.
    pub(crate) fn close(&mut self, why: Ending) {
        self.out.publish();
        self.out.close(why);
        self.wake();
        self.tell_out(0);
    }
}
