//! PROXY protocol, versions 1 and 2: the header that carries a connection's first addresses past a
//! relay. Parsing and writing of bytes only; no sockets here.
//!
//! Source: "The PROXY protocol, versions 1 & 2" (HAProxy's `proxy-protocol.txt`), sections 2.1 and
//! 2.2. `UNKNOWN`, `AF_UNSPEC` and `AF_UNIX` are headers without addresses; datagrams are an error.
//! What a header says is known from its first [`MOST_NEEDED`] bytes; TLVs behind them are of no use.

mod v1;
mod v2;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub use v1::write as write_v1;
pub use v2::write;

/// Bytes from which every header is understood: the longest line of version 1.
pub const MOST_NEEDED: usize = v1::LONGEST;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes that the header takes; the last of them may not have arrived.
    pub length: usize,
    /// Source and destination of the first connection. `None` for LOCAL (health checks of the
    /// proxy itself) and for address families that carry none.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

/// What bytes at the start of a connection turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A header, as far as it matters.
    Header(Header),
    /// So far it could be one; more bytes are needed.
    Incomplete,
    /// It is none, for this reason.
    Invalid(&'static str),
}

/// Looks at the first bytes of a connection. Never reads past `bytes`, never panics.
pub fn parse(bytes: &[u8]) -> Parsed {
    match bytes.first() {
        None => Parsed::Incomplete,
        Some(b'P') => v1::parse(bytes),
        Some(_) => v2::parse(bytes),
    }
}

