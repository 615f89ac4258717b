//! Traffic of the hosts' own stacks, and every protocol.

mod common;

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use common::frame::Sent;
use common::traffic::transfer;
use common::{Net, Reason, Setup, compare};
use lab::testing::br_netfilter;
use lab::traffic::FrameCapture;

fn addressed() -> Setup {
    Setup { addresses: true, ..Default::default() }
}

/// Sends one frame of IPv4, IPv6 and ARP each from the first member to the second.
fn each_protocol(net: &mut Net) {
    let (to, from) = (net.v4(1), net.v4(0));
    let frame = Sent::new(net.mac(1), net.mac(0));
    net.send_frame(0, &frame.clone().ipv4(to, from).len(200));
    net.send_frame(0, &frame.clone().ipv6());
    net.send_frame(0, &frame.arp(from, to));
}

#[test]
fn root_ip_and_arp_take_the_fast_path_where_br_netfilter_lets_them() {
    let test = "root_ip_and_arp_take_the_fast_path_where_br_netfilter_lets_them";
    if !br_netfilter(test) {
        return;
    }
    compare(test, &Setup::default(), |net| {
        net.introduce();
        each_protocol(net);
        net.step("nothing claims them").arrives(1, 3).straight(3);
        for (tables, left) in [("iptables", 1), ("ip6tables", 1), ("arptables", 1)] {
            let name = format!("net.bridge.bridge-nf-call-{tables}");
            net.sysctl(&name, "1");
            each_protocol(net);
            net.step(&name).arrives(1, 3).straight(2).left(Reason::Protocol, left);
            net.sysctl(&name, "0");
        }
        net.run("ip link set br0 type bridge nf_call_iptables 1");
        each_protocol(net);
        net.step("of the bridge itself").arrives(1, 3).straight(2).left(Reason::Protocol, 1);
    });
}

#[test]
fn root_a_broken_ip_header_is_dropped_where_br_netfilter_looks() {
    let test = "root_a_broken_ip_header_is_dropped_where_br_netfilter_looks";
    compare(test, &Setup { netfilter: true, ..Default::default() }, |net| {
        net.introduce();
        let mut broken = Sent::new(net.mac(1), net.mac(0)).ipv4(net.v4(1), net.v4(0));
        broken.body[10] ^= 1;
        net.send_frame(0, &broken);
        net.step("looked at").arrives(1, 0).kernel_only();
        net.sysctl("net.bridge.bridge-nf-call-iptables", "0");
        net.send_frame(0, &broken);
        net.step("not looked at").arrives(1, 1).straight(1);
    });
}

#[test]
fn root_a_pppoe_frame_too_short_for_its_header_is_dropped_where_br_netfilter_is() {
    let test = "root_a_pppoe_frame_too_short_for_its_header_is_dropped_where_br_netfilter_is";
    if !br_netfilter(test) {
        return;
    }
    compare(test, &Setup::default(), |net| {
        net.introduce();
        let frame = Sent::new(net.mac(1), net.mac(0)).ethertype(0x8864);
        // The frame's number takes more than a session's header, so the short ones have none.
        let before = net.bridge.members[1].counters().unwrap().rx_packets;
        for len in 14..24 {
            net.send_bytes(0, &frame.bytes(0)[..len]);
        }
        net.send_frame(0, &frame);
        net.step("PPPoE").arrives(1, 1).left(Reason::Protocol, 8);
        let after = net.bridge.members[1].counters().unwrap().rx_packets;
        net.note(format!("{} frames arrived", after - before));
        net.step("counted");
    });
}

#[test]
fn root_tcp_streams_arrive_whole_through_the_fast_path() {
    compare("root_tcp_streams_arrive_whole_through_the_fast_path", &addressed(), |net| {
        net.introduce();
        net.tcp(0, 1, 8 << 20);
        net.step("one stream").straight(100);
        net.run("tc qdisc add dev p1 root pfifo");
        net.tcp(0, 1, 8 << 20);
        net.step("through a queue").redirected(100);
        net.run("tc qdisc del dev p1 root");
        for line in ["gso off tso off", "gro off", "tx off", "rx off"] {
            net.run(&format!("ethtool -K p1 {line}"));
            net.tcp(0, 1, 1 << 20);
            net.tcp(1, 0, 1 << 20);
            net.step(&format!("port: {line}")).fast(20);
        }
        for line in ["gso off tso off", "gro on", "tx off"] {
            net.run_at(1, &format!("ethtool -K eth0 {line}"));
            net.tcp(0, 1, 1 << 20);
            net.tcp(1, 0, 1 << 20);
            net.step(&format!("member: {line}")).fast(20);
        }
    });
}

