//! What packets hold, as people write it: addresses from the first to the last, VLAN tags, sizes,
//! rates.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use kit::Mac;

/// Values from the first on, each one more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span<T> {
    pub(super) first: T,
    /// How many: from 1 to [`MOST`].
    pub(super) count: u64,
}

/// The most values of a span.
const MOST: u64 = 1 << 32;

impl<T> Span<T> {
    pub(super) fn one(first: T) -> Span<T> {
        Span { first, count: 1 }
    }
}

/// A kind of addresses.
pub(super) trait Address: Copy + FromStr + fmt::Display {
    /// What they are, with an example of several.
    const EXPECTED: &'static str;
    fn number(self) -> u128;
    fn at(self, number: u128) -> Self;
    /// Whether both are of one version.
    fn is_like(self, other: Self) -> bool;
    /// Its bits, where blocks such as 198.18.0.0/16 are written.
    fn bits(self) -> Option<u32>;
}

impl Address for Mac {
    const EXPECTED: &'static str =
        "02:00:00:00:00:01 or a range such as 02:00:00:00:00:01-02:00:00:00:00:ff";

    fn number(self) -> u128 {
        self.0.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
    }

    fn at(self, number: u128) -> Mac {
        let [.., a, b, c, d, e, g] = number.to_be_bytes();
        Mac([a, b, c, d, e, g])
    }

    fn is_like(self, _: Mac) -> bool {
        true
    }

    fn bits(self) -> Option<u32> {
        None
    }
}

impl Address for IpAddr {
    const EXPECTED: &'static str =
        "198.18.0.1, a range such as 198.18.0.1-198.18.3.254, or a block such as 198.18.0.0/22";

    fn number(self) -> u128 {
        match self {
            IpAddr::V4(four) => u128::from(four.to_bits()),
            IpAddr::V6(six) => six.to_bits(),
        }
    }

    fn at(self, number: u128) -> IpAddr {
        match self {
            IpAddr::V4(_) => IpAddr::from((number as u32).to_be_bytes()),
            IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }

    fn is_like(self, other: IpAddr) -> bool {
        self.is_ipv4() == other.is_ipv4()
    }

    fn bits(self) -> Option<u32> {
        Some(if self.is_ipv4() { 32 } else { 128 })
    }
}

impl<T: Address> FromStr for Span<T> {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("'{s}' cannot be (expected {})", T::EXPECTED);
        let address = |s: &str| s.parse::<T>().map_err(|_| bad());
        let (first, count) = if let Some((first, last)) = s.split_once('-') {
            let (first, last) = (address(first)?, address(last)?);
            let between = last.number().checked_sub(first.number()).filter(|_| first.is_like(last));
            (first, between.ok_or_else(bad)?.saturating_add(1))
        } else if let Some((given, prefix)) = s.split_once('/') {
            let given = address(given)?;
            let bits = given.bits().ok_or_else(bad)?;
            let prefix =
                prefix.parse().ok().filter(|prefix: &u32| *prefix <= bits).ok_or_else(bad)?;
            let count = 1_u128.checked_shl(bits - prefix).unwrap_or(u128::MAX);
            (given.at(given.number() & !(count - 1)), count)
        } else {
            (address(s)?, 1)
        };
        // IPv6 addresses vary in their second half alone.
        let is_within = |count: u64| (first.number() as u64).checked_add(count - 1).is_some();
        match u64::try_from(count) {
            Ok(count @ ..=MOST) if is_within(count) => Ok(Span { first, count }),
            Ok(..=MOST) => Err(format!("'{s}' is in two blocks of /64 (expected one)")),
            _ => Err(format!("'{s}' is too many (expected at most 2^32 addresses)")),
        }
    }
}

impl<T: Address> fmt::Display for Span<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { first, count } = *self;
        match count {
            1 => write!(f, "{first}"),
            _ => write!(f, "{first}-{}", first.at(first.number() + u128::from(count - 1))),
        }
    }
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// VLAN IDs, from 0 (a priority alone) to 4094.
    pub(super) ids: Span<u16>,
    /// From 0 to 7.
    pub(super) priority: u8,
}

/// Tags from the outer to the inner one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags(pub(super) Vec<Tag>);

impl FromStr for Tags {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "'{s}' cannot be (expected a VLAN ID from 0 to 4094, a range of them such as \
                 10-19, a priority behind a colon such as 10:5, and at most two, the outer one \
                 first, such as 100,10)"
            )
        };
        let tag = |s: &str| {
            let (ids, priority) = s.split_once(':').unwrap_or((s, "0"));
            let (first, last) = ids.split_once('-').unwrap_or((ids, ids));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            let priority = priority.parse().ok().filter(|priority| *priority < 8)?;
            let count = u64::from(last.checked_sub(first)?) + 1;
            (last < 4095).then_some(Tag { ids: Span { first, count }, priority })
        };
        let tags: Vec<Tag> = s.split(',').map(tag).collect::<Option<_>>().ok_or_else(bad)?;
        if tags.len() > 2 { Err(bad()) } else { Ok(Tags(tags)) }
    }
}

