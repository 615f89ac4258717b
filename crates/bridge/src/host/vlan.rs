//! The VLANs of a bridge's ports: dumps, and which device a notification is about.

use std::io;

use kit::netlink::{Socket, attributes, attributes_after, is};
use libc::AF_BRIDGE;
use rustix::io::Errno;

use crate::vlans::{Membership, Vlans};

/// What the kernel calls its messages (linux/rtnetlink.h), which libc does not have.
pub(super) const RTM_NEWVLAN: u16 = 112;
pub(super) const RTM_DELVLAN: u16 = 113;
const RTM_GETVLAN: u16 = 114;
pub(super) const RTNLGRP_BRVLAN: u32 = 33;

const HEADER: usize = 8; // struct br_vlan_msg
// linux/if_bridge.h
const BRIDGE_VLANDB_ENTRY: u16 = 1;
const BRIDGE_VLANDB_GLOBAL_OPTIONS: u16 = 2;
const BRIDGE_VLANDB_ENTRY_INFO: u16 = 1;
const BRIDGE_VLANDB_ENTRY_RANGE: u16 = 2;
const BRIDGE_VLANDB_ENTRY_STATE: u16 = 3;
const BRIDGE_VLAN_INFO_PVID: u16 = 1 << 1;
const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 1 << 2;
const BR_STATE_FORWARDING: u8 = 3;

/// The VLANs that a port is in.
///
/// # Errors
/// `ENODEV` also where the device is no port.
pub(super) fn vlans(socket: &mut Socket, port: u32) -> io::Result<Vlans> {
    let mut header = vec![AF_BRIDGE as u8, 0, 0, 0];
    header.extend(port.to_ne_bytes());
    let parts = socket.dump(RTM_GETVLAN, &header, |message| Ok(Some(entries(message))));
    let parts = parts.map_err(|error| match is(&error, Errno::INVAL) {
        true => Errno::NODEV.into(),
        false => error,
    })?;
    // They come in ascending order, in as many messages as it takes.
    let mut vlans = Vlans::default();
    for (first, last, membership) in parts.into_iter().flatten() {
        vlans.add(first..=last, membership);
    }
    Ok(vlans)
}

/// What a notification is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The VLANs of this device, a port or the bridge.
    Device(u32),
    /// What this bridge's VLANs are to all ports.
    All(u32),
}

/// None if it is of no bridge.
pub(super) fn about(message: &[u8]) -> Option<About> {
    let index = u32::from_ne_bytes(message.get(4..HEADER)?.try_into().ok()?);
    let global = |(kind, _): (u16, _)| kind == BRIDGE_VLANDB_GLOBAL_OPTIONS;
    let all = attributes_after(HEADER, message).any(global);
    (message[0] == AF_BRIDGE as u8).then_some(match all {
        true => About::All(index),
        false => About::Device(index),
    })
}

/// The VLANs in a message: first, last, and what they are to the port.
fn entries(message: &[u8]) -> Vec<(u16, u16, Membership)> {
    attributes_after(HEADER, message)
        .filter(|(kind, _)| *kind == BRIDGE_VLANDB_ENTRY)
        .filter_map(|(_, value)| entry(value))
        .collect()
}

fn entry(value: &[u8]) -> Option<(u16, u16, Membership)> {
    let short = |value: &[u8]| Some(u16::from_ne_bytes(*value.first_chunk()?));
    let (mut info, mut last, mut forwarding) = (None, None, false);
    for (kind, value) in attributes(value) {
        match kind {
            // Flags, then the VLAN.
            BRIDGE_VLANDB_ENTRY_INFO => info = short(value).zip(short(value.get(2..)?)),
            BRIDGE_VLANDB_ENTRY_RANGE => last = short(value),
            BRIDGE_VLANDB_ENTRY_STATE => forwarding = value == [BR_STATE_FORWARDING],
            _ => {}
        }
    }
    let (flags, first) = info?;
    let has = |flag| flags & flag != 0;
    let (pvid, untagged) = (has(BRIDGE_VLAN_INFO_PVID), has(BRIDGE_VLAN_INFO_UNTAGGED));
    Some((first, last.unwrap_or(first), Membership { pvid, untagged, forwarding }))
}

#[cfg(test)]
mod tests {
    use kit::netlink::{message, nested_attribute};
    use netlink_packet_core::DefaultNla;

    use super::*;

    const PORT: u32 = 7;

    fn header(family: u8) -> Vec<u8> {
        [&[family, 0, 0, 0][..], &PORT.to_ne_bytes()].concat()
    }

    fn listed(flags: u16, first: u16, last: Option<u16>, state: Option<u8>) -> DefaultNla {
        let info = [flags.to_ne_bytes(), first.to_ne_bytes()].concat();
        let mut inside = vec![DefaultNla::new(BRIDGE_VLANDB_ENTRY_INFO, info)];
        let range =
            |last: u16| DefaultNla::new(BRIDGE_VLANDB_ENTRY_RANGE, last.to_ne_bytes().to_vec());
        inside.extend(last.map(range));
        inside.extend(state.map(|state| DefaultNla::new(BRIDGE_VLANDB_ENTRY_STATE, vec![state])));
        nested_attribute(BRIDGE_VLANDB_ENTRY, &inside)
    }

    #[test]
    fn a_list_of_vlans_is_read_with_ranges_marks_and_states() {
        let list = [
            listed(BRIDGE_VLAN_INFO_PVID | BRIDGE_VLAN_INFO_UNTAGGED, 1, None, Some(3)),
            listed(0, 2, Some(9), Some(3)),
            // A kernel that says nothing of a state, and one that blocks.
            listed(BRIDGE_VLAN_INFO_UNTAGGED, 10, None, None),
            listed(0, 11, None, Some(4)),
        ];
        let member = |pvid, untagged, forwarding| Membership { pvid, untagged, forwarding };
        let expected = [
            (1, 1, member(true, true, true)),
            (2, 9, member(false, false, true)),
            (10, 10, member(false, true, false)),
            (11, 11, member(false, false, false)),
        ];
        assert_eq!(entries(&message(&header(7), &list)), expected);
    }

    #[test]
    fn a_notification_is_about_a_port_or_about_all() {
        let one = message(&header(7), &[listed(0, 5, None, Some(3))]);
        assert_eq!(about(&one), Some(About::Device(PORT)));
        let options = nested_attribute(BRIDGE_VLANDB_GLOBAL_OPTIONS, &[]);
        assert_eq!(about(&message(&header(7), &[options])), Some(About::All(PORT)));
        assert_eq!(about(&message(&header(0), &[])), None);
        assert_eq!(about(&header(7)[..6]), None);
    }
}
