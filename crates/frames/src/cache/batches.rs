//! Batches: magazines that come and go whole.

use std::mem;

use super::exchange::{Across, Local};
use crate::magazine::MagazineId;
use crate::place::Found;
use crate::shared::Shared;
use crate::{AlienFree, Batch};

impl Local {
    /// A full magazine; None if there are not so many frames within reach.
    #[inline]
    pub(super) fn take_batch(&mut self, shared: &Shared) -> Option<MagazineId> {
        if self.spare_is_full {
            let empty = self.take_empty(shared)?;
            self.spare_is_full = false;
            return Some(mem::replace(&mut self.spare, empty));
        }
        self.find_batch(shared)
    }

    /// The same where the spare one is empty.
    #[cold]
    fn find_batch(&mut self, shared: &Shared) -> Option<MagazineId> {
        while self.len < self.full {
            match self.find(shared) {
                Some((_, Found::Full(id))) => {
                    self.went(shared, true);
                    return Some(id);
                }
                Some((_, Found::Loose(count))) => self.len += count,
                None => {
                    self.went(shared, false);
                    return None;
                }
            }
        }
        let empty = self.take_empty(shared)?;
        let full = mem::replace(&mut self.current, empty);
        self.slots = shared.magazines.slots(&self.current);
        self.len = 0;
        Some(full)
    }

    /// Puts a full magazine where its frames are to go; gives it back if they are to go to several
    /// places.
    #[inline]
    pub(super) fn put_batch(&mut self, shared: &Shared, id: MagazineId) -> Result<(), MagazineId> {
        let across = match shared.alien_free() {
            AlienFree::Recycle => Across::None,
            AlienFree::Auto if shared.homes.lane_count() == 1 => Across::None,
            AlienFree::Auto if self.has_room() => Across::None,
            AlienFree::Auto => self.across_lanes(shared, &id),
            AlienFree::Defer => {
                let numbers = shared.magazines.contents(&id, self.full);
                let home = shared.homes.of(numbers[0]);
                if !shared.homes.are_all_of(home, numbers) {
                    return Err(id);
                }
                Across::All(home)
            }
        };
        let stays = match across {
            Across::None => true,
            Across::All(home) => home == self.home,
            Across::Some => return Err(id),
        };
        if stays && self.has_room() {
            let empty = mem::replace(&mut self.spare, id);
            self.spare_is_full = true;
            self.keep_empty(shared, empty);
        } else {
            self.gets_at_spill = self.gets;
            self.hand_over(shared, across, id);
        }
        Ok(())
    }

    /// Whether the spare magazine is empty, and this thread also gets frames: one that only frees has
    /// no use for it.
    fn has_room(&self) -> bool {
        !self.spare_is_full && self.gets != self.gets_at_spill
    }

    /// An empty magazine, for one that goes out.
    #[inline]
    pub(super) fn take_empty(&mut self, shared: &Shared) -> Option<MagazineId> {
        self.empty.take().or_else(|| shared.pop_empty(shared.places.inbox(self.home)))
    }

    /// Keeps an empty magazine that came in, or gives it back.
    #[inline]
    pub(super) fn keep_empty(&mut self, shared: &Shared, id: MagazineId) {
        match &self.empty {
            None => self.empty = Some(id),
            Some(_) => {
                let depot = shared.places.place(shared.depot_of(self.home));
                depot.push_empty(&shared.magazines, id);
            }
        }
    }

    #[cold]
    pub(super) fn put_foreign_batch(&self, shared: &Shared, batch: Batch) {
        self.tally(shared).counts.foreign.add(self.full as u64);
        drop(batch);
        assert!(!shared.fatal, "a batch was put into a pool that it is not of");
    }
}
