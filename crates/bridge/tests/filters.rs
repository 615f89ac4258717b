//! What stands in a packet's way: queue disciplines, tc filters, netfilter, XDP programs.

mod common;

use std::time::{Duration, Instant};

use common::frame::{DROPPED, OWN, Sent, station};
use common::programs::Programs;
use common::{Net, Reason, Setup, compare};
use lab::traffic::{Frame, FrameCapture};

/// Sends a frame of each of our protocols both ways between two members, of which filters drop
/// the second.
fn both_protocols(net: &mut Net) {
    for (from, to) in [(0, 1), (1, 0)] {
        for ethertype in [OWN, DROPPED] {
            let frame = Sent::new(net.mac(to), net.mac(from)).ethertype(ethertype);
            net.send_frame(from, &frame);
        }
    }
}

/// The packets that a queue discipline or a filter says it has handled.
fn packets(shown: &str) -> u64 {
    let sent = shown.lines().find(|line| line.contains("Sent")).expect("it has sent something");
    sent.split_whitespace().nth(3).expect("packets").parse().expect("a number")
}

#[test]
fn root_a_shaping_queue_discipline_goes_on_shaping() {
    let test = "root_a_shaping_queue_discipline_goes_on_shaping";
    compare(test, &Setup { addresses: true, ..Default::default() }, |net| {
        net.introduce();
        // Two megabytes a second, with 64 KiB at once.
        net.run("tc qdisc add dev p1 root tbf rate 16mbit burst 64kb limit 512kb");
        (0..20).for_each(|_| net.send(0, net.mac(1), net.mac(0)));
        let mut arrived = 0;
        net.until("all of them have passed", |net| {
            arrived += net.arrived()[1].len();
            arrived == 20
        });
        let counted = packets(&net.run("tc -s qdisc show dev p1"));
        // The hosts have addresses, and so now and then a word of their own (ARP, MLD).
        assert!((20..25).contains(&counted), "{:?}: {counted} packets", net.arm);
        net.step("short frames").redirected(20);
        let start = Instant::now();
        net.tcp(0, 1, 1 << 20);
        let took = start.elapsed();
        assert!(took > Duration::from_millis(400), "{:?}: 1 MiB in {took:?}", net.arm);
        let counted = packets(&net.run("tc -s qdisc show dev p1"));
        assert!(counted > 30, "{:?}: {counted} packets", net.arm);
        net.step("a stream").redirected(10);
        net.talk(0, 2, 3);
        net.step("to a port that is not shaped").arrives(0, 3).arrives(2, 3).straight(6);
    });
}

#[test]
fn root_tc_filters_on_egress_still_filter() {
    compare("root_tc_filters_on_egress_still_filter", &Setup::default(), |net| {
        let programs = Programs::build(net);
        net.introduce();
        net.run("tc qdisc add dev p1 clsact");
        both_protocols(net);
        net.step("no filter yet").arrives(0, 2).arrives(1, 2).fast(4);
        net.run(&format!("tc filter add dev p1 egress bpf da obj {} sec tc", programs.path()));
        both_protocols(net);
        net.step("one protocol is dropped").arrives(0, 2).arrives(1, 1).straight(2);
        net.run("tc filter del dev p1 egress");
        both_protocols(net);
        net.step("no filter any more").arrives(0, 2).arrives(1, 2).fast(4);
        let mirror = "u32 match u32 0 0 action mirred egress mirror dev p2";
        net.run(&format!("tc filter add dev p1 egress protocol all {mirror}"));
        both_protocols(net);
        net.step("mirrored").arrives(1, 2).arrives(2, 2).straight_at_most(2);
    });
}

