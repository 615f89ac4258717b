//! Bridges that look at VLANs: access ports, trunks, tags of all sorts, and rules that change.

mod common;

use common::frame::{BROADCAST, PROVIDER, Sent, VLAN, station};
use common::net::PATIENCE;
use common::{Net, Reason, Setup, compare, netlink};
use netlink_packet_route::link::BridgeBooleanOptionFlags as Options;

/// The VLANs of a port: each with what `bridge vlan add` takes behind it.
fn put(net: &mut Net, port: usize, vlans: &[&str]) {
    let _ = net.run(&format!("bridge vlan del dev p{port} vid 1-4094"));
    for vlan in vlans {
        net.run(&format!("bridge vlan add dev p{port} vid {vlan}"));
    }
}

const A: &str = "10 pvid untagged";
const B: &str = "20 pvid untagged";

/// A scenario on a bridge that looks at VLANs, where the kernel has such.
fn by_vlan(test: &str, setup: &Setup, script: impl Fn(&mut Net) + Sync) {
    compare(test, setup, |net| {
        if net.looks_at_vlans() {
            script(net);
        }
    });
}

/// Sends a frame from one member to another, as `change` makes it.
fn send(net: &mut Net, from: usize, to: usize, change: impl Fn(Sent) -> Sent) {
    let frame = change(Sent::new(net.mac(to), net.mac(from)));
    net.send_frame(from, &frame);
}

/// The same in both directions, so often.
fn talk(net: &mut Net, one: usize, other: usize, frames: usize, change: impl Fn(Sent) -> Sent) {
    for _ in 0..frames {
        send(net, one, other, &change);
        send(net, other, one, &change);
    }
}

fn plain(frame: Sent) -> Sent {
    frame
}

fn ten(frame: Sent) -> Sent {
    frame.tagged(10)
}

fn twenty(frame: Sent) -> Sent {
    frame.tagged(20)
}

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
fn root_vlans_that_come_and_go_hold_at_once() {
    by_vlan("root_vlans_that_come_and_go_hold_at_once", &Setup::default(), |net| {
        (0..3).for_each(|port| put(net, port, &[A, "20"]));
        let both = |net: &mut Net| {
            talk(net, 0, 1, 2, plain);
            talk(net, 0, 1, 2, twenty);
        };
        (0..2).for_each(|_| both(net));
        net.step("introduced");
        both(net);
        net.step("in both").arrives(0, 4).arrives(1, 4).straight(8);
        // What the change does, and how many of the four arrive then.
        for (change, back, to_first, to_second) in [
            ("vlan del dev p1 vid 20", "vlan add dev p1 vid 20", 2, 2),
            ("vlan del dev p0 vid 20", "vlan add dev p0 vid 20", 2, 2),
            ("vlan add dev p1 vid 20 untagged", "vlan add dev p1 vid 20", 4, 4),
            ("vlan add dev p1 vid 10", "vlan add dev p1 vid 10 pvid untagged", 2, 4),
            (
                "vlan set dev p1 vid 20 state blocking",
                "vlan set dev p1 vid 20 state forwarding",
                2,
                2,
            ),
            (
                "vlan set dev p0 vid 10 state learning",
                "vlan set dev p0 vid 10 state forwarding",
                2,
                2,
            ),
            ("vlan set dev p0 vid 10 state 4", "vlan set dev p0 vid 10 state 3", 2, 2),
        ] {
            net.run(&format!("bridge {change}"));
            both(net);
            net.step(change).arrives(0, to_first).arrives(1, to_second);
            both(net);
            let step = net.step(&format!("settled: {change}"));
            step.arrives(0, to_first).arrives(1, to_second).fast(4);
            net.run(&format!("bridge {back}"));
            (0..2).for_each(|_| both(net));
            net.step("back");
            both(net);
            let step = net.step(&format!("settled again: {back}"));
            step.arrives(0, 4).arrives(1, 4).straight(8);
        }
        // Frames without a tag are in another VLAN from now on.
        net.run("bridge vlan add dev p0 vid 20 pvid untagged");
        both(net);
        net.step("another PVID").arrives(0, 4).arrives(1, 4);
        send(net, 0, 1, plain);
        send(net, 1, 0, twenty);
        net.step("settled").arrives(0, 1).arrives(1, 1).straight(2);
    });
}

