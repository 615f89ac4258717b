//! One thread's handle on a pool.
//!
//! It has two magazines, as in Bonwick and Adams, "Magazines and Vmem" (USENIX 2001): frames are
//! taken off and put onto the current one, last in, first out; when that is empty or full, it is
//! swapped with the spare one. So only every [`full`](crate::shared::Shared::full)th frame or
//! less costs an exchange with what other threads use, and no sequence of gets and puts exchanges
//! at every step. What takes no part in that is in `exchange.rs`.

#![allow(unsafe_code)]

mod batches;
mod exchange;
mod outboxes;

use std::mem::ManuallyDrop;

use crate::history::Event;
use crate::magazine::{CAPACITY, MagazineId};
use crate::shared::Shared;
use crate::{AlienFree, Batch, Error, Frame, FramePool, Result};
use exchange::Local;

/// One thread's handle on a pool: takes frames from it and gives them back.
///
/// It can be moved to another thread, not shared between threads. When it is dropped, its frames
/// go back to the pool.
///
/// A thread calls [`maintain`](Self::maintain) in every turn of its loop, so that what it does not
/// need is there for others, and [`park`](Self::park) before it sleeps. One that does neither can
/// keep up to [`capacity`](Self::capacity) frames, and those that it has collected for other homes.
#[derive(Debug)]
pub struct LaneCache {
    local: Local,
    pool: FramePool,
}

impl FramePool {
    /// A handle for one thread, at home there: a number below that of `PoolOptions::homes`.
    /// Several can share a home.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there is no such home, or if there
    /// are as many caches as `PoolOptions::caches`.
    pub fn cache(&self, home: u16) -> Result<LaneCache> {
        let homes = self.shared().homes.count();
        if home >= homes {
            return Err(Error::invalid(format!(
                "home {home}: the pool has homes 0 to {}",
                homes - 1
            )));
        }
        Ok(LaneCache { local: Local::new(self.shared(), home)?, pool: self.clone() })
    }
}

impl LaneCache {
    /// Takes a frame: the one put here last, if there is one, else from elsewhere in the pool.
    ///
    /// None means that there is none within reach: all are in use, or in other threads' caches. The
    /// others are asked to give back what they have, and do so with their next
    /// [`maintain`](Self::maintain).
    #[inline]
    pub fn get(&mut self) -> Option<Frame> {
        if self.local.len == 0 && !self.local.refill(self.pool.shared()) {
            return None;
        }
        self.local.len -= 1;
        self.local.gets += 1;
        // SAFETY: below the old `len`, which is at most `full`, are slots with frames.
        let number = unsafe { *self.local.slots.as_ptr().add(self.local.len) };
        self.note(number, Event::Got);
        Some(Frame::from_number(number))
    }

    /// Takes up to `n` frames and appends them to `into`; how many there were.
    #[inline]
    pub fn get_bulk(&mut self, n: usize, into: &mut Vec<Frame>) -> usize {
        into.reserve(n);
        let got = match self.local.len >= n {
            true => {
                self.take_into(n, into);
                n
            }
            false => self.gather_into(n, into),
        };
        self.local.gets += got as u64;
        self.note_all(numbers(&into[into.len() - got..]), Event::Got);
        got
    }

    /// Appends the last `count` frames of the current magazine, which has as many, to `into`, which has
    /// room for them.
    #[inline]
    fn take_into(&mut self, count: usize, into: &mut Vec<Frame>) {
        debug_assert!(count <= self.local.len && count <= into.capacity() - into.len());
        self.local.len -= count;
        // SAFETY: the old `len` slots are frames, of which the last `count` go to `into`, which has
        // room for them; a `Frame` is its number, and these leave the magazine.
        unsafe {
            let from = self.local.slots.as_ptr().add(self.local.len);
            copy(from, into.as_mut_ptr().add(into.len()).cast(), count);
            into.set_len(into.len() + count);
        }
    }

    /// As [`get_bulk`](Self::get_bulk), from more than one magazine; `into` has room.
    fn gather_into(&mut self, n: usize, into: &mut Vec<Frame>) -> usize {
        let mut got = 0;
        while got < n && (self.local.len > 0 || self.local.refill(self.pool.shared())) {
            let count = self.local.len.min(n - got);
            self.take_into(count, into);
            got += count;
        }
        got
    }