impl fmt::Display for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Tag { ids: Span { first, count }, priority }) in self.0.iter().enumerate() {
            write!(f, "{}{first}", if number > 0 { "," } else { "" })?;
            if *count > 1 {
                write!(f, "-{}", u64::from(*first) + count - 1)?;
            }
            if *priority > 0 {
                write!(f, ":{priority}")?;
            }
        }
        Ok(())
    }
}

/// Sizes of packets, and how many of each there are in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) each: Vec<(u32, u32)>,
    /// The mix of the Internet.
    pub(super) is_imix: bool,
    /// Sizes that are too small for what packets hold are as small as they can be.
    pub(super) grows: bool,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { grows: true, ..Sizes::one(64) }
    }
}

/// Most packets in a turn of sizes.
const TURN: u32 = 1000;

impl Sizes {
    pub(super) fn one(size: u32) -> Sizes {
        Sizes { each: vec![(size, 1)], is_imix: false, grows: false }
    }

    pub(super) fn largest(&self) -> u32 {
        self.each.iter().map(|(size, _)| *size).max().unwrap_or_default()
    }

    /// Whether all packets have one size.
    pub(super) fn is_one(&self) -> bool {
        self.each.len() == 1
    }

    /// The sizes of a turn's packets, each kind spread evenly over it: numbers of [`Self::each`].
    pub(super) fn turn(&self) -> Vec<u16> {
        let all: u32 = self.each.iter().map(|(_, many)| many).sum();
        // Each gains its weight, and the one that has gained most is next and pays for the turn.
        let mut gained = vec![0_i64; self.each.len()];
        let next = |_| {
            self.each.iter().zip(&mut gained).for_each(|((_, many), has)| *has += i64::from(*many));
            let best = (0..gained.len()).rev().max_by_key(|at| gained[*at]).unwrap_or(0);
            gained[best] -= i64::from(all);
            best as u16
        };
        (0..all).map(next).collect()
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s == "imix" {
            return Ok(Sizes {
                each: vec![(60, 7), (590, 4), (1514, 1)],
                is_imix: true,
                grows: true,
            });
        }
        let bad = || {
            format!(
                "'{s}' is no size (expected bytes, a list such as 64,590,1514 or 64:7,590:4,1514:1 \
                 with how many of each, {TURN} in all at most, or imix)"
            )
        };
        let one = |s: &str| {
            let (size, many) = s.split_once(':').unwrap_or((s, "1"));
            Some((size.parse().ok()?, many.parse().ok().filter(|many| (1..=TURN).contains(many))?))
        };
        let each: Vec<(u32, u32)> = s.split(',').map(one).collect::<Option<_>>().ok_or_else(bad)?;
        let all: u64 = each.iter().map(|(_, many)| u64::from(*many)).sum();
        if all > u64::from(TURN) {
            Err(bad())
        } else {
            Ok(Sizes { each, is_imix: false, grows: false })
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_imix {
            return f.write_str("imix");
        }
        for (number, (size, many)) in self.each.iter().enumerate() {
            write!(f, "{}{size}", if number > 0 { "," } else { "" })?;
            if *many > 1 {
                write!(f, ":{many}")?;
            }
        }
        Ok(())
    }
}

/// How fast, over all queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rate {
    /// As many as can be.
    Unlimited,
    /// Packets a second.
    Packets(f64),
    /// Bits of packets a second.
    Bits(f64),
}

