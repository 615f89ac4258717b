//! What a device's driver says of itself.
//!
//! `unsafe` here is a call of the system that has no safe wrapper.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd as _;

use kit::netlink::{Features, Socket, Xdp, is};
use netlink_sys::protocols::NETLINK_GENERIC;
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
    match Xdp::of(device.index()) {
        Err(error) if is(&error, Errno::NODEV) => {
            Err(Error::new(ErrorKind::NoDevice, format!("{device}: the device is gone")))
        }
        xdp => xdp
            .map(|xdp| xdp.features & NEEDED == NEEDED)
            .context(format_args!("{device}: cannot ask for its driver's XDP")),
    }
}

/// Offloads that keep VLAN tags (802.1Q, 802.1ad) beside packets, by the kernel's names and
/// ethtool's: those of a device that receives, and of one that sends.
pub(crate) const RECEIVES: [(&str, &str); 2] =
    [("rx-vlan-hw-parse", "rxvlan"), ("rx-vlan-stag-hw-parse", "rx-vlan-stag-hw-parse")];
pub(crate) const SENDS: [(&str, &str); 2] =
    [("tx-vlan-hw-insert", "txvlan"), ("tx-vlan-stag-hw-insert", "tx-vlan-stag-hw-insert")];

/// Those that are on, by ethtool's names: an XDP program does not see the tags, and they are lost
/// when it redirects the packet.
pub(crate) fn vlan_offloads(
    device: &Device,
    of: [(&'static str, &'static str); 2],
) -> Result<Vec<&'static str>> {
    let on = features(device).context(format_args!("{device}: cannot ask for its offloads"))?;
    Ok(of.into_iter().filter(|(kernel, _)| on.contains(*kernel)).map(|(_, name)| name).collect())
}

/// The kernel's names of the device's features that are on.
fn features(device: &Device) -> io::Result<BTreeSet<String>> {
    let mut socket = Socket::open(NETLINK_GENERIC)?;
    let ethtool = socket.family("ethtool")?;
    Ok(Features::of(&mut socket, ethtool, device.index())?.active)
}

/// Whether a device sends packets that are not finished: many in one, or with checksums not filled
/// in. Also if it does not say.
pub(crate) fn sends_unfinished(device: &Device) -> bool {
    let unfinished = |name: &String| {
        name == "tx-generic-segmentation"
            || name.starts_with("tx-checksum-")
            || (name.starts_with("tx-tcp") && name.ends_with("-segmentation"))
    };
    features(device).map_or(true, |on| on.iter().any(unfinished))
}

/// Whether the device stamps packets that it receives with its own clock, as somebody asked for.
pub(crate) fn stamps_packets(device: &Device) -> bool {
    let mut config = libc::hwtstamp_config { flags: 0, tx_type: 0, rx_filter: 0 };
    // SAFETY: all zeros is a value of this plain struct.
    let mut about: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0: a device's name is shorter.
    let room = about.ifr_name.len() - 1;
    for (to, from) in about.ifr_name[..room].iter_mut().zip(device.name().bytes()) {
        *to = from.cast_signed();
    }
    about.ifr_ifru.ifru_data = (&raw mut config).cast();
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| {
        let request = libc::SIOCGHWTSTAMP as libc::Ioctl;
        // SAFETY: the request names a device and points to the struct that it fills in; both outlive
        // the call.
        let failed = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut about) };
        // It fails for a driver that cannot, and for a device without one.
        failed == 0 && config.rx_filter != libc::HWTSTAMP_FILTER_NONE as i32
    })
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