    /// Gives a frame back.
    ///
    /// One of another pool goes to that one; it is counted, and in debug builds fatal.
    #[inline]
    pub fn put(&mut self, frame: Frame) {
        let number = frame.into_number();
        if !self.is_ours(number) {
            return self.local.put_foreign(self.pool.shared(), number);
        }
        self.note(number, Event::Put);
        match self.shared().alien_free() {
            AlienFree::Defer if !self.is_at_home(number) => {
                self.put_apart(&[number]);
            }
            _ => self.keep(number),
        }
    }

    /// Frames in a batch.
    pub fn batch_len(&self) -> usize {
        self.local.full
    }

    /// Takes [`batch_len`](Self::batch_len) frames at once, or none if there are not so many within
    /// reach. As [`get`](Self::get) for each, at the cost of one.
    #[inline]
    pub fn get_batch(&mut self) -> Option<Batch> {
        let id = self.local.take_batch(self.pool.shared())?;
        self.local.gets += self.local.full as u64;
        self.note_all(self.shared().magazines.contents(&id, self.local.full), Event::Got);
        Some(Batch::new(id, self.local.first))
    }

    /// Gives a batch back. As [`put`](Self::put) for each of its frames, at the cost of one if they are
    /// all to go to the same place.
    #[inline]
    pub fn put_batch(&mut self, batch: Batch) {
        if !batch.is_of(self.local.first) {
            return self.local.put_foreign_batch(self.pool.shared(), batch);
        }
        let id = batch.into_id();
        self.note_all(self.shared().magazines.contents(&id, self.local.full), Event::Put);
        if let Err(mixed) = self.local.put_batch(self.pool.shared(), id) {
            self.put_one_by_one(mixed);
        }
    }

    /// The same where they are to go to several places.
    #[cold]
    fn put_one_by_one(&mut self, id: MagazineId) {
        let mut numbers = [0; CAPACITY];
        let numbers = &mut numbers[..self.local.full];
        numbers.copy_from_slice(self.shared().magazines.contents(&id, self.local.full));
        self.local.keep_empty(self.pool.shared(), id);
        match self.shared().alien_free() {
            AlienFree::Defer => self.put_apart(numbers),
            AlienFree::Recycle | AlienFree::Auto => self.keep_all(numbers),
        }
    }

    /// Makes a batch of the last frames of a list; None if there are fewer than
    /// [`batch_len`](Self::batch_len), or some of another pool.
    pub fn pack(&mut self, frames: &mut Vec<Frame>) -> Option<Batch> {
        let rest = frames.len().checked_sub(self.local.full)?;
        if !self.are_ours(numbers(&frames[rest..])) {
            return None;
        }
        let shared = self.pool.shared();
        let mut id = self.local.take_empty(shared)?;
        shared.magazines.contents_mut(&mut id)[..self.local.full]
            .copy_from_slice(numbers(&frames[rest..]));
        // SAFETY: shorter; the frames are in the batch now and must not be dropped.
        unsafe { frames.set_len(rest) };
        Some(Batch::new(id, self.local.first))
    }

    /// Appends the frames of a batch to a list.
    pub fn unpack(&mut self, batch: Batch, into: &mut Vec<Frame>) {
        if !batch.is_of(self.local.first) {
            return self.local.put_foreign_batch(self.pool.shared(), batch);
        }
        let (id, shared) = (batch.into_id(), self.pool.shared());
        let numbers = shared.magazines.contents(&id, self.local.full);
        into.extend(numbers.iter().map(|number| Frame::from_number(*number)));
        self.local.keep_empty(shared, id);
    }

    /// Takes `N` frames, or none if there are not so many.
    #[inline]
    pub fn get_array<const N: usize>(&mut self) -> Option<[Frame; N]> {
        if self.local.len < N {
            return self.gather();
        }
        self.local.len -= N;
        self.local.gets += N as u64;
        // SAFETY: the last `N` of the old `len` slots are frames, which leave the magazine; a
        // `Frame` is its number.
        let frames: [Frame; N] =
            unsafe { self.local.slots.as_ptr().add(self.local.len).cast::<[Frame; N]>().read() };
        self.note_all(numbers(&frames), Event::Got);
        Some(frames)
    }

