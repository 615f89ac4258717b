//! How many channels a device has and could have, by netlink's family `ethtool`. Anybody may ask.

use std::io;

use kit::netlink::{
    GENERIC_HEADER, Socket, attributes_after, generic, nested_attribute, number, number_attribute,
};
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::Channels;

/// Of linux/ethtool_netlink.h.
mod kernel {
    /// `ETHTOOL_MSG_CHANNELS_GET`.
    pub(super) const CHANNELS_GET: u8 = 17;
    /// `ETHTOOL_A_CHANNELS_HEADER`.
    pub(super) const HEADER: u16 = 1;
    /// `ETHTOOL_A_HEADER_DEV_INDEX`.
    pub(super) const DEVICE: u16 = 1;
    /// `ETHTOOL_A_CHANNELS_RX_MAX`, `_COMBINED_MAX`, `_RX_COUNT`, `_COMBINED_COUNT`.
    pub(super) const RX_MAX: u16 = 2;
    pub(super) const COMBINED_MAX: u16 = 5;
    pub(super) const RX_COUNT: u16 = 6;
    pub(super) const COMBINED_COUNT: u16 = 9;
}

/// Asks about devices.
#[derive(Debug)]
pub(super) struct Ethtool {
    socket: Socket,
    family: u16,
}

impl Ethtool {
    pub(super) fn new() -> io::Result<Self> {
        let mut socket = Socket::open(NETLINK_GENERIC)?;
        let family = socket.family("ethtool")?;
        Ok(Self { socket, family })
    }

    /// The channels of the device with this index; none if its driver has no answer.
    pub(super) fn channels(&mut self, index: u32) -> Option<Channels> {
        let device = [number_attribute(kernel::DEVICE, index)];
        let request = generic(kernel::CHANNELS_GET, &[nested_attribute(kernel::HEADER, &device)]);
        let answer = self.socket.one(self.family, &request, |message| Ok(read(message)));
        answer.ok().filter(|channels| channels.receive > 0)
    }
}

fn read(message: &[u8]) -> Channels {
    let mut channels = Channels::default();
    for (kind, value) in attributes_after(GENERIC_HEADER, message) {
        let value = number(value).unwrap_or(0);
        match kind {
            kernel::RX_MAX | kernel::COMBINED_MAX => channels.most += value,
            kernel::RX_COUNT | kernel::COMBINED_COUNT => channels.receive += value,
            _ => {}
        }
    }
    channels
}
