//! How a receiving card spreads flows over its queues (receive side scaling, RSS), as `ethtool -x`
//! prints it there: a key for the Toeplitz hash of addresses and ports, and a table of queues of which
//! the low bits of the hash choose an entry.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use crate::exit::usage;

/// What a card does with the hash of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rss {
    key: Vec<u8>,
    /// The queue of each entry; their number is a power of two.
    pub(super) table: Vec<u32>,
    /// Each field is replaced by itself XOR its counterpart (`symmetric-xor`), so both directions of a
    /// flow have one hash.
    is_symmetric: bool,
    /// Whether the hash function is named; if not, Toeplitz is assumed, which is that of RSS.
    is_named: bool,
}

/// What the hash covers, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Source,
    Target,
    SourcePort,
    TargetPort,
}

impl Part {
    /// Where its bytes begin, and those of its counterpart.
    fn offsets(self, address: usize) -> [usize; 2] {
        let (source, target) = (2 * address, 2 * address + 2);
        match self {
            Part::Source => [0, address],
            Part::Target => [address, 0],
            Part::SourcePort => [source, target],
            Part::TargetPort => [target, source],
        }
    }
}

/// Bytes of an address.
pub(super) fn width(address: IpAddr) -> usize {
    if address.is_ipv4() { 4 } else { 16 }
}

/// More than any card has.
const MOST_ENTRIES: usize = 4096;

/// Longer than what `ethtool -x` prints of such a table.
const LONGEST: u64 = 1 << 20;

impl Rss {
    /// Reads a file; `-` is stdin.
    pub(super) fn read(path: &Path) -> anyhow::Result<Rss> {
        let what = || format!("--rss {}", path.display());
        let mut text = String::new();
        let read = |from: &mut dyn Read, text| from.take(LONGEST).read_to_string(text);
        if path == Path::new("-") {
            read(&mut io::stdin(), &mut text)
        } else {
            File::open(path).and_then(|mut file| read(&mut file, &mut text))
        }
        .with_context(what)?;
        let rss = Rss::parse(&text).map_err(|why| usage(format!("{}: {why}", what())))?;
        if !rss.is_named {
            tracing::warn!("{}: the hash function is not named; Toeplitz is assumed", what());
        }
        Ok(rss)
    }

    fn parse(text: &str) -> Result<Rss, String> {
        let mut said = match text.trim_start().starts_with(['[', '{']) {
            true => Said::of_json(text)?,
            false => Said::of_text(text)?,
        };
        if said.table.is_empty() {
            return Err("no indirection table (expected what `ethtool -x DEVICE` prints at the \
                        receiver; a device of one queue has none)"
                .into());
        }
        let entries = said.table.len();
        if !entries.is_power_of_two() || entries > MOST_ENTRIES {
            return Err(format!(
                "a table of {entries} entries: which of them a hash chooses is known where they are \
                 a power of two, up to {MOST_ENTRIES} (ethtool -L DEVICE combined N changes their \
                 number on some cards)"
            ));
        }
        let on = |on: &[String]| on.join(", ");
        if !said.functions.is_empty() && said.functions != ["toeplitz"] {
            return Err(format!(
                "hash function {}: expected toeplitz (ethtool -X DEVICE hfunc toeplitz)",
                on(&said.functions)
            ));
        }
        let is_symmetric = said.transformations == ["symmetric-xor"];
        if !said.transformations.is_empty() && !is_symmetric {
            return Err(format!(
                "input transformation {}: expected symmetric-xor, or none (ethtool -X DEVICE xfrm \
                 none)",
                on(&said.transformations)
            ));
        }
        if said.key.is_empty() {
            return Err(
                "no hash key (expected one below 'RSS hash key:', such as 6d:5a:...; drivers \
                        that do not tell theirs often use the first 40 bytes of \
                        /proc/sys/net/core/netdev_rss_key there)"
                    .into(),
            );
        }
        if said.key.iter().all(|byte| *byte == 0) {
            return Err(
                "a hash key of zeros sends all flows to one queue (ethtool -X DEVICE hkey \
                        6d:5a:...)"
                    .into(),
            );
        }
        // Where the table repeats itself, fewer bits of the hash say which queue it is.
        let repeats = |table: &[u32]| {
            let (first, second) = table.split_at(table.len() / 2);
            first == second
        };
        while repeats(&said.table) {
            said.table.truncate(said.table.len() / 2);
        }
        let is_named = !said.functions.is_empty();
        Ok(Rss { key: said.key, table: said.table, is_symmetric, is_named })
    }

