//! The bridge's forwarding table: dumps, questions and notifications.

use std::io;

use kit::netlink::{Socket, attributes_after, emitted, is, message, number, number_attribute};
use libc::{NDA_DST, NDA_LLADDR, NDA_VLAN, RTM_DELNEIGH, RTM_GETNEIGH, RTM_NEWNEIGH};
use netlink_packet_core::DefaultNla;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourExtFlags, NeighbourFlags, NeighbourHeader, NeighbourState,
};
use rustix::io::Errno;

use crate::state::{Change, Entry, EntryKind, Key, Mac};

const HEADER: usize = 12; // struct ndmsg

pub(super) const NDA_MASTER: u16 = 9;
const NDA_FDB_EXT_ATTRS: u16 = 14;
const NDA_FLAGS_EXT: u16 = 15;

/// All entries of a bridge.
pub(super) fn stations(socket: &mut Socket, bridge: u32) -> io::Result<Vec<Entry>> {
    let request = request(NeighbourFlags::empty(), &[number_attribute(NDA_MASTER, bridge)]);
    socket.dump(RTM_GETNEIGH, &request, |message| Ok(entry(message, bridge)))
}

/// The entry of an address in a VLAN.
pub(super) fn station(socket: &mut Socket, bridge: u32, key: Key) -> io::Result<Option<Entry>> {
    let mut attributes =
        vec![number_attribute(NDA_MASTER, bridge), DefaultNla::new(NDA_LLADDR, key.mac.0.to_vec())];
    if key.vlan != 0 {
        attributes.push(DefaultNla::new(NDA_VLAN, key.vlan.to_ne_bytes().to_vec()));
    }
    let request = request(NeighbourFlags::Controller, &attributes);
    match socket.one(RTM_GETNEIGH, &request, |message| Ok(entry(message, bridge))) {
        Err(error) if is(&error, Errno::NOENT) => Ok(None),
        answer => answer,
    }
}

/// What a notification says about this bridge's table.
pub(super) fn change(kind: u16, message: &[u8], bridge: u32) -> Option<Change> {
    match kind {
        RTM_NEWNEIGH => entry(message, bridge).map(Change::Set),
        RTM_DELNEIGH => entry(message, bridge).map(|entry| Change::Removed(entry.key)),
        _ => None,
    }
}

fn request(flags: NeighbourFlags, attributes: &[DefaultNla]) -> Vec<u8> {
    let header =
        NeighbourHeader { family: AddressFamily::Bridge, flags, ..NeighbourHeader::default() };
    message(&emitted(&header), attributes)
}

/// The entry in a message; none if it is of another table.
fn entry(message: &[u8], bridge: u32) -> Option<Entry> {
    let header = NeighbourHeader::parse(message).ok()?;
    // A device's own list of addresses comes along in dumps, marked so.
    if header.family != AddressFamily::Bridge || header.flags.contains(NeighbourFlags::Own) {
        return None;
    }
    let (mut address, mut vlan, mut master, mut kernel_only) = (None, 0, None, false);
    for (kind, value) in attributes_after(HEADER, message) {
        match kind {
            NDA_LLADDR => address = value.try_into().ok().map(Mac),
            NDA_MASTER => master = number(value),
            NDA_VLAN => vlan = u16::from_ne_bytes(value.try_into().ok()?),
            // A tunnel's end; activity that is watched.
            NDA_DST | NDA_FDB_EXT_ATTRS => kernel_only = true,
            NDA_FLAGS_EXT => {
                let flags = NeighbourExtFlags::from_bits_retain(number(value).unwrap_or(0));
                kernel_only |= flags.contains(NeighbourExtFlags::Locked);
            }
            _ => {}
        }
    }
    let kind = match header.state {
        NeighbourState::Permanent => EntryKind::Local,
        NeighbourState::Noarp => EntryKind::Static,
        // Learned elsewhere: whoever added it takes it away again.
        _ if header.flags.contains(NeighbourFlags::ExtLearned) => EntryKind::Static,
        _ => EntryKind::Ageing,
    };
    let sticky = header.flags.contains(NeighbourFlags::Sticky);
    let key = Key { mac: address?, vlan };
    let entry = Entry { key, port: header.ifindex, kind, sticky, kernel_only };
    (master == Some(bridge)).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_vlan_of_a_tunnel_or_of_elsewhere_are_told_apart() {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let parse = |more: &[DefaultNla]| {
            let header =
                NeighbourHeader { family: AddressFamily::Bridge, ifindex: 7, ..Default::default() };
            let address = [DefaultNla::new(NDA_LLADDR, mac.0.to_vec())];
            entry(&message(&emitted(&header), &[&address, more].concat()), 3)
        };
        let master = number_attribute(NDA_MASTER, 3);
        let key = Key::from(mac);
        let plain =
            Entry { key, port: 7, kind: EntryKind::Ageing, sticky: false, kernel_only: false };
        assert_eq!(parse(std::slice::from_ref(&master)), Some(plain));
        let vlan = DefaultNla::new(NDA_VLAN, 5_u16.to_ne_bytes().to_vec());
        let in_vlan = Entry { key: Key { mac, vlan: 5 }, ..plain };
        assert_eq!(parse(&[master.clone(), vlan]), Some(in_vlan));
        assert_eq!(parse(&[master.clone(), DefaultNla::new(NDA_VLAN, vec![5])]), None);
        let tunnel = DefaultNla::new(NDA_DST, vec![10, 0, 0, 1]);
        assert_eq!(parse(&[master, tunnel]), Some(Entry { kernel_only: true, ..plain }));
        assert_eq!(parse(&[number_attribute(NDA_MASTER, 4)]), None);
        assert_eq!(parse(&[]), None);
    }
}
