//! The rings that a process and the kernel pass descriptors by: one producer, one consumer.
//!
//! Made for batches: a side looks at the other's index only when what it knows of it is not
//! enough, and publishes its own once a batch. Not for several threads on one side.
//!
//! # Protocol
//!
//! `producer` and `consumer` are free-running counts of all descriptors ever published and ever
//! taken, modulo 2^32; a descriptor's slot is its count modulo the ring's size, a power of two.
//! Between the two are the descriptors that are the consumer's; all other slots are the
//! producer's. Each index is written by its own side alone. The kernel names the four accesses
//! (net/xdp/xsk_queue.h):
//!
//! - A, the producer reads `consumer`; synchronizes with D. Without it a slot could be written
//!   before the consumer is done reading it.
//! - B, the producer publishes `producer`; synchronizes with C. Without it the consumer could read
//!   a slot before it is written.
//! - C, the consumer reads `producer`; synchronizes with B.
//! - D, the consumer publishes `consumer`; synchronizes with A.
//!
//! The kernel's A is a control dependency, which the memory model of Rust does not have; ours is
//! an acquire.
#![allow(unsafe_code)]

use std::any::Any;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sync::{AtomicU32, Ordering, UnsafeCell};

pub(crate) mod mapped;

/// Set by the kernel in a ring's flags when it has to be woken (`XDP_RING_NEED_WAKEUP`).
pub(crate) const NEED_WAKEUP: u32 = 1;

/// The side that writes descriptors.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    memory: Memory<T>,
    /// What the next published descriptor is counted as.
    next: u32,
    /// The other side's index, when last looked at.
    consumer: u32,
}

/// The side that reads descriptors.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    memory: Memory<T>,
    /// What the next taken descriptor is counted as.
    next: u32,
    /// The other side's index, when last looked at.
    producer: u32,
}

impl<T: Copy> Producer<T> {
    /// Goes on where the ring is. One at a time per ring, or descriptors get lost.
    pub(crate) fn new(memory: Memory<T>) -> Self {
        // Relaxed: our own index, which nobody else writes.
        let next = memory.producer().load(Ordering::Relaxed);
        // A.
        let consumer = memory.consumer().load(Ordering::Acquire);
        Self { memory, next, consumer }
    }

