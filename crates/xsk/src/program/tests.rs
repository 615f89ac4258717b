//! The program's choice against a model of it, on random packets.

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

/// How long libpcap may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

const PORTS: [u16; 5] = [0, 53, 4789, 9000, u16::MAX];
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// Written from the options' description, not from the program.
fn model(options: &ProgramOptions, packet: &[u8]) -> Outcome {
    let filters = &options.filters;
    if filters.is_empty() && options.vlans.is_none() {
        return Outcome::Chosen;
    }
    let (Some(mut kind), Some(mut rest)) = (u16_at(packet, 12), packet.get(14..)) else {
        return Outcome::Malformed;
    };
    if let Some(Vlans { ids, untagged }) = &options.vlans {
        let within = match (TAGS.contains(&kind), u16_at(rest, 0)) {
            (false, _) => *untagged,
            (true, Some(tag)) if rest.len() >= 4 => ids.contains(&(tag & 0xfff)),
            (true, _) => return Outcome::Malformed,
        };
        match within {
            false => return Outcome::NotChosen,
            true if filters.is_empty() => return Outcome::Chosen,
            true => {}
        }
    }
    let is_wanted = |kind| {
        filters.iter().any(|f| matches!(f, Filter::EtherTypes(types) if types.contains(&kind)))
    };
    for _ in 0..2 {
        if !TAGS.contains(&kind) || is_wanted(kind) {
            break;
        }
        (kind, rest) = match (u16_at(rest, 2), rest.get(4..)) {
            (Some(kind), Some(rest)) => (kind, rest),
            _ => return Outcome::Malformed,
        };
    }
    if is_wanted(kind) {
        return Outcome::Chosen;
    }
    if filters.iter().all(|filter| matches!(filter, Filter::EtherTypes(_))) {
        return Outcome::NotChosen;
    }
    ip_model(filters, kind, rest)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// What becomes of a packet that its Ethernet type does not choose.
fn ip_model(filters: &[Filter], kind: u16, ip: &[u8]) -> Outcome {
    let chosen = |yes| if yes { Outcome::Chosen } else { Outcome::NotChosen };
    let ports_of = |protocol: u8| {
        filters.iter().find_map(|filter| match (filter, protocol) {
            (Filter::UdpPorts(ports), 17) | (Filter::TcpPorts(ports), 6) => Some(ports),
            _ => None,
        })
    };
    let by_ports = ports_of(6).is_some() || ports_of(17).is_some();
    let by_protocol = |protocol| {
        let by =
            |f: &Filter| matches!(f, Filter::IpProtocols(numbers) if numbers.contains(&protocol));
        filters.iter().any(by)
    };
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
            match ip[6] {
                44 if by_protocol(44) => return Outcome::Chosen,
                44 if by_ports && ip.len() < 48 => return Outcome::Malformed,
                44 if by_ports => (48, ip[40], true),
                next => (40, next, false),
            }
        }
        _ => return Outcome::NotChosen,
    };
    if !(kind == 0x86dd && fragment) && by_protocol(protocol) {
        return Outcome::Chosen;
    }
    let Some(ports) = ports_of(protocol) else { return Outcome::NotChosen };
    if fragment {
        return Outcome::Fragment;
    }
    let port = match protocol {
        17 => ip.get(header..header + 8).filter(|udp| u16_at(udp, 4) >= Some(8)),
        _ => ip.get(header..header + 20).filter(|tcp| tcp[12] >> 4 >= 5),
    };
    match port.and_then(|header| u16_at(header, 2)) {
        Some(port) => chosen(ports.contains(&port)),
        None => Outcome::Malformed,
    }
}

