//! Socket options that neither rustix nor nix has.

use std::os::fd::BorrowedFd;

use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};

/// Of linux/if_xdp.h (Linux 6.17); libc does not have it yet.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

sockopt_impl!(TxBudget, SetOnly, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, u32);
sockopt_impl!(PreferBusyPoll, SetOnly, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, bool);
sockopt_impl!(BusyPoll, SetOnly, libc::SOL_SOCKET, libc::SO_BUSY_POLL, u32);
sockopt_impl!(BusyPollBudget, SetOnly, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, u32);
sockopt_impl!(NetnsCookie, GetOnly, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64);

/// What identifies a socket's network namespace (Linux 5.14), if the kernel says.
pub(crate) fn namespace(fd: BorrowedFd<'_>) -> Option<u64> {
    nix::sys::socket::getsockopt(&fd, NetnsCookie).ok()
}
