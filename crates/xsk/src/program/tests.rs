//! The program's choice against a model of it, on random packets.
#![allow(unsafe_code)]

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};

use super::*;

/// What becomes of a packet on a queue without socket, named as its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Chosen,
    NotChosen,
    Malformed,
    Fragment,
}

const PORTS: [u16; 5] = [0, 53, 4789, 9000, u16::MAX];

/// Written from the filter's description, not from the program.
fn model(filter: &Filter, packet: &[u8]) -> Outcome {
    let chosen = |yes| if yes { Outcome::Chosen } else { Outcome::NotChosen };
    let u16_at =
        |bytes: &[u8], at| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    if *filter == Filter::Everything {
        return Outcome::Chosen;
    }
    let (Some(kind), Some(ip)) = (u16_at(packet, 12), packet.get(14..)) else {
        return Outcome::Malformed;
    };
    if let Filter::EtherType(wanted) = filter {
        return chosen(kind == *wanted);
    }
    let (header, protocol, fragment) = match kind {
        0x0800 => {
            if ip.len() < 20 || ip[0] >> 4 != 4 || ip[0] & 15 < 5 {
                return Outcome::Malformed;
            }
            let more_or_offset = u16_at(ip, 6).is_some_and(|word| word & 0x3fff != 0);
            (usize::from(ip[0] & 15) * 4, ip[9], more_or_offset)
        }
        0x86dd => {
            if ip.len() < 40 || ip[0] >> 4 != 6 {
                return Outcome::Malformed;
            }
            match (filter, ip[6]) {
                (Filter::UdpPorts(_), 44) if ip.len() < 48 => return Outcome::Malformed,
                (Filter::UdpPorts(_), 44) => (48, ip[40], true),
                (_, next) => (40, next, false),
            }
        }
        _ => return Outcome::NotChosen,
    };
    match filter {
        Filter::IpProtocol(wanted) => chosen(protocol == *wanted),
        _ if protocol != 17 => Outcome::NotChosen,
        _ if fragment => Outcome::Fragment,
        Filter::UdpPorts(ports) => match ip.get(header..header + 8) {
            Some(udp) if u16_at(udp, 4) >= Some(8) => {
                chosen(u16_at(udp, 2).is_some_and(|port| ports.contains(&port)))
            }
            _ => Outcome::Malformed,
        },
        _ => unreachable!("handled above"),
    }
}

/// Runs the loaded program on a packet and says what it counted.
fn run(loaded: &Loaded, packet: &[u8]) -> Outcome {
    let before = loaded.counters().expect("counters");
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        ..Default::default()
    };
    // SAFETY: `options` says its own size and that of the packet, which the kernel reads; both
    // outlive the call.
    let failed =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(loaded.program.as_raw_fd(), &raw mut options) };
    assert_eq!(failed, 0, "the program runs");
    assert_eq!(options.retval, libbpf_sys::XDP_PASS, "without a socket all goes to the kernel");
    let after = loaded.counters().expect("counters");
    let counted = [
        (after.no_socket - before.no_socket, Outcome::Chosen),
        (after.not_chosen - before.not_chosen, Outcome::NotChosen),
        (after.malformed - before.malformed, Outcome::Malformed),
        (after.fragment - before.fragment, Outcome::Fragment),
    ];
    assert_eq!(counted.iter().map(|(n, _)| n).sum::<u64>(), 1, "each packet is counted once");
    assert_eq!(after.redirected, 0);
    counted.into_iter().find(|(n, _)| *n == 1).expect("one is").1
}

/// Packets most of which are nearly right: headers with a field or two changed, cut anywhere.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let kind =
        prop_oneof![4 => Just(0x0800_u16), 4 => Just(0x86dd), 1 => Just(0x8100), 1 => any::<u16>()];
    let protocol = prop_oneof![6 => Just(17_u8), 2 => Just(44), 1 => Just(6), 1 => any::<u8>()];
    let port = prop_oneof![4 => prop::sample::select(&PORTS[..]), 1 => any::<u16>()];
    let ihl = prop_oneof![6 => Just(5_u8), 3 => 5_u8..16, 1 => 0_u8..5];
    let fragment =
        prop_oneof![6 => Just(0_u16), 2 => Just(0x4000), 1 => Just(0x2000), 1 => any::<u16>()];
    let udp_len = prop_oneof![8 => 8_u16.., 1 => 0_u16..8];
    let version = prop_oneof![12 => Just(None), 1 => (0_u8..16).prop_map(Some)];
    let inner = prop_oneof![3 => Just(17_u8), 1 => any::<u8>()];
    let cut = prop_oneof![3 => Just(usize::MAX), 2 => 14_usize..110];
    let noise = prop::collection::vec(any::<u8>(), 120);
    (kind, protocol, port, ihl, fragment, udp_len, version, inner, cut, noise).prop_map(
        |(kind, protocol, port, ihl, fragment, udp_len, version, inner, cut, mut packet)| {
            packet[12..14].copy_from_slice(&kind.to_be_bytes());
            let ip = &mut packet[14..];
            let header = match kind {
                0x0800 => {
                    ip[0] = version.unwrap_or(4) << 4 | ihl;
                    ip[6..8].copy_from_slice(&fragment.to_be_bytes());
                    ip[9] = protocol;
                    usize::from(ihl) * 4
                }
                _ => {
                    ip[0] = version.unwrap_or(6) << 4;
                    ip[6] = protocol;
                    if protocol == 44 { 48 } else { 40 }
                }
            };
            let udp = &mut ip[header..];
            udp[2..4].copy_from_slice(&port.to_be_bytes());
            udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
            if kind != 0x0800 && protocol == 44 {
                ip[40] = inner;
            }
            packet.truncate(cut);
            packet
        },
    )
}

#[test]
fn root_the_program_chooses_as_its_description_says() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: root_the_program_chooses_as_its_description_says: needs root");
        return;
    }
    let filters = [
        Filter::Everything,
        Filter::UdpPorts(PORTS.to_vec()),
        Filter::EtherType(0x86dd),
        Filter::IpProtocol(17),
        Filter::IpProtocol(44),
    ];
    for (filter, multi_buffer) in filters.into_iter().flat_map(|f| [(f.clone(), false), (f, true)])
    {
        let options = ProgramOptions { filter, multi_buffer, ..ProgramOptions::default() };
        let loaded = Loaded::new(&options, 1).expect("the program loads");
        let mut seen = std::collections::HashMap::new();
        let mut runner = TestRunner::new(Config::with_cases(1500));
        let result = runner.run(&packets(), |packet| {
            prop_assert_eq!(run(&loaded, &packet), model(&options.filter, &packet));
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{options:?}: {error}"));
        // The packets are such that they tell programs apart.
        for packet in sample(&packets(), 500) {
            *seen.entry(format!("{:?}", model(&options.filter, &packet))).or_insert(0) += 1;
        }
        let kinds = match options.filter {
            Filter::Everything => 1,
            Filter::EtherType(_) => 2,
            Filter::IpProtocol(_) => 3,
            Filter::UdpPorts(_) => 4,
        };
        assert_eq!(seen.len(), kinds, "{options:?}: {seen:?}");
    }
}

fn sample<S: Strategy>(strategy: &S, n: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    let tree = |runner: &mut TestRunner| strategy.new_tree(runner).expect("a packet");
    (0..n).map(|_| tree(&mut runner).current()).collect()
}

#[test]
fn a_filter_without_ports_is_refused() {
    let options = ProgramOptions { filter: Filter::UdpPorts(vec![]), ..ProgramOptions::default() };
    let error = Loaded::new(&options, 1).expect_err("no ports");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
