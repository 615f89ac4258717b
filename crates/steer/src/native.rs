//! What a device's driver says of itself.
//!
//! `unsafe` here is a call of libbpf and one of the system that have no safe wrappers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd as _;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use xsk::Device;

use crate::{Error, ErrorKind, Result};

/// `NETDEV_XDP_ACT_BASIC` and `NETDEV_XDP_ACT_REDIRECT` of linux/netdev.h.
const NEEDED: u64 = 1 | 2;

/// Whether the driver runs XDP programs that redirect.
///
/// # Errors
/// `NoDevice` of [`ErrorKind`] if the device is gone, and what the system reports.
pub(crate) fn takes_programs(device: &Device) -> Result<bool> {
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let gone = || Error::new(ErrorKind::NoDevice, format!("{device}: the device is gone"));
    let index = i32::try_from(device.index()).map_err(|_| gone())?;
    // SAFETY: `options` says its own size, and outlives the call, which fills it in.
    let error = unsafe { libbpf_sys::bpf_xdp_query(index, 0, &raw mut options) };
    match error {
        0 => Ok(options.feature_flags & NEEDED == NEEDED),
        error if -error == Errno::NODEV.raw_os_error() => Err(gone()),
        error => Err(Error::io(
            format!("{device}: cannot ask for its driver's XDP"),
            io::Error::from_raw_os_error(-error),
        )),
    }
}

/// Whether the driver takes VLAN tags off packets that it receives and keeps them beside
/// (`rx-vlan-offload`): they are lost when an XDP program redirects the packet.
///
/// # Errors
/// What the system reports.
pub(crate) fn strips_vlan_tags(device: &Device) -> Result<bool> {
    let failed = |error| Error::io(format!("{device}: cannot ask for its offloads"), error);
    match flags(device) {
        Ok(flags) => Ok(flags & kernel::RX_VLAN != 0),
        // It has no such offload to ask for.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Of linux/ethtool.h and linux/sockios.h.
mod kernel {
    /// `ETH_FLAG_RXVLAN`.
    pub(super) const RX_VLAN: u32 = 1 << 8;
    /// `ETHTOOL_GFLAGS`.
    pub(super) const GET_FLAGS: u32 = 0x25;
    /// `SIOCETHTOOL`.
    pub(super) const ETHTOOL: libc::Ioctl = 0x8946;
}

/// The driver's offloads that `ETHTOOL_GFLAGS` knows.
fn flags(device: &Device) -> io::Result<u32> {
    /// `struct ethtool_value`.
    #[repr(C)]
    struct Flags {
        command: u32,
        flags: u32,
    }

    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut value = Flags { command: kernel::GET_FLAGS, flags: 0 };
    // SAFETY: all zeros is a value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0: a device's name is shorter.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.name().bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request names a device and points to the struct that this command fills in;
    // both outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), kernel::ETHTOOL, &raw mut request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(value.flags),
    }
}
