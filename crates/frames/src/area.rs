//! The memory, cut into equal frames.

#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::{Error, Frame, Result};

mod map;

/// How an area is made. The default is 4096 frames of 2048 bytes.
#[derive(Clone, Debug)]
pub struct AreaOptions {
    /// How many frames: from 1 to 2^24.
    pub frames: u32,
    /// Bytes of each: a power of two from 64 to 2^20. AF_XDP takes 2048 and 4096.
    pub frame_size: u32,
    /// Whether huge pages back it.
    pub huge_pages: HugePages,
    /// Whether it is a memfd, which other processes can map to read. It is sealed: it cannot grow
    /// or shrink, and nobody but this mapping writes it.
    pub shared: bool,
}

/// Whether huge pages back an area: with them, far fewer frames share an entry of the CPU's
/// address translation cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    Never,
    /// Reserved huge pages if there are enough, else what the kernel makes of ordinary ones
    /// (transparent huge pages).
    #[default]
    Try,
    /// Reserved huge pages (`vm.nr_hugepages`), or an error.
    Require,
}

impl Default for AreaOptions {
    fn default() -> Self {
        Self { frames: 4096, frame_size: 2048, huge_pages: HugePages::Try, shared: false }
    }
}

/// Memory cut into equal frames.
///
/// The area does not know which frames are free: that is the [`FramePool`](crate::FramePool)'s.
///
/// A child that the process forks does not have the memory, so that two processes never take the
/// same frame: one that touches it there is ended by SIGSEGV. Other processes map the memfd of a
/// shared area.
#[derive(Debug)]
pub struct FrameArea {
    start: NonNull<u8>,
    /// Mapped bytes; huge pages round it up.
    mapped: usize,
    frames: u32,
    frame_size: u32,
    /// The number of its first frame; 0 until it is in a pool.
    first: u32,
    memfd: Option<OwnedFd>,
}

// SAFETY: the memory is reached through frames only, each of which has one owner.
unsafe impl Send for FrameArea {}
// SAFETY: as above.
unsafe impl Sync for FrameArea {}

impl FrameArea {
    /// Maps the memory, zeroed and present.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a number of frames or a size out of
    /// range, [`ErrorKind::Memory`](crate::ErrorKind::Memory) where the system does not give it
    /// all, here and now.
    pub fn new(options: &AreaOptions) -> Result<Self> {
        let &AreaOptions { frames, frame_size, huge_pages, shared } = options;
        if !(1..=1 << 24).contains(&frames) {
            return Err(Error::invalid(format!(
                "{frames} frames: an area has from 1 to {} of them",
                1 << 24
            )));
        }
        if !frame_size.is_power_of_two() || !(64..=1 << 20).contains(&frame_size) {
            return Err(Error::invalid(format!(
                "frames of {frame_size} bytes: expected a power of two from 64 to {}",
                1 << 20
            )));
        }
        let bytes = frames as usize * frame_size as usize;
        let (start, mapped, memfd) = map::map(bytes, huge_pages, shared)?;
        Ok(Self { start, mapped, frames, frame_size, first: 0, memfd })
    }

    /// How many frames it has.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Bytes of each frame.
    #[inline]
    pub fn frame_size(&self) -> u32 {
        self.frame_size
    }

    /// Bytes of all frames.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.frames as usize * self.frame_size as usize
    }

    /// Where it is mapped.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// The memfd, if it is shared.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(|fd| fd.as_fd())
    }

    /// The bytes of a frame.
    ///
    /// # Panics
    /// If the frame is of another area.
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let start = self.address(frame);
        // SAFETY: the handle is borrowed for as long, and there is only one; what is in kernel
        // hands has none.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.frame_size as usize) }
    }

    /// The bytes of a frame, to be written.
    ///
    /// # Panics
    /// If the frame is of another area.
    #[inline]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let start = self.address(frame);
        // SAFETY: the only handle is borrowed exclusively for as long.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.frame_size as usize) }
    }

    fn address(&self, frame: &Frame) -> NonNull<u8> {
        let index = frame.number().wrapping_sub(self.first);
        assert!(self.first != 0 && index < self.frames, "a frame of another area");
        // SAFETY: within the mapping, since the index is below the number of frames.
        unsafe { self.start.add(index as usize * self.frame_size as usize) }
    }

    /// The number of its first frame.
    #[inline]
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    pub(crate) fn set_first(&mut self, first: u32) {
        self.first = first;
    }
}

impl Drop for FrameArea {
    fn drop(&mut self) {
        // SAFETY: `map` gave it, and nothing can refer to it any more: bytes are borrowed from
        // the area.
        unsafe { map::unmap(self.start, self.mapped) };
    }
}
