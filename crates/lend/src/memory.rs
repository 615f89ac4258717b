//! Memory that one process writes and another one reads.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create, open,
};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::reaper::Reaper;
use crate::sync::AtomicU32;

/// A mapping of a memfd, undone when dropped.
///
/// It is never lent out as a slice or a reference to anything but an atomic: the other side may
/// write at any time.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Who undoes it; none is whoever drops it.
    reaper: Option<Reaper>,
}

// SAFETY: a mapping is the whole process's, and what is in it is reached by atomics, or by the
// one ring that has it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory that we write and whoever gets the descriptor can only read.
    pub(crate) fn ours(name: &CStr, len: usize) -> Result<(Self, OwnedFd)> {
        let fd = new(name, len)?;
        let memory = Self::map(&fd, len, true)?;
        // After our own mapping, which may go on writing.
        fcntl_add_seals(&fd, FIXED | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok((memory, fd))
    }

    /// New memory for whoever gets the descriptor to map and write. It cannot shrink. It is not to
    /// be read before [`theirs`](Self::theirs) has it.
    pub(crate) fn for_other(name: &CStr, len: usize) -> Result<OwnedFd> {
        let fd = new(name, len)?;
        fcntl_add_seals(&fd, FIXED)?;
        Ok(fd)
    }

    /// Maps, to be read, what [`for_other`](Self::for_other) made, after the other side has mapped
    /// it: whoever writes it now goes on, and nobody can make a hole in it any more. While a hole
    /// is made, whoever reads there waits in the kernel until that is done, and the other side can
    /// make it take as long as it likes. So this waits for those holes that are being made, and
    /// fills them all. `Errno::PERM` if the other side has seen to it that nothing can be sealed.
    pub(crate) fn theirs(fd: impl AsFd, len: usize) -> Result<Self> {
        fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Self::map(fd, len, false)
    }

    /// Maps memory that the other side has made: `Errno::PERM` if it could shrink under us,
    /// `Errno::INVAL` if it has fewer bytes than that.
    pub(crate) fn of_other(fd: impl AsFd, len: usize, writable: bool) -> Result<Self> {
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(Errno::PERM);
        }
        let size = fstat(&fd)?.st_size;
        if len == 0 || usize::try_from(size).map_or(true, |size| size < len) {
            return Err(Errno::INVAL);
        }
        Self::map(fd, len, writable)
    }

    /// What another process has too: dropping it takes as long as that process likes.
    pub(crate) fn reaped(mut self, by: &Reaper) -> Self {
        self.reaper = Some(by.clone());
        self
    }

    fn map(fd: impl AsFd, len: usize, writable: bool) -> Result<Self> {
        let mut access = ProtFlags::READ;
        access.set(ProtFlags::WRITE, writable);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let memory = Self { start, len, writable, reaper: None };
        let populate =
            if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // Memory that is not there is an error now, and no signal later.
        // SAFETY: the mapping is ours, and this changes nothing that is in it.
        unsafe { madvise(start.as_ptr().cast(), len, populate) }?;
        Ok(memory)
    }

    /// A word that either side may write.
    ///
    /// # Panics
    /// If it is not inside, or not aligned.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        let word = self.part::<AtomicU32>(offset, 1);
        // SAFETY: inside the mapping and aligned, as `part` checks; the mapping lives as long as
        // the reference, and is accessed atomically here and by the other side. Where it is mapped
        // to be read, nobody of this crate stores into it.
        unsafe { word.as_ref() }
    }

    /// Where `count` values lie.
    ///
    /// # Panics
    /// If they are not inside, or not aligned.
    #[inline]
    pub(crate) fn part<T>(&self, offset: usize, count: usize) -> NonNull<T> {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(
            end.is_some_and(|end| end <= self.len) && offset.is_multiple_of(align_of::<T>()),
            "{count} values at {offset} are not inside {} bytes",
            self.len
        );
        // SAFETY: inside the mapping.
        unsafe { self.start.add(offset) }.cast()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let (start, len) = (self.start.as_ptr().expose_provenance(), self.len);
        let unmap = move || {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: mapped by `map`, and whoever has pointers into it has it too.
            let unmapped = unsafe { munmap(start, len) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        };
        match &self.reaper {
            Some(reaper) => reaper.run(unmap),
            None => unmap(),
        }
    }
}

/// Tells whether a memory that was handed out is still somebody's.
///
/// The kernel keeps a memory, at the lender's expense, for as long as anybody has a descriptor or
/// a mapping of it, and does not say who has. A lease on reading it gives only while nobody has
/// opened the memory to write it, though. So what is handed out is opened to write it, once; what
/// [`Memory`] has itself never was opened, and counts for nothing.
#[derive(Debug)]
pub(crate) struct Witness {
    fd: OwnedFd,
}