    /// As [`get_array`](Self::get_array), from more than one magazine.
    fn gather<const N: usize>(&mut self) -> Option<[Frame; N]> {
        let mut numbers = [0; N];
        let mut got = 0;
        while got < N {
            if self.local.len == 0 && !self.local.refill(self.pool.shared()) {
                numbers[..got].iter().for_each(|&number| self.keep(number));
                return None;
            }
            let count = self.local.len.min(N - got);
            self.local.len -= count;
            // SAFETY: below the old `len` are slots with frames, and nobody writes them meanwhile.
            let from = unsafe {
                std::slice::from_raw_parts(self.local.slots.as_ptr().add(self.local.len), count)
            };
            numbers[got..got + count].copy_from_slice(from);
            got += count;
        }
        self.local.gets += N as u64;
        self.note_all(&numbers, Event::Got);
        Some(numbers.map(Frame::from_number))
    }

    /// Gives all of them back. As [`put`](Self::put) for each.
    #[inline]
    pub fn put_array<const N: usize>(&mut self, frames: [Frame; N]) {
        let frames = ManuallyDrop::new(frames);
        let numbers = numbers(&*frames);
        if !self.put_at_once(numbers) && !self.put_all(numbers) {
            ManuallyDrop::into_inner(frames).into_iter().for_each(|frame| self.put(frame));
        }
    }

    /// Gives all of them back; `frames` is empty after this. As [`put`](Self::put) for each.
    #[inline]
    pub fn put_bulk(&mut self, frames: &mut Vec<Frame>) {
        if self.put_at_once(numbers(frames)) || self.put_all(numbers(frames)) {
            // SAFETY: shorter; the frames are in magazines now and must not be dropped.
            unsafe { frames.set_len(0) };
        } else {
            frames.drain(..).for_each(|frame| self.put(frame));
        }
    }

    /// Puts frames onto the current magazine, if they are to stay, it has room for all of them, and all
    /// are of this pool; else none, and false. What is compared is copied on the way.
    #[inline]
    fn put_at_once(&mut self, numbers: &[u32]) -> bool {
        let may_stay = self.shared().alien_free() != AlienFree::Defer;
        if !may_stay || self.local.full - self.local.len < numbers.len() {
            return false;
        }
        // SAFETY: `numbers.len()` slots from `len` on are free and up to `full`; that they hold numbers
        // says nothing until `len` does.
        let differing = unsafe {
            let to = self.local.slots.as_ptr().add(self.local.len);
            copy_comparing(numbers.as_ptr(), to, numbers.len(), self.local.first)
        };
        let ours = self.is_within(differing);
        if ours {
            self.note_all(numbers, Event::Put);
            self.local.len += numbers.len();
        }
        ours
    }

    /// Puts frames of this pool where they are to go; or none of them, and false, if some are not
    /// of this pool.
    #[inline]
    fn put_all(&mut self, numbers: &[u32]) -> bool {
        if !self.are_ours(numbers) {
            return false;
        }
        self.note_all(numbers, Event::Put);
        match self.shared().alien_free() {
            AlienFree::Defer => self.put_apart(numbers),
            AlienFree::Recycle | AlienFree::Auto => self.keep_all(numbers),
        }
        true
    }

    /// Keeps what is at home here, and sends the rest home.
    fn put_apart(&mut self, mut numbers: &[u32]) {
        while let [first, ..] = numbers {
            let homes = &self.shared().homes;
            let home = homes.of(*first);
            // Mostly they are all of one home.
            let alike = match homes.are_all_of(home, numbers) {
                true => numbers.len(),
                false => numbers.iter().take_while(|number| homes.of(**number) == home).count(),
            };
            let (now, later) = numbers.split_at(alike);
            match home == self.local.home {
                true => self.keep_all(now),
                false => self.local.send(self.pool.shared(), home, now),
            }
            numbers = later;
        }
    }

    /// Puts frames onto the current magazine, and the next ones.
    #[inline]
    fn keep_all(&mut self, mut rest: &[u32]) {
        while !rest.is_empty() {
            if self.local.len == self.local.full {
                self.local.spill(self.pool.shared());
            }
            let (now, later) = rest.split_at(rest.len().min(self.local.full - self.local.len));
            // SAFETY: `now.len()` slots from `len` on are free and up to `full`.
            unsafe {
                let to = self.local.slots.as_ptr().add(self.local.len);
                copy(now.as_ptr(), to, now.len());
            }
            self.local.len += now.len();
            rest = later;
        }
    }

    /// Where it is at home: frames of this home are not alien here.
    pub fn home(&self) -> u16 {
        self.local.home
    }

    /// The most frames that it keeps, besides those on their way to other homes.
    pub fn capacity(&self) -> usize {
        2 * self.local.full
    }