/// Runs the loaded program on a packet and says what it counted.
fn run(loaded: &Loaded, packet: &[u8]) -> Outcome {
    let before = loaded.counters().expect("counters");
    let action = test_run(loaded, packet);
    assert_eq!(action, libbpf_sys::XDP_PASS, "without a socket all goes to the kernel");
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

/// What the program does with a packet.
fn test_run(loaded: &Loaded, packet: &[u8]) -> u32 {
    let context = libbpf_sys::xdp_md { data_end: packet.len() as u32, ..Default::default() };
    let mut packet = bpf::Packet { data: packet.to_vec(), context };
    loaded.program.run_on(&mut packet).expect("the program runs")
}

/// Packets most of which are nearly right: headers with a field or two changed, cut anywhere.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let kind =
        prop_oneof![4 => Just(0x0800_u16), 4 => Just(0x86dd), 1 => Just(0x8100), 1 => any::<u16>()];
    let id = prop_oneof![3 => Just(5_u16), 1 => Just(0), 1 => any::<u16>()];
    let tag = (prop::sample::select(&TAGS[..]), id);
    let tags = prop_oneof![
        2 => Just(Vec::new()).boxed(),
        3 => prop::collection::vec(tag, 1..4).boxed(),
    ];
    let protocol = prop_oneof![4 => Just(17_u8), 4 => Just(6), 2 => Just(44), 1 => any::<u8>()];
    let port = prop_oneof![4 => prop::sample::select(&PORTS[..]), 1 => any::<u16>()];
    let ihl = prop_oneof![6 => Just(5_u8), 3 => 5_u8..16, 1 => 0_u8..5];
    let fragment =
        prop_oneof![6 => Just(0_u16), 2 => Just(0x4000), 1 => Just(0x2000), 1 => any::<u16>()];
    let udp_len = prop_oneof![8 => 8_u16.., 1 => 0_u16..8];
    let version = prop_oneof![12 => Just(None), 1 => (0_u8..16).prop_map(Some)];
    let inner = prop_oneof![3 => Just(17_u8), 2 => Just(6), 1 => any::<u8>()];
    let offset = prop_oneof![6 => Just(5_u8), 1 => 0_u8..16];
    let cut = prop_oneof![3 => Just(usize::MAX), 2 => 14_usize..110];
    let noise = prop::collection::vec(any::<u8>(), 120);
    let fields = (kind, protocol, port, ihl, fragment, udp_len, version, inner, offset);
    (fields, tags, cut, noise).prop_map(|(fields, tags, cut, mut packet)| {
        let (kind, protocol, port, ihl, fragment, udp_len, version, inner, offset) = fields;
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
        let transport = &mut ip[header..];
        transport[2..4].copy_from_slice(&port.to_be_bytes());
        match protocol {
            6 => transport[12] = offset << 4,
            _ => transport[4..6].copy_from_slice(&udp_len.to_be_bytes()),
        }
        if kind != 0x0800 && protocol == 44 {
            ip[40] = inner;
        }
        let tags = tags.iter().flat_map(|(kind, id)| [kind.to_be_bytes(), id.to_be_bytes()]);
        packet.splice(12..12, tags.flatten().collect::<Vec<u8>>());
        packet.truncate(cut);
        packet
    })
}