#[test]
fn root_settings_of_the_bridge_change() {
    by_vlan("root_settings_of_the_bridge_change", &Setup::default(), |net| {
        net.introduce();
        net.talk(0, 1, 2);
        net.step("on").straight(4);
        for turn in 0..2 {
            net.run("ip link set br0 type bridge vlan_filtering 0");
            net.introduce();
            net.talk(0, 1, 2);
            net.step("off").arrives(0, 2).arrives(1, 2).straight(4);
            send(net, 0, 1, ten);
            net.step("off, and a tag").arrives(1, 1).kernel_only().left(Reason::Vlan, 1);
            net.run("ip link set br0 type bridge vlan_filtering 1");
            net.introduce();
            net.talk(0, 1, 2);
            net.step("on again").arrives(0, 2).arrives(1, 2).straight(4);
            send(net, 0, 1, ten);
            net.step("on, and a tag").arrives(1, 0).kernel_only();
            let default = 100 + turn;
            net.run(&format!("ip link set br0 type bridge vlan_default_pvid {default}"));
            net.introduce();
            net.talk(0, 1, 2);
            net.step("another default").arrives(0, 2).arrives(1, 2).straight(4);
        }
        net.run("ip link set br0 type bridge vlan_default_pvid 0");
        net.talk(0, 1, 2);
        net.step("no default").arrives(0, 0).arrives(1, 0).kernel_only();
        net.run("ip link set br0 type bridge vlan_default_pvid 1");
        net.introduce();
        net.run("ip link set br0 type bridge vlan_stats_enabled 1");
        net.talk(0, 1, 2);
        net.step("counting by VLAN").arrives(0, 2).arrives(1, 2).kernel_only().left(Reason::Off, 4);
        net.run("ip link set br0 type bridge vlan_stats_enabled 0");
        net.talk(0, 1, 2);
        net.step("not any more").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_ports_that_map_tunnels_and_vlan_devices_on_ports_are_the_kernels() {
    let test = "root_ports_that_map_tunnels_and_vlan_devices_on_ports_are_the_kernels";
    by_vlan(test, &Setup::default(), |net| {
        (0..3).for_each(|port| put(net, port, &[A, "20"]));
        for _ in 0..2 {
            talk(net, 0, 1, 1, plain);
            talk(net, 0, 1, 1, twenty);
            net.step("introduced");
        }
        net.run("bridge link set dev p1 vlan_tunnel on");
        talk(net, 0, 1, 2, plain);
        net.step("a port of tunnels")
            .kernel_only()
            .left(Reason::PortIn, 2)
            .left(Reason::PortOut, 2);
        net.run("bridge link set dev p1 vlan_tunnel off");
        talk(net, 0, 1, 2, plain);
        net.step("no more").arrives(0, 2).arrives(1, 2).straight(4);
        // It gets frames with its tag before the bridge does.
        net.run("ip link add link p0 name p0.20 type vlan id 20");
        net.run("ip link set p0.20 up");
        talk(net, 0, 1, 2, twenty);
        net.step("a VLAN device").arrives(0, 2).arrives(1, 0).left(Reason::Vlan, 2);
        talk(net, 0, 1, 2, plain);
        net.step("without a tag").arrives(0, 2).arrives(1, 2).straight(4);
        net.run("ip link del p0.20");
        talk(net, 0, 1, 2, twenty);
        net.step("it is gone").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_stations_in_use_are_kept_in_their_vlan() {
    let setup = Setup { ageing: std::time::Duration::from_secs(4), ..Default::default() };
    by_vlan("root_stations_in_use_are_kept_in_their_vlan", &setup, |net| {
        (0..3).for_each(|port| put(net, port, &[A, "20"]));
        for _ in 0..2 {
            talk(net, 0, 1, 1, plain);
            talk(net, 0, 1, 1, twenty);
            net.step("introduced");
        }
        let silent = format!("{} p1 br0  [] vlan 20", lab::Mac(net.mac(1)));
        let until = std::time::Instant::now() + 3 * setup.ageing;
        while std::time::Instant::now() < until {
            net.murmur(0, 1);
            let table = net.table();
            for member in [0, 1] {
                let line = format!("{} p{member} br0  [] vlan 10", lab::Mac(net.mac(member)));
                assert!(table.contains(&line), "{:?}: {line}: {table:#?}", net.arm);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
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
fn root_vlans_with_spanning_trees_of_their_own_are_followed() {
    let test = "root_vlans_with_spanning_trees_of_their_own_are_followed";
    by_vlan(test, &Setup::default(), |net| {
        let host = net.bridge.own.host.clone();
        // It can be turned on only while there are no VLANs.
        net.run("ip link set br0 type bridge vlan_default_pvid 0");
        netlink::set_option(&host, Options::MstEnable, true).unwrap();
        (0..3).for_each(|port| put(net, port, &[A, "20"]));
        netlink::set_tree(&host, net.index("br0"), 20, 5).unwrap();
        net.sync();
        let both = |net: &mut Net| {
            talk(net, 0, 1, 2, plain);
            talk(net, 0, 1, 2, twenty);
        };
        (0..2).for_each(|_| both(net));
        net.step("a VLAN in a tree where it does not forward yet").arrives(0, 4).arrives(1, 4);
        for port in 0..3 {
            netlink::set_tree_state(&host, net.index(&format!("p{port}")), 5, 3).unwrap();
        }
        net.sync();
        (0..2).for_each(|_| both(net));
        net.step("it forwards");
        both(net);
        net.step("settled").arrives(0, 4).arrives(1, 4).straight(8);
        // Nobody is told. It is seen within a second, without being asked.
        netlink::set_tree_state(&host, net.index("p1"), 5, 4).unwrap();
        let unasked = std::time::Instant::now() + PATIENCE;
        let is_held = |net: &Net| {
            let plan = net.accelerator.as_ref().map(|fast| fast.plan());
            plan.is_none_or(|plan| plan.ports[1].vlans.as_ref().is_some_and(|all| all.held() == 1))
        };
        while !is_held(net) {
            assert!(std::time::Instant::now() < unasked, "it is not seen");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        both(net);
        net.step("blocked in one").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_local_addresses_that_are_kept_once_for_all_vlans_are_local() {
    let test = "root_local_addresses_that_are_kept_once_for_all_vlans_are_local";
    by_vlan(test, &Setup::default(), |net| {
        let host = net.bridge.own.host.clone();
        if let Err(error) = netlink::set_option(&host, Options::FdbLocalVlan0, true) {
            eprintln!("skipped: {test}: fdb_local_vlan_0, of Linux 6.18: {error}");
            net.step("skipped");
            return;
        }
        (0..3).for_each(|port| put(net, port, &[A]));
        net.run("bridge vlan add dev br0 vid 10 self");
        net.introduce();
        net.talk(0, 1, 2);
        net.step("between members").arrives(0, 2).arrives(1, 2).straight(4);
        let own = net.bridge.own.mac.0;
        net.send(0, own, net.mac(0));
        net.step("to the bridge").arrives(1, 0).arrives(2, 0).kernel_only();
        net.send(1, net.mac(0), own);
        net.send(0, own, net.mac(0));
        net.step("from somebody with its address").arrives(2, 0).kernel_only();
        netlink::set_option(&host, Options::FdbLocalVlan0, false).unwrap();
        net.sync();
        net.talk(0, 1, 2);
        net.step("turned off").arrives(0, 2).arrives(1, 2).straight(4);
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