impl Witness {
    /// The descriptor that is handed out in the place of this one, and who will tell whether it is
    /// gone. The memory cannot be opened by another user from now on, so that the kernel counts
    /// every one of its descriptors.
    pub(crate) fn of(fd: &OwnedFd) -> Result<(OwnedFd, Self)> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let opened = |access| open(&*path, access | OFlags::CLOEXEC, Mode::empty());
        let (handed_out, witness) = (opened(OFlags::RDWR)?, opened(OFlags::RDONLY)?);
        fchmod(fd, Mode::empty())?;
        Ok((handed_out, Self { fd: witness }))
    }

    /// Whether anybody has it. Where the kernel has no leases on memories, nobody has.
    pub(crate) fn is_held(&self) -> bool {
        // SAFETY: neither command takes a pointer.
        let lease =
            |kind: libc::c_int| unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_SETLEASE, kind) };
        if lease(libc::F_RDLCK) == 0 {
            lease(libc::F_UNLCK);
            return false;
        }
        Errno::from_io_error(&std::io::Error::last_os_error()) == Some(Errno::AGAIN)
    }
}

const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn new(name: &CStr, len: usize) -> Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::pwrite;

    use super::*;

    #[test]
    fn memory_of_ours_cannot_be_written_resized_or_unsealed_by_others() {
        let (memory, fd) = Memory::ours(c"test", 4096).unwrap();
        memory.word(8).store(7, std::sync::atomic::Ordering::Relaxed);
        let theirs = Memory::of_other(&fd, 4096, false).unwrap();
        assert_eq!(theirs.word(8).load(std::sync::atomic::Ordering::Relaxed), 7);
        assert_eq!(Memory::of_other(&fd, 4096, true).unwrap_err(), Errno::PERM);
        assert_eq!(pwrite(&fd, &[1], 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn memory_of_theirs_can_be_written_by_those_who_mapped_it_and_not_shrunk() {
        let fd = Memory::for_other(c"test", 4096).unwrap();
        let theirs = Memory::of_other(&fd, 4096, true).unwrap();
        let memory = Memory::theirs(&fd, 4096).unwrap();
        theirs.word(0).store(9, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(memory.word(0).load(std::sync::atomic::Ordering::Relaxed), 9);
        assert!(!memory.is_writable());
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(Memory::of_other(&fd, 4096, true).unwrap_err(), Errno::PERM);
        // It cannot be made unwritable under the borrower either.
        assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn holes_in_memory_of_theirs_are_filled_when_it_is_sealed_and_none_come_after() {
        let fd = Memory::for_other(c"test", 5 * 4096).unwrap();
        let theirs = Memory::of_other(&fd, 5 * 4096, true).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&fd, hole, 4096, 4096).unwrap();
        let blocks = || fstat(&fd).unwrap().st_blocks;
        assert_eq!(blocks(), 4 * 8);
        let ours = Memory::theirs(&fd, 5 * 4096).unwrap();
        assert_eq!(blocks(), 5 * 8);
        assert_eq!(fallocate(&fd, hole, 4096, 4096), Err(Errno::PERM));
        let page = theirs.part::<u8>(4096, 4096);
        // SAFETY: inside the mapping, where nothing refers to.
        let removed = unsafe { madvise(page.as_ptr().cast(), 4096, Advice::LinuxRemove) };
        assert_eq!(removed, Err(Errno::PERM));
        assert_eq!(blocks(), 5 * 8);
        drop(ours);
    }

    #[test]
    fn memory_that_the_other_side_has_sealed_itself_is_not_mapped() {
        let fd = Memory::for_other(c"test", 4096).unwrap();
        fcntl_add_seals(&fd, SealFlags::SEAL).unwrap();
        assert_eq!(Memory::theirs(&fd, 4096).unwrap_err(), Errno::PERM);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let fd = new(c"test", 8192).unwrap();
        // Half of the file is gone: touching that half would be a signal.
        ftruncate(&fd, 4096).unwrap();
        assert!(Memory::map(&fd, 8192, false).is_err());
        assert!(Memory::map(&fd, 8192, true).is_err());
    }

    #[test]
    fn memory_that_could_shrink_or_is_too_short_is_not_mapped() {
        let fd = new(c"test", 4096).unwrap();
        assert_eq!(Memory::of_other(&fd, 4096, false).unwrap_err(), Errno::PERM);
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert_eq!(Memory::of_other(&fd, 4097, false).unwrap_err(), Errno::INVAL);
        assert_eq!(Memory::of_other(&fd, 0, false).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn a_witness_tells_until_the_last_descriptor_and_the_last_mapping_are_gone() {
        for is_ours in [true, false] {
            let (mut ours, fd) = match is_ours {
                true => Memory::ours(c"test", 4096).map(|(ours, fd)| (Some(ours), fd)).unwrap(),
                false => (None, Memory::for_other(c"test", 4096).unwrap()),
            };
            let (handed_out, witness) = Witness::of(&fd).unwrap();
            assert!(witness.is_held());
            let copy = handed_out.try_clone().unwrap();
            let theirs = Memory::of_other(&handed_out, 4096, !is_ours).unwrap();
            ours.get_or_insert_with(|| Memory::theirs(&fd, 4096).unwrap());
            drop((fd, handed_out));
            assert!(witness.is_held());
            drop(copy);
            assert!(witness.is_held(), "it is mapped");
            drop(theirs);
            assert!(!witness.is_held(), "only we have it");
            drop(ours);
            assert!(!witness.is_held());
        }
    }
}
