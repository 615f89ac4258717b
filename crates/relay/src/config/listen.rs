//! One place to listen on as it is told: where it is, and who may use a Unix socket's file.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use nix::unistd::{Group, User};

use crate::Error;
use crate::addr::{Addr, UNIX, UnixAddr};

/// Where to listen. From an address alone, with [`From`]; from text, with [`FromStr`]: `IP:PORT`,
/// `[IPv6]:PORT`, `:PORT` and `*:PORT` for every address of the host, IPv4 and IPv6, or
/// `unix:PATH[,OPTION…]`, such as `unix:/run/db.sock,mode=660,group=db`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address. Port 0 lets the kernel choose.
    pub addr: Addr,
    /// Permissions of a Unix socket's file, such as `0o660`. `None`: as the process's umask has it.
    pub mode: Option<u32>,
    /// The id of the user who owns that file. `None`: this process's.
    pub user: Option<u32>,
    /// The id of its group. `None`: as the kernel has it.
    pub group: Option<u32>,
}

impl<A: Into<Addr>> From<A> for Listen {
    fn from(addr: A) -> Listen {
        Listen { addr: addr.into(), mode: None, user: None, group: None }
    }
}

const EXPECTED: &str = "expected IP:PORT, [IPv6]:PORT, :PORT for every address, or unix:PATH";

impl FromStr for Listen {
    type Err = Error;

    fn from_str(s: &str) -> Result<Listen, Error> {
        if s.starts_with(UNIX) {
            return Listen::of_unix(s);
        }
        if let Some(port) = s.strip_prefix('*').unwrap_or(s).strip_prefix(':')
            && let Ok(port) = port.parse()
        {
            return Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into());
        }
        let refuse = || Error::invalid(format!("listen address '{s}' does not parse ({EXPECTED})"));
        s.parse::<SocketAddr>().map(Listen::from).map_err(|_| refuse())
    }
}

impl Listen {
    fn of_unix(s: &str) -> Result<Listen, Error> {
        const OPTIONS: &str = "mode=OCTAL, user=NAME or group=NAME";
        let mut parts = s.split(',');
        let addr: UnixAddr = parts.next().unwrap_or_default().parse()?;
        let mut listen = Listen::from(addr);
        for option in parts {
            let refuse = |expected: &str| {
                let addr = &listen.addr;
                Error::invalid(format!(
                    "listen address '{addr}': option '{option}' (expected {expected})"
                ))
            };
            let (name, value) = option.split_once('=').ok_or_else(|| refuse(OPTIONS))?;
            match name {
                "mode" => {
                    let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o777);
                    listen.mode = Some(mode.ok_or_else(|| refuse("permissions such as 660"))?);
                }
                "user" => {
                    let expected = "a user of this host, or a number";
                    listen.user = Some(user(value).ok_or_else(|| refuse(expected))?);
                }
                "group" => {
                    let expected = "a group of this host, or a number";
                    listen.group = Some(group(value).ok_or_else(|| refuse(expected))?);
                }
                _ => return Err(refuse(OPTIONS)),
            }
            if matches!(&listen.addr, Addr::Unix(addr) if addr.path().is_none()) {
                return Err(refuse("none: a name in the network namespace has no permissions"));
            }
        }
        Ok(listen)
    }
}

/// The id of a user of this name or number.
fn user(name: &str) -> Option<u32> {
    let of_name = || Some(User::from_name(name).ok()??.uid.as_raw());
    number(name).or_else(of_name)
}

/// The id of a group of this name or number.
fn group(name: &str) -> Option<u32> {
    let of_name = || Some(Group::from_name(name).ok()??.gid.as_raw());
    number(name).or_else(of_name)
}

/// An id; the largest number is none.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_parse_as_haproxy_users_write_them() {
        for (given, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            (":8080", "[::]:8080"),
            ("*:8080", "[::]:8080"),
            ("unix:/run/x.sock", "unix:/run/x.sock"),
            ("unix:@x", "unix:@x"),
        ] {
            let listen: Listen = given.parse().unwrap();
            assert_eq!(listen.addr.to_string(), expected, "{given}");
            assert_eq!((listen.mode, listen.user, listen.group), (None, None, None));
        }
        let listen: Listen = "unix:/run/x.sock,mode=660,user=root,group=7".parse().unwrap();
        assert_eq!((listen.mode, listen.user, listen.group), (Some(0o660), Some(0), Some(7)));
    }

    #[test]
    fn an_address_that_does_not_parse_is_named_with_what_was_expected() {
        for given in ["", "80", "1.2.3.4", "1.2.3.4:99999", "::1:80x", "[::1]", "localhost:80"] {
            let error = given.parse::<Listen>().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&format!("'{given}'")), "{error}");
            assert!(error.to_string().contains("expected IP:PORT"), "{error}");
        }
        for (given, option, expected) in [
            ("unix:/x,mode=888", "'mode=888'", "such as 660"),
            ("unix:/x,mode=1777", "'mode=1777'", "such as 660"),
            ("unix:/x,user=nobody-at-all", "'user=nobody-at-all'", "a user of this host"),
            ("unix:/x,group=", "'group='", "a group of this host"),
            ("unix:/x,backlog=1", "'backlog=1'", "mode=OCTAL"),
            ("unix:/x,", "''", "mode=OCTAL"),
            ("unix:@x,mode=660", "'mode=660'", "no permissions"),
        ] {
            let error = given.parse::<Listen>().unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(expected), "{given}: {error}");
        }
    }
}
