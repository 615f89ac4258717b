//! What the bridge is told about its ports.

mod common;

use common::frame::{BROADCAST, Sent, station};
use common::{Reason, Setup, compare, netlink};

#[test]
fn root_isolated_ports_exchange_nothing() {
    compare("root_isolated_ports_exchange_nothing", &Setup::default(), |net| {
        net.introduce();
        net.run("bridge link set dev p0 isolated on");
        net.talk(0, 1, 3);
        net.step("one isolated port").arrives(0, 3).arrives(1, 3).straight(6);
        net.run("bridge link set dev p1 isolated on");
        net.talk(0, 1, 3);
        net.step("two isolated ports").arrives(0, 0).arrives(1, 0).left(Reason::Isolated, 6);
        net.talk(0, 2, 3);
        net.step("with one that is not").arrives(0, 3).arrives(2, 3).straight(6);
        net.run("bridge link set dev p0 isolated off");
        net.talk(0, 1, 3);
        net.step("one is isolated no more").arrives(0, 3).arrives(1, 3).straight(6);
    });
}

#[test]
fn root_a_locked_port_takes_known_addresses_alone() {
    compare("root_a_locked_port_takes_known_addresses_alone", &Setup::default(), |net| {
        net.introduce();
        net.run("bridge link set dev p0 locked on");
        net.talk(0, 1, 2);
        net.step("learned before").arrives(0, 2);
        net.run("ip link set br0 type bridge fdb_flush");
        net.talk(0, 1, 2);
        net.step("not known").arrives(1, 0).arrives(0, 2);
        net.run(&format!("bridge fdb replace {} dev p0 master static", lab::Mac(net.mac(0))));
        net.talk(0, 1, 2);
        net.step("known by hand").arrives(1, 2).arrives(0, 2);
        net.send(0, net.mac(1), station(4));
        net.send(2, net.mac(1), net.mac(2));
        net.step("another address, and another port").arrives(1, 1);
        net.run("bridge link set dev p0 locked off");
        net.send(0, net.mac(1), station(4));
        net.step("unlocked").arrives(1, 1);
    });
}

#[test]
fn root_stations_that_wait_for_authentication_are_left_to_the_kernel() {
    let test = "root_stations_that_wait_for_authentication_are_left_to_the_kernel";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        net.run("bridge link set dev p0 locked on");
        netlink::set_mab(&net.bridge.own.host, "p0", true).unwrap();
        net.sync();
        net.send(0, net.mac(1), station(1));
        net.step("an unknown station").arrives(1, 0).kernel_only();
        (0..2).for_each(|_| net.send(1, station(1), net.mac(1)));
        net.send(0, net.mac(1), station(1));
        net.step("to and from a locked entry").kernel_only();
        let known = lab::Mac(station(1));
        net.run(&format!("bridge fdb replace {known} dev p0 master dynamic"));
        net.send(0, net.mac(1), station(1));
        (0..2).for_each(|_| net.send(1, station(1), net.mac(1)));
        net.step("authenticated").arrives(1, 1).arrives(0, 2).redirected(1);
    });
}

#[test]
fn root_only_forwarding_ports_forward() {
    compare("root_only_forwarding_ports_forward", &Setup::default(), |net| {
        net.introduce();
        // Disabled, listening, learning. Without STP the kernel lets no port stay blocking.
        for state in [0, 1, 2] {
            net.run(&format!("bridge link set dev p1 state {state}"));
            net.talk(0, 1, 2);
            net.talk(1, 2, 2);
            net.send(1, net.mac(0), station(state));
            let step = net.step(&format!("state {state}"));
            step.arrives(0, 0).arrives(1, 0).arrives(2, 0).kernel_only();
            net.talk(0, 2, 2);
            net.step("between the others").arrives(0, 2).arrives(2, 2).straight(4);
            net.run("bridge link set dev p1 state 3");
            net.introduce();
            net.talk(0, 1, 2);
            net.step("forwarding again").arrives(0, 2).arrives(1, 2).straight(4);
        }
    });
}

