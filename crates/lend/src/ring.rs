//! The rings of a channel: loans from the lender to the borrower, tokens back.
//!
//! # Protocol
//!
//! Each ring has one index, `producer`: how many entries were ever put into it, modulo 2^32; an
//! entry's slot is its count modulo the number of slots, a power of two. What was read, the reader
//! keeps to itself. That is enough because a borrower has at most as many loans as a ring has
//! slots: a loan's slot is used again only after its token came back, and so after it was read; a
//! token's slot only after the token was taken and its frame was lent again.
//!
//! - P, the producer publishes `producer` with release; synchronizes with C. Without it the
//!   consumer could read a slot before it is written.
//! - C, the consumer reads `producer` with acquire; synchronizes with P.
//!
//! A borrower that does not keep to this overwrites its own tokens, and reads its own loans too
//! late; the lender checks every token and nothing else depends on it.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::layout::{BackHeader, Ending, LINE, Layout, Loan, OutHeader};
use crate::memory::Memory;
use crate::sync::{AtomicU32, Ordering};

/// The other side's index moved by more than the ring has slots, or backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfStep {
    /// What it was, and what it is.
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// The lender's end of a ring of loans.
#[derive(Debug)]
pub(crate) struct LoanWriter {
    ring: Ring<Loan>,
    /// What the next loan is counted as.
    next: u32,
    /// The same when it was last published.
    published: u32,
    dropped: u64,
}

/// The borrower's end of a ring of loans.
#[derive(Debug)]
pub(crate) struct LoanReader {
    ring: Ring<Loan>,
    next: u32,
}

/// The borrower's end of a ring of tokens.
#[derive(Debug)]
pub(crate) struct TokenWriter {
    ring: Ring<AtomicU32>,
    next: u32,
}

/// The lender's end of a ring of tokens: it reads what may be written by anybody, at any time.
#[derive(Debug)]
pub(crate) struct TokenReader {
    ring: Ring<AtomicU32>,
    next: u32,
}

/// Where it is said why nothing will follow.
const ENDED: usize = offset_of!(OutHeader, ended);

/// Says in the memory out why nothing will follow, unless that was said before.
pub(crate) fn say_why(out: &Memory, why: Ending) {
    let unsaid = Ending::Unsaid as u32;
    // Relaxed: whoever finds it has seen `closed`, which is stored after it with release, or the end
    // of the socket.
    let _ =
        out.word(ENDED).compare_exchange(unsaid, why as u32, Ordering::Relaxed, Ordering::Relaxed);
}

/// What was said of why nothing will follow.
pub(crate) fn why(out: &Memory) -> Ending {
    // Relaxed: as above.
    match out.word(ENDED).load(Ordering::Relaxed) {
        0 => Ending::Unsaid,
        2 => Ending::Offence,
        3 => Ending::Evicted,
        // Also what a later lender says.
        _ => Ending::Lender,
    }
}

impl LoanWriter {
    pub(crate) fn new(memory: &Arc<Memory>, layout: Layout, channel: u32) -> Self {
        assert!(memory.is_writable());
        let ring = Ring::new(memory, layout.out_channel(channel), layout.slots);
        Self { ring, next: 0, published: 0, dropped: 0 }
    }

    /// Puts a loan into the ring, where it is seen after [`publish`](Self::publish). The caller
    /// has checked that the borrower has fewer loans than slots.
    #[inline]
    pub(crate) fn push(&mut self, loan: Loan) {
        // SAFETY: the slot is ours to write: whatever was in it was given back. A borrower that
        // lies about that may read a torn loan, to which it has no right anyway.
        unsafe { self.ring.slot(self.next).write_volatile(loan) };
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes what was put in since the last time; whether there was anything.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        // P: synchronizes with C in `LoanReader::ready`.
        self.ring.producer().store(self.next, Ordering::Release);
        true
    }

    /// Counts a packet that was dropped, where the borrower sees it.
    pub(crate) fn count_dropped(&mut self, packets: u64) {
        self.dropped += packets;
        let at = self.ring.base + offset_of!(OutHeader, dropped);
        let dropped = self.ring.memory.part::<std::sync::atomic::AtomicU64>(at, 1);
        // SAFETY: inside the mapping and aligned, as `part` checks; written by us alone.
        // Relaxed: a number to show.
        unsafe { dropped.as_ref() }.store(self.dropped, Ordering::Relaxed);
    }

    /// Says that nothing will follow, and why.
    pub(crate) fn close(&mut self, why: Ending) {
        say_why(&self.ring.memory, why);
        // Release: what was published before is seen before it.
        let at = self.ring.base + offset_of!(OutHeader, closed);
        self.ring.memory.word(at).store(1, Ordering::Release);
    }
}

