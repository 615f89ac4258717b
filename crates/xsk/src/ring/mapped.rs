//! Rings that the kernel has made for a socket, mapped into this process.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpDesc, XdpMmapOffsets, XdpRingOffset,
};

use super::{Consumer, Memory, Parts, Producer};

/// Maps a socket's receive ring.
pub(crate) fn rx(
    fd: BorrowedFd<'_>,
    at: &XdpMmapOffsets,
    size: u32,
) -> io::Result<Consumer<XdpDesc>> {
    // SAFETY: the kernel's receive ring holds `XdpDesc`, and it is mapped once.
    Ok(Consumer::new(unsafe { map(fd, XDP_PGOFF_RX_RING, &at.rx, size) }?))
}

/// Maps a socket's transmit ring.
pub(crate) fn tx(
    fd: BorrowedFd<'_>,
    at: &XdpMmapOffsets,
    size: u32,
) -> io::Result<Producer<XdpDesc>> {
    // SAFETY: as above.
    Ok(Producer::new(unsafe { map(fd, XDP_PGOFF_TX_RING, &at.tx, size) }?))
}

/// Maps a socket's fill ring.
pub(crate) fn fill(
    fd: BorrowedFd<'_>,
    at: &XdpMmapOffsets,
    size: u32,
) -> io::Result<Producer<u64>> {
    // SAFETY: the kernel's fill ring holds addresses, and it is mapped once.
    Ok(Producer::new(unsafe { map(fd, XDP_UMEM_PGOFF_FILL_RING, &at.fr, size) }?))
}

/// Maps a socket's completion ring.
pub(crate) fn completion(
    fd: BorrowedFd<'_>,
    at: &XdpMmapOffsets,
    size: u32,
) -> io::Result<Consumer<u64>> {
    // SAFETY: as above.
    Ok(Consumer::new(unsafe { map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, size) }?))
}

/// # Safety
/// `offset` is that of a ring of `size` descriptors of type `T` on this socket, and no producer or
/// consumer of this process has it yet.
unsafe fn map<T>(
    fd: BorrowedFd<'_>,
    offset: u64,
    at: &XdpRingOffset,
    size: u32,
) -> io::Result<Memory<T>> {
    // Kernels before 5.4 have no flags.
    let flags = at.flags.ok_or(io::ErrorKind::Unsupported)?;
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let [producer, consumer, flags, slots] =
        [at.producer, at.consumer, flags, at.desc].map(usize::try_from);
    let slots = slots.map_err(too_large)?;
    let region = Region::new(fd, offset, slots + size as usize * size_of::<T>())?;
    let place = |offset: usize| {
        debug_assert!(offset < region.len);
        // SAFETY: the kernel gives offsets inside the mapping.
        unsafe { region.start.byte_add(offset) }
    };
    let parts = Parts {
        producer: place(producer.map_err(too_large)?).cast(),
        consumer: place(consumer.map_err(too_large)?).cast(),
        flags: place(flags.map_err(too_large)?).cast(),
        slots: place(slots).cast(),
    };
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(region);
    // SAFETY: the kernel checked the size and made the ring of aligned and zeroed parts, the
    // region is as long as the slots need and lives in the owner; the kernel is the other side,
    // and the caller vouches for this one.
    Ok(unsafe { Memory::new(parts, size, owner) })
}

/// A mapping, undone when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: a mapping is the whole process's.
unsafe impl Send for Region {}
// SAFETY: as above, and nothing of it can be reached through a reference.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap(null_mut(), len, protection, flags, fd, offset) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and whoever has pointers into it holds the region.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
