//! What a cache exchanges with the rest of its pool: at most once for every magazine.

#![allow(unsafe_code)]

use std::mem;
use std::ptr::NonNull;

use super::outboxes::Outboxes;
use crate::counters::Tally;
use crate::magazine::{CAPACITY, MagazineId};
use crate::numbers;
use crate::place::Found;
use crate::places::At;
use crate::shared::{Shared, Slot};
use crate::sync::Ordering;
use crate::{AlienFree, Result};

/// Turns of a thread's loop after which its cache sees whether it was used.
const IDLE_TURNS: u32 = 1024;

/// Turns between two in which a cache gives everything back because another goes without. Such a
/// turn costs as much as some ten others, and a cache may be in need for long.
const ANSWER_TURNS: u32 = 16;

/// What a cache is made of, besides its pool. What every get and put uses comes first, in one cache
/// line wherever the cache is moved.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Local {
    /// The slots of `current`, `len` of which are frames.
    pub(super) slots: NonNull<u32>,
    pub(super) len: usize,
    /// Slots that may be used: frames in a full magazine.
    pub(super) full: usize,
    /// The range of this pool's numbers: the first, and the bits that differ within it.
    pub(super) first: u32,
    pub(super) within: u32,
    /// Those at home here.
    pub(super) home_first: u32,
    pub(super) home_count: u32,
    pub(super) gets: u64,
    pub(super) current: MagazineId,
    pub(super) spare: MagazineId,
    /// The spare one is either full or empty.
    pub(super) spare_is_full: bool,
    /// An empty one, of a batch that came in: the next batch that goes out needs it.
    pub(super) empty: Option<MagazineId>,
    pub(super) home: u16,
    /// Which tally is this cache's.
    pub(super) slot: u16,
    outboxes: Outboxes,
    /// Gets as of the last spill: none since means that this thread only frees.
    pub(super) gets_at_spill: u64,
    gets_at_turn: u64,
    /// Of the thread's loop.
    turns: u32,
    /// The turn in which it last gave back what it had for another in need.
    answered: u32,
}

/// How many frames of a magazine are to go to another home, and not to the lane's depot.
pub(super) enum Across {
    None,
    Some,
    /// All of them, to this one.
    All(u16),
}

// SAFETY: `slots` points into a magazine that this cache owns, in memory that its pool keeps.
unsafe impl Send for Local {}

impl Local {
    pub(super) fn new(shared: &Shared, home: u16) -> Result<Self> {
        let Slot { number: slot, current, spare } = shared.take_slot()?;
        let (home_first, home_count) = shared.homes.range(home);
        let gets = shared.tallies[usize::from(slot)].counts.gets.get();
        Ok(Self {
            slots: shared.magazines.slots(&current),
            len: 0,
            full: shared.full as usize,
            first: shared.area.first(),
            within: numbers::within(shared.area.frames()),
            home_first,
            home_count,
            gets,
            current,
            spare,
            spare_is_full: false,
            empty: None,
            home,
            slot,
            outboxes: Outboxes::new(shared.homes.count(), shared.full as usize),
            gets_at_spill: gets,
            gets_at_turn: gets,
            turns: 0,
            answered: 0_u32.wrapping_sub(ANSWER_TURNS),
        })
    }

    pub(super) fn frames(&self) -> usize {
        self.len + if self.spare_is_full { self.full } else { 0 }
    }

