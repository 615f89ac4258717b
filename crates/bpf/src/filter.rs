//! Classic BPF: filters of sockets, which rustix lacks.
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
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<sock_fprog>() as socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
