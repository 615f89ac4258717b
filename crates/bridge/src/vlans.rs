//! The VLANs of a port, as plain data.

use std::fmt;
use std::ops::RangeInclusive;

/// 64 VLANs in each word.
const WORDS: usize = 64;

/// The protocol of the tags that a bridge goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum VlanProtocol {
    /// IEEE 802.1Q.
    #[strum(serialize = "802.1Q")]
    Q = 0x8100,
    /// IEEE 802.1ad, of providers.
    #[strum(serialize = "802.1ad")]
    Ad = 0x88a8,
}

/// What a port has to do with some VLANs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Frames without a tag belong here.
    pub pvid: bool,
    /// Frames leave without a tag.
    pub untagged: bool,
    /// Frames come in and go out: the VLAN's own spanning tree state is `forwarding`.
    pub forwarding: bool,
}

/// The VLANs that a port is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans {
    pvid: u16,
    all: Set,
    forwarding: Set,
    untagged: Set,
}

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
struct Set(Box<[u64; WORDS]>);

impl Vlans {
    /// Adds VLANs. Of several that frames without a tag belong to, the last one counts: the kernel
    /// moves that mark, and may be read while it does.
    pub fn add(&mut self, vlans: RangeInclusive<u16>, membership: Membership) {
        for vlan in vlans {
            if membership.pvid {
                self.pvid = vlan;
            }
            self.all.put(vlan, true);
            self.forwarding.put(vlan, membership.forwarding);
            self.untagged.put(vlan, membership.untagged);
        }
    }

    /// The VLAN of frames without a tag; none if they are dropped.
    pub fn pvid(&self) -> Option<u16> {
        (self.pvid != 0).then_some(self.pvid)
    }

    /// How many VLANs it is in.
    pub fn count(&self) -> u32 {
        self.all.0.iter().map(|word| word.count_ones()).sum()
    }

    /// How many of them do not forward.
    pub fn held(&self) -> u32 {
        self.count() - self.forwarding.0.iter().map(|word| word.count_ones()).sum::<u32>()
    }

    /// Whether frames of some VLAN pass from one to the other.
    pub fn meets(&self, other: &Vlans) -> bool {
        self.forwarding.0.iter().zip(other.forwarding.0.iter()).any(|(one, other)| one & other != 0)
    }

    /// 64 by 64: those that forward, and those whose frames leave without a tag.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        self.forwarding.0.iter().copied().zip(self.untagged.0.iter().copied())
    }
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = match self.held() {
            0 => String::new(),
            held => format!(" ({held} not forwarding)"),
        };
        match (self.pvid(), self.count()) {
            (_, 0) => write!(f, "none"),
            (Some(pvid), 1) => write!(f, "{pvid}{held}"),
            (Some(pvid), count) => write!(f, "{count}, pvid {pvid}{held}"),
            (None, count) => write!(f, "{count}, no pvid{held}"),
        }
    }
}

impl Set {
    fn put(&mut self, vlan: u16, there: bool) {
        let (word, bit) = (usize::from(vlan) / WORDS, 1 << (vlan % 64));
        let Some(word) = self.0.get_mut(word) else { return };
        if there { *word |= bit } else { *word &= !bit }
    }
}

impl Default for Set {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |vlan: &usize| self.0[vlan / WORDS] >> (vlan % 64) & 1 == 1;
        f.debug_set().entries((0..WORDS * 64).filter(has)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Membership = Membership { pvid: false, untagged: false, forwarding: true };
    const ACCESS: Membership = Membership { pvid: true, untagged: true, forwarding: true };

    fn vlans(parts: &[(RangeInclusive<u16>, Membership)]) -> Vlans {
        let mut vlans = Vlans::default();
        parts.iter().for_each(|(range, membership)| vlans.add(range.clone(), *membership));
        vlans
    }

    #[test]
    fn what_a_port_is_in_is_told_in_a_few_words() {
        let held = Membership { forwarding: false, ..PLAIN };
        for (parts, expected) in [
            (&[][..], "none"),
            (&[(10..=10, ACCESS)], "10"),
            (&[(10..=10, PLAIN)], "1, no pvid"),
            (&[(1..=1, ACCESS), (2..=4094, PLAIN)], "4094, pvid 1"),
            (&[(1..=1, ACCESS), (20..=29, held)], "11, pvid 1 (10 not forwarding)"),
        ] {
            assert_eq!(vlans(parts).to_string(), expected);
        }
    }

    #[test]
    fn the_last_pvid_counts_and_a_vlan_that_comes_twice_is_as_it_came_last() {
        let vlans = vlans(&[(5..=9, ACCESS), (7..=7, PLAIN), (4095..=4095, PLAIN)]);
        assert_eq!((vlans.pvid(), vlans.count(), vlans.held()), (Some(9), 6, 0));
        let words: Vec<_> = vlans.words().enumerate().filter(|(_, word)| *word != (0, 0)).collect();
        assert_eq!(words, [(0, (0b11_1110_0000, 0b11_0110_0000)), (63, (1 << 63, 0))]);
    }

    #[test]
    fn ports_meet_where_a_vlan_forwards_on_both() {
        let held = Membership { forwarding: false, ..PLAIN };
        let one = vlans(&[(1..=1, ACCESS), (70..=80, PLAIN)]);
        for (other, expected) in [
            (vlans(&[(75..=75, ACCESS)]), true),
            (vlans(&[(75..=75, held), (90..=90, PLAIN)]), false),
            (vlans(&[(2..=69, PLAIN)]), false),
            (Vlans::default(), false),
        ] {
            assert_eq!((one.meets(&other), other.meets(&one)), (expected, expected), "{other:?}");
        }
    }
}
