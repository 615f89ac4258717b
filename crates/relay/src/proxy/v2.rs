//! Version 2: binary.

use std::net::{IpAddr, SocketAddr};

use super::{Header, Parsed, in_one_family};

pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const FIXED: usize = 16;

pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let signature = bytes.len().min(SIGNATURE.len());
    if bytes[..signature] != SIGNATURE[..signature] {
        return Parsed::Invalid("it begins with no PROXY protocol signature");
    }
    let Some(fixed) = bytes.first_chunk::<FIXED>() else {
        return Parsed::Incomplete;
    };
    let (version_command, family) = (fixed[12], fixed[13]);
    let body = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let local = match version_command {
        0x20 => true,
        0x21 => false,
        v if v >> 4 != 2 => return Parsed::Invalid("its binary version is not 2"),
        _ => return Parsed::Invalid("its command is neither LOCAL nor PROXY"),
    };
    let rest = &bytes[FIXED..];
    let addresses = match family {
        _ if local => Ok(None),
        0x11 => read_addresses::<4>(rest, body),
        0x21 => read_addresses::<16>(rest, body),
        // Unspecified, and a stream of AF_UNIX.
        0x00 | 0x31 => Ok(None),
        _ => {
            Err(Parsed::Invalid("its family is neither TCP over IP, nor AF_UNIX, nor unspecified"))
        }
    };
    match addresses {
        Ok(addresses) => Parsed::Header(Header { length: FIXED + body, addresses }),
        Err(parsed) => parsed,
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
    match in_one_family(source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            header.extend([0x21, 0x11, 0, 12]);
            header.extend(s.octets());
            header.extend(d.octets());
        }
        (s, d) => {
            header.extend([0x21, 0x21, 0, 36]);
            header.extend(super::as_v6(s).octets());
            header.extend(super::as_v6(d).octets());
        }
    }
    header.extend(source.port().to_be_bytes());
    header.extend(destination.port().to_be_bytes());
    header
}

type Addresses = Option<(SocketAddr, SocketAddr)>;

/// Two addresses of `N` bytes each, then two ports, at the start of a body of `length` bytes.
fn read_addresses<const N: usize>(body: &[u8], length: usize) -> Result<Addresses, Parsed>
where
    IpAddr: From<[u8; N]>,
{
    if length < 2 * N + 4 {
        return Err(Parsed::Invalid("its length is too short for its addresses"));
    }
    let read = || {
        let (source, rest) = body.split_first_chunk::<N>()?;
        let (destination, rest) = rest.split_first_chunk::<N>()?;
        let [s0, s1, d0, d1] = *rest.first_chunk::<4>()?;
        Some((
            SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes([s0, s1])),
            SocketAddr::new(IpAddr::from(*destination), u16::from_be_bytes([d0, d1])),
        ))
    };
    read().map(Some).ok_or(Parsed::Incomplete)
}