#[test]
fn root_tc_filters_on_ingress_still_filter() {
    compare("root_tc_filters_on_ingress_still_filter", &Setup::default(), |net| {
        let programs = Programs::build(net);
        net.introduce();
        net.run("tc qdisc add dev p0 clsact");
        net.run(&format!("tc filter add dev p0 ingress bpf da obj {} sec tc", programs.path()));
        both_protocols(net);
        let step = net.step("one protocol is dropped").arrives(0, 2).arrives(1, 1);
        step.straight(2).left(Reason::PortIn, 1);
        net.run("tc filter del dev p0 ingress");
        both_protocols(net);
        net.step("no filter any more").arrives(0, 2).arrives(1, 2).straight(4);
        let redirect = "u32 match u32 0 0 action mirred egress redirect dev p2";
        net.run(&format!("tc filter add dev p0 ingress protocol all {redirect}"));
        both_protocols(net);
        net.step("redirected").arrives(0, 2).arrives(1, 0).arrives(2, 2);
    });
}

#[test]
fn root_iptables_rules_still_drop() {
    let test = "root_iptables_rules_still_drop";
    compare(test, &Setup { netfilter: true, ..Default::default() }, |net| {
        net.introduce();
        let frame = Sent::new(net.mac(1), net.mac(0)).ipv4(net.v4(1), net.v4(0));
        (0..3).for_each(|_| net.send_frame(0, &frame));
        net.step("no rule").arrives(1, 3).left(Reason::Protocol, 3);
        net.run("iptables -A FORWARD -p udp --dport 9 -j DROP");
        (0..3).for_each(|_| net.send_frame(0, &frame));
        net.send(0, net.mac(1), net.mac(0));
        let dropped = net.run("iptables -nvxL FORWARD");
        let counted = dropped.lines().nth(2).and_then(|line| line.split_whitespace().next());
        net.note(format!("dropped: {counted:?}"));
        net.step("a rule that drops").arrives(1, 1).left(Reason::Protocol, 3).straight(1);
        net.sysctl("net.bridge.bridge-nf-call-iptables", "0");
        (0..3).for_each(|_| net.send_frame(0, &frame));
        net.step("nobody asks iptables").arrives(1, 3).straight(3);
    });
}

#[test]
fn root_ebtables_rules_still_drop() {
    compare("root_ebtables_rules_still_drop", &Setup::default(), |net| {
        net.introduce();
        net.talk(0, 1, 2);
        net.step("no rule").arrives(0, 2).arrives(1, 2).straight(4);
        net.run(&format!("ebtables -A FORWARD -s {} -j DROP", lab::Mac(net.mac(0))));
        net.talk(0, 1, 2);
        net.send(2, net.mac(1), net.mac(2));
        net.step("a rule that drops").arrives(0, 2).arrives(1, 1).kernel_only();
        net.run("ebtables -F FORWARD");
        net.talk(0, 1, 2);
        net.step("no rule any more").arrives(0, 2).arrives(1, 2);
    });
}

#[test]
fn root_nft_rules_of_devices_and_of_the_bridge_still_drop() {
    let test = "root_nft_rules_of_devices_and_of_the_bridge_still_drop";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        net.talk(0, 1, 2);
        net.step("no rule").arrives(0, 2).arrives(1, 2).straight(4);
        for (family, hook, left) in [
            ("netdev", "ingress device p0", Reason::PortIn),
            // Redirected packets pass it by.
            ("netdev", "egress device p1", Reason::PortOut),
            ("bridge", "forward", Reason::Off),
        ] {
            net.run(&format!("nft add table {family} t"));
            net.run(&format!(
                "nft add chain {family} t c {{ type filter hook {hook} priority 0 ; }}"
            ));
            net.talk(0, 1, 2);
            net.step(&format!("{hook}, no rule yet")).arrives(0, 2).arrives(1, 2);
            let source = lab::Mac(net.mac(0));
            net.run(&format!("nft add rule {family} t c ether saddr {source} drop"));
            net.talk(0, 1, 2);
            net.step(&format!("{hook}, a rule that drops"))
                .arrives(0, 2)
                .arrives(1, 0)
                .left(left, 2);
            net.run(&format!("nft delete table {family} t"));
            net.talk(0, 1, 2);
            net.step("no table any more").arrives(0, 2).arrives(1, 2).straight(4);
        }
    });
}

