//! What stands in a list of addresses, on the command line and in files.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use crate::{Error, ErrorKind};

/// Something in a list of addresses: from text with [`FromStr`], as `IP`, `IP/PREFIX`, `all` or
/// `@FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressEntry {
    /// Every address of a network; bits behind its prefix are of no meaning.
    Net(IpNet),
    /// Every client, also one without an address.
    All,
    /// What stands in a file, one a line: networks and `all`. What follows a `#` or a `;` is a comment.
    File(PathBuf),
}

/// An entry that stands for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Net(IpNet),
    All,
}

const EXPECTED: &str =
    "an address such as 10.0.0.7 or 2001:db8::7, a network such as 10.0.0.0/8, or all";

impl FromStr for AddressEntry {
    type Err = Error;

    fn from_str(s: &str) -> Result<AddressEntry, Error> {
        match s.strip_prefix('@') {
            Some("") => Err(Error::invalid("'@' names no file (expected @FILE)")),
            Some(path) => Ok(AddressEntry::File(path.into())),
            None => match Item::parse(s) {
                Some(Item::Net(net)) => Ok(AddressEntry::Net(net)),
                Some(Item::All) => Ok(AddressEntry::All),
                None => Err(Error::invalid(format!(
                    "'{s}' is no network (expected {EXPECTED}, or @FILE for a file of them)"
                ))),
            },
        }
    }
}

impl fmt::Display for AddressEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressEntry::Net(net) => net.fmt(f),
            AddressEntry::All => f.write_str("all"),
            AddressEntry::File(path) => write!(f, "@{}", path.display()),
        }
    }
}

impl AddressEntry {
    /// What it stands for at this moment.
    ///
    /// # Errors
    /// The file cannot be read, or has a line that is no entry.
    pub(super) fn read(&self) -> Result<Vec<Item>, Error> {
        let path = match self {
            AddressEntry::Net(net) => return Ok(vec![Item::Net(*net)]),
            AddressEntry::All => return Ok(vec![Item::All]),
            AddressEntry::File(path) => path,
        };
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, format!("address list {}: {e}", path.display()))
        })?;
        let lines = text.lines().enumerate().map(|(n, line)| {
            let line = line.split(['#', ';']).next().unwrap_or_default().trim();
            let item = (!line.is_empty()).then(|| Item::parse(line).ok_or((n + 1, line)));
            item.transpose()
        });
        let items = lines.filter_map(Result::transpose).collect::<Result<_, _>>();
        items.map_err(|(n, line)| {
            let path = path.display();
            Error::invalid(format!("{path}:{n}: '{line}' is no network (expected {EXPECTED})"))
        })
    }
}

impl Item {
    fn parse(s: &str) -> Option<Item> {
        if s == "all" {
            return Some(Item::All);
        }
        let net = s.parse::<IpAddr>().map(IpNet::from).or_else(|_| s.parse::<IpNet>()).ok()?;
        Some(Item::Net(canonical(net.trunc())))
    }
}

/// An IPv4 network that is written as IPv6 is one of IPv4.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let prefix = v6.prefix_len().checked_sub(96);
    let v4 = v6.addr().to_ipv4_mapped().zip(prefix);
    v4.and_then(|(addr, prefix)| Ipv4Net::new(addr, prefix).ok()).map_or(net, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::NamedTempFile, AddressEntry) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let entry = format!("@{}", file.path().display()).parse().unwrap();
        (file, entry)
    }

    #[test]
    fn entries_are_read_as_they_are_written() {
        for (given, written) in [
            ("10.0.0.7", "10.0.0.7/32"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("2001:db8::7", "2001:db8::7/128"),
            ("2001:db8::7/32", "2001:db8::/32"),
            ("::ffff:10.0.0.7", "10.0.0.7/32"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("all", "all"),
            ("@some/file", "@some/file"),
        ] {
            let entry: AddressEntry = given.parse().unwrap();
            assert_eq!(entry.to_string(), written);
            assert_eq!(written.parse::<AddressEntry>().unwrap(), entry);
        }
    }

    #[test]
    fn what_is_no_entry_is_named_with_what_was_expected() {
        for bad in
            ["", "10.0.0", "10.0.0.0/33", "::/129", "10.0.0.0/8x", "any", "db1", "@", "10.0.0.1:80"]
        {
            let error = bad.parse::<AddressEntry>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("@FILE"), "{error}");
        }
    }

    #[test]
    fn a_file_has_an_entry_a_line_and_comments() {
        let (_file, entry) =
            file("# ours\n10.0.0.0/8   # the office\n\n  2001:db8::/32 ; SBL1\r\nall\n");
        let expected = ["10.0.0.0/8", "2001:db8::/32", "all"].map(|one| Item::parse(one).unwrap());
        assert_eq!(entry.read().unwrap(), expected);
    }

    #[test]
    fn a_bad_line_is_named_with_its_file_and_number() {
        for (text, at, named) in [
            ("10.0.0.1\n\n10.0.0.0/99\n", ":3:", "'10.0.0.0/99'"),
            ("10.0.0.1 10.0.0.2\n", ":1:", "'10.0.0.1 10.0.0.2'"),
            ("@/other/file", ":1:", "'@/other/file'"),
        ] {
            let (file, entry) = file(text);
            let error = entry.read().unwrap_err().to_string();
            let path = file.path().display().to_string();
            assert!(error.contains(&format!("{path}{at}")) && error.contains(named), "{error}");
        }
        let missing: AddressEntry = "@/nowhere/at/all".parse().unwrap();
        assert!(missing.read().unwrap_err().to_string().contains("/nowhere/at/all: No such file"));
    }
}
