//! Bridges that look at VLANs: access ports, trunks, and tags of all sorts.

mod common;

use std::time::{Duration, Instant};

use common::frame::{BROADCAST, PROVIDER, Sent, VLAN, station};
use common::vlans::{A, B, by_vlan, plain, put, send, talk, ten, twenty};
use common::{Net, Reason, Setup};

#[test]
fn root_the_default_vlan_is_fast() {
    by_vlan("root_the_default_vlan_is_fast", &Setup::default(), |net| {
        net.introduce();
        net.talk(0, 1, 5);
        net.step("all in VLAN 1").arrives(0, 5).arrives(1, 5).arrives(2, 0).straight(10);
        (0..3).for_each(|_| net.send(0, station(1), net.mac(0)));
        net.send(1, net.mac(0), station(1));
        net.step("a station behind a member");
        (0..3).for_each(|_| net.send(0, station(1), net.mac(0)));
        net.step("known").arrives(1, 3).arrives(2, 0).redirected(3);
    });
}

#[test]
fn root_access_ports_keep_vlans_apart() {
    let setup = Setup { members: 4, ..Default::default() };
    by_vlan("root_access_ports_keep_vlans_apart", &setup, |net| {
        for (port, vlan) in [(0, A), (1, A), (2, B), (3, B)] {
            put(net, port, &[vlan]);
        }
        for (one, other) in [(0, 1), (2, 3)] {
            talk(net, one, other, 2, plain);
        }
        net.step("introduced");
        net.talk(0, 1, 5);
        net.talk(2, 3, 5);
        let step = net.step("each within its own").arrives(0, 5).arrives(1, 5);
        step.arrives(2, 5).arrives(3, 5).straight(20);
        net.send(0, net.mac(2), net.mac(0));
        net.send(3, net.mac(1), net.mac(3));
        net.send(0, BROADCAST, net.mac(0));
        net.step("not across").arrives(1, 2).arrives(2, 1).arrives(3, 0).kernel_only();
        send(net, 0, 1, ten);
        send(net, 0, 1, |frame| frame.tagged(0));
        send(net, 0, 1, |frame| frame.tag(VLAN, 0xe000));
        let step = net.step("with its own tag, or none but a priority");
        step.arrives(1, 3).straight(3);
        send(net, 0, 1, twenty);
        send(net, 0, 2, twenty);
        net.step("with another's tag").arrives(1, 0).arrives(2, 0).kernel_only();
    });
}

#[test]
fn root_trunks_carry_tags() {
    let setup = Setup { members: 4, ..Default::default() };
    by_vlan("root_trunks_carry_tags", &setup, |net| {
        put(net, 0, &[A]);
        put(net, 1, &[B]);
        put(net, 2, &["10", "20", "30 pvid untagged"]);
        put(net, 3, &["5-4094"]);
        for _ in 0..2 {
            for vlan in [10, 20, 30] {
                talk(net, 2, 3, 1, |frame| frame.tagged(vlan));
            }
            send(net, 0, 2, plain);
            send(net, 1, 2, plain);
            net.step("introduced");
        }
        for (access, change) in [(0, ten as fn(Sent) -> Sent), (1, twenty)] {
            for trunk in [2, 3] {
                send(net, access, trunk, plain);
                send(net, trunk, access, change);
                send(net, trunk, access, |frame| frame.tag(VLAN, 0xb000 | change_of(access)));
            }
            net.step("access and trunk").arrives(access, 4).arrives(2, 1).arrives(3, 1).straight(6);
        }
        talk(net, 2, 3, 2, ten);
        talk(net, 2, 3, 2, |frame| frame.tag(VLAN, 0x7000 | 20));
        net.step("trunk to trunk").arrives(2, 4).arrives(3, 4).straight(8);
        send(net, 2, 3, plain);
        send(net, 2, 3, |frame| frame.tag(VLAN, 0xc000));
        send(net, 3, 2, |frame| frame.tagged(30));
        net.step("the trunk's own VLAN").arrives(3, 2).arrives(2, 1).straight(3);
        send(net, 3, 2, plain);
        send(net, 3, 2, |frame| frame.tag(VLAN, 0xc000));
        send(net, 2, 3, |frame| frame.tagged(40));
        send(net, 3, 2, |frame| frame.tagged(40));
        net.step("in no VLAN").arrives(2, 0).arrives(3, 0).kernel_only();
    });
}

fn change_of(access: usize) -> u16 {
    if access == 0 { 10 } else { 20 }
}

