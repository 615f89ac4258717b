//! Mapping memory: the only part of this crate that calls the system.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

#[cfg(not(miri))]
use rustix::mm::{Advice, madvise};

use super::HugePages;
use crate::{Error, Result};

/// Where it is, how many bytes there are, and its memfd.
type Mapping = (NonNull<u8>, usize, Option<OwnedFd>);

/// The size of huge pages that is asked for, in bytes.
#[cfg(not(miri))]
const HUGE: usize = 2 << 20;

/// Maps at least so many bytes.
#[cfg(not(miri))]
pub(super) fn map(bytes: usize, huge_pages: HugePages, shared: bool) -> Result<Mapping> {
    let rounded = bytes.next_multiple_of(HUGE);
    let mapping = match huge_pages {
        HugePages::Never => pages(bytes, false, shared)?,
        HugePages::Require => pages(rounded, true, shared)?,
        HugePages::Try => match pages(rounded, true, shared) {
            Ok(mapping) => mapping,
            Err(_) => {
                let mapping = pages(bytes, false, shared)?;
                advise(&mapping, Advice::LinuxHugepage);
                mapping
            }
        },
    };
    // Now, and not when a frame is first used.
    advise(&mapping, Advice::LinuxPopulateWrite);
    Ok(mapping)
}

#[cfg(not(miri))]
fn pages(bytes: usize, huge: bool, shared: bool) -> Result<Mapping> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

    let failed = |error: rustix::io::Errno| {
        let hint = if huge { "; reserved huge pages: sysctl vm.nr_hugepages" } else { "" };
        Error::memory(format!("cannot map {bytes} bytes for frames{hint}"), error.into())
    };
    let memfd = if shared { Some(memfd(bytes, huge).map_err(failed)?) } else { None };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe {
        match &memfd {
            Some(fd) => mmap(null, bytes, access, MapFlags::SHARED, fd, 0),
            None => {
                let huge = if huge { MapFlags::HUGETLB } else { MapFlags::empty() };
                mmap_anonymous(null, bytes, access, MapFlags::PRIVATE | huge)
            }
        }
    }
    .map_err(failed)?;
    let start = NonNull::new(start.cast()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
    if let Some(fd) = &memfd {
        seal(fd).map_err(failed)?;
    }
    Ok((start, bytes, memfd))
}

/// Memory that other processes can map.
#[cfg(not(miri))]
fn memfd(bytes: usize, huge: bool) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    let huge = if huge { MemfdFlags::HUGETLB } else { MemfdFlags::empty() };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
    let fd = memfd_create("cachelane-frames", flags)?;
    ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// From now on it cannot grow or shrink, and what writes it is what is mapped now: whoever gets
/// the descriptor can map it to read.
#[cfg(not(miri))]
fn seal(fd: &OwnedFd) -> rustix::io::Result<()> {
    use rustix::fs::{SealFlags, fcntl_add_seals};

    let size = SealFlags::SHRINK | SealFlags::GROW;
    fcntl_add_seals(fd, size | SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// Advises the kernel on the memory. It may not know the advice, which is no error.
#[cfg(not(miri))]
fn advise(&(start, bytes, _): &Mapping, advice: Advice) {
    // SAFETY: the mapping is ours, and none of these changes what is in it.
    let advised = unsafe { madvise(start.as_ptr().cast(), bytes, advice) };
    let _ = advised;
}

/// Unmaps it.
///
/// # Safety
/// `map` gave it, and nothing refers to it.
#[cfg(not(miri))]
pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller says. It cannot fail for a mapping that exists.
    let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
    debug_assert!(unmapped.is_ok());
}

/// Miri checks what we do with memory, not how we get it.
#[cfg(miri)]
pub(super) fn map(bytes: usize, _: HugePages, _: bool) -> Result<Mapping> {
    // SAFETY: not of size 0: an area has a frame.
    let start = unsafe { std::alloc::alloc_zeroed(layout(bytes)) };
    let start = NonNull::new(start).ok_or_else(|| Error::invalid("no memory"))?;
    Ok((start, bytes, None))
}

#[cfg(miri)]
pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller says.
    unsafe { std::alloc::dealloc(start.as_ptr(), layout(bytes)) };
}

#[cfg(miri)]
fn layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, 4096).expect("a size that fits")
}