#[test]
fn root_gso_packets_stay_whole() {
    compare("root_gso_packets_stay_whole", &addressed(), |net| {
        net.introduce();
        net.tcp(0, 1, 1 << 20);
        let _ = net.step("the way is known");
        let before = net.bridge.members[1].counters().unwrap();
        net.tcp(0, 1, 8 << 20);
        let after = net.bridge.members[1].counters().unwrap();
        let packets = after.rx_packets - before.rx_packets;
        let mean = (after.rx_bytes - before.rx_bytes) / packets;
        assert!(mean > 4000, "{:?}: {mean} bytes a packet, {packets} packets", net.arm);
        net.step("long packets").straight(20);
    });
}

/// The longest frame that was captured; none if one was longer than 64 KiB and its headers.
fn longest(capture: &mut FrameCapture) -> Option<usize> {
    let mut longest = 0;
    while let Some(frame) = capture.next(Duration::ZERO).ok()? {
        longest = longest.max(frame.bytes.len());
    }
    Some(longest)
}

#[test]
fn root_a_port_gets_no_longer_gso_packets_than_it_takes() {
    compare("root_a_port_gets_no_longer_gso_packets_than_it_takes", &addressed(), |net| {
        net.introduce();
        net.tcp(0, 1, 1 << 20);
        let member = net.bridge.members[1].clone();
        let mut capture = FrameCapture::open(&member.host, &member.device).unwrap();
        net.tcp(0, 1, 4 << 20);
        let (arm, len) = (net.arm, longest(&mut capture).unwrap());
        assert!(len > 20_000, "{arm:?}: {len} bytes where nothing cuts");
        // Five of 1500 bytes each, without the headers that a GSO packet has once.
        for (limit, below) in [("gso_max_size 20000", 20_000), ("gso_max_segs 5", 7400)] {
            net.run(&format!("ip link set p1 {limit}"));
            net.tcp(0, 1, 4 << 20);
            let len = longest(&mut capture).unwrap();
            assert!((1514..below).contains(&len), "{arm:?}: {limit}: {len} bytes");
            net.run("ip link set p1 gso_max_size 65536 gso_max_segs 65535");
        }
        net.step("cut where too long").fast(50);
    });
}

#[test]
fn root_a_port_without_big_tcp_gets_none() {
    compare("root_a_port_without_big_tcp_gets_none", &addressed(), |net| {
        net.introduce();
        for (member, address) in [(0, "fd83::1/64"), (1, "fd83::2/64")] {
            net.run_at(member, "sysctl -q net.ipv6.conf.eth0.disable_ipv6=0");
            net.run_at(member, &format!("ip address add {address} dev eth0 nodad"));
        }
        net.run_at(0, "ip link set eth0 gso_max_size 180000");
        net.run("ip link set p1 gso_max_size 180000");
        let (from, to) = (net.bridge.members[0].clone(), net.bridge.members[1].clone());
        let address: Ipv6Addr = "fd83::2".parse().unwrap();
        let mut capture = FrameCapture::open(&to.host, &to.device).unwrap();
        transfer(&from.host, &to.host, address, 32 << 20);
        let arm = net.arm;
        assert!(longest(&mut capture).is_none(), "{arm:?}: nothing longer than 64 KiB is made");
        let mut capture = FrameCapture::open(&to.host, &to.device).unwrap();
        net.run("ip link set p1 gso_max_size 65536");
        transfer(&from.host, &to.host, address, 32 << 20);
        let len = longest(&mut capture).expect("nothing longer than 64 KiB arrives");
        assert!(len < 65_536, "{arm:?}: {len} bytes");
        net.step("cut").fast(50);
    });
}

#[test]
fn root_tcp_streams_of_jumbo_frames_arrive_whole() {
    let test = "root_tcp_streams_of_jumbo_frames_arrive_whole";
    compare(test, &Setup { mtu: 9000, ..addressed() }, |net| {
        net.introduce();
        net.tcp(0, 1, 4 << 20);
        net.tcp(2, 1, 4 << 20);
        net.step("two streams").straight(50);
    });
}

#[test]
fn root_the_bridge_is_reached_at_its_own_address() {
    compare("root_the_bridge_is_reached_at_its_own_address", &addressed(), |net| {
        net.introduce();
        let (own, member) = (net.bridge.own.clone(), net.bridge.members[0].clone());
        transfer(&member.host, &own.host, own.v4, 1 << 20);
        transfer(&own.host, &member.host, member.v4, 1 << 20);
        net.step("to and from the bridge").kernel_only();
        net.tcp(0, 1, 1 << 20);
        net.step("past it").straight(10);
        net.run("ip address del 10.83.1.254/24 dev br0");
        net.tcp(1, 0, 1 << 20);
        net.step("past a bridge without an address").straight(10);
    });
}