#[test]
fn root_tags_on_tags_pass_as_the_bridge_passes_them() {
    by_vlan("root_tags_on_tags_pass_as_the_bridge_passes_them", &Setup::default(), |net| {
        for protocol in ["802.1Q", "802.1ad"] {
            net.run(&format!("ip link set br0 type bridge vlan_protocol {protocol}"));
            let (ours, other) = match protocol {
                "802.1Q" => (VLAN, PROVIDER),
                _ => (PROVIDER, VLAN),
            };
            put(net, 0, &[A]);
            put(net, 1, &["10", "20 pvid untagged"]);
            put(net, 2, &[A]);
            let tag = move |frame: Sent| frame.tag(ours, 10);
            for _ in 0..2 {
                net.talk(0, 2, 1);
                send(net, 0, 1, plain);
                send(net, 1, 0, tag);
                net.step(&format!("introduced, {protocol}"));
            }
            send(net, 0, 2, |frame| frame.tag(other, 20));
            send(net, 0, 2, |frame| frame.tag(other, 0));
            net.step("a tag of the other protocol").arrives(2, 2).straight(2);
            send(net, 0, 1, |frame| frame.tag(other, 0x6014));
            send(net, 0, 1, |frame| frame.tag(ours, 5).tag(other, 20));
            net.step("into a trunk").arrives(1, 2).straight(2);
            send(net, 1, 0, |frame| frame.tag(other, 7).tag(ours, 10));
            send(net, 1, 0, |frame| frame.tag(ours, 7).tag(ours, 10));
            send(net, 1, 0, |frame| frame.tag(other, 10));
            send(net, 1, 0, |frame| frame.tag(ours, 10).tag(other, 10));
            // The last two are in the trunk's own VLAN.
            net.step("out of a trunk").arrives(0, 2).straight(2);
            send(net, 0, 1, |frame| frame.tag(ours, 7).tag(ours, 10));
            send(net, 0, 1, |frame| frame.tag(other, 7).tag(ours, 0x6000));
            net.step("a tag behind its own").arrives(1, 2).straight(2);
            // By the port's queue.
            net.run("tc qdisc add dev p2 root pfifo");
            send(net, 0, 2, |frame| frame.tag(other, 20));
            send(net, 0, 2, |frame| frame.tag(ours, 7).tag(ours, 10));
            send(net, 0, 2, plain);
            let step = net.step("by a queue").arrives(2, 3).redirected(1);
            step.left(Reason::Vlan, 2);
            net.run("tc qdisc del dev p2 root");
        }
    });
}

#[test]
fn root_an_address_in_two_vlans_is_two_stations() {
    let setup = Setup { members: 4, ..Default::default() };
    by_vlan("root_an_address_in_two_vlans_is_two_stations", &setup, |net| {
        put(net, 0, &[A]);
        put(net, 1, &[B]);
        put(net, 2, &["10", "20"]);
        put(net, 3, &["10", "20"]);
        let twin = station(1);
        let between = |net: &mut Net| {
            for (port, vlan) in [(0, 10), (1, 20)] {
                let frame = Sent::new(net.mac(2), twin);
                net.send_frame(port, &frame);
                let frame = Sent::new(twin, net.mac(2)).tagged(vlan);
                net.send_frame(2, &frame);
            }
        };
        (0..2).for_each(|_| between(net));
        net.step("introduced");
        (0..3).for_each(|_| between(net));
        let step = net.step("to both").arrives(0, 3).arrives(1, 3).arrives(2, 6).arrives(3, 0);
        step.straight(6).redirected(6);
        // In one VLAN it moves, and is followed there at once.
        for turn in 0..4 {
            let (here, there) = if turn % 2 == 0 { (3, 0) } else { (0, 3) };
            let moved = Sent::new(net.mac(2), twin);
            let moved = if here == 3 { moved.tagged(10) } else { moved };
            net.send_frame(here, &moved);
            for vlan in [10, 20] {
                let frame = Sent::new(twin, net.mac(2)).tagged(vlan);
                (0..3).for_each(|_| net.send_frame(2, &frame));
            }
            net.step("moved in one").arrives(here, 3).arrives(there, 0).arrives(1, 3).redirected(3);
            let frame = Sent::new(twin, net.mac(2)).tagged(10);
            (0..3).for_each(|_| net.send_frame(2, &frame));
            net.step("settled").arrives(here, 3).arrives(there, 0).redirected(3);
        }
    });
}

#[test]
fn root_stations_in_use_are_kept_in_their_vlan() {
    let setup = Setup { ageing: Duration::from_secs(4), ..Default::default() };
    by_vlan("root_stations_in_use_are_kept_in_their_vlan", &setup, |net| {
        (0..3).for_each(|port| put(net, port, &[A, "20"]));
        for _ in 0..2 {
            talk(net, 0, 1, 1, plain);
            talk(net, 0, 1, 1, twenty);
            net.step("introduced");
        }
        let silent = format!("{} p1 br0  [] vlan 20", lab::Mac(net.mac(1)));
        let until = Instant::now() + 3 * setup.ageing;
        while Instant::now() < until {
            net.murmur(0, 1);
            let table = net.table();
            for member in [0, 1] {
                let line = format!("{} p{member} br0  [] vlan 10", lab::Mac(net.mac(member)));
                assert!(table.contains(&line), "{:?}: {line}: {table:#?}", net.arm);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(!net.table().contains(&silent), "{:?}: {:#?}", net.arm, net.table());
        net.talk(0, 1, 3);
        net.step("after a while").arrives(0, 3).arrives(1, 3).arrives(2, 0).fast(6);
        if let Some(counters) = net.counters() {
            assert!(counters.copies >= 4, "{counters:?}");
        }
    });
}

#[test]
fn root_stacks_talk_over_vlan_devices() {
    by_vlan("root_stacks_talk_over_vlan_devices", &Setup::default(), |net| {
        put(net, 0, &["10"]);
        put(net, 1, &["10"]);
        put(net, 2, &[A]);
        for (member, device) in [(0, "eth0.10"), (1, "eth0.10"), (2, "eth0")] {
            if member < 2 {
                net.run_at(member, "ip link add link eth0 name eth0.10 type vlan id 10");
                net.run_at(member, "ip link set eth0.10 up");
            }
            net.run_at(member, &format!("ip address add 10.9.0.{}/24 dev {device}", member + 1));
        }
        for offload in ["on", "off"] {
            for port in 0..3 {
                net.run(&format!("ethtool -K p{port} txvlan {offload} rxvlan {offload}"));
            }
            for (from, to) in [(0, 1), (0, 2), (2, 1)] {
                net.tcp_to(from, to, [10, 9, 0, to as u8 + 1], 4 << 20);
            }
            net.step(&format!("tags in the packets' fields {offload}")).fast(100);
        }
    });
}
