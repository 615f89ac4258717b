//! Values as people write them for packets and queues.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl Ports {
    pub(crate) fn len(self) -> u64 {
        u64::from(self.last - self.first) + 1
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad =
            || format!("'{s}' is not a port or a range of ports (expected such as 9 or 1000-1999)");
        let (first, last) = range(s).ok_or_else(bad)?;
        Ok(Ports { first, last })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ports { first, last } if first == last => write!(f, "{first}"),
            Ports { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// VLANs from the first to the last, or packets without tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VlanRange {
    Untagged,
    Ids { first: u16, last: u16 },
}

impl FromStr for VlanRange {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s == "none" {
            return Ok(VlanRange::Untagged);
        }
        let ids = range(s).filter(|&(_, last)| last <= xsk::Vlans::LAST);
        ids.map(|(first, last)| VlanRange::Ids { first, last }).ok_or_else(|| {
            format!(
                "'{s}' is not a VLAN ID or a range of them (expected such as 5 or 100-199, from 0 to \
                 {}, or none)",
                xsk::Vlans::LAST
            )
        })
    }
}

impl fmt::Display for VlanRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            VlanRange::Untagged => f.write_str("none"),
            VlanRange::Ids { first, last } => Ports { first, last }.fmt(f),
        }
    }
}

/// Numbers of queues, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queues(pub(crate) Vec<u32>);

impl FromStr for Queues {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        /// More than any device has.
        const MOST: u32 = 4096;
        let bad = || bad_queues(s);
        let mut queues = BTreeSet::new();
        for part in s.split(',') {
            let (first, last) =
                range(part).filter(|&(_, last): &(u32, u32)| last < MOST).ok_or_else(bad)?;
            queues.extend(first..=last);
        }
        Ok(Queues(queues.into_iter().collect()))
    }
}

/// Numbers of queues, each once, in the order in which they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueOrder(pub(crate) Vec<u32>);

impl FromStr for QueueOrder {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut order = Vec::new();
        for part in s.split(',') {
            order.extend(part.parse::<Queues>().map_err(|_| bad_queues(s))?.0);
        }
        let each: BTreeSet<_> = order.iter().collect();
        match each.len() == order.len() {
            true => Ok(QueueOrder(order)),
            false => Err(format!("'{s}' has a queue twice (expected each once)")),
        }
    }
}

fn bad_queues(s: &str) -> String {
    format!("'{s}' is not a list of queues (expected such as 0 or 0-3,6)")
}

/// Reads `7` or `7-9`.
fn range<T: FromStr + PartialOrd>(s: &str) -> Option<(T, T)> {
    let (first, last) = s.split_once('-').unwrap_or((s, s));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

/// A number such as 0x88b5 or 17.
pub(crate) fn number(s: &str) -> Result<u16, String> {
    let parsed = match s.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16),
        None => s.parse(),
    };
    parsed.map_err(|_| format!("'{s}' is not a number (expected 0 to 65535, or hexadecimal 0x...)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parses_is_printed_as_it_is_written() {
        for ports in ["9", "0", "1000-1999", "0-65535"] {
            assert_eq!(ports.parse::<Ports>().map(|p| p.to_string()).as_deref(), Ok(ports));
        }
        for vlans in ["none", "0", "100-199", "4094"] {
            assert_eq!(vlans.parse::<VlanRange>().map(|v| v.to_string()).as_deref(), Ok(vlans));
        }
        for (given, expected) in [("0", vec![0]), ("3,0-1,1", vec![0, 1, 3]), ("7-7", vec![7])] {
            assert_eq!(given.parse(), Ok(Queues(expected)));
        }
        assert_eq!("4-5,1".parse(), Ok(QueueOrder(vec![4, 5, 1])));
        for (given, expected) in [("17", 17), ("0x88b5", 0x88b5)] {
            assert_eq!(number(given), Ok(expected));
        }
    }

    #[test]
    fn what_does_not_parse_is_named() {
        for ports in ["", "-", "9-", "10-9", "65536", "a"] {
            assert!(ports.parse::<Ports>().unwrap_err().contains(&format!("'{ports}'")), "{ports}");
        }
        for vlans in ["", "None", "4095", "9-5", "5-4095", "-1"] {
            let said = vlans.parse::<VlanRange>().unwrap_err();
            assert!(said.contains(&format!("'{vlans}'")) && said.contains("0 to 4094"), "{said}");
        }
        for queues in ["", ",", "1-0", "0-", "4096", "0-99999999999"] {
            assert!(queues.parse::<Queues>().unwrap_err().contains(&format!("'{queues}'")));
        }
        for queues in ["", "0,0", "0-3,2", "x"] {
            assert!(queues.parse::<QueueOrder>().unwrap_err().contains(&format!("'{queues}'")));
        }
        assert!(number("0x").is_err() && number("65536").is_err());
    }
}
