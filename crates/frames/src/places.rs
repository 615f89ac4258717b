//! All places of a pool, and which of them have frames.
//!
//! A cache that runs short has to find the one place with frames among hundreds without asking
//! each. So there is a bit for every place: set means that there may be frames.
//!
//! # Protocol
//!
//! Whoever leaves frames looks at the bit, and sets it if it is not set: mostly it is, and the line
//! of the bits is only read. Whoever takes the last ones leaves the bit alone. Whoever follows a
//! bit and finds nothing clears it, and then looks at the place again.
//!
//! - **W0**, a fence between leaving frames and looking at the bit.
//! - **W1**, a fence between clearing the bit and looking at the place.
//!
//! Of two fences one comes first. If W0 does, the look after W1 finds the frames, and sets the bit
//! again; if W1 does, the look after W0 finds the bit cleared, and sets it. Without them both could
//! see what was before, and frames would lie where nobody but the home looks.

use std::ops::Range;

use crate::homes::Homes;
use crate::magazine::{MagazineId, Magazines};
use crate::place::{Found, Place};
use crate::sync::{AtomicU64, Ordering, fence};

/// Which place, of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At(usize);

/// The lanes' depots and the homes' inboxes.
#[derive(Debug)]
pub(crate) struct Places {
    /// The depots first.
    all: Box<[Place]>,
    lanes: usize,
    waiting: Waiting,
}

impl Places {
    /// Places for magazines of `full` frames; `inbox` is how many an inbox takes, if not as many as
    /// have their home there. Each keeps `empties` empty magazines.
    pub(crate) fn new(homes: &Homes, full: u32, inbox: Option<u32>, empties: u32) -> Self {
        let depots = (0..homes.lane_count()).map(|_| Place::new(full, u32::MAX, empties));
        let inbox = |home| Place::new(full, inbox.unwrap_or(homes.range(home).1), empties);
        let all: Box<[Place]> = depots.chain((0..homes.count()).map(inbox)).collect();
        Self { waiting: Waiting::new(all.len()), lanes: usize::from(homes.lane_count()), all }
    }

    pub(crate) fn depot(&self, lane: u16) -> At {
        At(usize::from(lane))
    }

    pub(crate) fn inbox(&self, home: u16) -> At {
        At(self.lanes + usize::from(home))
    }

    pub(crate) fn place(&self, at: At) -> &Place {
        &self.all[at.0]
    }

    pub(crate) fn depots(&self) -> &[Place] {
        &self.all[..self.lanes]
    }

    pub(crate) fn inboxes(&self) -> &[Place] {
        &self.all[self.lanes..]
    }

    /// As [`Place::try_push`].
    pub(crate) fn try_push(
        &self,
        at: At,
        magazines: &Magazines,
        id: MagazineId,
    ) -> Result<(), MagazineId> {
        self.place(at).try_push(magazines, id)?;
        self.waiting.mark(at);
        Ok(())
    }

    /// As [`Place::push`].
    pub(crate) fn push(&self, at: At, magazines: &Magazines, id: MagazineId) {
        self.place(at).push(magazines, id);
        self.waiting.mark(at);
    }

    /// As [`Place::try_push_loose`].
    #[must_use]
    pub(crate) fn try_push_loose(&self, at: At, frames: &[u32]) -> bool {
        let fits = self.place(at).try_push_loose(frames);
        if fits {
            self.waiting.mark(at);
        }
        fits
    }

    /// As [`Place::push_loose`].
    pub(crate) fn push_loose(&self, at: At, frames: &[u32]) {
        self.place(at).push_loose(frames);
        self.waiting.mark(at);
    }

    /// As [`Place::take`], from the depots of all lanes, this one first.
    pub(crate) fn take_from_depots(
        &self,
        lane: u16,
        magazines: &Magazines,
        buffer: &mut [u32],
    ) -> Option<(At, Found)> {
        self.take_after(self.depot(lane), 0..self.lanes, magazines, buffer)
    }