#[test]
fn root_the_program_chooses_as_its_description_says() {
    if !lab::testing::root("root_the_program_chooses_as_its_description_says") {
        return;
    }
    use Filter::{EtherTypes, IpProtocols, TcpPorts, UdpPorts};
    let ports = || PORTS.to_vec();
    let vlans = |ids: &[u16], untagged| Some(Vlans { ids: ids.to_vec(), untagged });
    // With how many different outcomes there may be.
    let cases = [
        (vec![], None, 1),
        (vec![UdpPorts(ports())], None, 4),
        (vec![TcpPorts(ports())], None, 4),
        (vec![UdpPorts(ports()), TcpPorts(vec![53])], None, 4),
        (vec![EtherTypes(vec![0x86dd])], None, 3),
        (vec![EtherTypes(vec![0x8100, 0x0806])], None, 3),
        (vec![IpProtocols(vec![17])], None, 3),
        (vec![IpProtocols(vec![44, 6])], None, 3),
        (vec![EtherTypes(vec![0x0800]), TcpPorts(ports()), IpProtocols(vec![44])], None, 3),
        (vec![], vlans(&[5], false), 3),
        (vec![], vlans(&[0, 4094], true), 3),
        (vec![], vlans(&[], true), 3),
        (vec![UdpPorts(ports())], vlans(&[5, 6], false), 4),
        (vec![UdpPorts(ports()), EtherTypes(vec![0x88a8])], vlans(&[0, 5], true), 4),
    ];
    let each = cases.into_iter().flat_map(|case| [(case.clone(), false), (case, true)]);
    for ((filters, vlans, kinds), multi_buffer) in each {
        let mut options = ProgramOptions::default().filters(filters).multi_buffer(multi_buffer);
        options.vlans = vlans;
        let loaded = Loaded::new(&options, 1).expect("the program loads");
        let mut seen = std::collections::HashMap::new();
        let mut runner = TestRunner::new(Config::with_cases(1500));
        let result = runner.run(&packets(), |packet| {
            prop_assert_eq!(run(&loaded, &packet), model(&options, &packet));
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{options:?}: {error}"));
        // The packets are such that they tell programs apart.
        for packet in sample(&packets(), 1000) {
            *seen.entry(format!("{:?}", model(&options, &packet))).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), kinds, "{options:?}: {seen:?}");
    }
}

#[test]
fn root_an_expression_and_filters_choose_together() {
    if !lab::testing::root("root_an_expression_and_filters_choose_together") {
        return;
    }
    use Filter::{IpProtocols, UdpPorts};
    let vlan = Some(Vlans { ids: vec![5], untagged: false });
    let cases = [
        ("udp", vec![], None),
        ("greater 100", vec![UdpPorts(PORTS.to_vec())], None),
        ("not vlan", vec![IpProtocols(vec![17, 6]), UdpPorts(vec![53])], None),
        ("vlan 5 and ip6", vec![], vlan),
    ];
    let each = cases.into_iter().flat_map(|case| [(case.clone(), false), (case, true)]);
    for ((text, filters, vlans), multi_buffer) in each {
        let expression = Arc::new(Expression::compile(text, PATIENCE).expect("an expression"));
        let mut options = ProgramOptions::default().filters(filters).multi_buffer(multi_buffer);
        options.vlans = vlans;
        let options = options.expression(Arc::clone(&expression));
        let loaded = Loaded::new(&options, 1).expect("the program loads");
        let mut seen = std::collections::HashSet::new();
        for packet in sample(&packets(), 1500) {
            let expected = match expression.matches(&packet, packet.len()) {
                true => model(&options, &packet),
                false => Outcome::NotChosen,
            };
            assert_eq!(run(&loaded, &packet), expected, "{text}: {packet:?}");
            seen.insert(format!("{expected:?}"));
        }
        assert!(seen.contains("Chosen") && seen.contains("NotChosen"), "{text}: {seen:?}");
    }
}

fn sample<S: Strategy>(strategy: &S, n: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    let tree = |runner: &mut TestRunner| strategy.new_tree(runner).expect("a packet");
    (0..n).map(|_| tree(&mut runner).current()).collect()
}

/// Written from what [`LEASE`] promises, not from the program: nanoseconds by which a look is
/// older than now. One of the future is trusted as far: the two CPUs' readings may be a little apart.
fn attended(age: i64) -> bool {
    age.unsigned_abs() < LEASE.as_nanos() as u64
}

#[test]
fn root_packets_go_to_a_socket_that_somebody_looks_at() {
    if !lab::testing::root("root_packets_go_to_a_socket_that_somebody_looks_at") {
        return;
    }
    let lab = lab::Lab::new("xsk").expect("a lab");
    let (host, other) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let link = lab.link(&host, &other, lab::LinkOptions::default()).expect("a link");
    let area = frames::FrameArea::new(&frames::AreaOptions::default()).expect("an area");
    let pool = frames::FramePool::new(area, &frames::PoolOptions::default()).expect("a pool");
    let umem = crate::Umem::new(pool).expect("a registration");
    let bind = || {
        let device = Device::find(&link.a.device)?;
        Socket::bind(&umem, &device, 0, &crate::SocketOptions::default())
    };
    let socket = host.run(bind).expect("the host").expect("a socket");
    for multi_buffer in [false, true] {
        let options = ProgramOptions::default().multi_buffer(multi_buffer);
        let loaded = Loaded::new(&options, 1).expect("the program loads");
        let fd = socket.as_fd().as_raw_fd();
        loaded.sockets.set(&0_u32, &fd).expect("the map takes it");
        // A test may lose its CPU between the look and the run, and for how long nobody knows.
        let edge = LEASE.as_nanos() as i64;
        let ages = prop_oneof![
            Just(0),
            Just(edge - 300_000_000),
            Just(edge + 1),
            Just(-edge - 300_000_000),
            any::<i64>().prop_filter("near the edge", move |age| {
                !(edge - 300_000_000..edge).contains(age)
                    && !(-edge - 300_000_000..-edge).contains(age)
            }),
        ];
        let mut runner = TestRunner::new(Config::with_cases(1500));
        let result = runner.run(&ages, |age| {
            let now = crate::lease::now();
            loaded.looks.write(0, now.wrapping_sub_signed(age));
            let before = loaded.counters().expect("counters");
            let action = test_run(&loaded, &[0; 64]);
            let after = loaded.counters().expect("counters");
            let passed = crate::lease::now() - now;
            prop_assume!(passed < 300_000_000, "this test lost its CPU");
            let (redirected, unattended) =
                (after.redirected - before.redirected, after.unattended - before.unattended);
            let expected = match attended(age) {
                true => (libbpf_sys::XDP_REDIRECT, 1, 0),
                false => (libbpf_sys::XDP_PASS, 0, 1),
            };
            prop_assert_eq!((action, redirected, unattended), expected, "age {}", age);
            prop_assert_eq!(after.no_socket, 0);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn root_a_socket_that_was_replaced_does_not_look_for_its_successor() {
    if !lab::testing::root("root_a_socket_that_was_replaced_does_not_look_for_its_successor") {
        return;
    }
    let loaded = Loaded::new(&ProgramOptions::default(), 2).expect("the program loads");
    let mut old = Lease::new(&loaded.looks, 0);
    let mut other = Lease::new(&loaded.looks, 1);
    let mut new = Lease::new(&loaded.looks, 0);
    // All are due to be renewed, and nobody has looked for long.
    let past = || {
        std::thread::sleep(LEASE / 7);
        (0..2).for_each(|queue| loaded.looks.write(queue, 7));
    };
    past();
    old.renew();
    other.renew();
    assert_eq!((loaded.looks.read(0), loaded.looks.read(1) > 7), (7, true));
    new.renew();
    assert!(loaded.looks.read(0) > 7);
}

#[test]
fn what_would_take_nothing_is_refused() {
    let options = ProgramOptions::default;
    let vlans = |ids: &[u16]| options().vlans(Vlans { ids: ids.to_vec(), untagged: false });
    for (options, says) in [
        (options().filters(vec![Filter::UdpPorts(vec![])]), "no UDP port"),
        (
            options().filters(vec![Filter::EtherTypes(vec![1]), Filter::TcpPorts(vec![])]),
            "no TCP port",
        ),
        (options().filters(vec![Filter::EtherTypes(vec![])]), "no Ethernet type"),
        (options().filters(vec![Filter::IpProtocols(vec![])]), "no IP protocol"),
        (vlans(&[]), "no VLAN given"),
        (vlans(&[5, 4095]), "4095 is no VLAN ID: expected 0 to 4094"),
    ] {
        let error = Loaded::new(&options, 1).expect_err("nothing would be taken");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Nanoseconds that the programs take for a packet, one beside the other: for the figures in
/// docs/mechanisms/frames.md.
#[test]
#[ignore = "measures"]
fn root_what_filters_cost() {
    const ROUNDS: usize = 201;
    const TIMES: u32 = 20_000;
    // Of this thread: others may be at work.
    let cpu_time = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
    };
    let packet = |port| {
        let udp = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
        let udp = udp.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(7, port);
        let mut packet = Vec::new();
        udp.write(&mut packet, &[0; 22]).expect("a packet");
        packet
    };
    let compile = |text| Arc::new(Expression::compile(text, PATIENCE).expect("an expression"));
    let list: Vec<String> = (1..=100).map(|n| format!("host 192.0.2.{n}")).collect();
    let list = format!("udp port 53 and not ({})", list.join(" or "));
    let options = ProgramOptions::default;
    let cases = [
        ("everything", options()),
        ("--udp-port 53", options().filters(vec![Filter::UdpPorts(vec![53])])),
        ("--filter 'udp dst port 53'", options().expression(compile("udp dst port 53"))),
        ("--filter 'ip and udp'", options().expression(compile("ip and udp"))),
        (
            "--filter 'port 53 and net 10.0.0.0/8'",
            options().expression(compile("port 53 and net 10.0.0.0/8")),
        ),
        ("--filter 'udp port 53 and not (100 hosts)'", options().expression(compile(&list))),
    ];
    let loaded = cases.map(|(name, options)| (name, Loaded::new(&options, 1).expect("it loads")));
    for (what, packet) in [("a packet that is taken", packet(53)), ("one that is not", packet(9))] {
        let mut times = [const { Vec::new() }; 6];
        for _ in 0..ROUNDS {
            for ((_, loaded), times) in loaded.iter().zip(&mut times) {
                let start = cpu_time();
                loaded.program.repeat(&packet, TIMES, 0).expect("it runs");
                times.push((cpu_time() - start) / f64::from(TIMES));
            }
        }
        println!("{what}:");
        for ((name, _), times) in loaded.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let [low, median, high] = [ROUNDS / 4, ROUNDS / 2, 3 * ROUNDS / 4].map(|at| times[at]);
            println!("  {name}: {median:.1} ns ({low:.1} to {high:.1})");
        }
    }
}
