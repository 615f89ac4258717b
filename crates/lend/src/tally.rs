//! What was done, counted by the threads that do it, each in lines of its own, and read by whoever
//! wants to know.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use frames::TokenRefused;

/// What one distributor has done. Two cache lines, since prefetchers fetch pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    pub(crate) lent: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) reclaimed: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) unwanted: AtomicU64,
    pub(crate) on_loan: AtomicU32,
    pub(crate) offences: OffenceTally,
}

/// What one distributor has done for one borrower.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ChannelTally {
    pub(crate) lent: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Loans that it has now.
    pub(crate) out: AtomicU32,
}

/// Offences seen in the rings, by reason.
#[derive(Debug, Default)]
pub(crate) struct OffenceTally {
    pub(crate) out_of_range: AtomicU64,
    pub(crate) not_out: AtomicU64,
    pub(crate) not_its_own: AtomicU64,
    pub(crate) index: AtomicU64,
}

impl OffenceTally {
    /// The counter of a refused token.
    pub(crate) fn of(&self, refused: TokenRefused) -> &AtomicU64 {
        match refused {
            TokenRefused::OutOfRange => &self.out_of_range,
            TokenRefused::NotOut => &self.not_out,
            TokenRefused::NotItsOwn => &self.not_its_own,
        }
    }
}

/// Adds to a counter that only this thread writes: no locked instruction.
#[inline]
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // Relaxed: figures for people.
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// Reads a counter.
pub(crate) fn read(counter: &AtomicU64) -> u64 {
    // Relaxed: as in `add`.
    counter.load(Ordering::Relaxed)
}
