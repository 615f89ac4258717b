//! Features of a device's driver, by ethtool's netlink family.

use std::io;

use super::{
    attributes::{
        attributes_after, find, message, nested_attribute, number_attribute, string,
        string_attribute,
    },
    netlink::Socket,
};

const HEADER: usize = 4; // struct genlmsghdr

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// What a driver must do for packets that are not cut up or summed yet.
const UNFINISHED: [&str; 4] =
    ["tx-checksum-ip-generic", "tx-scatter-gather", "tx-tcp-segmentation", "tx-tcp6-segmentation"];
/// What it must do besides, where the kernel knows of it: all else that a veth does and that
/// somebody may turn off.
const UNFINISHED_TOO: [&str; 14] = [
    "tx-checksum-sctp",
    "tx-scatter-gather-fraglist",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
    "tx-ipxip4-segmentation",
    "tx-ipxip6-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-sctp-segmentation",
    "tx-udp-segmentation",
    "tx-gso-list",
];

/// The family's number, which the kernel gives out as it starts.
pub(super) fn family(socket: &mut Socket) -> io::Result<u16> {
    let request = message(
        &[CTRL_CMD_GETFAMILY, 1, 0, 0],
        &[string_attribute(CTRL_ATTR_FAMILY_NAME, "ethtool")],
    );
    socket.one(GENL_ID_CTRL, &request, |message| {
        let id = attributes_after(HEADER, message).find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID);
        let id = id.and_then(|(_, value)| Some(u16::from_ne_bytes(value.try_into().ok()?)));
        id.ok_or(io::ErrorKind::InvalidData.into())
    })
}

/// Whether a device takes GSO packets, and packets without a checksum, as they are.
pub(super) fn takes_unfinished(socket: &mut Socket, family: u16, index: u32) -> io::Result<bool> {
    let device = [number_attribute(ETHTOOL_A_HEADER_DEV_INDEX, index)];
    let request = message(
        &[ETHTOOL_MSG_FEATURES_GET, 1, 0, 0],
        &[nested_attribute(ETHTOOL_A_FEATURES_HEADER, &device)],
    );
    socket.one(family, &request, |message| {
        let [active, could_be] =
            [ETHTOOL_A_FEATURES_ACTIVE, ETHTOOL_A_FEATURES_HW].map(|set| features(message, set));
        let is_on = |name: &&str| active.iter().any(|active| active == name);
        let is_off = |name: &&str| could_be.iter().any(|known| known == name) && !is_on(name);
        Ok(UNFINISHED.iter().all(is_on) && !UNFINISHED_TOO.iter().any(is_off))
    })
}

/// The names in one of a device's sets of features.
fn features(message: &[u8], set: u16) -> Vec<String> {
    let set = attributes_after(HEADER, message).find(|(kind, _)| *kind == set);
    let bits = set.and_then(|(_, set)| find(set, ETHTOOL_A_BITSET_BITS)).unwrap_or_default();
    super::attributes::attributes(bits)
        .filter_map(|(_, bit)| find(bit, ETHTOOL_A_BITSET_BIT_NAME).map(string))
        .collect()
}
