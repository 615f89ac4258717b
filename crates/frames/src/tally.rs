//! What one cache has done: written by its thread alone, read by whoever wants to know.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The counters of one slot for caches. A cache that comes after another in the slot counts on.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Frames in the cache, as of its last exchange with others or its last `maintain`.
    pub(crate) cached: AtomicU32,
    /// Frames in its outboxes, likewise.
    pub(crate) outboxes: AtomicU32,
    pub(crate) gets: AtomicU64,
    pub(crate) from_inbox: AtomicU64,
    pub(crate) from_depot: AtomicU64,
    pub(crate) from_others: AtomicU64,
    pub(crate) starved: AtomicU64,
    pub(crate) spilled: AtomicU64,
    pub(crate) sent_home: AtomicU64,
    pub(crate) inbox_full: AtomicU64,
    pub(crate) given_back: AtomicU64,
    pub(crate) foreign: AtomicU64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            cached: AtomicU32::new(0),
            outboxes: AtomicU32::new(0),
            gets: zero(),
            from_inbox: zero(),
            from_depot: zero(),
            from_others: zero(),
            starved: zero(),
            spilled: zero(),
            sent_home: zero(),
            inbox_full: zero(),
            given_back: zero(),
            foreign: zero(),
        }
    }
}

/// Adds to a counter that only this thread writes: no locked instruction.
#[inline]
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // Relaxed: figures for people.
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
