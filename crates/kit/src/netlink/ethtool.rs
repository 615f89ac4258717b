use std::collections::BTreeSet;
use std::io;

use super::{
    GENERIC_HEADER, Socket, attributes, find, find_after, generic, nested_attribute,
    number_attribute, string,
};

const FEATURES_GET: u8 = 11;
const FEATURES_HEADER: u16 = 1;
const FEATURES_HW: u16 = 2;
const FEATURES_ACTIVE: u16 = 4;
const HEADER_DEV_INDEX: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITSET_BIT_NAME: u16 = 2;

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
        let device = [number_attribute(HEADER_DEV_INDEX, index)];
        let request = generic(FEATURES_GET, &[nested_attribute(FEATURES_HEADER, &device)]);
        socket.one(family, &request, |message| {
            let [active, changeable] =
                [FEATURES_ACTIVE, FEATURES_HW].map(|set| names(message, set));
            Ok(Self { active, changeable })
        })
    }
}

/// The names in one of a device's sets of features.
fn names(message: &[u8], set: u16) -> BTreeSet<String> {
    let set = find_after(GENERIC_HEADER, message, set);
    let bits = set.and_then(|set| find(set, BITSET_BITS)).unwrap_or_default();
    attributes(bits).filter_map(|(_, bit)| find(bit, BITSET_BIT_NAME).map(string)).collect()
}
