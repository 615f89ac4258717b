//! What all threads of a pool share.
//!
//! Grouped by who writes it: read by all and written never (the area, who is at home where),
//! written when a setting changes, and written by each exchange of frames (places, magazines).

use std::num::NonZeroU16;
use std::sync::Weak;

use crossbeam_utils::CachePadded;

use crate::counters::Tally;
use crate::history::{Event, History};
use crate::homes::Homes;
use crate::magazine::{CAPACITY, MagazineId, Magazines};
use crate::place::Found;
use crate::places::{At, Places};
use crate::stack::MOST as MOST_MAGAZINES;
use crate::sync::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Mutex, Ordering, lock};
use crate::{AlienFree, Error, Frame, FrameArea, PoolOptions, Refused, Result, numbers};

/// In `states`: with nobody outside.
const HERE: u16 = 0;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) area: FrameArea,
    pub(crate) homes: Homes,
    pub(crate) magazines: Magazines,
    /// Frames in a full magazine.
    pub(crate) full: u32,
    pub(crate) places: Places,
    settings: CachePadded<Settings>,
    /// By frame: the holder outside that has it, or `HERE`.
    states: Box<[AtomicU16]>,
    /// By slot for caches.
    pub(crate) tallies: Box<[CachePadded<Tally>]>,
    free_slots: Mutex<Vec<Slot>>,
    free_holders: Mutex<Vec<u16>>,
    pub(crate) refused: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) withheld: AtomicU64,
    pub(crate) history: History,
    pub(crate) fatal: bool,
}

/// Read by every put, written seldom.
#[derive(Debug)]
struct Settings {
    alien_free: AtomicU8,
    /// Some cache has found no frame anywhere.
    wanted: AtomicBool,
}

/// What a cache needs to exist. Its two magazines are the slot's while there is no cache in it: so
/// they are there for the next one, wherever all others have gone.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Which tally is the cache's.
    pub(crate) number: u16,
    pub(crate) current: MagazineId,
    pub(crate) spare: MagazineId,
}

impl Shared {
    pub(crate) fn new(mut area: FrameArea, options: &PoolOptions) -> Result<Self> {
        options.check(&area)?;
        let frames = area.frames();
        area.set_first(numbers::allot(frames)?);
        let homes = Homes::new(area.first(), frames, &options.homes, area.page_frames());
        // Small pools have small magazines, so that four for each home are there.
        let fair = (frames / (4 * u32::from(homes.count()))).max(1);
        let full = (options.cache / 2).min(CAPACITY as u32).min(fair);
        let places = u32::from(homes.count()) + u32::from(homes.lane_count());
        // Of the magazines that are full at some time, a place's share, and a few.
        let empties = frames / full / places + 2;
        // Full ones for every frame, in places or batches; three for each cache and two in its hands;
        // and those that places keep: so there is an empty one for whoever needs it, and nobody has
        // to search.
        let magazines = frames / full + u32::from(options.caches) * 5 + places * empties;
        if magazines > MOST_MAGAZINES {
            return Err(Error::invalid(format!(
                "{frames} frames in caches of {}: expected larger caches for so many",
                options.cache
            )));
        }
        let magazines = Magazines::new(magazines);
        let slot = |number| {
            let (current, spare) = (magazines.pop_empty()?, magazines.pop_empty()?);
            Some(Slot { number, current, spare })
        };
        let free_slots = (0..options.caches).rev().filter_map(slot).collect();
        let this = Self {
            places: Places::new(&homes, full, options.inbox, empties),
            magazines,
            full,
            settings: CachePadded::new(Settings {
                alien_free: AtomicU8::new(options.alien_free as u8),
                wanted: AtomicBool::new(false),
            }),
            states: (0..frames).map(|_| AtomicU16::new(HERE)).collect(),
            tallies: (0..options.caches).map(|_| CachePadded::new(Tally::new())).collect(),
            free_slots: Mutex::new(free_slots),
            free_holders: Mutex::new((1..=u16::MAX).rev().collect()),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
            history: History::new(frames),
            fatal: options.fatal,
            homes,
            area,
        };
        (0..this.homes.count()).for_each(|home| this.fill_inbox(home));
        Ok(this)
    }

