//! A device's XDP hook: what is on it, and putting ours there.
//!
//! libbpf-rs has neither with the choice of driver or generic: these are the calls of libbpf
//! itself.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use crate::{Attach, Device};

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// The ids of the XDP programs on a device.
///
/// # Errors
/// `ENODEV` if the device is gone.
pub(super) fn programs(device: &Device) -> io::Result<Vec<u32>> {
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `options` says its own size, and outlives the call, which fills it in.
    match unsafe { libbpf_sys::bpf_xdp_query(index(device)?, 0, &raw mut options) } {
        0 => (),
        error => return Err(io::Error::from_raw_os_error(-error)),
    }
    let mut ids =
        vec![options.prog_id, options.drv_prog_id, options.skb_prog_id, options.hw_prog_id];
    ids.sort_unstable();
    ids.dedup();
    ids.retain(|id| *id != 0);
    Ok(ids)
}

/// Puts a program on a device, in the driver or generic, for as long as the link that is returned
/// is open.
///
/// # Errors
/// `EBUSY` or `EEXIST` if there is another, `EOPNOTSUPP` if the driver cannot, `ENODEV`, `EPERM`,
/// and what drivers say otherwise.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    device: &Device,
    attach: Attach,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: if attach == Attach::Generic { GENERIC } else { NATIVE },
        ..Default::default()
    };
    // SAFETY: the descriptor is open for as long as it is borrowed; `options` says its own size,
    // and outlives the call.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            index(device)?,
            libbpf_sys::BPF_XDP,
            &raw const options,
        )
    };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Takes a link's program off its device at once, also where another process holds the link: a
/// child between its fork and its exec does, for all that this process has open.
pub(super) fn detach(link: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open for as long as it is borrowed.
    let _gone_with_the_device = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
}

fn index(device: &Device) -> io::Result<i32> {
    i32::try_from(device.index())
        .map_err(|_| io::Error::from_raw_os_error(rustix::io::Errno::NODEV.raw_os_error()))
}
