//! Stations: learned, moved, forgotten, and those that were set by hand.

mod common;

use std::time::Duration;

use common::frame::station;
use common::{Reason, Setup, compare, netlink};

#[test]
fn root_known_stations_take_the_fast_path_and_unknown_ones_do_not() {
    let test = "root_known_stations_take_the_fast_path_and_unknown_ones_do_not";
    compare(test, &Setup::default(), |net| {
        net.send(0, net.mac(1), net.mac(0));
        net.step("nobody is known").arrives(1, 1).arrives(2, 1).kernel_only();
        net.send(1, net.mac(0), net.mac(1));
        net.step("only the destination is known").arrives(0, 1).arrives(2, 0).kernel_only();
        net.talk(0, 1, 5);
        net.step("both are known").arrives(0, 5).arrives(1, 5).arrives(2, 0).straight(10);
        net.send(0, station(9), net.mac(0));
        let step = net.step("an unknown destination").arrives(1, 1).arrives(2, 1);
        step.kernel_only().left(Reason::UnknownDestination, 1);
        net.send(2, net.mac(0), station(3));
        net.step("a station behind a member").kernel_only().left(Reason::UnknownSource, 1);
        for _ in 0..3 {
            net.send(0, station(3), net.mac(0));
            net.send(2, net.mac(0), station(3));
        }
        // To the second it is the peer's own address, to the first it is not.
        net.step("both ways to it").arrives(2, 3).arrives(0, 3).straight(2).redirected(3);
    });
}

#[test]
fn root_a_station_that_moves_is_followed_at_once() {
    compare("root_a_station_that_moves_is_followed_at_once", &Setup::default(), |net| {
        net.introduce();
        let roamer = station(1);
        net.send(0, net.mac(2), roamer);
        net.step("at the first member");
        for turn in 0..6 {
            let (here, there) = (turn % 2, (turn + 1) % 2);
            net.send(2, roamer, net.mac(2));
            net.step("to where it was").arrives(here, 1).arrives(there, 0).redirected(1);
            // Without waiting for anything: from the move on, nothing goes to the old port.
            net.send(there, net.mac(2), roamer);
            (0..5).for_each(|_| net.send(2, roamer, net.mac(2)));
            net.send(there, net.mac(2), roamer);
            net.step("to where it is").arrives(here, 0).arrives(there, 5).arrives(2, 2);
        }
    });
}

#[test]
fn root_a_station_that_moves_without_rest_is_never_sent_to_where_it_was() {
    let test = "root_a_station_that_moves_without_rest_is_never_sent_to_where_it_was";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        let roamer = station(1);
        for turn in 0..3000 {
            // By a group address at times, as a station does that says where it is now.
            let to = if turn % 3 == 0 { common::frame::BROADCAST } else { net.mac(2) };
            net.send(turn % 2, to, roamer);
            (0..2).for_each(|_| net.send(2, roamer, net.mac(2)));
        }
        net.step("3000 moves").arrives(0, 3500).arrives(1, 3500);
        (0..3).for_each(|_| net.send(2, roamer, net.mac(2)));
        net.step("at rest").arrives(1, 3).redirected(3);
        // As long in a place as it takes to be believed there, more or less.
        for turn in 0..150 {
            net.send(turn % 2, net.mac(2), roamer);
            for _ in 0..4 + turn % 12 {
                net.send(2, roamer, net.mac(2));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        net.step("150 moves").redirected(50);
    });
}

#[test]
fn root_a_member_whose_address_others_use_is_followed_too() {
    compare("root_a_member_whose_address_others_use_is_followed_too", &Setup::default(), |net| {
        net.introduce();
        for turn in 0..4 {
            let sender = turn % 2;
            net.send(sender, net.mac(2), net.mac(0));
            (0..3).for_each(|_| net.send(2, net.mac(0), net.mac(2)));
            net.step("burst").arrives(sender, 3).arrives(1 - sender, 0);
            (0..3).for_each(|_| net.send(2, net.mac(0), net.mac(2)));
            net.step("settled").arrives(sender, 3).arrives(1 - sender, 0).fast(3);
        }
    });
}

