//! What only one member may have: an address, a bridge, a device. Two that want the same are found before
//! anything starts, as far as the texts alone tell.
//!
//! Not found are: names of hosts that stand for one address, two patterns that one bridge may match, a
//! bridge under two names. There the second is refused when it starts.

use std::net::SocketAddr;

use relay::Addr;

use super::kinds::Kind;
use super::tree::{Origin, Trouble};

/// A value by which a member asks for something that nobody else may have.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) member: String,
    pub(super) origin: Origin,
    key: String,
    value: String,
    thing: Thing,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Thing {
    Address(SocketAddr),
    /// Another place to listen on, as it is written.
    Place(String),
    /// Bridges of this name, or whose names match this pattern.
    Bridges(String),
    AllBridges,
    /// A device may be both lent and steered, so it is counted by kind.
    Device(&'static str, String),
}

impl Claim {
    /// What a key asks for that was set to this `argument`, if nobody else may have it.
    pub(super) fn new(
        member: &str,
        kind: Kind,
        key: &str,
        argument: &str,
        origin: &Origin,
    ) -> Option<Claim> {
        let value = argument.strip_prefix(&format!("--{key}=")).unwrap_or(argument);
        let thing = match (kind.name, key) {
            ("relay" | "metrics", "listen") => place(value)?,
            ("lend", "socket") => place(&format!("unix:{value}"))?,
            ("bridge", "names") => Thing::Bridges(value.to_owned()),
            ("bridge", "all") => Thing::AllBridges,
            ("lend" | "steer", "interface") => Thing::Device(kind.name, value.to_owned()),
            _ => return None,
        };
        let value = if thing == Thing::AllBridges { "true" } else { value }.to_owned();
        let (member, key) = (member.to_owned(), key.to_owned());
        Some(Claim { member, origin: origin.clone(), key, value, thing })
    }

    /// What is wrong about this one, where another one is there already.
    fn against(&self, other: &Claim) -> Option<Trouble> {
        let same = self.thing == other.thing;
        // In one member, an address that is listened on twice is one, and a bridge may match twice.
        let is_address = matches!(self.thing, Thing::Address(_));
        if self.member == other.member && (same || !is_address) {
            return None;
        }
        let Claim { member, key, value, .. } = self;
        let Claim { member: theirs, origin, value: another, .. } = other;
        let message = match same {
            true => format!(
                "{member} and {theirs} both have {key} {value}, there at {origin} (expected it in one \
                 of them)"
            ),
            false if self.thing.overlaps(&other.thing) => format!(
                "{member} has {key} {value}, which overlaps {} {another} of {theirs} at {origin} \
                 (expected one of them)",
                other.key
            ),
            false => return None,
        };
        Some(Trouble { origin: Some(self.origin.clone()), message })
    }
}

/// What more than one claim is for: a trouble for each claim that comes after another one.
pub(super) fn collisions(claims: &[Claim]) -> Vec<Trouble> {
    let against = |(at, claim): (usize, &Claim)| {
        claims[..at].iter().find_map(|earlier| claim.against(earlier))
    };
    claims.iter().enumerate().filter_map(against).collect()
}

/// None of a port that the kernel chooses.
fn place(text: &str) -> Option<Thing> {
    match text.parse::<relay::Listen>().map(|listen| listen.addr) {
        Ok(Addr::Ip(addr)) => (addr.port() != 0).then_some(Thing::Address(addr)),
        Ok(unix @ Addr::Unix(_)) => Some(Thing::Place(unix.to_string())),
        Err(_) => (!text.ends_with(":0")).then(|| Thing::Place(text.to_owned())),
    }
}

impl Thing {
    fn overlaps(&self, other: &Thing) -> bool {
        match (self, other) {
            (Thing::Address(one), Thing::Address(other)) => {
                one.port() == other.port() && {
                    // A socket on [::] also has all of IPv4.
                    let has = |all: &SocketAddr, other: &SocketAddr| {
                        all.ip().is_unspecified() && (all.is_ipv6() || other.is_ipv4())
                    };
                    one == other || has(one, other) || has(other, one)
                }
            }
            (Thing::Bridges(one), Thing::Bridges(other)) => {
                is_for(one, other) || is_for(other, one)
            }
            (Thing::AllBridges, Thing::Bridges(_)) | (Thing::Bridges(_), Thing::AllBridges) => true,
            _ => false,
        }
    }
}

/// Whether a pattern is for this name.
fn is_for(pattern: &str, name: &str) -> bool {
    let is_pattern = bridge::is_pattern;
    is_pattern(pattern)
        && !is_pattern(name)
        && !bridge::matching(&[name.into()], pattern).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `bind` has it; a test of the command has the kernel's word.
    #[test]
    fn every_address_takes_all_addresses_of_its_port() {
        for (one, other, expected) in [
            (":81", "0.0.0.0:81", true),
            (":81", "[::]:81", true),
            (":81", "127.0.0.1:81", true),
            (":81", "[::1]:81", true),
            ("*:81", "127.0.0.1:82", false),
            ("0.0.0.0:81", "127.0.0.1:81", true),
            ("0.0.0.0:81", "[::1]:81", false),
            ("127.0.0.1:81", "127.0.0.2:81", false),
            ("127.0.0.1:81", "[::1]:81", false),
            ("unix:/a,mode=660", "unix:/a", true),
            ("unix:/a", "unix:@a", false),
            ("localhost:81", "127.0.0.1:81", false),
        ] {
            let things = (place(one).expect(one), place(other).expect(other));
            let found = things.0 == things.1 || things.0.overlaps(&things.1);
            assert_eq!(found, expected, "{one} {other}");
            assert_eq!(things.1.overlaps(&things.0), things.0.overlaps(&things.1), "{one} {other}");
        }
        assert_eq!((place(":0"), place("localhost:0")), (None, None));
    }

    #[test]
    fn a_pattern_takes_the_names_that_it_is_for_and_no_patterns() {
        assert!(is_for("br*", "br0") && is_for("br?", "br0"));
        assert!(!is_for("br*", "vmbr0") && !is_for("br0", "br*") && !is_for("br*", "b*0"));
    }
}
