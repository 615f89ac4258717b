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
    match value(device, kernel::GET_FLAGS) {
        Ok(flags) => Ok(flags & kernel::RX_VLAN != 0),
        // It has no such offload to ask for.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Whether a device sends packets that are not finished: many in one, or with checksums not filled
/// in. Also if it does not say.
pub(crate) fn sends_unfinished(device: &Device) -> bool {
    let is_off = |request| value(device, request).is_ok_and(|value| value == 0);
    ![kernel::GET_TSO, kernel::GET_GSO, kernel::GET_TX_CHECKSUMS].into_iter().all(is_off)
}

/// Whether the device stamps packets that it receives with its own clock, as somebody asked for.
pub(crate) fn stamps_packets(device: &Device) -> bool {
    /// `struct hwtstamp_config` of linux/net_tstamp.h.
    #[repr(C)]
    #[derive(Default)]
    struct Config {
        flags: i32,
        tx_type: i32,
        rx_filter: i32,
    }

    let mut config = Config::default();
    match ask(device, kernel::GET_TIMESTAMPING, (&raw mut config).cast()) {
        Ok(()) => config.rx_filter != kernel::FILTER_NONE,
        // A driver that cannot, or a device without one.
        Err(_) => false,
    }
}

/// Of linux/ethtool.h, linux/sockios.h and linux/net_tstamp.h.
mod kernel {
    /// `ETH_FLAG_RXVLAN`.
    pub(super) const RX_VLAN: u32 = 1 << 8;
    /// `ETHTOOL_GFLAGS`.
    pub(super) const GET_FLAGS: u32 = 0x25;
    /// `ETHTOOL_GTXCSUM`, `ETHTOOL_GTSO`, `ETHTOOL_GGSO`.
    pub(super) const GET_TX_CHECKSUMS: u32 = 0x16;
    pub(super) const GET_TSO: u32 = 0x1e;
    pub(super) const GET_GSO: u32 = 0x23;
    /// `SIOCETHTOOL`.
    pub(super) const ETHTOOL: libc::Ioctl = 0x8946;
    /// `SIOCGHWTSTAMP`.
    pub(super) const GET_TIMESTAMPING: libc::Ioctl = 0x89b1;
    /// `HWTSTAMP_FILTER_NONE`.
    pub(super) const FILTER_NONE: i32 = 0;
}

/// What ethtool's requests for one number answer.
fn value(device: &Device, command: u32) -> io::Result<u32> {
    /// `struct ethtool_value`.
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }

    let mut value = Value { command, data: 0 };
    ask(device, kernel::ETHTOOL, (&raw mut value).cast())?;
    Ok(value.data)
}

/// A request about a device, whose data is the struct that this request fills in.
fn ask(device: &Device, request: libc::Ioctl, data: *mut libc::c_char) -> io::Result<()> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a value of this plain struct.
    let mut about: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0: a device's name is shorter.
    let room = about.ifr_name.len() - 1;
    for (to, from) in about.ifr_name[..room].iter_mut().zip(device.name().bytes()) {
        *to = from.cast_signed();
    }
    about.ifr_ifru.ifru_data = data;
    // SAFETY: the request names a device and points to the struct that it fills in, which the
    // callers have on their stacks; both outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut about) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
