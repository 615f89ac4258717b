//! Frames as bytes, for what no socket sends.

use std::net::{IpAddr, SocketAddr};

/// An empty datagram from one end to the other, to nobody's hardware address.
pub(crate) fn with_tags([from, to]: [SocketAddr; 2], tags: usize) -> Vec<u8> {
    let mut udp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    udp.extend([0, 8, 0, 0]);
    let mut frame = ethernet(if tags > 0 { 0x8100 } else { kind_of(from.ip()) });
    for left in (0..tags).rev() {
        let kind = if left > 0 { 0x8100 } else { kind_of(from.ip()) };
        frame.extend([0, 5].into_iter().chain(kind.to_be_bytes()));
    }
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0]);
            frame.extend(from.octets().into_iter().chain(to.octets()));
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x60, 0, 0, 0, 0, 8, 17, 64]);
            frame.extend(from.octets().into_iter().chain(to.octets()));
        }
        mixed => panic!("{mixed:?}"),
    }
    frame.extend(udp);
    frame
}

fn kind_of(address: IpAddr) -> u16 {
    if address.is_ipv4() { 0x0800 } else { 0x86dd }
}

/// An Ethernet header.
fn ethernet(kind: u16) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &kind.to_be_bytes()].concat()
}

/// Frames that no flow can be told of, and why.
pub(crate) fn left_to_the_kernel() -> Vec<(&'static str, Vec<u8>)> {
    let v4 = |flags: u16, protocol: u8, payload: &[u8]| {
        let mut frame = ethernet(0x0800);
        let length = 20 + payload.len() as u16;
        frame.extend([0x45, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([0, 1]);
        frame.extend(flags.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 9, 8, 7, 10, 9, 8, 6]);
        frame.extend(payload);
        frame
    };
    let v6 = |next: u8| {
        let mut frame = ethernet(0x86dd);
        frame.extend([0x60, 0, 0, 0, 0, 24, next, 64]);
        frame.extend([0xfd; 32]);
        frame.extend([17, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend([0; 16]);
        frame
    };
    let ports = [0x12, 0x34, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
    let mut tags = ethernet(0x8100);
    for _ in 0..2 {
        tags.extend([0, 5, 0x81, 0]);
    }
    tags.extend([0, 5, 0x08, 0x00]);
    tags.extend(&v4(0, 17, &ports)[14..]);
    vec![
        ("other", [ethernet(0x0806), vec![0; 28]].concat()),
        ("other", [ethernet(0x88cc), vec![0; 46]].concat()),
        // More tags than are looked through.
        ("other", tags),
        ("short", [ethernet(0x0800), vec![0x65; 30]].concat()),
        ("short", [ethernet(0x86dd), vec![0x60; 10]].concat()),
        // The first fragment, which has the ports, and the second, which has none.
        ("fragment", v4(0x2000, 17, &ports)),
        ("fragment", v4(0x0010, 17, &ports)),
        ("fragment", v6(44)),
        ("protocol", v4(0, 1, &[8; 16])),
        ("protocol", v4(0, 4, &[0x45; 40])),
        ("protocol", v4(0, 47, &[0; 40])),
        ("protocol", v6(0)),
        ("unknown", v4(0, 17, &ports)),
    ]
}
