//! Socket options that rustix has no typed calls for.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use libc::{c_int, socklen_t};

/// Identifies a socket's network namespace (5.14); a `u64`.
pub(crate) const NETNS: c_int = libc::SO_NETNS_COOKIE;

/// `XDP_MAX_TX_SKB_BUDGET` of linux/if_xdp.h (6.18), which libc lacks; a `u32`.
pub(crate) const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// A plain number that an option takes.
pub(crate) trait Number: Copy {}
impl Number for u32 {}
impl Number for u64 {}

/// Sets an option.
pub(crate) fn set_option<T: Number>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: T,
) -> io::Result<()> {
    let (pointer, size) = ((&raw const value).cast(), size_of::<T>() as socklen_t);
    // SAFETY: the kernel reads that many bytes of a number that outlives the call.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option.
pub(crate) fn option<T: Number>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut size = size_of::<T>() as socklen_t;
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `size` bytes, into a place of that size.
    match unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, &raw mut size) } {
        // SAFETY: zeroed before the call, and every pattern is a number.
        0 => Ok(unsafe { value.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}
