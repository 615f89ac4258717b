//! A magazine that changes hands as a whole.

use std::mem::ManuallyDrop;

use crate::magazine::MagazineId;
use crate::{FramePool, numbers};

/// The right to [`batch_len`](crate::LaneCache::batch_len) frames of a pool at once: as so many
/// [`Frame`](crate::Frame)s, in eight bytes.
///
/// A thread that hands frames to another one moves this instead of their numbers: neither copies them,
/// and where nobody unpacks it, nobody writes them, so that both have them in their caches. It comes
/// from [`LaneCache::get_batch`](crate::LaneCache::get_batch) or
/// [`pack`](crate::LaneCache::pack) and goes by [`put_batch`](crate::LaneCache::put_batch) or
/// [`unpack`](crate::LaneCache::unpack).
///
/// One that is dropped goes home by a slow way, as a frame does.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch that is dropped takes a slow way home"]
pub struct Batch {
    id: MagazineId,
    /// The first number of its pool.
    first: u32,
}

impl Batch {
    /// The full magazine of the pool whose numbers begin with `first`.
    #[inline]
    pub(crate) fn new(id: MagazineId, first: u32) -> Batch {
        Batch { id, first }
    }

    /// Whether it is of the pool whose numbers begin with `first`.
    #[inline]
    pub(crate) fn is_of(&self, first: u32) -> bool {
        self.first == first
    }

    pub(crate) fn id(&self) -> &MagazineId {
        &self.id
    }

    #[inline]
    pub(crate) fn into_id(self) -> MagazineId {
        ManuallyDrop::new(self).id.take()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        numbers::dropped_batch(self.first, self.id.take());
    }
}

impl FramePool {
    /// The bytes of a batch's frame, counted from 0.
    ///
    /// # Panics
    /// If the batch is of another pool, or has no such frame.
    #[inline]
    pub fn batch_bytes<'a>(&'a self, batch: &'a Batch, index: usize) -> &'a [u8] {
        self.area().bytes_in(batch, self.number_in(batch, index))
    }

    /// The same, to be written.
    ///
    /// # Panics
    /// As [`batch_bytes`](Self::batch_bytes).
    #[inline]
    pub fn batch_bytes_mut<'a>(&'a self, batch: &'a mut Batch, index: usize) -> &'a mut [u8] {
        let number = self.number_in(batch, index);
        self.area().bytes_in_mut(batch, number)
    }

    #[inline]
    fn number_in(&self, batch: &Batch, index: usize) -> u32 {
        let shared = self.shared();
        assert!(batch.is_of(shared.area.first()), "a batch of another pool");
        shared.magazines.contents(batch.id(), shared.full as usize)[index]
    }
}
