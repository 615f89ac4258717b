//! No descriptors from borrowers.
//!
//! Whoever can write to our socket can put descriptors into a message, and whoever drops the last
//! handle of a file does what there is to do at its end: of a TCP socket with `SO_LINGER`, wait.
//! Linux 6.16 has an option against it. Where it is missing, such a message is seen and left where it
//! is (`wire::peek`): its descriptors end with the connection, on a thread of the
//! reaper's that nobody waits for. The lender's process can end only once they have.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd as _};

/// `SO_PASSRIGHTS` of `include/uapi/asm-generic/socket.h`, which libc does not have yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Messages that bring descriptors are refused by the kernel, where it can; also on connections
/// that are accepted from this socket.
pub(super) fn refuse_descriptors(socket: impl AsFd) {
    let no: libc::c_int = 0;
    // SAFETY: the option's value is an int, which outlives the call.
    // A kernel without the option says so, and it stays as it is.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of_val(&no) as libc::socklen_t,
        )
    };
}
