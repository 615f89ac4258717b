use std::time::Instant;

use proptest::prelude::*;

use super::*;

const TAG: [u8; 4] = [0x81, 0, 0, 5];
const OUTER: [u8; 4] = [0x88, 0xa8, 0, 7];

/// A packet from one end to the other: MAC addresses, tags, and IP from its first byte.
fn ethernet(from: u8, to: u8, tags: &[[u8; 4]], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mac = |end| [2, 0, 0, 0, 0, end];
    let parts = [&mac(to)[..], &mac(from), &tags.concat(), &ether_type.to_be_bytes(), payload];
    parts.concat()
}

fn v4_packet(from: [u8; 6], to: [u8; 6], protocol: u8, options: usize, fragment: u16) -> Vec<u8> {
    let [_, _, from_port @ ..] = from;
    let mut bytes = vec![0x45 + options as u8, 0, 0, 40, 0, 1];
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 10, 0, from[0], from[1], 10, 0, to[0], to[1]]);
    bytes.resize(20 + options * 4, 1);
    bytes.extend([from_port[0], from_port[1], to[2], to[3], 1, 2, 3, 4]);
    bytes
}

fn v6_packet(from: u8, to: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 1, 2, 3, 0, 8, next, 64];
    bytes.extend([from; 16]);
    bytes.extend([to; 16]);
    bytes.extend(payload);
    bytes
}

/// Ends of a connection: two bytes of address, two of port.
const A: [u8; 6] = [0, 1, 0x30, 0x39, 0, 0];
const B: [u8; 6] = [0, 2, 0, 53, 0, 0];
const C: [u8; 6] = [0, 2, 0, 54, 0, 0];

#[test]
fn what_belongs_together_has_one_number_and_what_does_not_has_another() {
    let ip = |payload: Vec<u8>| ethernet(1, 2, &[], 0x0800, &payload);
    let ip6 = |payload: Vec<u8>| ethernet(1, 2, &[], 0x86dd, &payload);
    let cases: [(&str, Vec<u8>, Vec<u8>, bool); 21] = [
        ("directions", ip(v4_packet(A, B, 6, 0, 0)), ip(v4_packet(B, A, 6, 0, 0)), true),
        ("ports", ip(v4_packet(A, B, 6, 0, 0)), ip(v4_packet(A, C, 6, 0, 0)), false),
        ("protocols", ip(v4_packet(A, B, 6, 0, 0)), ip(v4_packet(A, B, 17, 0, 0)), false),
        ("options", ip(v4_packet(A, B, 6, 0, 0)), ip(v4_packet(A, B, 6, 3, 0)), true),
        ("may not be cut", ip(v4_packet(A, B, 6, 0, 0)), ip(v4_packet(A, B, 6, 0, 0x4000)), true),
        ("fragments", ip(v4_packet(A, B, 17, 0, 0x2000)), ip(v4_packet(C, A, 17, 0, 100)), true),
        ("ICMP", ip(v4_packet(A, B, 1, 0, 0)), ip(v4_packet(A, C, 1, 0, 0)), true),
        ("SCTP", ip(v4_packet(A, B, 132, 0, 0)), ip(v4_packet(A, C, 132, 0, 0)), false),
        (
            "other MAC addresses",
            ip(v4_packet(A, B, 6, 0, 0)),
            ethernet(7, 8, &[], 0x0800, &v4_packet(A, B, 6, 0, 0)),
            true,
        ),
        (
            "a VLAN tag",
            ip(v4_packet(A, B, 6, 0, 0)),
            ethernet(1, 2, &[TAG], 0x0800, &v4_packet(B, A, 6, 0, 0)),
            true,
        ),
        (
            "two VLAN tags",
            ip(v4_packet(A, B, 6, 0, 0)),
            ethernet(1, 2, &[OUTER, TAG], 0x0800, &v4_packet(B, A, 6, 0, 0)),
            true,
        ),
        ("v6", ip6(v6_packet(1, 2, 6, &A)), ip6(v6_packet(1, 2, 6, &A)), true),
        (
            "v6 directions",
            ip6(v6_packet(1, 2, 17, &[1, 2, 3, 4])),
            ip6(v6_packet(2, 1, 17, &[3, 4, 1, 2])),
            true,
        ),
        (
            "v6 ports swapped",
            ip6(v6_packet(1, 2, 17, &[1, 2, 3, 4])),
            ip6(v6_packet(1, 2, 17, &[3, 4, 1, 2])),
            false,
        ),
        (
            "v6 fragments",
            ip6(v6_packet(1, 2, 44, &[17, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4])),
            ip6(v6_packet(2, 1, 44, &[17, 0, 9, 1, 0, 0, 0, 1, 8, 8, 8, 8])),
            true,
        ),
        ("v6 addresses", ip6(v6_packet(1, 2, 6, &A)), ip6(v6_packet(1, 3, 6, &A)), false),
        (
            "ARP, both ways",
            ethernet(1, 2, &[], 0x0806, &[1; 28]),
            ethernet(2, 1, &[], 0x0806, &[2; 28]),
            true,
        ),
        (
            "other MAC addresses",
            ethernet(1, 2, &[], 0x0806, &[1; 28]),
            ethernet(1, 3, &[], 0x0806, &[1; 28]),
            false,
        ),
        (
            "not IPv4 although it says so",
            ethernet(1, 2, &[], 0x0800, &[0x65; 40]),
            ethernet(2, 1, &[], 0x0800, &[0x44; 40]),
            true,
        ),
        ("too short", vec![1; 13], vec![2; 13], false),
        ("much too short", vec![1; 11], vec![2; 5], true),
    ];
    let hasher = FlowHasher::default();
    for (what, one, other, together) in cases {
        let are_together = hasher.hash(&one) == hasher.hash(&other);
        assert_eq!(are_together, together, "{what}: {:?} and {:?}", flow(&one), flow(&other));
    }
}

