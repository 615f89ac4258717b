//! What the options of `cachelane xsk` and `lend` take of the packets that come, and what they leave to the
//! kernel.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::text;
use common::xsk::{Scene, has_program, number};
use etherparse::{PacketBuilder, VlanId};
use lab::Link;
use lab::testing::{comes_true, root};
use lab::traffic::FrameSender;
use rustix::process::Signal;

/// One frame of each kind, for the link's second end.
const KINDS: [&str; 8] = [
    "udp 53",
    "udp 54",
    "tcp 80",
    "vlan 5, udp 53",
    "vlan 6 in vlan 5, tcp 80",
    "vlan 0, udp 53",
    "icmp",
    "arp",
];

fn frames(link: &Link) -> [Vec<u8>; KINDS.len()] {
    let (from, to) = (link.a.mac.0, link.b.mac.0);
    let tag = |id| VlanId::try_new(id).expect("an ID");
    let begin = || PacketBuilder::ethernet2(from, to);
    let (a, b) = ([198, 18, 0, 1], [198, 18, 0, 2]);
    let mut frames: [Vec<u8>; KINDS.len()] = Default::default();
    let udp = |port, frame: &mut Vec<u8>| {
        begin().ipv4(a, b, 64).udp(7, port).write(frame, &[0; 30]).expect("a frame");
    };
    udp(53, &mut frames[0]);
    udp(54, &mut frames[1]);
    begin().ipv4(a, b, 64).tcp(7, 80, 0, 100).write(&mut frames[2], &[0; 30]).expect("a frame");
    let tagged = |id, frame: &mut Vec<u8>| {
        let begin = begin().single_vlan(tag(id)).ipv4(a, b, 64);
        begin.udp(7, 53).write(frame, &[0; 30]).expect("a frame");
    };
    tagged(5, &mut frames[3]);
    let twice = begin().double_vlan(tag(5), tag(6)).ipv4(a, b, 64);
    twice.tcp(7, 80, 0, 100).write(&mut frames[4], &[0; 30]).expect("a frame");
    tagged(0, &mut frames[5]);
    let icmp = begin().ipv4(a, b, 64).icmpv4_echo_request(1, 2);
    icmp.write(&mut frames[6], &[0; 30]).expect("a frame");
    frames[7] = [&to[..], &from[..], &[0x08, 0x06], &[0; 46]].concat();
    frames
}

/// Whether a run with these options takes these kinds and no others. Of each kind the double of the one
/// before is sent, so that the sum tells; behind them, as many again of a kind that is taken: once those
/// are there, all others have been looked at.
fn takes(scene: &Scene, link: &Link, options: &[&str], kinds: &[usize]) {
    let args = [&["xsk", "drop", &link.b.device, "--json"], options].concat();
    let running = scene.start(&link.b.host, &args, "receiving");
    let sender = FrameSender::open(&link.a.host, &link.a.device).expect("a socket");
    let frames = frames(link);
    let send = |kind: usize, times: u64| {
        (0..times).for_each(|_| sender.send(&frames[kind]).expect("sent"));
    };
    (0..KINDS.len()).for_each(|kind| send(kind, 1 << kind));
    send(kinds[0], 1 << KINDS.len());
    let wanted = kinds.iter().map(|kind| 1 << kind).sum::<u64>() + (1 << KINDS.len());
    let arrived = comes_true(|| scene.counter(&running, "xsk.rx_packets") >= wanted);
    let end = running.object();
    let got = number(&end, "/rx/packets");
    let names = |sum: u64| -> Vec<&str> {
        KINDS.into_iter().enumerate().filter(|(n, _)| sum >> n & 1 == 1).map(|(_, k)| k).collect()
    };
    assert!(arrived && got == wanted, "{options:?}: {:?}, not {:?}", names(got), names(wanted));
    let sent = (2 << KINDS.len()) - 1;
    assert_eq!(number(&end, "/program/not_chosen"), sent - wanted, "{options:?}: {end:#}");
}

#[test]
fn root_packets_are_taken_by_port_protocol_type_and_vlan_together() {
    if !root("root_packets_are_taken_by_port_protocol_type_and_vlan_together") {
        return;
    }
    let scene = Scene::new("xskfilter");
    let link = scene.link("a", "b");
    let cases: [(&[&str], &[usize]); 12] = [
        (&["--udp-port", "53"], &[0, 3, 5]),
        (&["--udp-port", "53", "--tcp-port", "80-81"], &[0, 2, 3, 4, 5]),
        (&["--vlan", "5"], &[3, 4]),
        (&["--vlan", "none"], &[0, 1, 2, 6, 7]),
        (&["--vlan", "0,4000-4094", "--udp-port", "50-59"], &[5]),
        (&["--vlan", "5", "--tcp-port", "80"], &[4]),
        (&["--ethertype", "0x0806,0x88a8", "--protocol", "1"], &[4, 6, 7]),
        (&["--vlan", "none,5", "--udp-port", "50-60", "--xdp", "generic"], &[0, 1, 3]),
        (&["--filter", "udp port 54 or tcp or (vlan 5 and udp)"], &[1, 2, 3]),
        (&["--filter", "icmp or ether proto 0x0806", "--xdp", "generic"], &[6, 7]),
        (&["--filter", "not vlan", "--udp-port", "53", "--tcp-port", "80"], &[0, 2]),
        (&["--filter", "vlan and vlan and tcp", "--vlan", "5", "--multi-buffer"], &[4]),
    ];
    for (options, kinds) in cases {
        takes(&scene, &link, options, kinds);
    }
}