    /// Frames that it has now.
    pub fn len(&self) -> usize {
        self.local.frames()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// To be called in each turn of the thread's loop; costs a few loads.
    ///
    /// Gives everything back when another cache goes without, at most in every sixteenth turn, and
    /// when this one was not asked for a frame between two looks, 1024 turns apart.
    #[inline]
    pub fn maintain(&mut self) {
        let is_idle = self.local.is_idle(self.pool.shared());
        if is_idle || self.shared().is_wanted() && self.local.answers() {
            self.park();
        }
    }

    /// Gives everything back: to be called before the thread sleeps, or does something else for a
    /// while. What is at home here waits in the inbox, where the cache finds it again, unless
    /// somebody else is in need.
    #[cold]
    pub fn park(&mut self) {
        self.local.give_back(self.pool.shared());
    }

    /// The pool.
    pub fn pool(&self) -> &FramePool {
        &self.pool
    }

    #[inline]
    fn keep(&mut self, number: u32) {
        if self.local.len == self.local.full {
            self.local.spill(self.pool.shared());
        }
        // SAFETY: `spill` made room, so slot `len` is below `full`.
        unsafe { *self.local.slots.as_ptr().add(self.local.len) = number };
        self.local.len += 1;
    }

    #[inline]
    fn is_ours(&self, number: u32) -> bool {
        self.is_within(number ^ self.local.first)
    }

    /// Whether numbers that differ from this pool's first one in these bits are in its range.
    #[inline]
    fn is_within(&self, differing: u32) -> bool {
        differing & !self.local.within == 0
    }

    #[inline]
    fn are_ours(&self, numbers: &[u32]) -> bool {
        // Without an early end: done on several at once.
        let differing = numbers.iter().fold(0, |all, number| all | (number ^ self.local.first));
        self.is_within(differing)
    }

    #[inline]
    fn is_at_home(&self, number: u32) -> bool {
        number.wrapping_sub(self.local.home_first) < self.local.home_count
    }

    #[inline]
    fn note(&self, number: u32, event: Event) {
        if cfg!(debug_assertions) {
            self.shared().note(number, event, self.local.slot);
        }
    }

    #[inline]
    fn note_all(&self, numbers: &[u32], event: Event) {
        if cfg!(debug_assertions) {
            numbers.iter().for_each(|&number| self.note(number, event));
        }
    }

    #[inline]
    fn shared(&self) -> &Shared {
        self.pool.shared()
    }
}

/// Copies by blocks of a fixed size: for a batch, a call of `memcpy` costs as much as the copy
/// (`cachelane bench frames`, get+put bulk 32).
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`](std::ptr::copy_nonoverlapping).
#[inline]
unsafe fn copy(from: *const u32, to: *mut u32, count: usize) {
    const BLOCK: usize = 16;
    let whole = count / BLOCK * BLOCK;
    // SAFETY: as the caller says; the blocks and the rest make `count`.
    unsafe {
        for at in (0..whole).step_by(BLOCK) {
            let block = from.add(at).cast::<[u32; BLOCK]>().read_unaligned();
            to.add(at).cast::<[u32; BLOCK]>().write_unaligned(block);
        }
        for at in whole..count {
            *to.add(at) = *from.add(at);
        }
    }
}

/// The same, and in which bits any of the numbers differs from this one.
///
/// # Safety
/// As [`copy`].
#[inline]
unsafe fn copy_comparing(from: *const u32, to: *mut u32, count: usize, with: u32) -> u32 {
    const BLOCK: usize = 16;
    let whole = count / BLOCK * BLOCK;
    let mut differing = [0_u32; 4];
    // SAFETY: as the caller says; the blocks and the rest make `count`.
    unsafe {
        for at in (0..whole).step_by(BLOCK) {
            let block = from.add(at).cast::<[u32; BLOCK]>().read_unaligned();
            to.add(at).cast::<[u32; BLOCK]>().write_unaligned(block);
            for (at, number) in block.into_iter().enumerate() {
                differing[at % 4] |= number ^ with;
            }
        }
        for at in whole..count {
            *to.add(at) = *from.add(at);
            differing[at % 4] |= *from.add(at) ^ with;
        }
    }
    differing.into_iter().fold(0, |all, differing| all | differing)
}

/// The numbers of frames.
#[inline]
fn numbers(frames: &[Frame]) -> &[u32] {
    // SAFETY: a `Frame` is its number.
    unsafe { std::slice::from_raw_parts(frames.as_ptr().cast(), frames.len()) }
}

impl Drop for LaneCache {
    fn drop(&mut self) {
        self.local.end(self.pool.shared());
    }
}
