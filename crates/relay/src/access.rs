//! Whom the relay lets in, and whose PROXY headers it takes, by address.
//!
//! The lists are read at the start and whenever somebody asks for it. A worker looks a client up in those
//! that it finds: it waits for nobody who reads new ones.

mod list;

use std::net::IpAddr;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;

pub use list::AddressEntry;
use list::Item;

use crate::{Config, Error};

/// What workers share.
#[derive(Debug)]
pub(crate) struct Access(ArcSwap<Rules>);

/// All lists, as they were read at one time.
#[derive(Debug)]
pub(crate) struct Rules {
    clients: Verdicts,
    proxies: Verdicts,
    /// Entries in all.
    entries: usize,
}

/// What is to become of an address. The smallest network that has it decides.
#[derive(Debug)]
struct Verdicts {
    nets: JointPrefixMap<IpNet, bool>,
    /// Of addresses in none of them, and of who has none.
    otherwise: bool,
}

impl Access {
    pub(crate) fn new(rules: Rules) -> Access {
        Access(ArcSwap::from_pointee(rules))
    }

    /// Reads the lists of `config` again. If that fails, they stay as they were.
    ///
    /// # Errors
    /// As for [`Rules::read`].
    pub(crate) fn reread(&self, config: &Config) -> Result<usize, Error> {
        let rules = Rules::read(config)?;
        let entries = rules.entries;
        self.0.store(rules.into());
        Ok(entries)
    }

    /// Whether this client may come in.
    pub(crate) fn lets_in(&self, client: Option<IpAddr>) -> bool {
        self.0.load().clients.of(client)
    }

    /// Whether this peer names its clients in PROXY headers.
    pub(crate) fn is_proxy(&self, peer: Option<IpAddr>) -> bool {
        self.0.load().proxies.of(peer)
    }
}

impl Rules {
    /// Reads the lists of `config`, and the files in them.
    ///
    /// # Errors
    /// A file that cannot be read, or has a line that is no address: the error says which.
    pub(crate) fn read(config: &Config) -> Result<Rules, Error> {
        let items = |entries: &[AddressEntry]| -> Result<Vec<Item>, Error> {
            let read = entries.iter().map(AddressEntry::read).collect::<Result<Vec<_>, _>>()?;
            Ok(read.into_iter().flatten().collect())
        };
        let [allow, deny, from] =
            [items(&config.allow)?, items(&config.deny)?, items(&config.proxy_from)?];
        let entries = allow.len() + deny.len() + from.len();
        // A list that is given and empty, such as a file without a line, has nobody in it.
        let clients = Verdicts::new(&allow, &deny, config.allow.is_empty());
        let proxies = Verdicts::new(&from, &[], config.proxy_from.is_empty());
        Ok(Rules { clients, proxies, entries })
    }
}

impl Verdicts {
    /// Yes for `yes`, no for `no`, also where both have the same entry.
    fn new(yes: &[Item], no: &[Item], otherwise: bool) -> Verdicts {
        let mut all = Verdicts { nets: JointPrefixMap::new(), otherwise };
        for (items, verdict) in [(yes, true), (no, false)] {
            for item in items {
                match item {
                    Item::All => all.otherwise = verdict,
                    Item::Net(net) => drop(all.nets.insert(*net, verdict)),
                }
            }
        }
        all
    }