#[test]
fn root_xdp_programs_on_a_peer_see_every_packet() {
    compare("root_xdp_programs_on_a_peer_see_every_packet", &Setup::default(), |net| {
        let programs = Programs::build(net);
        net.introduce();
        for mode in ["xdpdrv", "xdpgeneric"] {
            both_protocols(net);
            net.step("no program").arrives(0, 2).arrives(1, 2).straight(4);
            net.run_at(1, &format!("ip link set eth0 {mode} obj {} sec xdp", programs.path()));
            both_protocols(net);
            net.step(mode).arrives(0, 2).arrives(1, 1).straight_at_most(2);
            net.send(1, net.mac(0), station(1));
            net.send_frame(0, &Sent::new(station(1), net.mac(0)).ethertype(DROPPED));
            net.step("to a station behind it").arrives(1, 0);
            net.run_at(1, &format!("ip link set eth0 {mode} off"));
        }
        net.run(&format!("ip link set p0 xdpgeneric obj {} sec xdp", programs.path()));
        both_protocols(net);
        net.step("on the port").arrives(0, 2).arrives(1, 1);
        net.run("ip link set p0 xdpgeneric off");
        both_protocols(net);
        net.step("no program any more").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_neighbour_suppression_is_left_to_the_kernel() {
    let test = "root_neighbour_suppression_is_left_to_the_kernel";
    compare(test, &Setup { addresses: true, ..Default::default() }, |net| {
        net.introduce();
        net.run("bridge link set dev p1 neigh_suppress on");
        let reply = Sent::new(net.mac(1), net.mac(0)).arp(net.v4(0), net.v4(1));
        net.send_frame(0, &reply);
        net.talk(0, 1, 2);
        net.step("suppression").arrives(0, 2).arrives(1, 3).kernel_only();
        net.run("bridge link set dev p1 neigh_suppress off");
        net.send_frame(0, &reply);
        net.step("none").arrives(1, 1).straight(1);
        net.run("ip link set p1 type bridge_slave proxy_arp on");
        net.send_frame(0, &reply);
        net.step("proxy ARP").arrives(1, 1).kernel_only();
    });
}

#[test]
fn root_a_third_port_that_answers_for_others_answers_what_two_others_ask() {
    let test = "root_a_third_port_that_answers_for_others_answers_what_two_others_ask";
    compare(test, &Setup { addresses: true, ..Default::default() }, |net| {
        net.introduce();
        let (v4, mac) = (net.v4(2), net.mac(2));
        let (address, known) = (net.bridge.members[2].v4, lab::Mac(mac));
        net.run(&format!("ip neigh replace {address} lladdr {known} dev br0"));
        let asker = &net.bridge.members[0];
        let mut capture = FrameCapture::open(&asker.host, &asker.device).unwrap();
        for (setting, answers) in [("off", 0), ("on", 1)] {
            // The kind that answers to one station as well as to all, on every kernel.
            net.run(&format!("ip link set p2 type bridge_slave proxy_arp_wifi {setting}"));
            let question = Sent::new(net.mac(1), net.mac(0)).arp_request(net.v4(0), v4);
            let solicitation = Sent::new(net.mac(1), net.mac(0)).icmpv6();
            net.send_frame(0, &question);
            net.send_frame(0, &solicitation);
            net.send_frame(0, &Sent::new(net.mac(1), net.mac(0)).ipv6());
            net.pass();
            let is_answer = |frame: &Frame| {
                frame.bytes[12..14] == [8, 6]
                    && frame.bytes[20..22] == [0, 2]
                    && frame.bytes[22..28] == mac
            };
            let seen = capture.waiting().unwrap().iter().filter(|it| is_answer(it)).count();
            assert_eq!(seen, answers, "{:?}: with proxy ARP {setting}", net.arm);
            let step = net.step(&format!("proxy ARP {setting}")).arrives(1, 3);
            step.straight(1).left(Reason::Protocol, 2 * answers as u64);
        }
    });
}
