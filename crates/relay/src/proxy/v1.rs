//! Version 1: a line of text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Header, Parsed, in_one_family};

/// The longest line, with its end.
pub(super) const LONGEST: usize = 107;

const BEGINNING: &[u8] = b"PROXY ";
const END: &[u8] = b"\r\n";

pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let begun = bytes.len().min(BEGINNING.len());
    if bytes[..begun] != BEGINNING[..begun] {
        return Parsed::Invalid("it begins with no PROXY protocol signature");
    }
    let longest = &bytes[..bytes.len().min(LONGEST)];
    let Some(end) = longest.windows(END.len()).position(|two| two == END) else {
        return if bytes.len() < LONGEST {
            Parsed::Incomplete
        } else {
            Parsed::Invalid("its line is longer than 107 bytes")
        };
    };
    let length = end + END.len();
    let Ok(line) = std::str::from_utf8(&bytes[BEGINNING.len()..end]) else {
        return Parsed::Invalid("its line is not ASCII");
    };
    let words: Vec<&str> = line.split(' ').collect();
    let addresses = match words[..] {
        ["UNKNOWN", ..] => return Parsed::Header(Header { length, addresses: None }),
        ["TCP4", source, destination, from, to] => {
            addresses::<Ipv4Addr>(source, destination, from, to)
        }
        ["TCP6", source, destination, from, to] => {
            addresses::<Ipv6Addr>(source, destination, from, to)
        }
        _ => {
            return Parsed::Invalid(
                "its line is not TCP4 or TCP6 with two addresses and two ports",
            );
        }
    };
    match addresses {
        Some(_) => Parsed::Header(Header { length, addresses }),
        None => Parsed::Invalid("an address or a port in its line does not parse"),
    }
}

/// The line that says: this connection came from `source` to `destination`.
pub fn write(addresses: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let Some((source, destination)) = addresses else {
        return b"PROXY UNKNOWN\r\n".to_vec();
    };
    let (s, d) = in_one_family(source, destination);
    let family = if s.is_ipv4() { "TCP4" } else { "TCP6" };
    format!("PROXY {family} {s} {d} {} {}\r\n", source.port(), destination.port()).into_bytes()
}

fn addresses<Ip: std::str::FromStr + Into<IpAddr>>(
    source: &str,
    destination: &str,
    from: &str,
    to: &str,
) -> Option<(SocketAddr, SocketAddr)> {
    let addr = |ip: &str, port: &str| {
        // Not "+80", which Rust reads as a number.
        let port = port.bytes().all(|b| b.is_ascii_digit()).then_some(port)?;
        Some(SocketAddr::new(ip.parse::<Ip>().ok()?.into(), port.parse().ok()?))
    };
    Some((addr(source, from)?, addr(destination, to)?))
}
