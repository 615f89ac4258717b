use std::collections::BTreeSet;
use std::io;

use super::{
    GENERIC_HEADER, Socket, attributes, attributes_after, find, find_after, generic,
    nested_attribute, number, number_attribute, string,
};

// Of linux/ethtool_netlink.h. The header is the first attribute of every request.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;
const FEATURES_GET: u8 = 11;
const FEATURES_HW: u16 = 2;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BITSET_BIT_NAME: u16 = 2;
const CHANNELS_GET: u8 = 17;
const CHANNELS_RX_MAX: u16 = 2;
const CHANNELS_COMBINED_MAX: u16 = 5;
const CHANNELS_RX_COUNT: u16 = 6;
const CHANNELS_COMBINED_COUNT: u16 = 9;

/// Features of a device's driver, by the kernel's names (`ethtool -k`).
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// Those that are on.
    pub active: BTreeSet<String>,
    /// Those that may be turned on and off.
    pub changeable: BTreeSet<String>,
}

impl Features {
    /// Asks for those of the device with this index; `family` is the number of `ethtool`.
    ///
    /// # Errors
    /// As [`Socket::one`].
    pub fn of(socket: &mut Socket, family: u16, index: u32) -> io::Result<Self> {
        let request = of_device(FEATURES_GET, index);
        socket.one(family, &request, |message| {
            let [active, changeable] =
                [FEATURES_ACTIVE, FEATURES_HW].map(|set| names(message, set));
            Ok(Self { active, changeable })
        })
    }
}

/// A device's channels that receive (`ethtool -l`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Channels {
    /// Those in use.
    pub receive: u32,
    /// How many there can be.
    pub most: u32,
}

impl Channels {
    /// Asks for those of the device with this index; `family` is the number of `ethtool`.
    ///
    /// # Errors
    /// As [`Socket::one`].
    pub fn of(socket: &mut Socket, family: u16, index: u32) -> io::Result<Self> {
        socket.one(family, &of_device(CHANNELS_GET, index), |message| {
            let mut channels = Self::default();
            for (kind, value) in attributes_after(GENERIC_HEADER, message) {
                let value = number(value).unwrap_or(0);
                match kind {
                    CHANNELS_RX_MAX | CHANNELS_COMBINED_MAX => channels.most += value,
                    CHANNELS_RX_COUNT | CHANNELS_COMBINED_COUNT => channels.receive += value,
                    _ => {}
                }
            }
            Ok(channels)
        })
    }
}

fn of_device(command: u8, index: u32) -> Vec<u8> {
    let device = [number_attribute(HEADER_DEV_INDEX, index)];
    generic(command, &[nested_attribute(HEADER, &device)])
}

/// The names in one of a device's sets of features.
fn names(message: &[u8], set: u16) -> BTreeSet<String> {
    let set = find_after(GENERIC_HEADER, message, set);
    let bits = set.and_then(|set| find(set, BITSET_BITS)).unwrap_or_default();
    attributes(bits).filter_map(|(_, bit)| find(bit, BITSET_BIT_NAME).map(string)).collect()
}