    /// As [`Place::take`], from the inboxes of all homes, that after this one first.
    pub(crate) fn take_from_inboxes(
        &self,
        home: u16,
        magazines: &Magazines,
        buffer: &mut [u32],
    ) -> Option<(At, Found)> {
        self.take_after(self.inbox(home), self.lanes..self.all.len(), magazines, buffer)
    }

    /// From the first place with frames in `among`, beginning with `first` and going round.
    fn take_after(
        &self,
        first: At,
        among: Range<usize>,
        magazines: &Magazines,
        buffer: &mut [u32],
    ) -> Option<(At, Found)> {
        [first.0..among.end, among.start..first.0].into_iter().find_map(|mut range| {
            while let Some(at) = self.waiting.first_in(range.clone()) {
                if let Some(found) = self.place(at).take(magazines, buffer) {
                    return Some((at, found));
                }
                self.waiting.clear(at, || self.place(at).is_empty());
                range.start = at.0 + 1;
            }
            None
        })
    }
}

/// A bit for each place: set where there may be frames.
#[derive(Debug)]
struct Waiting(Box<[AtomicU64]>);

const BITS: usize = u64::BITS as usize;

impl Waiting {
    fn new(places: usize) -> Self {
        Self((0..places.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect())
    }

    fn bit(&self, at: At) -> (&AtomicU64, u64) {
        (&self.0[at.0 / BITS], 1 << (at.0 % BITS))
    }

    /// Called after frames were left there.
    fn mark(&self, at: At) {
        let (word, bit) = self.bit(at);
        // W0: pairs with W1.
        fence(Ordering::SeqCst);
        // Relaxed, as all here: the fences order it, and taking orders what is taken.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Called where a bit was set and nothing was found.
    fn clear(&self, at: At, is_empty: impl FnOnce() -> bool) {
        let (word, bit) = self.bit(at);
        word.fetch_and(!bit, Ordering::Relaxed);
        // W1: pairs with W0.
        fence(Ordering::SeqCst);
        if !is_empty() {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The first in the range whose bit is set.
    fn first_in(&self, range: Range<usize>) -> Option<At> {
        let words = range.start / BITS..range.end.div_ceil(BITS);
        words.into_iter().find_map(|index| {
            let before = range.start.saturating_sub(index * BITS);
            let set = self.0[index].load(Ordering::Relaxed) & u64::MAX << before;
            let at = index * BITS + set.trailing_zeros() as usize;
            (set != 0 && at < range.end).then_some(At(at))
        })
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_range_is_found() {
        let waiting = Waiting::new(200);
        for at in [0, 63, 64, 130, 199] {
            waiting.mark(At(at));
        }
        for (range, found) in [
            (0..200, Some(0)),
            (1..200, Some(63)),
            (1..63, None),
            (64..65, Some(64)),
            (65..130, None),
            (65..131, Some(130)),
            (131..199, None),
            (131..200, Some(199)),
            (5..5, None),
        ] {
            assert_eq!(waiting.first_in(range.clone()), found.map(At), "{range:?}");
        }
        waiting.clear(At(130), || true);
        waiting.clear(At(199), || false);
        assert_eq!(waiting.first_in(65..200), Some(At(199)));
    }
}

/// Every interleaving of one that leaves frames and those that look for them.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    #[test]
    fn a_place_with_frames_is_found_in_the_end() {
        loom::model(|| {
            let world = Arc::new((Waiting::new(1), AtomicU32::new(0)));
            let at = At(0);
            // The bit is set and the place empty: taken by the home meanwhile.
            world.0.mark(at);
            let leaving = thread::spawn({
                let world = world.clone();
                move || {
                    world.1.store(1, Ordering::Relaxed);
                    world.0.mark(at);
                }
            });
            let looking = move |world: &(Waiting, AtomicU32)| {
                if world.0.first_in(0..1).is_some() && world.1.load(Ordering::Relaxed) == 0 {
                    world.0.clear(at, || world.1.load(Ordering::Relaxed) == 0);
                }
            };
            let other = thread::spawn({
                let world = world.clone();
                move || looking(&world)
            });
            looking(&world);
            leaving.join().unwrap();
            other.join().unwrap();
            assert_eq!(world.0.first_in(0..1), Some(at));
        });
    }
}
