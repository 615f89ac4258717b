//! Who has what, kept in the plainest way.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use frames::Accounting;

use crate::layout::{LINE, Layout};
use crate::memory::Memory;

pub(super) struct Model {
    accounting: Accounting,
    frames: u32,
    quota: u32,
    /// By frame, who has it.
    holders: Vec<u64>,
    /// By borrower.
    books: Vec<Book>,
    /// Frames that were lent in the batch that is being booked, and whether as shared.
    batch: BTreeMap<u32, bool>,
    /// Out of range, not out, not its own, index.
    pub(super) by_reason: [u64; 4],
    pub(super) returned: u64,
}

#[derive(Clone, Default)]
struct Book {
    /// Token and frame of each loan, in no order.
    loans: Vec<(u32, u32)>,
    /// What the lender has read of its ring.
    read: u32,
    offences: u64,
}

#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) tokens: u64,
    pub(super) offences: u64,
    pub(super) is_out_of_step: bool,
}

impl Model {
    pub(super) fn new(accounting: Accounting, frames: u32, quota: u32, borrowers: u8) -> Self {
        Self {
            accounting,
            frames,
            quota,
            holders: vec![0; frames as usize],
            books: vec![Book::default(); borrowers.into()],
            batch: BTreeMap::new(),
            by_reason: [0; 4],
            returned: 0,
        }
    }

    pub(super) fn lent(&mut self, slot: u8, token: u32, frame: u32, shared: bool) {
        let holders = &mut self.holders[frame as usize];
        let in_batch = self.batch.insert(frame, shared);
        assert!(*holders == 0 || in_batch == Some(shared), "frame {frame} is with {holders:#x}");
        *holders |= 1 << slot;
        let book = &mut self.books[usize::from(slot)];
        assert!(book.loans.iter().all(|loan| loan.0 != token), "token {token:#x} twice");
        book.loans.push((token, frame));
        assert!(book.loans.len() <= self.quota as usize, "over its quota");
    }

    /// All that was lent in a batch is booked: what is shared has several holders, the rest one.
    pub(super) fn settle(&mut self) {
        for (frame, shared) in std::mem::take(&mut self.batch) {
            assert_eq!(self.holders[frame as usize].count_ones() > 1, shared, "frame {frame}");
        }
    }

    pub(super) fn look(&mut self, slot: u8, back: &Memory, layout: Layout) -> Looked {
        let base = layout.back_channel(0);
        let producer = back.word(base).load(Ordering::Relaxed);
        let ready = producer.wrapping_sub(self.books[usize::from(slot)].read);
        if ready > layout.slots {
            self.by_reason[3] += 1;
            self.books[usize::from(slot)].offences += 1;
            return Looked { tokens: 0, offences: 1, is_out_of_step: true };
        }
        let mut looked = Looked { tokens: ready.into(), ..Looked::default() };
        for _ in 0..ready {
            let book = &mut self.books[usize::from(slot)];
            let at = base + LINE + (book.read % layout.slots) as usize * 4;
            book.read = book.read.wrapping_add(1);
            let token = back.word(at).load(Ordering::Relaxed);
            if !self.give_back(slot, token) {
                looked.offences += 1;
            }
        }
        self.books[usize::from(slot)].offences += looked.offences;
        looked
    }

    fn give_back(&mut self, slot: u8, token: u32) -> bool {
        let book = &mut self.books[usize::from(slot)];
        if let Some(at) = book.loans.iter().position(|loan| loan.0 == token) {
            let (_, frame) = book.loans.swap_remove(at);
            self.holders[frame as usize] &= !(1 << slot);
            self.returned += 1;
            return true;
        }
        let reason = match self.accounting {
            Accounting::Counters if token >= self.frames => 0,
            Accounting::Counters if self.holders[token as usize] == 0 => 1,
            Accounting::Counters => 2,
            Accounting::Ledgers if token % (1 << 16) >= self.quota => 0,
            Accounting::Ledgers => 1,
        };
        self.by_reason[reason] += 1;
        false
    }

    /// A borrower is gone, with all that it had.
    pub(super) fn release(&mut self, slot: u8) {
        let book = std::mem::take(&mut self.books[usize::from(slot)]);
        for (_, frame) in book.loans {
            self.holders[frame as usize] &= !(1 << slot);
        }
    }

    pub(super) fn joined(&mut self, slot: u8) {
        self.books[usize::from(slot)] = Book::default();
    }

    pub(super) fn held_by(&self, slot: u8, at: u32) -> Option<u32> {
        let loans = &self.books[usize::from(slot)].loans;
        (!loans.is_empty()).then(|| loans[at as usize % loans.len()].0)
    }

    pub(super) fn frame(&self, slot: u8, token: u32) -> Option<u32> {
        let loans = &self.books[usize::from(slot)].loans;
        loans.iter().find(|loan| loan.0 == token).map(|loan| loan.1)
    }

    pub(super) fn out(&self, slot: u8) -> usize {
        self.books[usize::from(slot)].loans.len()
    }

    pub(super) fn offences(&self, slot: u8) -> u64 {
        self.books[usize::from(slot)].offences
    }

    pub(super) fn on_loan(&self) -> usize {
        self.holders.iter().filter(|holders| **holders != 0).count()
    }
}