#[test]
fn root_unknown_stations_are_not_flooded_where_flooding_is_off() {
    let test = "root_unknown_stations_are_not_flooded_where_flooding_is_off";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        net.run("bridge link set dev p1 flood off");
        net.send(0, station(8), net.mac(0));
        net.step("unknown").arrives(1, 0).arrives(2, 1).kernel_only();
        net.talk(0, 1, 2);
        net.step("known").arrives(0, 2).arrives(1, 2).straight(4);
        net.run("bridge link set dev p2 bcast_flood off mcast_flood off");
        net.send(0, BROADCAST, net.mac(0));
        net.send(0, [3, 0, 0, 0, 0, 1], net.mac(0));
        net.step("to groups").arrives(1, 2).arrives(2, 0).kernel_only();
        net.run("ip link set br0 type bridge fdb_flush");
        net.talk(0, 1, 2);
        net.step("forgotten").arrives(1, 1);
    });
}

#[test]
fn root_groups_reach_everybody_and_reserved_addresses_only_whom_they_may() {
    let test = "root_groups_reach_everybody_and_reserved_addresses_only_whom_they_may";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        for to in [BROADCAST, [1, 0, 0x5e, 1, 2, 3], [0x33, 0x33, 0, 0, 0, 9], [3, 9, 9, 9, 9, 9]] {
            net.send(0, to, net.mac(0));
        }
        net.step("groups").arrives(1, 4).arrives(2, 4).kernel_only().left(Reason::Group, 4);
        (0..16).for_each(|last| net.send(0, [1, 0x80, 0xc2, 0, 0, last], net.mac(0)));
        // Without STP the bridge lets the first of them through.
        net.step("reserved").arrives(1, 1).arrives(2, 1).kernel_only();
        net.run("ip link set br0 type bridge group_fwd_mask 0x4008");
        (0..16).for_each(|last| net.send(0, [1, 0x80, 0xc2, 0, 0, last], net.mac(0)));
        net.step("two more let through").arrives(1, 3).arrives(2, 3).kernel_only();
        for from in [BROADCAST, [0; 6], [3, 0, 0, 0, 0, 1]] {
            net.send(0, net.mac(1), from);
        }
        net.send(0, [0; 6], net.mac(0));
        net.step("addresses that no station has").kernel_only();
    });
}

#[test]
fn root_a_hairpin_port_sends_back_what_it_received() {
    compare("root_a_hairpin_port_sends_back_what_it_received", &Setup::default(), |net| {
        net.introduce();
        let (one, two) = (station(1), station(2));
        net.send(0, net.mac(1), one);
        net.send(0, net.mac(1), two);
        net.step("two stations behind one port");
        net.send(0, two, one);
        net.step("from one to the other").arrives(0, 0).left(Reason::SamePort, 1);
        net.run("bridge link set dev p0 hairpin on");
        net.send(0, two, one);
        net.send(0, net.mac(0), one);
        net.step("hairpin").arrives(0, 2).kernel_only();
        net.talk(0, 1, 2);
        net.step("to another port").arrives(0, 2).arrives(1, 2).straight(4);
        net.send(0, station(7), one);
        net.step("unknown").arrives(0, 1).arrives(1, 1).arrives(2, 1);
    });
}

#[test]
fn root_frames_longer_than_a_port_or_its_peer_takes_are_dropped() {
    let test = "root_frames_longer_than_a_port_or_its_peer_takes_are_dropped";
    compare(test, &Setup { mtu: 9000, ..Default::default() }, |net| {
        net.introduce();
        let from = |net: &common::Net, len| Sent::new(net.mac(1), net.mac(0)).len(len);
        let both = |net: &mut common::Net, lens: [usize; 3]| {
            lens.iter().for_each(|len| net.send_frame(0, &from(net, *len)));
        };
        both(net, [9014, 9000, 60]);
        net.step("jumbo").arrives(1, 3).straight(3);
        net.run("ip link set p1 mtu 3000");
        both(net, [3015, 3014, 60]);
        net.step("a small port").straight(2).left(Reason::TooLong, 1);
        both(net, [3018, 3019, 9014]);
        net.step("with room for a VLAN tag").left(Reason::TooLong, 3);
        net.run("ip link set p1 mtu 9000");
        net.run_at(1, "ip link set eth0 mtu 2000");
        both(net, [2015, 2014, 60]);
        net.step("a small peer").straight(2).left(Reason::TooLong, 1);
        both(net, [2018, 2019, 9014]);
        net.step("a small peer and a VLAN tag");
        net.run_at(1, "ip link set eth0 mtu 9000");
        net.run("ip link set p0 mtu 2000");
        both(net, [2014, 2000, 60]);
        net.step("a small port on the way in").arrives(1, 3);
        net.run("ip link set p0 mtu 9000");
        net.run("ip link set br0 mtu 1500");
        both(net, [9014, 1515, 60]);
        net.step("a small bridge").arrives(1, 3);
    });
}