/// The same family for both: IPv4 if both are, or IPv6.
fn in_one_family(source: SocketAddr, destination: SocketAddr) -> (IpAddr, IpAddr) {
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        both @ (IpAddr::V4(_), IpAddr::V4(_)) => both,
        (source, destination) => (as_v6(source).into(), as_v6(destination).into()),
    }
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::v2::SIGNATURE;
    use super::*;

    fn addr(s: &str) -> SocketAddr {
        s.parse().unwrap()
    }

    /// The bytes that HAProxy's documentation gives for the layout, written by hand.
    #[test]
    fn a_header_written_by_hand_is_read() {
        let mut bytes = b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A".to_vec();
        bytes.extend([0x21, 0x11, 0x00, 0x0F]);
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x30, 0x39, 0x01, 0xBB]);
        bytes.extend([0x04, 0x00, 0x00]); // an empty NOOP TLV
        bytes.extend(b"GET /");
        let expected =
            Header { length: 31, addresses: Some((addr("10.0.0.1:12345"), addr("10.0.0.2:443"))) };
        assert_eq!(parse(&bytes), Parsed::Header(expected));
    }

    #[test]
    fn every_prefix_of_a_header_is_incomplete() {
        let ends = Some((addr("[2001:db8::1]:1"), addr("[2001:db8::2]:2")));
        for header in [write(ends), write(None), write_v1(ends), write_v1(None)] {
            for n in 0..header.len() {
                assert_eq!(parse(&header[..n]), Parsed::Incomplete, "{n} of {header:?}");
            }
            assert!(matches!(parse(&header), Parsed::Header(h) if h.length == header.len()));
        }
    }

    #[test]
    fn what_is_not_a_header_is_refused_with_the_reason() {
        let mut version = write(None);
        version[12] = 0x11;
        let mut command = write(None);
        command[12] = 0x22;
        let mut datagrams = write(Some((addr("1.1.1.1:1"), addr("2.2.2.2:2"))));
        datagrams[13] = 0x12;
        let mut short = write(Some((addr("1.1.1.1:1"), addr("2.2.2.2:2"))));
        short[15] = 11;
        for (bytes, reason) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), "signature"),
            (b"PROXIES\r\n".to_vec(), "signature"),
            (b"PROXY \r\n".to_vec(), "TCP4"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n".to_vec(), "two ports"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n".to_vec(), "two ports"),
            (b"PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n".to_vec(), "two ports"),
            (b"PROXY UDP4 1.1.1.1 2.2.2.2 1 2\r\n".to_vec(), "TCP4"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 65536\r\n".to_vec(), "parse"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n".to_vec(), "parse"),
            (b"PROXY TCP4 ::1 ::2 1 2\r\n".to_vec(), "parse"),
            (b"PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n".to_vec(), "parse"),
            (b"PROXY \xff\r\n".to_vec(), "ASCII"),
            ([b"PROXY UNKNOWN ".as_slice(), &[b'x'; 120]].concat(), "longer than 107"),
            (version, "version"),
            (command, "command"),
            (datagrams, "family"),
            (short, "too short"),
        ] {
            match parse(&bytes) {
                Parsed::Invalid(why) => assert!(why.contains(reason), "{why}"),
                other => panic!("{bytes:?} was read as {other:?}"),
            }
        }
    }

    #[test]
    fn a_mapped_v4_client_is_written_as_v4() {
        let header = write(Some((addr("[::ffff:10.0.0.1]:1"), addr("[::ffff:10.0.0.2]:2"))));
        assert!(matches!(parse(&header), Parsed::Header(h)
            if h.addresses == Some((addr("10.0.0.1:1"), addr("10.0.0.2:2")))));
    }

    #[test]
    fn lines_as_the_specification_has_them_are_read() {
        let v4 = Some((addr("255.255.255.255:65535"), addr("192.168.0.11:443")));
        let v6 = Some((addr("[2001:db8::1]:1"), addr("[::2]:2")));
        for (line, expected) in [
            ("PROXY TCP4 255.255.255.255 192.168.0.11 65535 443\r\n", v4),
            ("PROXY TCP6 2001:db8::1 ::2 1 2\r\n", v6),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
        ] {
            let expected = Header { length: line.len(), addresses: expected };
            let bytes = [line.as_bytes(), b"GET /\r\n"].concat();
            assert_eq!(parse(&bytes), Parsed::Header(expected), "{line}");
        }
    }

    #[test]
    fn families_without_addresses_are_headers_all_the_same() {
        for family in [0x00, 0x31] {
            let mut header = write(Some((addr("1.1.1.1:1"), addr("2.2.2.2:2"))));
            (header[13], header[15]) = (family, 216);
            let expected = Header { length: 232, addresses: None };
            assert_eq!(parse(&header), Parsed::Header(expected), "{family}");
        }
    }

    #[test]
    fn the_longest_header_is_understood_before_all_of_it_is_there() {
        let mut header = write(Some((addr("1.1.1.1:1"), addr("2.2.2.2:2"))));
        (header[14], header[15]) = (0xff, 0xff);
        assert!(matches!(parse(&header), Parsed::Header(h)
            if h.length == 65_551 && h.addresses == Some((addr("1.1.1.1:1"), addr("2.2.2.2:2")))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = parse(&bytes);
            for beginning in [&SIGNATURE[..], b"PROXY TCP4 "] {
                let begun = [beginning, &bytes].concat();
                let parsed = parse(&begun);
                let needed = begun.len() >= MOST_NEEDED;
                prop_assert!(!(needed && parsed == Parsed::Incomplete), "{begun:?}");
            }
        }

        #[test]
        fn what_is_written_is_read_back(
            a in any::<[u8; 4]>(), b in any::<[u8; 16]>(), v6 in any::<bool>(),
            p in any::<u16>(), q in any::<u16>(), tail in proptest::collection::vec(any::<u8>(), 0..32),
        ) {
            let ip = if v6 { IpAddr::from(b) } else { IpAddr::from(a) };
            let pair = (SocketAddr::new(ip, p), SocketAddr::new(ip, q));
            for mut bytes in [write(Some(pair)), write_v1(Some(pair))] {
                let length = bytes.len();
                bytes.extend(&tail);
                let canonical = |s: SocketAddr| SocketAddr::new(s.ip().to_canonical(), s.port());
                prop_assert_eq!(parse(&bytes), Parsed::Header(Header {
                    length, addresses: Some((canonical(pair.0), canonical(pair.1))),
                }));
            }
        }
    }
}