    /// Another turn; whether there was no get for so many of them that this cache is idle.
    #[inline]
    pub(super) fn is_idle(&mut self, shared: &Shared) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(IDLE_TURNS) && self.look_back(shared)
    }

    /// Another cache goes without: whether this one is to give back what it has.
    #[cold]
    pub(super) fn answers(&mut self) -> bool {
        let has_some = self.frames() + self.outboxes.frames() > 0;
        let answers = has_some && self.turns.wrapping_sub(self.answered) >= ANSWER_TURNS;
        if answers {
            self.answered = self.turns;
        }
        answers
    }

    /// Whether there was no get since the last time that this was asked.
    #[cold]
    fn look_back(&mut self, shared: &Shared) -> bool {
        let idle = self.gets == self.gets_at_turn;
        self.gets_at_turn = self.gets;
        self.publish(shared);
        idle
    }

    pub(super) fn give_back(&mut self, shared: &Shared) {
        let count = self.frames();
        if self.spare_is_full {
            let kept = self.dispose_of_spare(shared);
            let frames = shared.magazines.contents(&self.spare, kept);
            shared.push_home_loose(self.home, frames);
        }
        // After that, which may put some into them.
        while let Some(home) = self.outboxes.any() {
            self.dispatch(shared, home);
        }
        if self.len > 0 {
            let frames = shared.magazines.contents(&self.current, self.len);
            shared.push_home_loose(self.home, frames);
            self.len = 0;
        }
        self.tally(shared).counts.given_back.add(count as u64);
        self.publish(shared);
    }

    /// Fills the empty current magazine: with the spare one, from the inbox, from the lane's
    /// depot, from other lanes' depots, from others' inboxes.
    #[cold]
    pub(super) fn refill(&mut self, shared: &Shared) -> bool {
        if self.spare_is_full {
            mem::swap(&mut self.current, &mut self.spare);
            self.spare_is_full = false;
            self.slots = shared.magazines.slots(&self.current);
            self.len = self.full;
            return true;
        }
        let found = self.find(shared);
        self.went(shared, found.is_some());
        let Some((at, found)) = found else { return false };
        match found {
            Found::Loose(count) => self.len = count,
            Found::Full(id) => {
                let empty = mem::replace(&mut self.current, id);
                shared.places.place(at).push_empty(&shared.magazines, empty);
                self.slots = shared.magazines.slots(&self.current);
                self.len = self.full;
            }
        }
        self.publish(shared);
        true
    }

    /// Says whether this cache has found frames or goes without.
    pub(super) fn went(&self, shared: &Shared, found: bool) {
        if !found {
            self.tally(shared).counts.starved.add(1);
            self.publish(shared);
        }
        // Whoever else goes without says so again.
        shared.set_wanted(!found);
    }

    /// A full magazine from elsewhere, or loose frames, which are behind those of the current one then:
    /// `len` is as it was.
    pub(super) fn find(&mut self, shared: &Shared) -> Option<(At, Found)> {
        let Shared { places, magazines, .. } = shared;
        let (home, lane) = (self.home, shared.homes.lane_of(self.home));
        let tally = &shared.tallies[usize::from(self.slot)];
        let buffer = &mut magazines.contents_mut(&mut self.current)[self.len..self.full];
        let inbox = places.inbox(home);
        let (found, counter) = match places.place(inbox).take(magazines, buffer) {
            Some(found) => ((inbox, found), &tally.counts.from_inbox),
            None => match places.take_from_depots(lane, magazines, buffer) {
                Some(found) => (found, &tally.counts.from_depot),
                None => {
                    let found = places.take_from_inboxes(home, magazines, buffer)?;
                    (found, &tally.counts.from_others)
                }
            },
        };
        counter.add(match &found.1 {
            Found::Loose(count) => *count as u64,
            Found::Full(_) => self.full as u64,
        });
        Some(found)
    }

    /// Makes room in the full current magazine.
    ///
    /// A thread that has not got a frame since the last time has no use for a spare magazine.
    #[cold]
    pub(super) fn spill(&mut self, shared: &Shared) {
        let only_frees = self.gets == self.gets_at_spill;
        self.gets_at_spill = self.gets;
        let kept = if self.spare_is_full { self.dispose_of_spare(shared) } else { 0 };
        // What was kept of the spare one is the current one now, and the spare one is full.
        mem::swap(&mut self.current, &mut self.spare);
        self.len = kept;
        self.spare_is_full = true;
        if only_frees && kept == 0 {
            self.len = self.dispose_of_spare(shared);
            mem::swap(&mut self.current, &mut self.spare);
        }
        self.slots = shared.magazines.slots(&self.current);
        self.publish(shared);
    }

    /// Disposes of the full spare magazine. It is not full after this; how many frames it still
    /// has, from its first slot on.
    fn dispose_of_spare(&mut self, shared: &Shared) -> usize {
        self.spare_is_full = false;
        let across = match shared.alien_free() {
            AlienFree::Auto if shared.homes.lane_count() > 1 => {
                self.across_lanes(shared, &self.spare)
            }
            AlienFree::Defer => Across::All(self.home),
            AlienFree::Recycle | AlienFree::Auto => Across::None,
        };
        let near = match across {
            Across::All(home) => shared.places.inbox(home),
            Across::None => shared.depot_of(self.home),
            Across::Some => return self.sort_out(shared),
        };
        let Some(empty) = shared.pop_empty(near) else {
            // There is always one; if not, no frame would be lost.
            let frames = shared.magazines.contents(&self.spare, self.full);
            shared.push_home_loose(self.home, frames);
            return 0;
        };
        let full = mem::replace(&mut self.spare, empty);
        self.hand_over(shared, across, full);
        0
    }

    /// A full magazine goes to the lane's depot, or home.
    pub(super) fn hand_over(&self, shared: &Shared, across: Across, full: MagazineId) {
        self.tally(shared).counts.spilled.add(self.full as u64);
        match across {
            Across::All(home) => self.push_home(shared, home, full),
            _ => shared.places.push(shared.depot_of(self.home), &shared.magazines, full),
        }
    }

    /// How many of the frames in a full magazine are at home in another lane.
    pub(super) fn across_lanes(&self, shared: &Shared, id: &MagazineId) -> Across {
        let numbers = shared.magazines.contents(id, self.full);
        let home = shared.homes.of(numbers[0]);
        let lane = shared.homes.lane_of(self.home);
        let is_here = |number: &u32| shared.homes.lane_of(shared.homes.of(*number)) == lane;
        // Mostly they are all of one home.
        if shared.homes.are_all_of(home, numbers) {
            return if is_here(&numbers[0]) { Across::None } else { Across::All(home) };
        }
        if numbers.iter().all(is_here) { Across::None } else { Across::Some }
    }

    /// Sends what is from another lane home; the rest stays in the spare magazine: how many.
    fn sort_out(&mut self, shared: &Shared) -> usize {
        let lane = shared.homes.lane_of(self.home);
        let mut mixed = [0; CAPACITY];
        let mixed = &mut mixed[..self.full];
        mixed.copy_from_slice(shared.magazines.contents(&self.spare, self.full));
        let mut kept = 0;
        // Frames mostly come in runs, a batch of one thread's each.
        for run in mixed.chunk_by(|a, b| shared.homes.of(*a) == shared.homes.of(*b)) {
            let home = shared.homes.of(run[0]);
            if shared.homes.lane_of(home) == lane {
                let slots = shared.magazines.contents_mut(&mut self.spare);
                slots[kept..kept + run.len()].copy_from_slice(run);
                kept += run.len();
            } else {
                self.send(shared, home, run);
            }
        }
        self.tally(shared).counts.spilled.add((self.full - kept) as u64);
        kept
    }

    fn push_home(&self, shared: &Shared, home: u16, id: MagazineId) {
        let fitted = shared.push_home(home, id);
        self.count_sent(shared, home, self.full, fitted);
    }

    /// Puts frames of one home into its outbox.
    #[inline]
    pub(super) fn send(&mut self, shared: &Shared, home: u16, mut numbers: &[u32]) {
        while !numbers.is_empty() {
            let (taken, is_full) = self.outboxes.put(home, numbers);
            numbers = &numbers[taken..];
            if is_full {
                self.dispatch(shared, home);
                self.publish(shared);
            }
        }
    }

    /// Sends what is in an outbox, full or not.
    #[cold]
    fn dispatch(&mut self, shared: &Shared, home: u16) {
        let frames = self.outboxes.take(home);
        let count = frames.len();
        let inbox = shared.places.inbox(home);
        let magazine = if count == self.full { shared.pop_empty(inbox) } else { None };
        let fitted = match magazine {
            Some(mut id) => {
                shared.magazines.contents_mut(&mut id)[..count].copy_from_slice(frames);
                shared.push_home(home, id)
            }
            None => shared.push_home_loose(home, frames),
        };
        self.count_sent(shared, home, count, fitted);
    }

    fn count_sent(&self, shared: &Shared, home: u16, frames: usize, fitted: bool) {
        let tally = self.tally(shared);
        if home != self.home {
            tally.counts.sent_home.add(frames as u64);
        }
        if !fitted {
            tally.counts.inbox_full.add(frames as u64);
        }
    }

    pub(super) fn publish(&self, shared: &Shared) {
        let tally = self.tally(shared);
        tally.cached.store(self.frames() as u32, Ordering::Relaxed);
        tally.outboxes.store(self.outboxes.frames() as u32, Ordering::Relaxed);
        tally.counts.gets.set(self.gets);
    }

    #[cold]
    pub(super) fn put_foreign(&mut self, shared: &Shared, number: u32) {
        self.tally(shared).counts.foreign.add(1);
        shared.foreign(number);
    }

    /// The cache ends: everything goes back, also what is empty.
    pub(super) fn end(&mut self, shared: &Shared) {
        self.give_back(shared);
        self.empty.take().into_iter().for_each(|id| shared.magazines.push_empty(id));
        let (current, spare) = (self.current.take(), self.spare.take());
        shared.return_slot(Slot { number: self.slot, current, spare });
    }

    pub(super) fn tally<'a>(&self, shared: &'a Shared) -> &'a Tally {
        &shared.tallies[usize::from(self.slot)]
    }
}
