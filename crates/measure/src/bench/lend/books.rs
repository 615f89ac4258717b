//! The ways of keeping account that are compared: who has which frame.
//!
//! *Counters* and *our ledger* are [`LoanTable`]'s, which belongs to one thread. The *ledger* is
//! the baseline, of the kind that kernels use today: an allocator of ids under a lock, one id for
//! each frag, that whoever receives takes from and whoever returns gives back to. Its ids are
//! those of a slab, which costs less than a kernel's radix tree.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use frames::{Accounting, Frame, FramePool, LoanTable};
use slab::Slab;

/// Frames that are taken, passed on and returned at a time.
pub(super) const BATCH: usize = 64;

/// That many frames: all of them, or none.
pub(super) type Frames = [Option<Frame>; BATCH];
/// Their tokens.
pub(super) type Tokens = [u32; BATCH];

/// What keeps account. Every token that it is given back is one that is out.
pub(super) trait Books: Send {
    /// Takes a batch of frames into account; their tokens.
    fn take(&mut self, frames: &mut Frames) -> Tokens;
    /// The frames that the tokens stand for, which are out of account again.
    fn give_back(&mut self, tokens: &Tokens, free: &mut Frames);
}

/// A table of loans, with one borrower that has them all.
pub(super) struct Table(LoanTable);

impl Table {
    /// With room for so many loans.
    pub(super) fn new(pool: &FramePool, accounting: Accounting, quota: u32) -> Table {
        let mut table = LoanTable::new(pool, accounting);
        table.join(0, quota);
        Table(table)
    }
}

impl Books for Table {
    #[inline]
    fn take(&mut self, frames: &mut Frames) -> Tokens {
        let mut tokens = [0; BATCH];
        self.0.lend_many(all(frames), 0, one_by_one(&mut tokens, |slot, token| *slot = token));
        tokens
    }

    #[inline]
    fn give_back(&mut self, tokens: &Tokens, free: &mut Frames) {
        let refused = |why| panic!("a token that is out: {why:?}");
        self.0.give_back_many(tokens.iter().copied(), 0, one_by_one(free, put), refused);
    }
}

/// A table of loans that is called for each frame.
pub(super) struct Singly(pub(super) Table);

impl Books for Singly {
    #[inline]
    fn take(&mut self, frames: &mut Frames) -> Tokens {
        let mut tokens = [0; BATCH];
        for (token, frame) in tokens.iter_mut().zip(all(frames)) {
            *token = self.0.0.lend(frame, 0).expect("there is room for all");
        }
        tokens
    }

    #[inline]
    fn give_back(&mut self, tokens: &Tokens, free: &mut Frames) {
        for (slot, token) in free.iter_mut().zip(tokens) {
            let frame = self.0.0.give_back(*token, 0).expect("a token that is out");
            put(slot, frame.expect("nobody else has it"));
        }
    }
}

/// Takes the frames out.
pub(super) fn all(frames: &mut Frames) -> impl ExactSizeIterator<Item = Frame> {
    frames.iter_mut().map(|frame| frame.take().expect("all are there"))
}

/// Puts what comes into one slot after the other.
#[inline]
fn one_by_one<S, T>(slots: &mut [S], put: impl Fn(&mut S, T)) -> impl FnMut(T) {
    let mut slots = slots.iter_mut();
    move |each| {
        if let Some(slot) = slots.next() {
            put(slot, each);
        }
    }
}

/// Puts a frame where none is.
#[inline]
fn put(slot: &mut Option<Frame>, frame: Frame) {
    // So that no code looks whether there is one to drop.
    std::mem::forget(slot.replace(frame));
}

/// How the ledger's lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locking {
    /// For each frame.
    Each,
    /// For each frame, by a thread that never sleeps for it, as a kernel's.
    Spinning,
    /// Once for a batch.
    Batch,
}

/// An allocator of ids under a lock: for frames, or for what stands for them.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    ids: Arc<Mutex<Slab<T>>>,
    locking: Locking,
}

impl<T> Clone for Ledger<T> {
    fn clone(&self) -> Self {
        Self { ids: Arc::clone(&self.ids), locking: self.locking }
    }
}

impl<T> Ledger<T> {
    /// With room for so many ids.
    pub(super) fn new(locking: Locking, ids: u32) -> Self {
        let ids = Arc::new(Mutex::new(Slab::with_capacity(ids as usize)));
        Self { ids, locking }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Slab<T>> {
        if self.locking == Locking::Spinning {
            loop {
                match self.ids.try_lock() {
                    Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                    Ok(ids) => return ids,
                    Err(TryLockError::Poisoned(ids)) => return ids.into_inner(),
                }
            }
        }
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an id for each; `into` gets them in order.
    #[inline]
    pub(super) fn take_all(&self, all: impl Iterator<Item = T>, mut into: impl FnMut(u32)) {
        if self.locking == Locking::Batch {
            let mut ids = self.lock();
            all.for_each(|each| into(enter(&mut ids, each)));
        } else {
            all.for_each(|each| into(enter(&mut self.lock(), each)));
        }
    }

    /// Gives ids back that are out; `into` gets what they stand for, in order.
    #[inline]
    pub(super) fn give_back_all(&self, ids: impl Iterator<Item = u32>, mut into: impl FnMut(T)) {
        if self.locking == Locking::Batch {
            let mut all = self.lock();
            ids.for_each(|id| into(all.remove(id as usize)));
        } else {
            ids.for_each(|id| into(self.lock().remove(id as usize)));
        }
    }
}

impl Books for Ledger<Frame> {
    #[inline]
    fn take(&mut self, frames: &mut Frames) -> Tokens {
        let mut tokens = [0; BATCH];
        self.take_all(all(frames), one_by_one(&mut tokens, |slot, id| *slot = id));
        tokens
    }

    #[inline]
    fn give_back(&mut self, tokens: &Tokens, free: &mut Frames) {
        self.give_back_all(tokens.iter().copied(), one_by_one(free, put));
    }
}

#[inline]
fn enter<T>(ids: &mut Slab<T>, each: T) -> u32 {
    // There are fewer ids than frames, whose numbers are u32.
    ids.insert(each) as u32
}