#[test]
fn root_a_backup_port_takes_over() {
    compare("root_a_backup_port_takes_over", &Setup::default(), |net| {
        net.introduce();
        net.run("bridge link set dev p1 backup_port p2");
        net.talk(0, 1, 2);
        net.step("the port is up").arrives(0, 2).arrives(1, 2).arrives(2, 0);
        net.run_at(1, "ip link set eth0 down");
        net.until("the port has no carrier", |net| {
            common::net::command(&net.bridge.own.host, "ip link show p1").contains("NO-CARRIER")
        });
        net.send(0, net.mac(1), net.mac(0));
        net.step("the port has no carrier");
        net.run_at(1, "ip link set eth0 up");
        net.settle();
        net.introduce();
        net.run("bridge link set dev p1 nobackup_port");
        net.talk(0, 1, 2);
        net.step("no backup").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_tagged_frames_take_the_kernel_path() {
    compare("root_tagged_frames_take_the_kernel_path", &Setup::default(), |net| {
        net.introduce();
        let frame = |net: &common::Net| Sent::new(net.mac(1), net.mac(0));
        for vlan in [0, 1, 7, 4095] {
            net.send_frame(0, &frame(net).tagged(vlan));
        }
        net.send_frame(0, &frame(net).tagged(7).tagged(8));
        net.send_frame(0, &frame(net).tagged(9).ethertype(0x88a8));
        net.step("tagged").arrives(1, 6).kernel_only().left(Reason::Vlan, 6);
        net.send_frame(0, &frame(net).ethertype(0x8902));
        net.send_frame(0, &frame(net).ethertype(0x88e3));
        net.step("protocols of the bridge itself").kernel_only().left(Reason::Protocol, 2);
        net.talk(0, 1, 1);
        net.step("untagged").straight(2);
    });
}

#[test]
fn root_frames_for_a_station_behind_a_member_stay_another_ones() {
    let test = "root_frames_for_a_station_behind_a_member_stay_another_ones";
    let setup = Setup { addresses: true, ..Default::default() };
    compare(test, &setup, |net| {
        net.bridge.members[1].host.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
        net.introduce();
        let behind = station(1);
        net.send(1, net.mac(0), behind);
        net.step("a station behind the second member");
        let (v4, third) = (net.v4(0), net.v4(2));
        let frame = Sent::new(behind, net.mac(0)).ipv4(third, v4);
        (0..3).for_each(|_| net.send_frame(0, &frame));
        // The second member would route it to the third, were it for itself.
        net.step("to that station").arrives(1, 3).arrives(2, 0).redirected(3).straight_at_most(0);
        let frame = Sent::new(net.mac(1), net.mac(0)).ipv4(third, v4);
        (0..3).for_each(|_| net.send_frame(0, &frame));
        net.step("to the member").arrives(1, 3).arrives(2, 3).straight(3);
    });
}

#[test]
fn root_a_spanning_tree_of_the_kernel_is_followed() {
    compare("root_a_spanning_tree_of_the_kernel_is_followed", &Setup::default(), |net| {
        net.introduce();
        net.run("ip link set br0 type bridge forward_delay 200");
        net.run("ip link set br0 type bridge stp_state 1");
        net.talk(0, 1, 2);
        net.step("STP").arrives(0, 2).arrives(1, 2).straight(4);
        net.send(0, [1, 0x80, 0xc2, 0, 0, 0], net.mac(0));
        net.step("its own address").arrives(1, 0).kernel_only();
        net.run("ip link set p1 nomaster");
        net.run("ip link set p1 master br0");
        net.until("the port listens", |net| {
            common::net::command(&net.bridge.own.host, "bridge link show dev p1")
                .contains("state listening")
        });
        net.talk(0, 1, 2);
        net.step("a port that listens").arrives(0, 0).arrives(1, 0).kernel_only();
        net.until("the port forwards", |net| {
            common::net::command(&net.bridge.own.host, "bridge link show dev p1")
                .contains("state forwarding")
        });
        net.introduce();
        net.talk(0, 1, 2);
        net.step("a port that forwards").arrives(0, 2).arrives(1, 2).straight(4);
        net.run("ip link set br0 type bridge stp_state 0");
        net.introduce();
        net.talk(0, 1, 2);
        net.step("no STP").arrives(0, 2).arrives(1, 2).straight(4);
    });
}