    /// Refuses a key that is too short for addresses of so many bytes.
    pub(super) fn check(&self, path: &Path, address: usize) -> anyhow::Result<()> {
        let (has, needs) = (self.key.len(), 2 * address + 8);
        let family = if address == 4 { "IPv4" } else { "IPv6" };
        match has < needs {
            true => Err(usage(format!(
                "--rss {}: a hash key of {has} bytes (expected at least {needs} for {family} and ports)",
                path.display()
            ))),
            false => Ok(()),
        }
    }

    /// The hash of one part of what is covered, where all else is zero. That of all is the XOR of its
    /// parts'. `bytes` are the last ones of the part; `address` is how many an address has.
    pub(super) fn hash(&self, part: Part, bytes: &[u8], address: usize) -> u32 {
        let width = match part {
            Part::Source | Part::Target => address,
            Part::SourcePort | Part::TargetPort => 2,
        };
        let [own, other] =
            part.offsets(address).map(|at| self.toeplitz(at + width - bytes.len(), bytes));
        own ^ if self.is_symmetric { other } else { 0 }
    }

    /// The Toeplitz hash of bytes at this offset: for each bit that is set, the 32 bits of the key that
    /// begin there.
    fn toeplitz(&self, offset: usize, bytes: &[u8]) -> u32 {
        let bits = (0..8 * bytes.len()).filter(|bit| bytes[bit / 8] >> (7 - bit % 8) & 1 == 1);
        bits.fold(0, |hash, bit| hash ^ self.window(8 * offset + bit))
    }

    fn window(&self, bit: usize) -> u32 {
        let from = self.key[bit / 8..].iter().copied().chain(std::iter::repeat(0));
        let five = from.take(5).fold(0, |all: u64, byte| all << 8 | u64::from(byte));
        (five >> (8 - bit % 8)) as u32
    }
}

/// What was read, as it is written.
#[derive(Debug, Default)]
struct Said {
    table: Vec<u32>,
    key: Vec<u8>,
    /// Those that are on.
    functions: Vec<String>,
    transformations: Vec<String>,
}

/// What lines are about, by the line before them.
#[derive(Clone, Copy, PartialEq)]
enum About {
    Nothing,
    Table,
    Key,
    Function,
    Transformation,
}

