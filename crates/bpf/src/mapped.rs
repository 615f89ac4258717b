//! Maps of numbers that are shared with programs as memory.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The values of an array map of 64-bit numbers that may be mapped (`BPF_F_MMAPABLE`).
#[derive(Debug)]
pub struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it is memory of atomics, which any thread may read and write.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the map of this descriptor, which has so many values.
    ///
    /// # Errors
    /// What the system reports; `InvalidInput` for no values.
    pub fn map(map: BorrowedFd<'_>, count: u32) -> io::Result<Words> {
        let count = count as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // At once: whoever writes first is not to wait for the page.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a place that nobody has; it refuses more than the map has.
        let start = unsafe { mmap(null_mut(), count * 8, access, flags, map, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Words { start, count })
    }
}

impl std::ops::Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the memory is mapped for as long as `self`, holds so many numbers at the start of a
        // page, and others write it as atomics: the kernel and programs word by word.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has a reference to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * 8) };
    }
}