    /// Every frame begins at home.
    fn fill_inbox(&self, home: u16) {
        let (start, count) = self.homes.range(home);
        let numbers: Vec<u32> = (start..start + count).collect();
        let inbox = self.places.inbox(home);
        for batch in numbers.chunks(self.full as usize) {
            match self.magazines.pop_empty() {
                Some(mut id) if batch.len() == self.full as usize => {
                    self.magazines.contents_mut(&mut id)[..batch.len()].copy_from_slice(batch);
                    self.places.push(inbox, &self.magazines, id);
                }
                empty => {
                    self.places.push_loose(inbox, batch);
                    empty.into_iter().for_each(|id| self.magazines.push_empty(id));
                }
            }
        }
    }

    pub(crate) fn adopt(&self, this: Weak<Shared>) {
        numbers::adopt(self.area.first(), this);
    }

    #[inline]
    pub(crate) fn alien_free(&self) -> AlienFree {
        // Relaxed: from when on it counts is nobody's business but this thread's.
        match self.settings.alien_free.load(Ordering::Relaxed) {
            0 => AlienFree::Recycle,
            1 => AlienFree::Defer,
            _ => AlienFree::Auto,
        }
    }

    pub(crate) fn set_alien_free(&self, mode: AlienFree) {
        self.settings.alien_free.store(mode as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed: a request, not a hand-over.
        self.settings.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wanted(&self, wanted: bool) {
        if self.is_wanted() != wanted {
            self.settings.wanted.store(wanted, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn has(&self, number: u32) -> bool {
        number.wrapping_sub(self.area.first()) < self.area.frames()
    }

    /// Leaves a full magazine where it is to be, if there is room, or else in the lane's depot.
    /// Whether there was room.
    pub(crate) fn push_home(&self, home: u16, id: MagazineId) -> bool {
        match self.places.try_push(self.places.inbox(home), &self.magazines, id) {
            Ok(()) => true,
            Err(id) => {
                self.places.push(self.depot_of(home), &self.magazines, id);
                false
            }
        }
    }

    /// As [`push_home`](Self::push_home), for less than a magazine.
    pub(crate) fn push_home_loose(&self, home: u16, frames: &[u32]) -> bool {
        let fits = self.places.try_push_loose(self.places.inbox(home), frames);
        if !fits {
            self.places.push_loose(self.depot_of(home), frames);
        }
        fits
    }

    /// An empty magazine: from the place where a full one is left, since that place's line is
    /// needed anyway, or from those that nobody has.
    pub(crate) fn pop_empty(&self, near: At) -> Option<MagazineId> {
        let near = self.places.place(near);
        near.pop_empty(&self.magazines).or_else(|| self.magazines.pop_empty())
    }

    pub(crate) fn depot_of(&self, home: u16) -> At {
        self.places.depot(self.homes.lane_of(home))
    }

    pub(crate) fn take_home(&self, number: u32) {
        self.places.push_loose(self.places.inbox(self.homes.of(number)), &[number]);
    }

    pub(crate) fn take_slot(&self) -> Result<Slot> {
        lock(&self.free_slots).pop().ok_or_else(|| {
            Error::invalid(format!(
                "all {} caches of the pool are taken (PoolOptions::caches)",
                self.tallies.len()
            ))
        })
    }

    pub(crate) fn return_slot(&self, slot: Slot) {
        lock(&self.free_slots).push(slot);
    }

    pub(crate) fn live_caches(&self) -> usize {
        self.tallies.len() - lock(&self.free_slots).len()
    }

    pub(crate) fn take_holder(&self) -> Result<NonZeroU16> {
        let id = lock(&self.free_holders).pop().and_then(NonZeroU16::new);
        id.ok_or_else(|| Error::invalid("all 65535 holders of the pool are taken"))
    }

    /// Its id may be used again, unless it still has frames.
    pub(crate) fn return_holder(&self, id: NonZeroU16) {
        if !self.states.iter().any(|state| state.load(Ordering::Relaxed) == id.get()) {
            lock(&self.free_holders).push(id.get());
        }
    }

    pub(crate) fn release(&self, frame: Frame, holder: NonZeroU16) -> u64 {
        let number = frame.number();
        assert!(self.has(number), "frame {number} is of another area: it cannot be released here");
        let number = frame.into_number();
        let index = number - self.area.first();
        self.history.note(index, Event::Released, holder.get());
        // Release: pairs with the Acquire of `claim`, by whatever way the address went there; what
        // this thread did to the frame is done.
        self.states[index as usize].store(holder.get(), Ordering::Release);
        u64::from(index) * u64::from(self.area.frame_size())
    }

    #[inline]
    pub(crate) fn claim(&self, address: u64, holder: NonZeroU16) -> Result<Frame, Refused> {
        let index = address >> self.area.frame_size().trailing_zeros();
        let Some(state) = usize::try_from(index).ok().and_then(|i| self.states.get(i)) else {
            return Err(self.refuse(Refused::Foreign { address }, None));
        };
        // A swap, so that of two claims of one frame only one gets it. Acquire: see `release`.
        let claimed =
            state.compare_exchange(holder.get(), HERE, Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_err() {
            return Err(self.refuse(Refused::NotOut { address }, Some(index as u32)));
        }
        self.history.note(index as u32, Event::Claimed, holder.get());
        Ok(Frame::from_number(self.area.first() + index as u32))
    }

    #[cold]
    fn refuse(&self, refused: Refused, index: Option<u32>) -> Refused {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if self.fatal {
            let history = index.map(|index| self.history.of(index)).unwrap_or_default();
            panic!("{refused}; {history}");
        }
        refused
    }

    /// A frame of another pool was put here. It goes to its own.
    #[cold]
    pub(crate) fn foreign(&self, number: u32) {
        let frame = Frame::from_number(number);
        drop(frame);
        assert!(!self.fatal, "frame {number} was put into a pool that it is not of");
    }

    /// Everything that the holder has, with handles.
    pub(crate) fn reclaim(&self, holder: NonZeroU16) -> Vec<Frame> {
        let all = (self.area.first()..).zip(&self.states);
        let mine = all.filter(|(_, state)| {
            let took =
                state.compare_exchange(holder.get(), HERE, Ordering::Acquire, Ordering::Relaxed);
            took.is_ok()
        });
        let frame = |(number, _)| {
            self.note(number, Event::Claimed, holder.get());
            Frame::from_number(number)
        };
        mine.map(frame).collect()
    }

    pub(crate) fn released(&self, holder: Option<NonZeroU16>) -> u32 {
        let is_out = |state: &&AtomicU16| match (state.load(Ordering::Relaxed), holder) {
            (HERE, _) => false,
            (id, Some(holder)) => id == holder.get(),
            (_, None) => true,
        };
        self.states.iter().filter(is_out).count() as u32
    }

    #[inline]
    pub(crate) fn note(&self, number: u32, event: Event, by: u16) {
        self.history.note(number - self.area.first(), event, by);
    }

    /// The numbers of all frames that lie in some place, which are empty after this.
    pub(crate) fn drain(&self) -> Vec<u32> {
        let mut all = Vec::new();
        let mut loose = vec![0; self.full as usize];
        for place in self.places.inboxes().iter().chain(self.places.depots()) {
            while let Some(found) = place.take(&self.magazines, &mut loose) {
                match found {
                    Found::Loose(count) => all.extend_from_slice(&loose[..count]),
                    Found::Full(id) => {
                        all.extend_from_slice(self.magazines.contents(&id, self.full as usize));
                        self.magazines.push_empty(id);
                    }
                }
            }
        }
        all
    }

    /// Takes back a frame of its own whose handle was dropped.
    pub(crate) fn take_dropped(&self, number: u32) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.note(number, Event::Dropped, 0);
        self.take_home(number);
    }

    /// The same for a batch.
    pub(crate) fn take_dropped_batch(&self, id: MagazineId) {
        let numbers = self.magazines.contents(&id, self.full as usize);
        numbers.iter().for_each(|number| self.take_dropped(*number));
        self.magazines.push_empty(id);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Handles or holders that have frames still know their numbers: nobody else may get them.
        if self.drain().len() as u32 == self.area.frames() {
            numbers::free(self.area.first());
        }
    }
}