impl LoanReader {
    pub(crate) fn new(memory: &Arc<Memory>, layout: Layout, channel: u32) -> Self {
        Self { ring: Ring::new(memory, layout.out_channel(channel), layout.slots), next: 0 }
    }

    #[inline]
    pub(crate) fn ready(&self) -> Result<u32, OutOfStep> {
        // C: synchronizes with P in `LoanWriter::publish`.
        self.ring.ready(self.next)
    }

    /// Reads a loan that [`ready`](Self::ready) has counted: the first, or one further on. It stays
    /// in the ring.
    #[inline]
    pub(crate) fn peek(&self, ahead: u32) -> Loan {
        // SAFETY: inside the ring; `ready` has seen it published, and the lender writes the slot
        // again only after its token went back. Every pattern is a loan.
        unsafe { self.ring.slot(self.next.wrapping_add(ahead)).read_volatile() }
    }

    #[inline]
    pub(crate) fn advance(&mut self, loans: u32) {
        self.next = self.next.wrapping_add(loans);
    }

    pub(crate) fn dropped(&self) -> u64 {
        let at = self.ring.base + offset_of!(OutHeader, dropped);
        let dropped = self.ring.memory.part::<std::sync::atomic::AtomicU64>(at, 1);
        // SAFETY: inside the mapping and aligned, as `part` checks. Relaxed: a number to show.
        unsafe { dropped.as_ref() }.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        // Acquire: what was published before it is seen.
        let at = self.ring.base + offset_of!(OutHeader, closed);
        self.ring.memory.word(at).load(Ordering::Acquire) != 0
    }
}

impl TokenWriter {
    pub(crate) fn new(memory: &Arc<Memory>, layout: Layout, channel: u32) -> Self {
        assert!(memory.is_writable());
        Self { ring: Ring::new(memory, layout.back_channel(channel), layout.slots), next: 0 }
    }

    /// Puts a token into the ring; seen after [`publish`](Self::publish).
    #[inline]
    pub(crate) fn push(&mut self, token: u32) {
        // SAFETY: inside the ring, which lives as long as this; accessed atomically on both sides.
        // Relaxed: P orders it.
        unsafe { self.ring.slot(self.next).as_ref() }.store(token, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn publish(&self) {
        // P: synchronizes with C in `TokenReader::take`.
        self.ring.producer().store(self.next, Ordering::Release);
    }
}

impl TokenReader {
    pub(crate) fn new(memory: &Arc<Memory>, layout: Layout, channel: u32) -> Self {
        Self { ring: Ring::new(memory, layout.back_channel(channel), layout.slots), next: 0 }
    }

    /// Takes all tokens that there are: at most as many as there are slots, whatever the borrower
    /// does meanwhile. Those that are not asked for stay.
    ///
    /// # Errors
    /// An index that is out of step. Nothing was taken, and nothing ever will be.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<impl ExactSizeIterator<Item = u32>, OutOfStep> {
        // C: synchronizes with P in `TokenWriter::publish`. Read once.
        let ready = self.ring.ready(self.next)?;
        Ok((0..ready).map(|_| {
            // SAFETY: inside the ring, which lives as long as this; accessed atomically, since the
            // borrower may write at any time. Relaxed: C orders it for an honest borrower, and
            // a token of another one is any number.
            let token = unsafe { self.ring.slot(self.next).as_ref() }.load(Ordering::Relaxed);
            self.next = self.next.wrapping_add(1);
            token
        }))
    }
}

#[derive(Debug)]
struct Ring<T> {
    memory: Arc<Memory>,
    /// Where its header is.
    base: usize,
    slots: NonNull<T>,
    /// One less than the number of slots, which is a power of two.
    mask: u32,
}

// SAFETY: it points into the memory that it has, and is used by one thread at a time.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    fn new(memory: &Arc<Memory>, base: usize, slots: u32) -> Self {
        assert!(slots.is_power_of_two(), "{slots} slots");
        let first = memory.part(base + LINE, slots as usize);
        Self { memory: Arc::clone(memory), base, slots: first, mask: slots - 1 }
    }

    #[inline]
    fn slot(&self, at: u32) -> NonNull<T> {
        // SAFETY: below the number of slots, which `new` saw inside the memory.
        unsafe { self.slots.add((at & self.mask) as usize) }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        const { assert!(offset_of!(OutHeader, producer) == 0) };
        const { assert!(offset_of!(BackHeader, producer) == 0) };
        self.memory.word(self.base)
    }

    /// How many entries there are from `next` on.
    #[inline]
    fn ready(&self, next: u32) -> Result<u32, OutOfStep> {
        // C.
        let producer = self.producer().load(Ordering::Acquire);
        let ready = producer.wrapping_sub(next);
        match ready <= self.mask.wrapping_add(1) {
            true => Ok(ready),
            false => Err(OutOfStep { from: next, to: producer }),
        }
    }
}

#[cfg(test)]
mod tests;