    fn of(&self, addr: Option<IpAddr>) -> bool {
        // An IPv4 client of a socket for both families has an IPv6 address with its own in it.
        let addr = addr.map(|addr| IpNet::from(addr.to_canonical()));
        let found = addr.and_then(|addr| self.nets.get_lpm(&addr));
        found.map_or(self.otherwise, |(_, verdict)| *verdict)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn verdicts(yes: &str, no: &str) -> Verdicts {
        let items = |text: &str| -> Vec<Item> {
            let entries = text.split_whitespace().map(|one| one.parse::<AddressEntry>().unwrap());
            entries.flat_map(|entry| entry.read().unwrap()).collect()
        };
        Verdicts::new(&items(yes), &items(no), yes.is_empty())
    }

    #[test]
    fn the_smallest_network_decides_and_of_the_same_one_deny() {
        for (allow, deny, let_in, refused) in [
            ("", "", "1.2.3.4 ::1", ""),
            ("", "10.0.0.0/8", "9.9.9.9 2001:db8::1", "10.0.0.0 10.255.255.255"),
            ("10.0.0.0/8", "", "10.1.1.1 ::ffff:10.1.1.1", "9.9.9.9 ::1 11.0.0.0"),
            ("10.0.0.0/8 10.1.2.3", "10.1.0.0/16", "10.2.0.0 10.1.2.3", "10.1.2.4 10.1.0.0"),
            // Host bits are of no meaning, as in nginx and HAProxy.
            ("", "10.1.2.3/8", "11.0.0.0", "10.0.0.0"),
            ("10.0.0.1", "10.0.0.1", "", "10.0.0.1"),
            ("all", "10.0.0.0/8", "11.0.0.1 ::1", "10.0.0.1"),
            ("10.0.0.0/8", "all", "10.0.0.1", "::1 11.0.0.1"),
            ("all", "all", "", "1.1.1.1 ::1"),
            ("2001:db8::/32", "2001:db8:1::/48", "2001:db8::1", "2001:db8:1::1 ::1 1.1.1.1"),
            // IPv4 clients are judged as such, however either is written.
            ("", "::ffff:10.0.0.0/104", "::1 11.0.0.1", "10.0.0.1 ::ffff:10.0.0.1"),
            ("::/0", "", "2001:db8::1", "10.0.0.1 ::ffff:10.0.0.1"),
            ("0.0.0.0/0", "", "10.0.0.1 ::ffff:10.0.0.1", "2001:db8::1"),
        ] {
            let verdicts = verdicts(allow, deny);
            for (addrs, expected) in [(let_in, true), (refused, false)] {
                for addr in addrs.split_whitespace() {
                    let found = verdicts.of(addr.parse().ok());
                    assert_eq!(found, expected, "{addr} by allow '{allow}', deny '{deny}'");
                }
            }
        }
    }

    #[test]
    fn who_has_no_address_is_let_in_unless_others_are() {
        for (allow, deny, expected) in [
            ("", "10.0.0.0/8", true),
            ("10.0.0.0/8", "", false),
            ("all", "", true),
            ("", "all", false),
        ] {
            assert_eq!(verdicts(allow, deny).of(None), expected, "'{allow}' and '{deny}'");
        }
    }

    /// Ten thousand networks of all lengths, against looking at each.
    #[test]
    fn a_list_of_ten_thousand_is_looked_up_as_if_one_by_one_and_costs_little() {
        let mut state = 1u64;
        let mut draw = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u32
        };
        let nets: Vec<(IpNet, bool)> = (0..10_000)
            .map(|n| {
                // Of few first bits, so that they lie in each other.
                let addr =
                    IpAddr::from((10 << 24 | draw() >> 12 << 4 | draw() & 0xf).to_be_bytes());
                let net = match n % 4 {
                    0 => IpNet::new(
                        std::net::Ipv6Addr::from(u128::from(draw()) << 96).into(),
                        16 + (draw() % 17) as u8,
                    ),
                    _ => IpNet::new(addr, 8 + (draw() % 25) as u8),
                };
                (net.unwrap().trunc(), draw() % 2 == 0)
            })
            .collect();
        let of = |verdict| {
            let nets = nets.iter().filter(move |(_, of)| *of == verdict);
            nets.map(|(net, _)| Item::Net(*net)).collect::<Vec<_>>()
        };
        let verdicts = Verdicts::new(&of(true), &of(false), false);
        let clients: Vec<IpAddr> = (0..500)
            .map(|n| match n % 4 {
                0 => std::net::Ipv6Addr::from(u128::from(draw()) << 96 | 1).into(),
                _ => IpAddr::from((10 << 24 | draw() >> 8).to_be_bytes()),
            })
            .collect();
        for &client in &clients {
            let having = nets.iter().filter(|(net, _)| net.contains(&client));
            let decides = having.max_by_key(|(net, verdict)| (net.prefix_len(), !verdict));
            let expected = decides.is_some_and(|(_, verdict)| *verdict);
            assert_eq!(verdicts.of(Some(client)), expected, "{client}");
        }
        // The least of many rounds, beside whatever else runs.
        let round = || {
            let start = Instant::now();
            assert!(clients.iter().filter(|c| verdicts.of(Some(**c))).count() > 0);
            start.elapsed() / clients.len() as u32
        };
        let each = (0..200).map(|_| round()).min().unwrap();
        assert!(each < Duration::from_micros(5), "{each:?} for a client");
    }

    #[test]
    fn a_bad_list_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10.0.0.0/8\n").unwrap();
        let addr: std::net::SocketAddr = "192.0.2.1:1".parse().unwrap();
        let mut config = Config::new(vec![addr], vec![addr], [0].into_iter().collect());
        config.deny = vec![AddressEntry::File(file.path().into())];
        let access = Access::new(Rules::read(&config).unwrap());
        let client = "10.0.0.1".parse().ok();
        assert!(!access.lets_in(client));
        for bad in ["11.0.0.0/8\n10.0.0.0/33\n", "10.0.0.0 11.0.0.0"] {
            std::fs::write(file.path(), bad).unwrap();
            access.reread(&config).unwrap_err();
            assert!(!access.lets_in(client));
        }
        std::fs::write(file.path(), "# nobody\n").unwrap();
        assert_eq!(access.reread(&config).unwrap(), 0);
        assert!(access.lets_in(client));
        // An allow list without an entry lets nobody in.
        std::mem::swap(&mut config.allow, &mut config.deny);
        access.reread(&config).unwrap();
        assert!(!access.lets_in(client));
    }
}