impl Said {
    fn of_text(text: &str) -> Result<Said, String> {
        let (mut said, mut about) = (Said::default(), About::Nothing);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            about = match line {
                _ if line.starts_with("RX flow hash indirection table") => About::Table,
                "RSS hash key:" => About::Key,
                "RSS hash function:" => About::Function,
                "RSS input transformation:" => About::Transformation,
                // What a driver does not tell.
                "Operation not supported" => About::Nothing,
                _ => {
                    said.line(about, line)?;
                    continue;
                }
            };
            if about == About::Table && !said.table.is_empty() {
                return Err("two indirection tables (expected that of one device)".into());
            }
        }
        Ok(said)
    }

    fn line(&mut self, about: About, line: &str) -> Result<(), String> {
        let unknown = || format!("'{line}' is not what `ethtool -x` prints there");
        let named = |list: &mut Vec<String>| {
            match line.split_once(':') {
                Some((name, " on")) => list.push(name.into()),
                Some((_, " off")) => {}
                // A value that ethtool has no name for.
                _ if line.starts_with("Unknown") => list.push(line.into()),
                _ => return Err(unknown()),
            }
            Ok(())
        };
        match about {
            About::Nothing => Ok(()),
            About::Table => {
                let (at, queues) = line.split_once(':').ok_or_else(unknown)?;
                if at.trim().parse() != Ok(self.table.len()) {
                    return Err(format!(
                        "entry {} of the indirection table is missing (found '{line}')",
                        self.table.len()
                    ));
                }
                let queues = queues.split_whitespace().map(str::parse);
                queues.into_iter().try_for_each(|queue| {
                    self.table.push(queue.map_err(|_| unknown())?);
                    Ok(())
                })
            }
            About::Key => line.split(':').filter(|byte| !byte.is_empty()).try_for_each(|byte| {
                let parsed = u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2);
                self.key.push(parsed.ok_or_else(|| {
                    format!("'{byte}' in the hash key is no byte (expected such as 6d:5a:56)")
                })?);
                Ok(())
            }),
            About::Function => named(&mut self.functions),
            About::Transformation => named(&mut self.transformations),
        }
    }

    fn of_json(text: &str) -> Result<Said, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("JSON: {error}"))?;
        let object = match &value {
            Value::Array(all) if all.len() == 1 => &all[0],
            Value::Array(all) => {
                return Err(format!("JSON of {} devices (expected that of one)", all.len()));
            }
            object => object,
        };
        let mut said = Said {
            table: numbers(object, "rss-indirection-table")?,
            key: numbers(object, "rss-hash-key")?,
            ..Said::default()
        };
        said.functions.extend(object["rss-hash-function"].as_str().map(str::to_owned));
        if let Some(raw) = object.get("rss-hash-function-raw") {
            said.functions.push(raw.to_string());
        }
        for (name, value) in object["rss-input-transformation"].as_object().into_iter().flatten() {
            match value {
                Value::Bool(true) => said.transformations.push(name.clone()),
                Value::Bool(false) => {}
                raw => said.transformations.push(raw.to_string()),
            }
        }
        Ok(said)
    }
}