impl Rate {
    /// Packets a second, if they have so many bytes on average; 0 for as many as can be.
    pub(super) fn packets(self, bytes: f64) -> f64 {
        match self {
            Rate::Unlimited => 0.0,
            Rate::Packets(rate) => rate,
            Rate::Bits(rate) => rate / (8.0 * bytes),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "'{s}' is no rate (expected packets a second such as 5000 or 1.5M, bits a second \
                 such as 100Mbit or 10Gbit, or 0 for as many as possible)"
            )
        };
        let digits = s.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(s.len());
        let (number, unit) = s.split_at(digits);
        let number: f64 = number.parse().map_err(|_| bad())?;
        let (prefix, is_bits) = match unit.strip_suffix("bit") {
            Some(prefix) => (prefix, true),
            None => (unit.strip_suffix("pps").unwrap_or(unit), false),
        };
        let scale = match prefix {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            _ => return Err(bad()),
        };
        let rate = number * scale;
        match (rate == 0.0, is_bits) {
            (true, _) => Ok(Rate::Unlimited),
            // One in a day is the least: a lower rate is rather a mistake.
            _ if !(1.0 / 86_400.0..=1e15).contains(&rate) => Err(bad()),
            (_, true) => Ok(Rate::Bits(rate)),
            (_, false) => Ok(Rate::Packets(rate)),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rate::Unlimited => f.write_str("as many as possible"),
            Rate::Packets(rate) => write!(f, "{rate} a second"),
            Rate::Bits(rate) => write!(f, "{rate} bits a second"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_alone_in_ranges_and_in_blocks() {
        let ip = |s: &str| s.parse::<Span<IpAddr>>();
        for (given, shown, count) in [
            ("10.0.0.1", "10.0.0.1", 1),
            ("10.0.0.1-10.0.0.1", "10.0.0.1", 1),
            ("10.0.0.255-10.0.1.0", "10.0.0.255-10.0.1.0", 2),
            ("10.0.3.7/22", "10.0.0.0-10.0.3.255", 1024),
            ("0.0.0.0/0", "0.0.0.0-255.255.255.255", 1 << 32),
            ("fd00::5/128", "fd00::5", 1),
            ("fd00::/96", "fd00::-fd00::ffff:ffff", 1 << 32),
            ("fd00::ffff-fd00::1:0", "fd00::ffff-fd00::1:0", 2),
        ] {
            let span = ip(given).expect(given);
            assert_eq!((span.to_string().as_str(), span.count), (shown, count));
        }
        let mac: Span<Mac> = "02:00:00:00:00:ff-02:00:00:00:01:00".parse().expect("a range");
        assert_eq!(
            (mac.count, mac.to_string().as_str()),
            (2, "02:00:00:00:00:ff-02:00:00:00:01:00")
        );
        for bad in
            ["", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "fd00::/95", "10.0.0.0/33", "10.0.0.1-"]
        {
            let said = ip(bad).expect_err(bad);
            assert!(said.contains(&format!("'{bad}'")) && said.contains("expected"), "{said}");
        }
        assert!("02:00:00:00:00:01/40".parse::<Span<Mac>>().is_err());
    }

    #[test]
    fn tags_sizes_and_rates_are_printed_as_they_are_written() {
        for tags in ["5", "0:7", "10-19", "100,10-12:3", "4094"] {
            assert_eq!(tags.parse::<Tags>().map(|tags| tags.to_string()).as_deref(), Ok(tags));
        }
        for tags in ["", "4095", "5:8", "9-3", "1,2,3", "a"] {
            assert!(tags.parse::<Tags>().unwrap_err().contains(&format!("'{tags}'")), "{tags}");
        }
        for sizes in ["64", "64,590,1514", "64:7,590:4,1514", "imix"] {
            assert_eq!(sizes.parse::<Sizes>().map(|sizes| sizes.to_string()).as_deref(), Ok(sizes));
        }
        for sizes in ["", "64,", "64:0", "64:999,65:2", "-1", "64:x"] {
            assert!(sizes.parse::<Sizes>().unwrap_err().contains(&format!("'{sizes}'")), "{sizes}");
        }
        for (given, expected) in [
            ("0", Rate::Unlimited),
            ("0Gbit", Rate::Unlimited),
            ("5000", Rate::Packets(5000.0)),
            ("1.5M", Rate::Packets(1.5e6)),
            ("20kpps", Rate::Packets(2e4)),
            ("10Gbit", Rate::Bits(1e10)),
            ("800bit", Rate::Bits(800.0)),
        ] {
            assert_eq!(given.parse(), Ok(expected));
        }
        for rate in ["", "M", "1Tbit", "-5", "1e9", "1..5", "0.000001", "9999999Gbit", "1 M"] {
            assert!(rate.parse::<Rate>().unwrap_err().contains(&format!("'{rate}'")), "{rate}");
        }
        assert_eq!(Rate::Bits(8000.0).packets(100.0), 10.0);
    }

    #[test]
    fn a_turn_has_as_many_of_each_size_as_was_asked_and_spreads_them() {
        let turn = "64:7,590:4,1514".parse::<Sizes>().expect("sizes").turn();
        let count = |kind| turn.iter().filter(|size| **size == kind).count();
        assert_eq!([count(0), count(1), count(2)], [7, 4, 1]);
        assert!(!turn.windows(4).any(|four| four == [0; 4]), "{turn:?}");
        assert_eq!("64".parse::<Sizes>().expect("a size").turn(), [0]);
    }
}
