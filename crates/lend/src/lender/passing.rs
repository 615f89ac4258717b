//! No descriptors from borrowers.
//!
//! Whoever can write to our socket can put descriptors into a message, and whoever drops the last
//! handle of a file does what there is to do at its end: of a TCP socket with `SO_LINGER`, wait.
//! Linux 6.16 has an option against it. Where it is missing, such a message is seen and left where it
//! is (`wire::peek`): its descriptors end with the connection, on a thread of the
//! reaper's that nobody waits for. The lender's process can end only once they have.

use std::os::fd::OwnedFd;

use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};

/// Of `include/uapi/asm-generic/socket.h`; libc does not have it yet.
const SO_PASSRIGHTS: libc::c_int = 83;

sockopt_impl!(PassRights, SetOnly, libc::SOL_SOCKET, SO_PASSRIGHTS, bool);

/// Messages that bring descriptors are refused by the kernel, where it can; also on connections
/// that are accepted from this socket.
pub(super) fn refuse_descriptors(socket: &OwnedFd) {
    // A kernel without the option says so, and it stays as it is.
    let _ = setsockopt(socket, PassRights, &false);
}
