//! Rings that the kernel has made for a socket, mapped into this process.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::sockopt::xdp_mmap_offsets;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpDesc, XdpMmapOffsets, XdpRingOffset,
};

use super::{Memory, Parts};

/// One of a socket's rings: its page offset, where its offsets stand, and that the kernel keeps
/// descriptors of type `T` in it.
pub(crate) struct Kind<T>(u64, fn(&XdpMmapOffsets) -> &XdpRingOffset, PhantomData<T>);

pub(crate) const RX: Kind<XdpDesc> = Kind(XDP_PGOFF_RX_RING, |at| &at.rx, PhantomData);
pub(crate) const TX: Kind<XdpDesc> = Kind(XDP_PGOFF_TX_RING, |at| &at.tx, PhantomData);
pub(crate) const FILL: Kind<u64> = Kind(XDP_UMEM_PGOFF_FILL_RING, |at| &at.fr, PhantomData);
pub(crate) const COMPLETION: Kind<u64> =
    Kind(XDP_UMEM_PGOFF_COMPLETION_RING, |at| &at.cr, PhantomData);

/// Maps a ring of `size` descriptors that was made on this socket. For one producer or consumer at
/// a time.
pub(crate) fn map<T>(
    fd: BorrowedFd<'_>,
    Kind(offset, at, _): Kind<T>,
    size: u32,
) -> io::Result<Memory<T>> {
    let offsets = xdp_mmap_offsets(fd)?;
    let at = at(&offsets);
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
    // SAFETY: the kernel checked the size and made the ring of aligned and zeroed parts, of the
    // type that the kind says; the region is as long as the slots need and lives in the owner; the
    // kernel is the other side, and a producer or consumer of this crate this one.
    Ok(unsafe { Memory::new(parts, size, Arc::new(region)) })
}

/// A mapping, undone when dropped.
#[derive(Debug)]
struct Region {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: a mapping is the whole process's.
unsafe impl Send for Region {}
// SAFETY: as above, and nothing of it can be reached through a reference.
unsafe impl Sync for Region {}

impl Region {
    fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
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
