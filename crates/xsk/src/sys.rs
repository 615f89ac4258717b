//! Socket options that rustix has no typed calls for.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use libc::{c_int, socklen_t};

/// `XDP_MAX_TX_SKB_BUDGET` of linux/if_xdp.h (6.18), which libc lacks.
pub(crate) const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// Sets an option that is a number.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: u32,
) -> io::Result<()> {
    let (pointer, size) = ((&raw const value).cast(), size_of_val(&value) as socklen_t);
    // SAFETY: the kernel reads that many bytes of a number that outlives the call.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What identifies a socket's network namespace (Linux 5.14), if the kernel says.
pub(crate) fn namespace(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut cookie = 0_u64;
    let (pointer, mut size) = ((&raw mut cookie).cast(), size_of_val(&cookie) as socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    // SAFETY: the kernel writes at most `size` bytes, into a number of that size.
    let asked = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, &raw mut size) };
    (asked == 0).then_some(cookie)
}
