//! PROXY protocol, version 2: the header that carries a connection's first addresses past a
//! relay. Parsing and writing of bytes only; no sockets here.
//!
//! Source: "The PROXY protocol, versions 1 & 2", section 2.2 (HAProxy's `proxy-protocol.txt`).
//! Version 1 (the text form), `AF_UNIX` and datagrams are not supported: such a header is an
//! error, or, for `AF_UNSPEC`, a header without addresses. TLVs are skipped.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const FIXED: usize = 16;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes that the header takes.
    pub length: usize,
    /// Source and destination of the first connection. `None` for LOCAL (health checks of the
    /// proxy itself) and for address families that carry none.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

/// What bytes at the start of a connection turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole header.
    Header(Header),
    /// So far it could be one; more bytes are needed.
    Incomplete,
    /// It is none, for this reason.
    Invalid(&'static str),
}

/// Looks at the first bytes of a connection. Never reads past `bytes`, never panics.
pub fn parse(bytes: &[u8]) -> Parsed {
    let signature = bytes.len().min(SIGNATURE.len());
    if bytes[..signature] != SIGNATURE[..signature] {
        return Parsed::Invalid("no PROXY protocol v2 signature");
    }
    let Some(fixed) = bytes.first_chunk::<FIXED>() else {
        return Parsed::Incomplete;
    };
    let (version_command, family) = (fixed[12], fixed[13]);
    let body = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let local = match version_command {
        0x20 => true,
        0x21 => false,
        v if v >> 4 != 2 => return Parsed::Invalid("PROXY protocol version is not 2"),
        _ => return Parsed::Invalid("PROXY protocol command is neither LOCAL nor PROXY"),
    };
    let length = FIXED + body;
    let Some(rest) = bytes.get(FIXED..length) else {
        return Parsed::Incomplete;
    };
    if local {
        return Parsed::Header(Header { length, addresses: None });
    }
    let addresses = match family {
        0x11 => read_addresses::<4>(rest),
        0x21 => read_addresses::<16>(rest),
        0x00 => return Parsed::Header(Header { length, addresses: None }),
        _ => return Parsed::Invalid("PROXY protocol family is not TCP over IPv4 or IPv6"),
    };
    match addresses {
        Some(_) => Parsed::Header(Header { length, addresses }),
        None => Parsed::Invalid("PROXY protocol length is too short for its addresses"),
    }
}

/// The header that says: this connection came from `source` to `destination`. Without
/// addresses it is a LOCAL header.
pub fn write(addresses: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let Some((source, destination)) = addresses else {
        header.extend([0x20, 0x00, 0, 0]);
        return header;
    };
    let (source_ip, destination_ip) = (source.ip().to_canonical(), destination.ip().to_canonical());
    if let (IpAddr::V4(s), IpAddr::V4(d)) = (source_ip, destination_ip) {
        header.extend([0x21, 0x11, 0, 12]);
        header.extend(s.octets());
        header.extend(d.octets());
    } else {
        header.extend([0x21, 0x21, 0, 36]);
        header.extend(as_v6(source_ip).octets());
        header.extend(as_v6(destination_ip).octets());
    }
    header.extend(source.port().to_be_bytes());
    header.extend(destination.port().to_be_bytes());
    header
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Two addresses of `N` bytes each, then two ports.
fn read_addresses<const N: usize>(body: &[u8]) -> Option<(SocketAddr, SocketAddr)>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = body.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let [s0, s1, d0, d1] = *rest.first_chunk::<4>()?;
    Some((
        SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes([s0, s1])),
        SocketAddr::new(IpAddr::from(*destination), u16::from_be_bytes([d0, d1])),
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let header = write(Some((addr("[2001:db8::1]:1"), addr("[2001:db8::2]:2"))));
        for n in 0..header.len() {
            assert_eq!(parse(&header[..n]), Parsed::Incomplete, "{n} bytes");
        }
        assert!(matches!(parse(&header), Parsed::Header(h) if h.length == header.len()));
    }

    #[test]
    fn what_is_not_a_header_is_refused_with_the_reason() {
        let mut version = write(None);
        version[12] = 0x11;
        let mut command = write(None);
        command[12] = 0x22;
        let mut unix = write(Some((addr("1.1.1.1:1"), addr("2.2.2.2:2"))));
        unix[13] = 0x31;
        let mut short = write(Some((addr("1.1.1.1:1"), addr("2.2.2.2:2"))));
        short[15] = 11;
        for (bytes, reason) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), "signature"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n".to_vec(), "signature"),
            (version, "version"),
            (command, "command"),
            (unix, "family"),
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

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = parse(&bytes);
            let mut signed = SIGNATURE.to_vec();
            signed.extend(&bytes);
            if let Parsed::Header(header) = parse(&signed) {
                prop_assert!(header.length <= signed.len());
            }
        }

        #[test]
        fn what_is_written_is_read_back(
            a in any::<[u8; 4]>(), b in any::<[u8; 16]>(), v6 in any::<bool>(),
            p in any::<u16>(), q in any::<u16>(), tail in proptest::collection::vec(any::<u8>(), 0..32),
        ) {
            let ip = if v6 { IpAddr::from(b) } else { IpAddr::from(a) };
            let pair = (SocketAddr::new(ip, p), SocketAddr::new(ip, q));
            let mut bytes = write(Some(pair));
            let length = bytes.len();
            bytes.extend(tail);
            let canonical = |s: SocketAddr| SocketAddr::new(s.ip().to_canonical(), s.port());
            prop_assert_eq!(parse(&bytes), Parsed::Header(Header {
                length, addresses: Some((canonical(pair.0), canonical(pair.1))),
            }));
        }
    }
}
