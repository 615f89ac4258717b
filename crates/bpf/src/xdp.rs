//! Attaching to a device's XDP hook, in the driver or generic. libbpf-rs has no links of that kind.

use std::io;
use std::os::fd::BorrowedFd;

use crate::Link;

/// Where in the device's path a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the driver, before the kernel makes a buffer.
    Native,
    /// On the kernel's buffers.
    Generic,
}

/// Puts a program on a device.
///
/// # Errors
/// `EBUSY` or `EEXIST` if there is another, `EOPNOTSUPP` if the driver cannot, `ENODEV`, `EPERM`,
/// and what drivers say otherwise.
pub fn attach(program: BorrowedFd<'_>, index: u32, place: Place) -> io::Result<Link> {
    /// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
    const GENERIC: u32 = 1 << 1;
    const NATIVE: u32 = 1 << 2;

    let flags = match place {
        Place::Native => NATIVE,
        Place::Generic => GENERIC,
    };
    Link::create(program, index, libbpf_sys::BPF_XDP, flags)
}
