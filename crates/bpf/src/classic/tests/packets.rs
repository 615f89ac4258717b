//! Packets that filters are tried with.

use etherparse::PacketBuilder;
use proptest::prelude::*;

/// Packets of a small world, so that expressions match some: some of them cut, some of them noise.
pub(super) fn packets() -> impl Strategy<Value = Vec<u8>> {
    let host = || 1_u8..4;
    let port = || prop::sample::select(vec![22_u16, 53, 80, 443, 9000]);
    let tags = prop::sample::select(vec![vec![], vec![], vec![5_u16], vec![6], vec![5, 7]]);
    let cut = prop_oneof![4 => Just(usize::MAX), 1 => 14_usize..90];
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    let what = (0_u8..8, any::<bool>(), any::<u8>(), any::<bool>());
    (what, host(), host(), port(), port(), tags, payload, cut).prop_map(
        |((what, v6, flags, fragment), from, to, sport, dport, tags, payload, cut)| {
            let mac = |host| [2, 0, 0, 0, 0, host];
            let mut packet = Vec::new();
            if what == 7 {
                packet = [&[0xff; 6][..], &mac(from), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
                packet.extend(&payload);
                packet.resize(packet.len().max(60), 0);
            } else {
                let v4 = |host| [10, 0, 0, host];
                let address = |host| {
                    let mut address = [0; 16];
                    (address[0], address[1], address[15]) = (0xfd, 0, host);
                    address
                };
                let builder = PacketBuilder::ethernet2(mac(from), mac(to));
                let builder = match v6 {
                    true => builder.ipv6(address(from), address(to), 64),
                    false => builder.ipv4(v4(from), v4(to), 64),
                };
                let written = match what {
                    0..3 => builder.udp(sport, dport).write(&mut packet, &payload),
                    3..6 => {
                        let mut tcp = builder.tcp(sport, dport, 1, 1000);
                        if flags & 1 == 1 {
                            tcp = tcp.syn();
                        }
                        if flags & 2 == 2 {
                            tcp = tcp.ack(5);
                        }
                        tcp.write(&mut packet, &payload)
                    }
                    _ if v6 => builder.icmpv6_echo_request(1, 2).write(&mut packet, &payload),
                    _ => builder.icmpv4_echo_request(1, 2).write(&mut packet, &payload),
                };
                written.expect("a packet");
                if fragment && !v6 && flags & 12 == 12 {
                    packet[20..22].copy_from_slice(&0x2010_u16.to_be_bytes());
                }
            }
            let tags: Vec<u8> =
                tags.iter().flat_map(|id| [0x8100, *id]).flat_map(u16::to_be_bytes).collect();
            packet.splice(12..12, tags);
            packet.truncate(cut);
            packet
        },
    )
}

pub(super) fn noise() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => 0_u8..8, 1 => any::<u8>()], 14..150)
}