#[test]
fn root_what_is_taken_is_said_and_what_no_option_takes_is_named() {
    if !root("root_what_is_taken_is_said_and_what_no_option_takes_is_named") {
        return;
    }
    let scene = Scene::new("xskfiltersaid");
    let link = scene.link("a", "b");
    let run = |options: &[&str]| {
        scene.run(&link.b.host, &[&["xsk", "drop", &link.b.device, "--dry-run"], options].concat())
    };
    let cases: [(&[&str], &str); 6] = [
        (&[], "takes every packet from the kernel"),
        (&["--vlan", "none,5-7"], "takes every packet in VLAN none, 5-7 from"),
        (
            &["--udp-port", "53", "--tcp-port", "53,853", "--vlan", "9"],
            "takes UDP to port 53 or TCP to port 53, 853 in VLAN 9 from",
        ),
        (
            &["--ethertype", "0x88b5,2054", "--protocol", "1,58"],
            "takes frames of type 0x88b5, 0x0806 or IP packets of protocol 1, 58 from",
        ),
        (&["--filter", "tcp port 80"], "takes every packet where 'tcp port 80' matches from the"),
        (
            &["--filter", "ip", "--vlan", "5", "--protocol", "6"],
            "takes IP packets of protocol 6 in VLAN 5 where 'ip' matches from the",
        ),
    ];
    for (options, says) in cases {
        let output = run(options);
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains(says), "{says}: {output:?}");
    }
    let wrong: [(&[&str], &[&str]); 6] = [
        (&["--vlan", "4095"], &["--vlan", "'4095'", "0 to 4094", "none"]),
        (&["--tcp-port", "80-"], &["--tcp-port", "'80-'", "1000-1999"]),
        (&["--ethertype", "ip"], &["--ethertype", "'ip'", "0x"]),
        (&["--protocol", "256"], &["--protocol", "'256'", "255"]),
        (&["--filter", "tcp prot 80"], &["--filter 'tcp prot 80'", "syntax error", "pcap-filter"]),
        (&["--filter", "outbound"], &["--filter 'outbound'", "not in the packet"]),
    ];
    for (options, parts) in wrong {
        let output = run(options);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        for part in parts {
            assert!(text(&output.stderr).contains(part), "{part}: {output:?}");
        }
    }
}

/// The kernel has what the lender's filter leaves, and what is lent while nobody borrows; of what is lent, a
/// borrower has what its own filter leaves.
#[test]
fn root_a_lender_lends_what_its_filter_matches_and_leaves_the_rest() {
    if !root("root_a_lender_lends_what_its_filter_matches_and_leaves_the_rest") {
        return;
    }
    let scene = Scene::new("lendfilter");
    let link = scene.link("a", "b");
    let socket = scene.place.path().join("lend.sock");
    let socket = socket.to_str().expect("text");
    let filter = "udp dst portrange 9000-9009 and not udp port 9001";
    let lend = ["lend", &link.b.device, "--socket", socket, "--filter", filter, "--json"];
    let lender = scene.start(&link.b.host, &lend, "where 'udp dst portrange 9000-9009");
    let bind = |port| {
        let address = link.b.socket(port);
        let bound = link.b.host.run(move || UdpSocket::bind(address)).expect("the host");
        let bound = bound.expect("a socket");
        bound.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        bound
    };
    let [matches, not] = [9000, 9001].map(bind);
    let client = link.a.host.run(|| UdpSocket::bind("0.0.0.0:0")).expect("the host").expect("one");
    let arrives = |socket: &UdpSocket, port| {
        client.send_to(b"hello", link.b.socket(port)).expect("sent");
        socket.recv(&mut [0; 16]).is_ok()
    };
    let kernel_has = |socket: &UdpSocket, port| comes_true(|| arrives(socket, port));
    // Nobody borrows: both are the kernel's.
    assert!(kernel_has(&matches, 9000) && kernel_has(&not, 9001));
    let borrow = ["borrow", socket, "--filter", "udp port 9002", "--json"];
    let borrower = scene.start(&link.b.host, &borrow, "counting what");
    let lent = || scene.counter(&lender, "lend.lent");
    let send = |port| client.send_to(b"hello", link.b.socket(port)).expect("sent");
    let is_lent = || {
        send(9000);
        lent() > 0
    };
    assert!(comes_true(is_lent));
    assert!(kernel_has(&not, 9001), "it is the kernel's");
    let before = lent();
    (0..20).for_each(|_| assert!(send(9002) > 0));
    assert!(comes_true(|| lent() >= before + 20));
    assert!(comes_true(|| scene.counter(&lender, "lend.returned") == lent()));
    let got = borrower.object();
    let [packets, filtered] = ["/packets", "/filtered"].map(|name| number(&got, name));
    assert!(packets + filtered <= lent(), "{got:#}");
    // Of those to the other port, the last may have come after the first of these.
    assert!((1..=20).contains(&packets) && filtered > 0, "{got:#}");
    assert!(kernel_has(&matches, 9000), "the kernel has it again");
    let pid = lender.pid();
    lender.end(Signal::KILL);
    assert!(comes_true(|| !has_program(&link.b)), "the program goes with process {pid}");
    assert!(kernel_has(&matches, 9000) && kernel_has(&not, 9001));
}
