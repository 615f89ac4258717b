//! What people write.

use std::cell::Cell;
use std::time::Duration;

use libc::sock_filter;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::cases;
use super::packets::packets;
use super::rig::{Next, agree};
use super::steps::step;
use crate::Expression;

/// How long libpcap may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Each matches some packets and not others.
const USUAL: [&str; 44] = [
    "tcp port 80",
    "udp port 53",
    "port 22 or port 443",
    "not (port 22 or arp)",
    "portrange 50-100",
    "src port 53 and dst port 9000",
    "vlan 5 and udp",
    "vlan",
    "vlan 5 and vlan 7 and tcp",
    "ip6 and ip6[6] = 6 and ip6[53] & 2 != 0",
    "tcp[tcpflags] & tcp-syn != 0",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
    "net 10.0.0.0/8",
    "net 10.0.0.0 mask 255.255.255.254",
    "ip6 net fd00::/16",
    "host 10.0.0.1",
    "src host 10.0.0.2 and dst host 10.0.0.3",
    "ip6 host fd00::1",
    "ether host 02:00:00:00:00:01",
    "ether dst ff:ff:ff:ff:ff:ff",
    "ether src 02:00:00:00:00:02",
    "ether multicast",
    "ether proto 0x0806",
    "broadcast",
    "arp",
    "arp[6:2] = 1",
    "icmp",
    "icmp6",
    "icmp[icmptype] = icmp-echo",
    "ip",
    "ip6",
    "ip proto 17",
    "ip6 proto 6",
    "ip[6:2] & 0x1fff != 0",
    "ip[2:2] > 100 and ip[8] = 64",
    "tcp[(tcp[12] >> 2):1] > 100",
    "udp[8] & 1 = 1",
    "greater 150",
    "less 100",
    "len > 80 and len < 120",
    "len % 3 = 1",
    "(tcp[13] * 3 + len - udp[4:2] / 2) & 6 != 0 or icmp",
    "ether[ether[50] & 0x1f] > 3",
    "(tcp or udp) and not port 53 and host 10.0.0.1",
];

fn compile(text: &str) -> Expression {
    Expression::compile(text, PATIENCE).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn answer(k: u32) -> sock_filter {
    step(libc::BPF_RET | libc::BPF_K, 0, 0, k)
}

fn sample(number: usize) -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let mut one = || packets().new_tree(&mut runner).expect("a packet").current();
    (0..number).map(|_| one()).collect()
}

#[test]
fn root_usual_expressions_match_as_tcpdump_has_it() {
    if !lab::testing::root("root_usual_expressions_match_as_tcpdump_has_it") {
        return;
    }
    let nexts = [false, true].map(Next::new);
    let packets = sample(1500);
    for text in USUAL {
        let matches = agree(&nexts, &compile(text).steps, &packets, true);
        let matches = matches.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!((1..packets.len()).contains(&matches), "{text}: {matches} matches");
    }
}

/// Expressions of a few words, put together at random.
fn expressions() -> impl Strategy<Value = String> {
    let word = prop::sample::select(&USUAL[..]).prop_map(str::to_owned);
    word.prop_recursive(4, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|a| format!("not ({a})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) and ({b})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a}) or ({b})")),
        ]
    })
}

#[test]
fn root_expressions_match_as_tcpdump_has_it() {
    if !lab::testing::root("root_expressions_match_as_tcpdump_has_it") {
        return;
    }
    let nexts = [Next::new(false)];
    let packets = prop::collection::vec(packets(), 16);
    let (refused, looked) = (Cell::new(0), Cell::new(0));
    let result = cases(300).run(&(expressions(), packets), |(text, packets)| {
        // Some contradict themselves, and libpcap says so.
        match Expression::compile(&text, PATIENCE) {
            Ok(compiled) => {
                looked.set(looked.get() + 1);
                agree(&nexts, &compiled.steps, &packets, true).map(drop)
            }
            Err(_) => {
                refused.set(refused.get() + 1);
                Ok(())
            }
        }
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(looked > refused, "{looked:?} against {refused:?}");
}

/// Hundreds of hosts and ports, as from a list.
#[test]
fn root_long_expressions_match_as_tcpdump_has_it() {
    if !lab::testing::root("root_long_expressions_match_as_tcpdump_has_it") {
        return;
    }
    let nexts = [false, true].map(Next::new);
    let list = |begin: &str, words: &mut dyn Iterator<Item = String>| {
        format!("{begin} ({})", words.collect::<Vec<_>>().join(" or "))
    };
    let ports = (5000..5300).map(|n| n.to_string());
    let ports = list("tcp or udp dst port", &mut ports.chain(["53".into()]));
    let hosts = list("not host", &mut (1..120).map(|n| format!("10.0.0.{n}")));
    let nets = list("port 53 or net", &mut (0..120).map(|n| format!("172.16.{n}.0/24")));
    for text in [ports, hosts, nets] {
        let compiled = compile(&text);
        assert!(compiled.steps() > 250, "{}", compiled.steps());
        let matches = agree(&nexts, &compiled.steps, &sample(300), true);
        let matches = matches.unwrap_or_else(|error| panic!("{error}"));
        assert!((1..300).contains(&matches), "{matches} matches");
    }
}

/// The kernel takes no program of any length.
#[test]
fn root_an_expression_that_is_too_long_is_refused_in_one_line() {
    if !lab::testing::root("root_an_expression_that_is_too_long_is_refused_in_one_line") {
        return;
    }
    let next = Next::new(false);
    // As libpcap would make it, if it had the time.
    for length in [9_000, 20_000] {
        let load = step(libc::BPF_LD | libc::BPF_ABS | libc::BPF_W, 0, 0, 26);
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let compare = |k| [load, step(equal, 0, 1, k), answer(k)];
        let steps = (0..length).flat_map(compare).chain([answer(0)]).collect();
        let expression = Expression::of("host 10.0.0.0 or …".into(), steps);
        let refused = expression.program(c"filter", &next.map, false).expect_err("too long");
        let said = refused.to_string();
        assert!(said.contains(&format!("it has {} steps", 3 * length + 1)), "{said}");
        assert!(said.contains("too long") || said.contains("too complex"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn an_expression_for_which_libpcap_takes_too_long_is_refused() {
    let ports: Vec<String> = (0..100).map(|n| format!("port {n}")).collect();
    let refused = Expression::compile(&ports.join(" or "), Duration::from_millis(1));
    let said = refused.expect_err("nobody waits").to_string();
    assert!(said.contains("within 1ms") && said.contains("ranges and networks"), "{said}");
    let refused =
        Expression::compile(&"port 1 or ".repeat(20_000), PATIENCE).expect_err("too long");
    assert!(refused.to_string().contains("200000 bytes (expected at most 131072)"), "{refused}");
}

#[test]
fn what_is_no_expression_is_said() {
    for (text, says) in [
        ("tcp prot 80", "syntax error"),
        ("host", "syntax error"),
        ("port 99999", "99999"),
        ("ip host fd00::1", "ip6 host"),
        ("inbound", "it asks for the packet's type (0xfffff004)"),
        ("nonsense", "syntax error"),
        ("ip[0] / 0 = 1", "zero"),
        ("a\0b", "NUL"),
    ] {
        let error = Expression::compile(text, PATIENCE).expect_err("it is none").to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}
