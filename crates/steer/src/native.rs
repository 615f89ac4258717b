//! What a device's driver says of itself.
//!
//! `unsafe` here is a call of the system that has no safe wrapper.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd as _;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use xsk::Device;

use crate::error::Context as _;
use crate::{Error, ErrorKind, Result};

/// `NETDEV_XDP_ACT_BASIC` and `NETDEV_XDP_ACT_REDIRECT` of linux/netdev.h.
const NEEDED: u64 = 1 | 2;

/// Whether the driver runs XDP programs that redirect.
///
/// # Errors
/// `NoDevice` of [`ErrorKind`] if the device is gone, and what the system reports.
pub(crate) fn takes_programs(device: &Device) -> Result<bool> {
    bpf::xdp::query(device.index()).map(|state| state.features & NEEDED == NEEDED).map_err(
        |error| match Errno::from_io_error(&error) {
            Some(Errno::NODEV) => {
                Error::new(ErrorKind::NoDevice, format!("{device}: the device is gone"))
            }
            _ => Error::io(format!("{device}: cannot ask for its driver's XDP"), error),
        },
    )
}

/// Offloads that keep VLAN tags (802.1Q, 802.1ad) beside packets, by the kernel's names and
/// ethtool's: those of a device that receives, and of one that sends.
pub(crate) const RECEIVES: [(&str, &str); 2] =
    [("rx-vlan-hw-parse", "rxvlan"), ("rx-vlan-stag-hw-parse", "rx-vlan-stag-hw-parse")];
pub(crate) const SENDS: [(&str, &str); 2] =
    [("tx-vlan-hw-insert", "txvlan"), ("tx-vlan-stag-hw-insert", "tx-vlan-stag-hw-insert")];

/// Those that are on, by ethtool's names: an XDP program does not see the tags, and they are lost
/// when it redirects the packet.
///
/// # Errors
/// What the system reports.
pub(crate) fn vlan_offloads(
    device: &Device,
    of: [(&'static str, &'static str); 2],
) -> Result<Vec<&'static str>> {
    let on = features(device).context(format_args!("{device}: cannot ask for its offloads"))?;
    Ok(of.into_iter().filter(|(kernel, _)| on.contains(*kernel)).map(|(_, name)| name).collect())
}

/// The kernel's names of the device's features that are on.
fn features(device: &Device) -> io::Result<BTreeSet<String>> {
    /// More than the kernel has: they are bits of 64.
    const MAX: usize = 128;
    /// `ETH_GSTRING_LEN`.
    const LENGTH: usize = 32;

    /// `struct ethtool_gstrings`.
    #[repr(C)]
    struct Names {
        command: u32,
        set: u32,
        count: u32,
        names: [[u8; LENGTH]; MAX],
    }
    /// `struct ethtool_gfeatures`, whose words are available, requested, active and fixed.
    #[repr(C)]
    struct Features {
        command: u32,
        words: u32,
        features: [[u32; 4]; MAX / 32],
    }

    let mut names = Names {
        command: kernel::GET_STRINGS,
        set: kernel::FEATURES,
        count: 0,
        names: [[0; LENGTH]; MAX],
    };
    let words = (MAX / 32) as u32;
    let mut found = Features { command: kernel::GET_FEATURES, words, features: [[0; 4]; MAX / 32] };
    ask(device, kernel::ETHTOOL, (&raw mut names).cast())?;
    ask(device, kernel::ETHTOOL, (&raw mut found).cast())?;
    let is_on = |at: usize| found.features[at / 32][2] & 1 << (at % 32) != 0;
    let name = |at: usize| String::from_utf8_lossy(&names.names[at]).trim_end_matches('\0').into();
    Ok((0..MAX.min(names.count as usize)).filter(|at| is_on(*at)).map(name).collect())
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
    /// `ETHTOOL_GSTRINGS`, its set `ETH_SS_FEATURES`, and `ETHTOOL_GFEATURES`.
    pub(super) const GET_STRINGS: u32 = 0x1b;
    pub(super) const FEATURES: u32 = 4;
    pub(super) const GET_FEATURES: u32 = 0x3a;
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

#[cfg(test)]
mod tests {
    use lab::{Lab, LinkOptions};

    use super::*;

    #[test]
    fn root_offloads_of_vlan_tags_are_those_that_ethtool_turns_on_and_off() {
        let test = "root_offloads_of_vlan_tags_are_those_that_ethtool_turns_on_and_off";
        if !lab::testing::root(test) {
            return;
        }
        let lab = Lab::new("stnative").expect("a lab");
        let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
        let link = lab.link(&a, &b, LinkOptions::default()).expect("a link");
        let device = link.a.device;
        let found = || {
            let look = || {
                let device = Device::find(&device).expect("a device");
                [RECEIVES, SENDS].map(|of| vlan_offloads(&device, of).expect("it says"))
            };
            a.run(look).expect("the host")
        };
        for (set, state) in [
            ("rxvlan", "off"),
            ("txvlan", "off"),
            ("rx-vlan-stag-hw-parse", "off"),
            ("tx-vlan-stag-hw-insert", "off"),
            ("rx-vlan-stag-hw-parse", "on"),
            ("txvlan", "on"),
        ] {
            let ethtool = a.command("ethtool").args(["-K", &device, set, state]).run();
            ethtool.expect("a veth has it");
            let is_on = found().concat().contains(&set);
            assert_eq!(is_on, state == "on", "{set} {state}: {:?}", found());
        }
        assert_eq!(found(), [vec!["rx-vlan-stag-hw-parse"], vec!["txvlan"]]);
    }
}
