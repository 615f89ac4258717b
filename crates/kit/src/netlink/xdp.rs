use std::io;

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};

use super::{
    GENERIC_HEADER, Socket, attributes, find_after, generic, message, number, number_attribute,
};

// Of linux/rtnetlink.h and linux/if_link.h.
const GETLINK: u16 = 18;
const LINK_HEADER: usize = 16;
const EXT_MASK: u16 = 29;
const SKIP_STATS: u32 = 1 << 3;
const XDP: u16 = 43;
/// That of a device with one program, and by place: in the driver, generic, in the card.
const PROGRAMS: std::ops::RangeInclusive<u16> = 4..=7;

// Of linux/netdev.h.
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;

/// What is known of the XDP of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xdp {
    /// The ids of the programs on it, each once.
    pub programs: Vec<u32>,
    /// What its driver can do: `NETDEV_XDP_ACT_*` of linux/netdev.h. Zero on kernels that do not tell
    /// (before 6.3).
    pub features: u64,
}

impl Xdp {
    /// Asks for that of the device with this index.
    ///
    /// libbpf's `bpf_xdp_query` has the kernel list all devices to find one: with a thousand, asking
    /// for each takes seconds.
    ///
    /// # Errors
    /// `ENODEV` if the device is gone, otherwise as [`Socket::one`].
    pub fn of(index: u32) -> io::Result<Self> {
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let request = message(&header, &[number_attribute(EXT_MASK, SKIP_STATS)]);
        let mut route = Socket::open(NETLINK_ROUTE)?;
        let programs = route.one(GETLINK, &request, |message| {
            let xdp = find_after(LINK_HEADER, message, XDP).unwrap_or_default();
            let ids = attributes(xdp).filter(|(kind, _)| PROGRAMS.contains(kind));
            let mut ids: Vec<u32> = ids.filter_map(|(_, id)| number(id)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.retain(|id| *id != 0);
            Ok(ids)
        })?;
        Ok(Self { programs, features: features(index)? })
    }
}

fn features(index: u32) -> io::Result<u64> {
    let mut socket = Socket::open(NETLINK_GENERIC)?;
    let family = match socket.family("netdev") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        family => family?,
    };
    let request = generic(DEV_GET, &[number_attribute(DEV_IFINDEX, index)]);
    socket.one(family, &request, |message| {
        let features = find_after(GENERIC_HEADER, message, DEV_XDP_FEATURES);
        let features = features.and_then(|value| value.try_into().ok());
        Ok(features.map_or(0, u64::from_ne_bytes))
    })
}