/// The numbers of an array; none if there is no such array.
fn numbers<T: TryFrom<u64>>(object: &Value, name: &str) -> Result<Vec<T>, String> {
    let each = object[name].as_array().into_iter().flatten();
    let number = |value: &Value| value.as_u64().and_then(|number| T::try_from(number).ok());
    each.map(|value| number(value).ok_or_else(|| format!("{name}: {value} cannot be there")))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The key of Microsoft's "Verifying the RSS hash calculation".
    pub(in super::super) const KEY: &str = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:\
                               ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa";

    /// What ethtool prints of a table and this key.
    pub(in super::super) fn printed(table: &[u32], symmetric: &str) -> String {
        let row = |(at, queues): (usize, &[u32])| {
            let queues: String = queues.iter().map(|queue| format!(" {queue:5}")).collect();
            format!("{:5}: {queues}\n", 8 * at)
        };
        let rows: String = table.chunks(8).enumerate().map(row).collect();
        format!(
            "RX flow hash indirection table for eth1 with 64 RX ring(s):\n{rows}RSS hash key:\n{KEY}\n\
             RSS hash function:\n    toeplitz: on\n    xor: off\n    crc32: off\n\
             RSS input transformation:\n    symmetric-xor: {symmetric}\n    symmetric-or-xor: off\n"
        )
    }

    pub(in super::super) fn rss(table: &[u32], symmetric: &str) -> Rss {
        Rss::parse(&printed(table, symmetric)).expect("it is what ethtool prints")
    }

    fn tuple(rss: &Rss, [source, target]: [IpAddr; 2], ports: Option<[u16; 2]>) -> u32 {
        let bytes = |address| match address {
            IpAddr::V4(four) => four.octets().to_vec(),
            IpAddr::V6(six) => six.octets().to_vec(),
        };
        let hash = |part, bytes: &[u8]| rss.hash(part, bytes, width(source));
        let addresses = hash(Part::Source, &bytes(source)) ^ hash(Part::Target, &bytes(target));
        let Some([from, to]) = ports.map(|ports| ports.map(u16::to_be_bytes)) else {
            return addresses;
        };
        addresses ^ hash(Part::SourcePort, &from) ^ hash(Part::TargetPort, &to)
    }

    /// All of the suite in Microsoft's "Verifying the RSS hash calculation", which network cards are
    /// tested with: source, target, and the hashes of addresses alone and with ports.
    #[test]
    fn hashes_are_those_of_the_verification_suite() {
        let rss = rss(&[0, 1], "off");
        for (from, to, addresses, all) in [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
            ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
            ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
            ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
            ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
            (
                "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
                "[fe80::200:f8ff:fe21:67cf]:38024",
                0x4b61_e985,
                0x02d1_feef,
            ),
        ] {
            let ends: [std::net::SocketAddr; 2] =
                [from, to].map(|end| end.parse().expect("an end"));
            let (addresses_of, ports) = (ends.map(|end| end.ip()), ends.map(|end| end.port()));
            assert_eq!(tuple(&rss, addresses_of, None), addresses, "{from} {to}");
            assert_eq!(tuple(&rss, addresses_of, Some(ports)), all, "{from} {to}");
        }
    }

    /// The kernel's documentation (ethtool.h, RXH_XFRM_SYM_XOR): both fields are their XOR.
    #[test]
    fn symmetric_hashes_are_those_of_fields_that_are_combined() {
        let (plain, symmetric) = (rss(&[0, 1], "off"), rss(&[0, 1], "on"));
        let one = ["192.0.2.7", "198.51.100.200"].map(|end| end.parse().expect("an address"));
        let both = ["6.51.102.207"; 2].map(|end| end.parse().expect("an address"));
        let expected = tuple(&plain, both, Some([1000 ^ 53; 2]));
        assert_eq!(tuple(&symmetric, one, Some([1000, 53])), expected);
        assert_eq!(tuple(&symmetric, [one[1], one[0]], Some([53, 1000])), expected);
    }

    #[test]
    fn what_ethtool_prints_of_drivers_is_read() {
        let key = [0x6d, 0x5a, 0x56, 0xda];
        // A release of before ethtool 4.0, with mlx4: no hash function.
        let old = format!(
            "RX flow hash indirection table for eth0 with 8 RX ring(s):\n    0:      0     1     2     \
             3     4     5     6     7\nRSS hash key:\n{KEY}\n"
        );
        let read = Rss::parse(&old).expect("it is one");
        assert_eq!((read.table, read.is_named), ((0..8).collect(), false));
        assert_eq!((read.key.len(), read.key[..4].to_vec()), (40, key.to_vec()));
        // i40e and ice have 52 bytes of key, and enetc 64 entries.
        let long = printed(&[0, 1].repeat(32), "off")
            .replace(KEY, &format!("{KEY}:be:c3:13:a6:59:9a:c3:c5:d8:60:75:2b"));
        let read = Rss::parse(&long).expect("it is one");
        assert_eq!((read.table, read.key.len(), read.is_named), (vec![0, 1], 52, true));
        // The driver does not tell its hash function.
        let text = printed(&[0; 128], "off");
        let (head, _) = text.split_once("    toeplitz").expect("a function");
        let silent = Rss::parse(&format!("{head}    Operation not supported\n"));
        assert_eq!(silent.map(|read| (read.table, read.is_named)), Ok((vec![0], false)));
        // Six queues have no period in 128 entries, and three halves are no half.
        let six: Vec<u32> = (0..128).map(|at| at % 6).collect();
        assert_eq!(rss(&six, "off").table, six);
        assert_eq!(rss(&[0, 1, 0, 2], "on").table, [0, 1, 0, 2]);
    }

    #[test]
    fn json_is_read_as_well() {
        let key: Vec<String> = (1..=40).map(|byte| byte.to_string()).collect();
        let text = |more: &str| {
            format!(
                r#"[ {{ "ifname": "eth1", "rss-indirection-table": [ 0,1,2,3 ],
                    "rss-hash-key": [ {} ], "rss-hash-function": "toeplitz"{more} }} ]"#,
                key.join(",")
            )
        };
        let read = Rss::parse(&text("")).expect("it is one");
        assert_eq!((read.table, read.key), (vec![0, 1, 2, 3], (1..=40).collect()));
        assert!(read.is_named && !read.is_symmetric);
        let transformed = |name, on| {
            let more = format!(r#", "rss-input-transformation": {{ "{name}": {on} }}"#);
            Rss::parse(&text(&more))
        };
        assert!(transformed("symmetric-xor", "true").expect("it is one").is_symmetric);
        assert!(!transformed("symmetric-xor", "false").expect("it is one").is_symmetric);
        for (name, on) in [("symmetric-or-xor", "true"), ("raw", "8")] {
            let refused = transformed(name, on).unwrap_err();
            assert!(refused.contains("xfrm none"), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_can() {
        let good = printed(&[0, 1, 2, 3], "off");
        let with = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            good.replace(from, to)
        };
        let table = "    0:      0     1     2     3\n";
        for (text, part) in [
            (String::new(), "expected what `ethtool -x DEVICE` prints"),
            ("no such device\n".into(), "no indirection table"),
            // virtio-net without rss=on, igbvf.
            (with(table, "Operation not supported\n"), "no indirection table"),
            (with(table, "    0:      0     1     2\n"), "a table of 3 entries"),
            (with(table, "    0:   0 1\n  120:   2 3\n"), "entry 2 of the indirection table"),
            (with(table, "    0:   0 1\n[...snip...]\n"), "'[...snip...]'"),
            (with(table, "    0:   0 one\n"), "'0:   0 one'"),
            // igb does not tell its key.
            (with(KEY, "Operation not supported"), "/proc/sys/net/core/netdev_rss_key"),
            (with(KEY, "6d:5a:5g"), "'5g' in the hash key"),
            (with(KEY, "6d:5a:567"), "'567' in the hash key"),
            (with(KEY, "00:00:00"), "a hash key of zeros"),
            // mlx5 after `ethtool -X eth1 hfunc xor`.
            (
                with("toeplitz: on\n    xor: off", "toeplitz: off\n    xor: on"),
                "hash function xor: expected toeplitz (ethtool -X DEVICE hfunc toeplitz)",
            ),
            (with("    crc32: off\n", "    Unknown hash function: 0x8\n"), "0x8"),
            (with("or-xor: off", "or-xor: on"), "input transformation symmetric-or-xor"),
            (format!("{good}{good}"), "two indirection tables"),
            ("[]".into(), "JSON of 0 devices"),
            ("[ { } ]".into(), "no indirection table"),
            (r#"{ "rss-indirection-table": [ 0, -1 ] }"#.into(), "rss-indirection-table: -1"),
            ("[ {".into(), "JSON: EOF"),
        ] {
            let refused = Rss::parse(&text).expect_err(part);
            assert!(refused.contains(part), "'{part}' is missing: {refused}");
        }
    }

    #[test]
    fn a_key_has_to_reach_over_addresses_and_ports() {
        let with = |bytes: usize| {
            let key = &KEY[..3 * bytes - 1];
            Rss::parse(&printed(&[0, 1], "off").replace(KEY, key)).expect("it is one")
        };
        let path = Path::new("x");
        assert!(with(16).check(path, 4).is_ok() && with(40).check(path, 16).is_ok());
        for (bytes, address, part) in
            [(15, 4, "15 bytes (expected at least 16 for IPv4"), (39, 16, "at least 40 for IPv6")]
        {
            let refused = with(bytes).check(path, address).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