#[test]
fn lenders_do_not_agree_and_threads_of_one_do() {
    let packet = ethernet(1, 2, &[], 0x0800, &v4_packet(A, B, 6, 0, 0));
    let hashers = [FlowHasher::default(), FlowHasher::default(), FlowHasher::default()];
    let hashes = hashers.each_ref().map(|hasher| hasher.hash(&packet));
    assert!(hashes.iter().any(|hash| *hash != hashes[0]), "no key");
    assert_eq!(hashers.map(|hasher| hasher.clone().hash(&packet)), hashes);
}

#[test]
fn flows_are_spread_evenly_over_the_upper_bits() {
    let hasher = FlowHasher::default();
    let mut buckets = [0_u32; 16];
    for port in 0..16_000_u16 {
        let [high, low] = port.to_be_bytes();
        let packet = v4_packet([0, 1, high, low, 0, 0], B, 17, 0, 0);
        buckets[(hasher.hash(&ethernet(1, 2, &[], 0x0800, &packet)) >> 28) as usize] += 1;
    }
    // 1000 each, give or take seven standard deviations.
    assert!(buckets.iter().all(|count| (780..1220).contains(count)), "{buckets:?}");
}

proptest! {
    /// Of headers that are cut, or lie about themselves.
    #[test]
    fn any_bytes_have_a_number_and_so_have_those_with_the_ends_swapped(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        start in 0_usize..8,
    ) {
        let starts: [&[u8]; 8] = [
            &[], &[8, 0], &[0x86, 0xdd], &[0x81, 0, 0, 1, 8, 0], &[0x81, 0, 0, 1, 0x86, 0xdd],
            &[0x81, 0], &[0x88, 0xa8, 0, 0, 0x81, 0], &[8, 0, 0x45],
        ];
        for (byte, set) in bytes.iter_mut().skip(12).zip(starts[start]) {
            *byte = *set;
        }
        let hasher = FlowHasher::default();
        let hash = hasher.hash(&bytes);
        for end in 0..bytes.len() {
            hasher.hash(&bytes[..end]);
        }
        // What is not IP: both addresses.
        if matches!(flow(&bytes), Flow::Ethernet { .. }) {
            bytes[..12].rotate_left(6);
            prop_assert_eq!(hasher.hash(&bytes), hash);
        }
    }
}

/// `cargo test --release -p cachelane-lend the_hash_of_a_packet -- --ignored --nocapture`
#[test]
#[ignore = "slow: a measurement"]
fn the_hash_of_a_packet_takes_tens_of_nanoseconds_at_most() {
    const TIMES: u32 = 5_000_000;
    let hasher = FlowHasher::default();
    let packets = [
        ("IPv4, UDP", ethernet(1, 2, &[], 0x0800, &v4_packet(A, B, 17, 0, 0))),
        ("IPv4, tagged", ethernet(1, 2, &[TAG], 0x0800, &v4_packet(A, B, 17, 0, 0))),
        ("IPv6, TCP", ethernet(1, 2, &[], 0x86dd, &v6_packet(1, 2, 6, &A))),
    ];
    for (what, packet) in packets {
        let start = Instant::now();
        for _ in 0..TIMES {
            std::hint::black_box(hasher.hash(std::hint::black_box(&packet)));
        }
        let each = start.elapsed() / TIMES;
        println!("{what}: {each:?} a packet");
        assert!(each.as_nanos() < 1000, "{what}: {each:?}");
    }
}
