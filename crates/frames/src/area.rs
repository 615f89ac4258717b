//! The memory, cut into equal frames.

#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::{Batch, Error, Frame, Result};
use derive_setters::Setters;
use map::Mapping;

mod map;
#[cfg(not(miri))]
mod nodes;

/// How an area is made. The default is 4096 frames of 2048 bytes.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
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
    /// The NUMA node whose memory each home of the pool gets, by the home's number; the kernel
    /// chooses for a home with none. With nodes, homes begin at pages, if each has a page or more.
    /// Empty, or none for any: the kernel chooses for all, as is right on a machine with one node.
    pub nodes: Vec<Option<u32>>,
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
        let nodes = Vec::new();
        Self { frames: 4096, frame_size: 2048, huge_pages: HugePages::Try, shared: false, nodes }
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
    /// How many homes it has nodes for.
    nodes: usize,
    /// Frames of a page that is on one node, or 1 without nodes.
    page_frames: u32,
    misplaced: Option<Error>,
}

// SAFETY: the memory is reached through frames only, each of which has one owner.
unsafe impl Send for FrameArea {}
// SAFETY: as above.
unsafe impl Sync for FrameArea {}

impl FrameArea {
    /// Maps the memory, zeroed and present. A node that the kernel does not take is no error: see
    /// [`misplaced`](Self::misplaced).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a number of frames or a size out of
    /// range, [`ErrorKind::Memory`](crate::ErrorKind::Memory) where the system does not give it
    /// all, here and now.
    pub fn new(options: &AreaOptions) -> Result<Self> {
        let &AreaOptions { frames, frame_size, ref nodes, .. } = options;
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
        if nodes.len() > frames as usize {
            return Err(Error::invalid(format!("{} homes for {frames} frames", nodes.len())));
        }
        let Mapping { start, bytes: mapped, memfd, page, misplaced } = map::map(options)?;
        let placed = nodes.iter().any(Option::is_some);
        let page_frames = if placed { page_frames(page, frame_size) } else { 1 };
        let nodes = nodes.len();
        Ok(Self {
            start,
            mapped,
            frames,
            frame_size,
            first: 0,
            memfd,
            nodes,
            page_frames,
            misplaced,
        })
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

    /// Why some home's memory may be on another node than was wanted, if the kernel refused one:
    /// it lacks NUMA or the node, or this process may not choose. That costs speed alone.
    pub fn misplaced(&self) -> Option<&Error> {
        self.misplaced.as_ref()
    }

    /// The bytes of a frame.
    ///
    /// # Panics
    /// If the frame is of another area.
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let start = self.address(frame.number());
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
        let start = self.address(frame.number());
        // SAFETY: the only handle is borrowed exclusively for as long.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.frame_size as usize) }
    }

    /// The bytes of the frame of this number, which is in the batch.
    #[inline]
    pub(crate) fn bytes_in<'a>(&'a self, _batch: &'a Batch, number: u32) -> &'a [u8] {
        let start = self.address(number);
        // SAFETY: as for `bytes`: the batch is the handle.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.frame_size as usize) }
    }

    /// The same, to be written.
    #[inline]
    pub(crate) fn bytes_in_mut<'a>(&'a self, _batch: &'a mut Batch, number: u32) -> &'a mut [u8] {
        let start = self.address(number);
        // SAFETY: as for `bytes_mut`: the batch is the handle.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.frame_size as usize) }
    }

    fn address(&self, number: u32) -> NonNull<u8> {
        let index = number.wrapping_sub(self.first);
        assert!(self.first != 0 && index < self.frames, "a frame of another area");
        // SAFETY: within the mapping, since the index is below the number of frames.
        unsafe { self.start.add(index as usize * self.frame_size as usize) }
    }

    /// The number of its first frame.
    #[inline]
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// How many homes it has nodes for; 0 suits any pool.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Frames of a page, where homes are cut at pages; else 1.
    pub(crate) fn page_frames(&self) -> u32 {
        self.page_frames
    }

    pub(crate) fn set_first(&mut self, first: u32) {
        self.first = first;
    }
}

/// Frames of a page of so many bytes; 1 if a frame is no less.
fn page_frames(page: usize, frame_size: u32) -> u32 {
    (page as u32 / frame_size).max(1)
}

impl Drop for FrameArea {
    fn drop(&mut self) {
        // SAFETY: `map` gave it, and nothing can refer to it any more: bytes are borrowed from
        // the area.
        unsafe { map::unmap(self.start, self.mapped) };
    }
}
