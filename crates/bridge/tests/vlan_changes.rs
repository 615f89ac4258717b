//! Bridges that look at VLANs, whose rules and settings change.

mod common;

use std::time::{Duration, Instant};

use common::net::PATIENCE;
use common::vlans::{A, by_vlan, plain, put, send, talk, ten, twenty};
use common::{Net, Reason, Setup, netlink};
use netlink_packet_route::link::BridgeBooleanOptionFlags as Options;

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
        let unasked = Instant::now() + PATIENCE;
        let is_held = |net: &Net| {
            let plan = net.accelerator.as_ref().map(|fast| fast.plan());
            plan.is_none_or(|plan| plan.ports[1].vlans.as_ref().is_some_and(|all| all.held() == 1))
        };
        while !is_held(net) {
            assert!(Instant::now() < unasked, "it is not seen");
            std::thread::sleep(Duration::from_millis(10));
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
