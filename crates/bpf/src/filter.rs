//! Options of sockets that rustix lacks: filters of classic BPF, and the tags of packets.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use libc::{sock_filter, sock_fprog, socklen_t};

/// Has a socket take only what a filter of these steps lets through.
///
/// # Errors
/// What the system reports; `EINVAL` for steps that make no filter.
pub fn attach_filter(socket: BorrowedFd<'_>, steps: &mut [sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program says how many steps it has; they outlive the call, which copies them.
    unsafe { set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Has a packet socket say with each packet what the kernel has taken off it: its VLAN tag
/// (`PACKET_AUXDATA`).
///
/// # Errors
/// What the system reports; `ENOPROTOOPT` for other sockets.
pub fn tell_tags(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the option is an int.
    unsafe { set(socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1_i32) }
}

/// # Safety
/// The value is what the option takes.
unsafe fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (socket, length) = (socket.as_raw_fd(), size_of::<T>() as socklen_t);
    // SAFETY: the pointer and the length are those of the value, and the caller vouches for it.
    let failed =
        unsafe { libc::setsockopt(socket, level, option, (&raw const *value).cast(), length) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