#[test]
fn root_stations_in_use_stay_and_others_are_forgotten_as_in_the_kernel() {
    let test = "root_stations_in_use_stay_and_others_are_forgotten_as_in_the_kernel";
    let setup = Setup { ageing: Duration::from_secs(2), ..Default::default() };
    compare(test, &setup, |net| {
        net.introduce();
        net.send(2, net.mac(0), station(2));
        net.step("an idle station");
        // Three times as long as it takes to forget: the first two talk, the third is silent.
        let until = std::time::Instant::now() + Duration::from_secs(6);
        while std::time::Instant::now() < until {
            net.murmur(0, 1);
            assert!(net.knows(net.mac(0), 0) && net.knows(net.mac(1), 1), "{:?}", net.arm);
            std::thread::sleep(Duration::from_millis(100));
        }
        net.until("the silent ones are forgotten", |net| {
            net.murmur(0, 1);
            !net.knows(station(2), 2) && !net.knows(net.mac(2), 2)
        });
        net.talk(0, 1, 3);
        net.send(0, station(2), net.mac(0));
        net.step("after a while").arrives(0, 3).arrives(1, 4).arrives(2, 1).fast(20);
    });
}

#[test]
fn root_a_station_that_falls_silent_after_fast_traffic_is_forgotten() {
    let test = "root_a_station_that_falls_silent_after_fast_traffic_is_forgotten";
    let setup = Setup { ageing: Duration::from_secs(2), ..Default::default() };
    compare(test, &setup, |net| {
        net.introduce();
        net.talk(0, 1, 20);
        net.step("traffic").fast(30);
        net.until("everybody is forgotten", |net| !(0..3).any(|m| net.knows(net.mac(m), m)));
        net.send(0, net.mac(1), net.mac(0));
        net.step("a frame to one of them").arrives(1, 1).arrives(2, 1).kernel_only();
    });
}

#[test]
fn root_static_sticky_and_local_entries_are_honoured() {
    compare("root_static_sticky_and_local_entries_are_honoured", &Setup::default(), |net| {
        net.introduce();
        let (fixed, stuck) = (lab::Mac(station(1)), lab::Mac(station(2)));
        net.run(&format!("bridge fdb add {fixed} dev p1 master static"));
        net.run(&format!("bridge fdb add {stuck} dev p1 master static sticky"));
        net.run(&format!("bridge fdb add {} dev p1 master permanent", lab::Mac(station(3))));
        net.step("set by hand");
        for to in [fixed, stuck] {
            net.send(0, to.0, net.mac(0));
        }
        net.step("to static ones").arrives(1, 2).arrives(2, 0).redirected(2);
        net.send(0, station(3), net.mac(0));
        net.step("to a local one").arrives(1, 0).arrives(2, 0).kernel_only();
        for from in [fixed, stuck] {
            (0..3).for_each(|_| net.send(2, net.mac(0), from.0));
            (0..3).for_each(|_| net.send(0, from.0, net.mac(0)));
        }
        net.step("from another port").arrives(0, 6);
        for from in [fixed, stuck] {
            net.send(0, from.0, net.mac(0));
        }
        net.step("where they are now").fast(2);
        net.send(2, net.mac(0), station(3));
        // The kernel complains in its log and forwards it.
        net.step("from a local address").arrives(0, 1).kernel_only();
        net.run(&format!("bridge fdb del {stuck} dev p1 master"));
        net.send(0, stuck.0, net.mac(0));
        net.step("deleted").arrives(1, 1).arrives(2, 1).kernel_only();
        net.send(0, net.bridge.own.mac.0, net.mac(0));
        net.step("to the bridge itself").arrives(1, 0).arrives(2, 0).kernel_only();
    });
}

#[test]
fn root_a_bridge_that_learns_nothing_floods() {
    let test = "root_a_bridge_that_learns_nothing_floods";
    let setup = Setup { ageing: Duration::ZERO, ..Default::default() };
    compare(test, &setup, |net| {
        net.talk(0, 1, 3);
        net.step("ageing time zero").arrives(0, 3).arrives(1, 3).arrives(2, 6).kernel_only();
        net.run("ip link set br0 type bridge ageing_time 30000");
        net.introduce();
        net.talk(0, 1, 3);
        net.step("ageing time 300 s").arrives(2, 0).fast(6);
        net.run("ip link set br0 type bridge ageing_time 0");
        net.until("everybody is forgotten", |net| !(0..3).any(|m| net.knows(net.mac(m), m)));
        net.talk(0, 1, 3);
        net.step("ageing time zero again").arrives(2, 6).kernel_only();
    });
}

