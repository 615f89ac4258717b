//! Features of a device's driver, by ethtool's netlink family.

use std::io;

use kit::netlink::{Features, Socket};

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

/// Whether a device takes GSO packets, and packets without a checksum, as they are.
pub(super) fn takes_unfinished(socket: &mut Socket, family: u16, index: u32) -> io::Result<bool> {
    let Features { active, changeable } = Features::of(socket, family, index)?;
    let is_on = |name: &&str| active.contains(*name);
    let is_off = |name: &&str| changeable.contains(*name) && !is_on(name);
    Ok(UNFINISHED.iter().all(is_on) && !UNFINISHED_TOO.iter().any(is_off))
}
