//! The handle of one frame.

use std::mem::ManuallyDrop;
use std::num::NonZeroU32;

use crate::numbers;

/// The right to one frame of an area: who has it may read and write its bytes, through
/// [`FrameArea::bytes`](crate::FrameArea::bytes) and
/// [`bytes_mut`](crate::FrameArea::bytes_mut).
///
/// It can be moved to another thread and cannot be copied, so giving one back twice does not
/// compile:
///
/// ```compile_fail,E0382
/// # fn twice(cache: &mut frames::LaneCache, frame: frames::Frame) {
/// cache.put(frame);
/// cache.put(frame);
/// # }
/// ```
///
/// A frame that is dropped goes home by a slow way, which is counted
/// ([`Counters::dropped`](crate::Counters::dropped)): a thread that panics loses none. Only
/// [`mem::forget`](std::mem::forget) does.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is dropped takes a slow way home"]
#[repr(transparent)]
pub struct Frame(NonZeroU32);

impl Frame {
    /// The frame of this number, which is unique among all areas of the process. The caller sees
    /// to it that there is no other handle of it.
    #[inline]
    pub(crate) fn from_number(number: u32) -> Frame {
        // Numbers start at 1; `max` costs less than a branch, and nothing after inlining.
        Frame(NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX))
    }

    #[inline]
    pub(crate) fn into_number(self) -> u32 {
        ManuallyDrop::new(self).0.get()
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.0.get()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        numbers::dropped(self.0.get());
    }
}