#[test]
fn root_a_port_without_learning_teaches_nothing() {
    compare("root_a_port_without_learning_teaches_nothing", &Setup::default(), |net| {
        net.run("bridge link set dev p0 learning off");
        net.introduce();
        net.talk(0, 1, 3);
        net.step("from a port that learns nothing").arrives(1, 3).arrives(0, 3).arrives(2, 3);
        net.talk(1, 2, 2);
        net.step("between the others").arrives(1, 2).arrives(2, 2).straight(4);
        let known = lab::Mac(net.mac(0));
        net.run(&format!("bridge fdb add {known} dev p0 master dynamic"));
        net.talk(0, 1, 3);
        net.step("added as if learned").arrives(0, 3).arrives(2, 0);
        net.send(0, net.mac(2), net.mac(1));
        net.send(2, net.mac(1), net.mac(2));
        net.step("a known address from it").arrives(1, 1).arrives(2, 1);
    });
}

#[test]
fn root_a_flushed_table_is_learned_anew() {
    compare("root_a_flushed_table_is_learned_anew", &Setup::default(), |net| {
        net.introduce();
        net.talk(0, 1, 3);
        net.step("known").fast(6);
        net.run("ip link set br0 type bridge fdb_flush");
        net.send(0, net.mac(1), net.mac(0));
        net.step("flushed").arrives(1, 1).arrives(2, 1).kernel_only();
        net.send(1, net.mac(0), net.mac(1));
        net.step("again").kernel_only();
        net.talk(0, 1, 3);
        net.step("known again").fast(6);
    });
}

#[test]
fn root_addresses_that_nobody_has_are_the_kernels() {
    let test = "root_addresses_that_nobody_has_are_the_kernels";
    compare(test, &Setup::default(), |net| {
        let group = [0x01, 0x00, 0x5e, 0x00, 0x00, 0x07];
        net.run(&format!("bridge fdb add {} dev p1 master static", lab::Mac(group)));
        // So many that most of the table has been used, and is free again.
        for number in 0..8000_u16 {
            let [high, low] = number.to_be_bytes();
            net.send(1, net.mac(0), [0x02, 0, 0, 0x58, high, low]);
        }
        net.step("many stations");
        net.run("ip link set br0 type bridge fdb_flush");
        net.introduce();
        for nobody in [[0; 6], group] {
            (0..20).for_each(|_| net.send(1, net.mac(0), nobody));
            net.step("from an address that nobody has").arrives(0, 0).kernel_only();
        }
        (0..20).for_each(|_| net.send(0, [0; 6], net.mac(0)));
        let step = net.step("to address zero").arrives(1, 20).arrives(2, 20);
        step.kernel_only().left(Reason::UnknownDestination, 20);
    });
}

#[test]
fn root_a_full_table_learns_no_more() {
    compare("root_a_full_table_learns_no_more", &Setup::default(), |net| {
        if let Err(error) = netlink::set_max_learned(&net.bridge.own.host, 4) {
            assert!(!kernel_has_max_learned(), "fdb_max_learned: {error}");
            eprintln!("skipped: root_a_full_table_learns_no_more: needs Linux 6.7");
            net.step("skipped");
            return;
        }
        net.sync();
        net.introduce();
        (0..4).for_each(|number| net.send(0, net.mac(1), station(number)));
        net.step("more stations than fit").arrives(1, 4);
        (0..4).for_each(|number| (0..2).for_each(|_| net.send(1, station(number), net.mac(1))));
        // One of them is known; the others are flooded.
        net.step("to all of them").arrives(0, 8).arrives(2, 6).redirected(2);
        (0..4).for_each(|number| (0..2).for_each(|_| net.send(2, net.mac(1), station(number))));
        net.step("from another port").arrives(1, 8);
        (0..4).for_each(|number| (0..2).for_each(|_| net.send(1, station(number), net.mac(1))));
        net.step("the known one has moved").arrives(2, 8).arrives(0, 6).redirected(2);
    });
}

fn kernel_has_max_learned() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 7)
}