    /// For how many descriptors there is room, as far as `wanted` asks.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let room = |consumer| self.memory.size() - self.next.wrapping_sub(consumer);
        if room(self.consumer) < wanted {
            // A: synchronizes with D.
            self.consumer = self.memory.consumer().load(Ordering::Acquire);
        }
        let room = self.memory.size() - self.next.wrapping_sub(self.consumer);
        room.min(wanted)
    }

    /// Writes descriptors for as long as there are any and there is room, at most `max`, and
    /// publishes them at once. How many. Nothing is asked for that would not fit.
    #[inline]
    pub(crate) fn push(&mut self, max: u32, mut next: impl FnMut() -> Option<T>) -> u32 {
        let room = self.room(max);
        let mut pushed = 0;
        while pushed < room {
            let Some(value) = next() else { break };
            let slot = self.memory.slot(self.next.wrapping_add(pushed));
            // SAFETY: the slot is ours: `room` says that the consumer is done with it, and
            // nothing of it is published yet.
            slot.with_mut(|slot| unsafe { slot.write(value) });
            pushed += 1;
        }
        if pushed > 0 {
            self.next = self.next.wrapping_add(pushed);
            // B: synchronizes with C.
            self.memory.producer().store(self.next, Ordering::Release);
        }
        pushed
    }

    /// How many published descriptors the other side has not taken.
    pub(crate) fn pending(&self) -> u32 {
        // Relaxed: a number to show; nothing is read or written on the strength of it.
        self.next.wrapping_sub(self.memory.consumer().load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        // Relaxed: the flag stays set until the kernel has been woken, so that one read too early
        // is seen the next time. `poll` looks at the ring itself before it sleeps.
        self.memory.flags().load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

impl<T: Copy> Consumer<T> {
    /// Goes on where the ring is. One at a time per ring.
    pub(crate) fn new(memory: Memory<T>) -> Self {
        // Relaxed: our own index, which nobody else writes.
        let next = memory.consumer().load(Ordering::Relaxed);
        // C.
        let producer = memory.producer().load(Ordering::Acquire);
        Self { memory, next, producer }
    }

    /// How many descriptors there are to take, as far as `wanted` asks.
    #[inline]
    pub(crate) fn ready(&mut self, wanted: u32) -> u32 {
        if self.producer.wrapping_sub(self.next) < wanted {
            // C: synchronizes with B.
            self.producer = self.memory.producer().load(Ordering::Acquire);
        }
        self.producer.wrapping_sub(self.next).min(wanted)
    }

    /// A descriptor that [`ready`](Self::ready) has counted, the oldest being 0. It stays.
    ///
    /// # Panics
    /// If it was not counted.
    #[inline]
    pub(crate) fn peek(&self, at: u32) -> T {
        assert!(at < self.producer.wrapping_sub(self.next), "descriptor {at} is not there");
        let slot = self.memory.slot(self.next.wrapping_add(at));
        // SAFETY: the slot is ours: it is below the index that C has read, so that it was written,
        // and the producer leaves it alone until we publish an index past it.
        slot.with(|slot| unsafe { slot.read() })
    }

    /// Takes up to `max` descriptors, oldest first, and gives their slots back at once. How many.
    #[inline]
    pub(crate) fn pop(&mut self, max: u32, mut take: impl FnMut(T)) -> u32 {
        let ready = self.ready(max);
        for at in 0..ready {
            take(self.peek(at));
        }
        self.release(ready);
        ready
    }

    /// Gives the slots of the oldest `count` descriptors back.
    #[inline]
    fn release(&mut self, count: u32) {
        if count > 0 {
            self.next = self.next.wrapping_add(count);
            // D: synchronizes with A.
            self.memory.consumer().store(self.next, Ordering::Release);
        }
    }

    /// How many descriptors wait to be taken.
    pub(crate) fn pending(&self) -> u32 {
        // Relaxed: a number to show.
        self.memory.producer().load(Ordering::Relaxed).wrapping_sub(self.next)
    }
}

/// Where a ring lies, and what keeps it there.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    parts: Parts<T>,
    mask: u32,
    _owner: Arc<dyn Any + Send + Sync>,
    _shares: PhantomData<T>,
}

// SAFETY: the memory is shared with another side already, and both keep to the protocol; the
// pointers stay good on any thread for as long as the owner is there.
unsafe impl<T: Send> Send for Memory<T> {}

/// The places of a ring's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<T> {
    pub(crate) producer: NonNull<AtomicU32>,
    pub(crate) consumer: NonNull<AtomicU32>,
    pub(crate) flags: NonNull<AtomicU32>,
    pub(crate) slots: NonNull<UnsafeCell<T>>,
}

impl<T> Memory<T> {
    /// A ring of `size` slots.
    ///
    /// # Safety
    /// `size` is a power of two; all parts are aligned, initialized and live as long as the
    /// owner does; `slots` are `size` in number; nobody but a producer and a consumer that keep
    /// to the protocol writes to them.
    pub(crate) unsafe fn new(
        parts: Parts<T>,
        size: u32,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        debug_assert!(size.is_power_of_two());
        Self { parts, mask: size - 1, _owner: owner, _shares: PhantomData }
    }

    #[inline]
    fn size(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: good for as long as the owner is there, which we hold.
        unsafe { self.parts.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.parts.consumer.as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.parts.flags.as_ref() }
    }

    #[inline]
    fn slot(&self, count: u32) -> &UnsafeCell<T> {
        // SAFETY: the mask keeps the offset below the number of slots; else as above.
        unsafe { self.parts.slots.add((count & self.mask) as usize).as_ref() }
    }
}

#[cfg(test)]
mod tests;
