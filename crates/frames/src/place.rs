//! Where frames lie that no thread has: the depot of a lane, the inbox of a home.
//!
//! Full magazines lie in a lock-free stack, and beside it, in the same cache line, one of empty
//! ones: who leaves a full magazine takes an empty one with it, and the other way round, so that an
//! exchange costs one line. What is less than a magazine, when a thread gives back what it has, is
//! rare and lies loose under a lock.

use crossbeam_utils::CachePadded;

use crate::magazine::{MagazineId, Magazines};
use crate::stack::Stack;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// What is got from a place.
#[derive(Debug)]
pub(crate) enum Found {
    /// A full magazine.
    Full(MagazineId),
    /// This many frames, written into the buffer given.
    Loose(usize),
}

#[derive(Debug)]
pub(crate) struct Place {
    /// Written by every thread that gives or takes here, and so in a line of its own.
    stacks: CachePadded<Stacks>,
    loose: CachePadded<Loose>,
    /// Frames of a full magazine.
    full: u32,
    /// The most frames that may wait here, where there is such a bound.
    most: u32,
    /// The most empty magazines.
    most_empties: u32,
}

#[derive(Debug)]
struct Stacks {
    full: Stack,
    empties: Stack,
}

#[derive(Debug)]
struct Loose {
    frames: Mutex<Vec<u32>>,
    /// How many, as of the last change: saves looking under the lock.
    count: AtomicU32,
}

impl Place {
    pub(crate) fn new(full: u32, most: u32, most_empties: u32) -> Self {
        let stacks = Stacks { full: Stack::new(), empties: Stack::new() };
        let loose = Loose { frames: Mutex::default(), count: AtomicU32::new(0) };
        let (stacks, loose) = (CachePadded::new(stacks), CachePadded::new(loose));
        Self { stacks, loose, full, most, most_empties }
    }

    /// How many frames lie here; out of date when it is known.
    pub(crate) fn frames(&self) -> u32 {
        self.stacks.full.len() * self.full + self.loose_count()
    }

    /// Whether there is nothing here; a hint.
    pub(crate) fn is_empty(&self) -> bool {
        self.stacks.full.len() == 0 && self.loose_count() == 0
    }

    fn loose_count(&self) -> u32 {
        // Relaxed: a hint, or a figure for people. The lock orders what matters.
        self.loose.count.load(Ordering::Relaxed)
    }

    /// Leaves a full magazine here, or gives it back if there is no room.
    pub(crate) fn try_push(&self, magazines: &Magazines, id: MagazineId) -> Result<(), MagazineId> {
        let room = self.most.saturating_sub(self.loose_count());
        magazines.try_push(&self.stacks.full, id, room / self.full)
    }

    /// Leaves a full magazine here, bound or no bound.
    pub(crate) fn push(&self, magazines: &Magazines, id: MagazineId) {
        magazines.push(&self.stacks.full, id);
    }

    /// Leaves an empty magazine here, or if there are enough, where those are that nobody has.
    pub(crate) fn push_empty(&self, magazines: &Magazines, id: MagazineId) {
        let pushed = magazines.try_push(&self.stacks.empties, id, self.most_empties);
        pushed.unwrap_or_else(|id| magazines.push_empty(id));
    }

    pub(crate) fn pop_empty(&self, magazines: &Magazines) -> Option<MagazineId> {
        magazines.pop(&self.stacks.empties)
    }

    /// Leaves frames here; false, and none of them, if there is no room for all.
    #[must_use]
    pub(crate) fn try_push_loose(&self, frames: &[u32]) -> bool {
        let waiting = self.stacks.full.len() * self.full;
        let mut loose = lock(&self.loose.frames);
        let fits = waiting as usize + loose.len() + frames.len() <= self.most as usize;
        if fits {
            loose.extend_from_slice(frames);
            // Relaxed: see `loose_count`.
            self.loose.count.store(loose.len() as u32, Ordering::Relaxed);
        }
        fits
    }

    /// Leaves frames here, bound or no bound.
    pub(crate) fn push_loose(&self, frames: &[u32]) {
        let mut loose = lock(&self.loose.frames);
        loose.extend_from_slice(frames);
        // Relaxed: see `loose_count`.
        self.loose.count.store(loose.len() as u32, Ordering::Relaxed);
    }

    /// Takes a full magazine, or else what lies loose, up to the length of the buffer.
    pub(crate) fn take(&self, magazines: &Magazines, buffer: &mut [u32]) -> Option<Found> {
        if let Some(id) = magazines.pop(&self.stacks.full) {
            return Some(Found::Full(id));
        }
        // Who misses what was just left here finds it the next time.
        if self.loose_count() == 0 {
            return None;
        }
        let mut loose = lock(&self.loose.frames);
        let count = loose.len().min(buffer.len());
        let rest = loose.len() - count;
        buffer[..count].copy_from_slice(&loose[rest..]);
        loose.truncate(rest);
        self.loose.count.store(rest as u32, Ordering::Relaxed);
        (count > 0).then_some(Found::Loose(count))
    }
}