#[test]
fn root_a_bridge_that_routes_goes_on_routing() {
    let setup = Setup { members: 2, ..addressed() };
    compare("root_a_bridge_that_routes_goes_on_routing", &setup, |net| {
        let own = net.bridge.own.host.clone();
        own.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
        // The second member is on the other network alone, which is reached through the bridge.
        net.run("ip address add 10.99.0.254/24 dev br0");
        net.run_at(1, "ip address flush dev eth0");
        net.run_at(1, "ip address add 10.99.0.2/24 dev eth0");
        net.run_at(1, "ip route add 10.83.1.0/24 via 10.99.0.254");
        net.run_at(0, "ip route add 10.99.0.0/24 via 10.83.1.254");
        for host in [0, 1] {
            net.run_at(host, "sysctl -q net.ipv4.conf.all.accept_redirects=0");
            net.run_at(host, "sysctl -q net.ipv4.conf.eth0.accept_redirects=0");
        }
        net.introduce();
        let (from, to) = (net.bridge.members[0].host.clone(), net.bridge.members[1].host.clone());
        transfer(&from, &to, Ipv4Addr::new(10, 99, 0, 2), 1 << 20);
        net.step("routed").kernel_only();
        net.talk(0, 1, 2);
        net.step("bridged").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_datagrams_in_fragments_arrive_whole() {
    compare("root_datagrams_in_fragments_arrive_whole", &addressed(), |net| {
        net.introduce();
        let (from, to) = (net.bridge.members[0].clone(), net.bridge.members[1].clone());
        let receiver = to.host.run(|| UdpSocket::bind((to.v4, 0))).unwrap().unwrap();
        receiver.set_read_timeout(Some(common::net::PATIENCE)).unwrap();
        let sender = from.host.run(|| UdpSocket::bind((from.v4, 0))).unwrap().unwrap();
        for len in [1, 1472, 1473, 9000, 60_000] {
            let sent: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            sender.send_to(&sent, receiver.local_addr().unwrap()).unwrap();
            let mut received = vec![0; len + 1];
            assert_eq!(receiver.recv(&mut received).unwrap(), len);
            assert!(received[..len] == sent, "{len} bytes, and others");
        }
        net.step("datagrams").straight(45);
    });
}

#[test]
fn root_counters_of_the_devices_go_on_counting() {
    compare("root_counters_of_the_devices_go_on_counting", &Setup::default(), |net| {
        net.introduce();
        net.run("tc qdisc add dev p1 root pfifo");
        let before = net.bridge.members.iter().map(|end| end.counters().unwrap());
        let before: Vec<_> = before.collect();
        net.talk(0, 1, 10);
        let _ = net.arrived();
        for (end, before) in net.bridge.members.iter().zip(before).take(2) {
            let after = end.counters().unwrap();
            let received = (after.rx_packets - before.rx_packets, after.rx_bytes - before.rx_bytes);
            let sent = (after.tx_packets - before.tx_packets, after.tx_bytes - before.tx_bytes);
            assert_eq!((received, sent), ((10, 600), (10, 600)), "{:?}", net.arm);
        }
        net.step("ten frames each way").redirected(9).straight(9);
    });
}

#[test]
fn root_a_member_that_bridges_its_device_gets_its_packets() {
    compare("root_a_member_that_bridges_its_device_gets_its_packets", &addressed(), |net| {
        let address = format!("{}/24", net.bridge.members[1].v4);
        for line in [
            &format!("ip address del {address} dev eth0"),
            "ip link add inner type bridge",
            &format!("ip link set inner address {}", lab::Mac(net.mac(1))),
            "ip link set eth0 master inner",
            "ip link set inner up",
            &format!("ip address add {address} dev inner"),
        ] {
            net.run_at(1, line);
        }
        net.settle();
        net.introduce();
        net.tcp(0, 1, 1 << 20);
        net.tcp(1, 0, 1 << 20);
        net.step("to the member's own bridge").straight(20);
        net.run_at(1, "ip link set inner address 02:00:00:00:57:31");
        net.run_at(0, "ip neigh flush all");
        net.tcp(0, 1, 1);
        net.step("its address is learned");
        net.tcp(0, 1, 1 << 20);
        net.step("with an address of its own").redirected(10);
    });
}

#[test]
fn root_a_second_device_on_a_members_gets_its_packets() {
    compare("root_a_second_device_on_a_members_gets_its_packets", &addressed(), |net| {
        let address = format!("{}/24", net.bridge.members[1].v4);
        for line in [
            &format!("ip address del {address} dev eth0"),
            // Otherwise the first device answers for the second.
            "sysctl -q net.ipv4.conf.all.arp_ignore=1",
            "ip link add second link eth0 address 02:00:00:00:57:32 type macvlan mode bridge",
            "ip link set second up",
            &format!("ip address add {address} dev second"),
        ] {
            net.run_at(1, line);
        }
        net.settle();
        net.introduce();
        net.tcp(0, 1, 1);
        net.step("its address is learned");
        net.tcp(0, 1, 1 << 20);
        net.tcp(1, 0, 1 << 20);
        net.step("to the second device").redirected(10).straight(10);
    });
}
