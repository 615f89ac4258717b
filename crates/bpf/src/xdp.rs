//! A device's XDP hook: what is on it, what its driver can do, and attaching in the driver or
//! generic. libbpf-rs has no links of that kind.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use libbpf_sys::bpf_xdp_query_opts;

use crate::link::device;
use crate::{Link, checked};

/// Where in the device's path a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the driver, before the kernel makes a buffer.
    Native,
    /// On the kernel's buffers.
    Generic,
}

/// What is known of the XDP of the device with this index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The ids of the programs on it.
    pub programs: Vec<u32>,
    /// What its driver can do: `NETDEV_XDP_ACT_*` of linux/netdev.h.
    pub features: u64,
}

/// Asks for it.
///
/// # Errors
/// `ENODEV` if the device is gone.
pub fn query(index: u32) -> io::Result<State> {
    let mut options = bpf_xdp_query_opts {
        sz: size_of::<bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `options` says its own size, and outlives the call, which fills it in.
    checked(unsafe { libbpf_sys::bpf_xdp_query(device(index)?, 0, &raw mut options) })?;
    let mut programs =
        vec![options.prog_id, options.drv_prog_id, options.skb_prog_id, options.hw_prog_id];
    programs.sort_unstable();
    programs.dedup();
    programs.retain(|id| *id != 0);
    Ok(State { programs, features: options.feature_flags })
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
