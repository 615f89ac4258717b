//! Mapping memory: the only part of this crate that calls the system.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

#[cfg(not(miri))]
use rustix::mm::{Advice, madvise};

use super::AreaOptions;
#[cfg(not(miri))]
use super::{HugePages, nodes};
use crate::{Error, ErrorKind, Result};

/// Memory that is mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) memfd: Option<OwnedFd>,
    /// Bytes of what the kernel finds as a whole, on one node.
    pub(super) page: usize,
    /// Why some of it may not be on the node that was wanted.
    pub(super) misplaced: Option<Error>,
}

/// The size of huge pages that is asked for, in bytes.
#[cfg(not(miri))]
const HUGE: usize = 2 << 20;

/// Maps at least the bytes of all frames.
#[cfg(not(miri))]
pub(super) fn map(options: &AreaOptions) -> Result<Mapping> {
    let &AreaOptions { huge_pages, shared, .. } = options;
    let bytes = options.frames as usize * options.frame_size as usize;
    let rounded = bytes.next_multiple_of(HUGE);
    let made = |mut mapping: Mapping| {
        let memory = NonNull::slice_from_raw_parts(mapping.start, mapping.bytes);
        mapping.misplaced = nodes::place(memory, mapping.page, options);
        present(mapping)
    };
    let huge = || made(pages(rounded, true, shared)?);
    match huge_pages {
        HugePages::Never => made(pages(bytes, false, shared)?),
        HugePages::Require => huge(),
        // What is reserved may not be there for this process: then it fails as it is populated.
        HugePages::Try => huge().or_else(|_| {
            let mut mapping = pages(bytes, false, shared)?;
            // A kernel without transparent huge pages does not know it, which is no error.
            let advised = advise(&mapping, Advice::LinuxHugepage);
            // Homes of less than a huge page have ordinary ones.
            if advised.is_ok() && bytes / options.nodes.len().max(1) >= HUGE {
                mapping.page = HUGE;
            }
            made(mapping)
        }),
    }
}

/// Has the kernel find all the memory now: what is not there is an error, and no SIGBUS when a
/// frame is first used. And a child that this process forks gets none of it.
#[cfg(not(miri))]
fn present(mapping: Mapping) -> Result<Mapping> {
    let advised = advise(&mapping, Advice::LinuxPopulateWrite)
        .and_then(|()| advise(&mapping, Advice::LinuxDontFork));
    match advised {
        Ok(()) => Ok(mapping),
        Err(error) => {
            let Mapping { start, bytes, .. } = mapping;
            // SAFETY: just mapped, and nobody else knows of it.
            unsafe { unmap(start, bytes) };
            let message = format!("there is no memory for {bytes} bytes of frames");
            Err(Error::caused(ErrorKind::Memory, message, error))
        }
    }
}

#[cfg(not(miri))]
fn pages(bytes: usize, huge: bool, shared: bool) -> Result<Mapping> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

    let failed = |error: rustix::io::Errno| {
        let hint = if huge { "; reserved huge pages: sysctl vm.nr_hugepages" } else { "" };
        let message = format!("cannot map {bytes} bytes for frames{hint}");
        Error::caused(ErrorKind::Memory, message, error)
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
    let page = if huge { HUGE } else { rustix::param::page_size() };
    Ok(Mapping { start, bytes, memfd, page, misplaced: None })
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

/// Advises the kernel on the memory.
#[cfg(not(miri))]
fn advise(&Mapping { start, bytes, .. }: &Mapping, advice: Advice) -> rustix::io::Result<()> {
    // SAFETY: the mapping is ours, and none of these changes what is in it.
    unsafe { madvise(start.as_ptr().cast(), bytes, advice) }
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
pub(super) fn map(options: &AreaOptions) -> Result<Mapping> {
    let bytes = options.frames as usize * options.frame_size as usize;
    // SAFETY: not of size 0: an area has a frame.
    let start = unsafe { std::alloc::alloc_zeroed(layout(bytes)) };
    let start = NonNull::new(start).ok_or_else(|| Error::invalid("no memory"))?;
    Ok(Mapping { start, bytes, memfd: None, page: 4096, misplaced: None })
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

#[cfg(all(test, not(any(miri, loom, shuttle))))]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::*;

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        const BYTES: usize = 1 << 16;
        let fd = memfd(BYTES, false).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, &fd, 0) }.unwrap();
        // Half of the file is gone: touching that half would be a SIGBUS.
        rustix::fs::ftruncate(&fd, BYTES as u64 / 2).unwrap();
        let start = NonNull::new(start.cast()).unwrap();
        let mapping = Mapping { start, bytes: BYTES, memfd: Some(fd), page: 4096, misplaced: None };
        let error = present(mapping).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Memory);
        assert!(error.to_string().contains("65536 bytes"), "{error}");
    }

    #[test]
    fn a_child_gets_none_of_the_memory() {
        for shared in [false, true] {
            let huge_pages = HugePages::Never;
            let options = AreaOptions::default().frames(32).huge_pages(huge_pages).shared(shared);
            let Mapping { start, bytes, memfd: _fd, .. } = map(&options).unwrap();
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let ours = format!("{:08x}-", start.as_ptr().addr());
            let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&ours));
            let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
            assert!(flags.split(' ').any(|flag| flag == "dc"), "shared {shared}: {flags}");
            // SAFETY: mapped above, and nothing refers to it.
            unsafe { unmap(start, bytes) };
        }
    }
}
