//! Ports, bridges and the fast path itself come and go while traffic flows.

mod common;

use std::time::{Duration, Instant};

use common::frame::station;
use common::{Arm, Net, Setup, compare, with_fast_path};
use lab::traffic::{BulkOptions, BulkServer, BulkSession};

fn addressed() -> Setup {
    Setup { addresses: true, ..Default::default() }
}

#[test]
fn root_ports_come_and_go() {
    compare("root_ports_come_and_go", &Setup::default(), |net| {
        net.introduce();
        for turn in 0..3 {
            net.run("ip link set p1 nomaster");
            net.talk(0, 1, 2);
            net.step(&format!("left {turn}")).arrives(1, 0).arrives(0, 0).kernel_only();
            net.talk(0, 2, 2);
            net.step("the others").arrives(0, 2).arrives(2, 2).straight(4);
            net.run("ip link set p1 master br0");
            net.settle();
            net.introduce();
            net.talk(0, 1, 2);
            net.step("back").arrives(0, 2).arrives(1, 2).straight(4);
        }
    });
}

#[test]
fn root_a_device_that_takes_the_place_of_another_is_not_taken_for_it() {
    let test = "root_a_device_that_takes_the_place_of_another_is_not_taken_for_it";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        for turn in 0..2 {
            net.replug(1);
            net.step(&format!("made anew {turn}"));
            net.send(0, net.mac(1), net.mac(0));
            net.step("its address is forgotten").arrives(1, 1).arrives(2, 1).kernel_only();
            net.introduce();
            net.talk(0, 1, 2);
            net.step("known again").arrives(0, 2).arrives(1, 2).straight(4);
        }
        // The second port's number goes to the third, in the other order.
        net.run("ip link set p1 nomaster");
        net.run("ip link set p2 nomaster");
        net.run("ip link set p2 master br0");
        net.run("ip link set p1 master br0");
        net.settle();
        net.send(0, net.mac(1), net.mac(0));
        net.send(0, net.mac(2), net.mac(0));
        net.step("numbers exchanged").arrives(1, 2).arrives(2, 2).kernel_only();
        net.introduce();
        net.talk(0, 1, 2);
        net.talk(0, 2, 2);
        let step = net.step("known by their new numbers");
        step.arrives(0, 4).arrives(1, 2).arrives(2, 2).straight(8);
    });
}

#[test]
fn root_a_bridge_that_is_down_forwards_nothing() {
    compare("root_a_bridge_that_is_down_forwards_nothing", &Setup::default(), |net| {
        net.introduce();
        net.run("ip link set br0 down");
        net.talk(0, 1, 2);
        net.step("down").arrives(0, 0).arrives(1, 0).kernel_only();
        net.run("ip link set br0 up");
        net.settle();
        net.introduce();
        net.talk(0, 1, 2);
        net.step("up").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_ports_and_members_that_are_down_get_nothing() {
    compare("root_ports_and_members_that_are_down_get_nothing", &Setup::default(), |net| {
        net.introduce();
        net.run("ip link set p1 down");
        net.talk(0, 1, 2);
        net.step("a port is down").arrives(0, 0).arrives(1, 0).kernel_only();
        net.run("ip link set p1 up");
        net.settle();
        net.introduce();
        net.talk(0, 1, 2);
        net.step("it is up").arrives(0, 2).arrives(1, 2).straight(4);
        net.run_at(1, "ip link set eth0 down");
        net.until("the port has no carrier", |net| {
            common::net::command(&net.bridge.own.host, "ip link show p1").contains("NO-CARRIER")
        });
        net.send(0, net.mac(1), net.mac(0));
        net.step("a member is down").arrives(1, 0).kernel_only();
        net.run_at(1, "ip link set eth0 up");
        net.settle();
        net.introduce();
        net.talk(0, 1, 2);
        net.step("it is up").arrives(0, 2).arrives(1, 2).straight(4);
    });
}

#[test]
fn root_a_member_that_changes_its_address_is_believed() {
    compare("root_a_member_that_changes_its_address_is_believed", &Setup::default(), |net| {
        net.introduce();
        let (old, new) = (net.mac(1), station(5));
        net.run_at(1, &format!("ip link set eth0 address {}", lab::Mac(new)));
        (0..3).for_each(|_| net.send(0, old, net.mac(0)));
        // They are another station's now, and the packet type says so.
        net.step("to the old address").arrives(1, 3).straight_at_most(0).redirected(3);
        net.send(1, net.mac(0), new);
        net.step("the new one is learned");
        (0..3).for_each(|_| net.send(0, new, net.mac(0)));
        net.step("to the new address").arrives(1, 3).straight(3);
    });
}

#[test]
fn root_a_member_that_moves_to_another_namespace_is_left_to_the_kernel() {
    let test = "root_a_member_that_moves_to_another_namespace_is_left_to_the_kernel";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        // Into the bridge's own namespace: nothing can go straight there.
        let own = net.bridge.own.host.namespace_path().unwrap().display().to_string();
        net.run_at(1, &format!("ip link set eth0 netns {own} name here"));
        net.run("ip link set here up");
        net.until("the port is up again", |net| {
            !common::net::command(&net.bridge.own.host, "ip link show p1").contains("NO-CARRIER")
        });
        // Whether the stack of the bridge's host has said something from there yet or not.
        net.run(&format!("bridge fdb replace {} dev p1 master static", lab::Mac(net.mac(1))));
        net.introduce();
        let count = |net: &Net| {
            let shown = common::net::command(&net.bridge.own.host, "ip -s link show here");
            let line = shown.lines().skip_while(|line| !line.contains("RX:")).nth(1).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = count(net);
        (0..30).for_each(|_| net.send(0, net.mac(1), net.mac(0)));
        net.pass();
        // Each arrives once. What the stack of the bridge's host says meanwhile is counted as well.
        let arrived = count(net) - before;
        assert!((30..45).contains(&arrived), "{arrived} of 30, {:?}", net.arm);
        net.step("to a peer in this namespace").straight_at_most(0);
    });
}

/// A bulk stream from the first member to the second.
fn stream(net: &Net) -> (BulkServer, BulkSession) {
    let options = BulkOptions { streams: 2, verify: true, ..Default::default() };
    let [from, to, ..] = net.bridge.members.as_slice() else { panic!("two members") };
    let server = BulkServer::start(&to.host, to.socket(5000), &options).unwrap();
    let session = BulkSession::start(&from.host, server.address(), &options).unwrap();
    (server, session)
}

/// Waits until so many bytes more have arrived.
fn flows(net: &mut Net, server: &BulkServer, bytes: u64) {
    let before = server.totals().received;
    let context = format!("{bytes} more bytes after {before}");
    net.until(&context, |_| server.totals().received >= before + bytes);
}

/// Ends the stream in order: nothing was lost, and nothing came out wrong.
fn finish(server: &BulkServer, session: BulkSession) {
    let (client, server) = session.finish(server, common::net::PATIENCE).unwrap();
    assert_eq!((server.received, server.corrupt, server.failed), (client.sent, 0, 0));
    assert_eq!(client.failed, 0);
}

#[test]
fn root_turning_the_fast_path_off_and_on_loses_no_connection() {
    let test = "root_turning_the_fast_path_off_and_on_loses_no_connection";
    with_fast_path(test, &addressed(), |net| {
        let (server, session) = stream(net);
        net.until("packets go straight", |net| net.counters().unwrap().straight > 0);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for on in [false, true] {
                net.accelerator.as_ref().unwrap().set_fastpath(on).unwrap();
                net.sync();
                let before = net.counters().unwrap();
                flows(net, &server, 4 << 20);
                let after = net.counters().unwrap();
                assert_eq!(after.straight > before.straight, on, "{before:?} {after:?}");
            }
        }
        finish(&server, session);
    });
}

#[test]
fn root_exchanging_tables_and_queues_loses_no_connection() {
    let test = "root_exchanging_tables_and_queues_loses_no_connection";
    with_fast_path(test, &addressed(), |net| {
        let (server, session) = stream(net);
        let lines = [
            "tc qdisc add dev p1 root pfifo",
            "bridge link set dev p1 isolated on",
            "tc qdisc del dev p1 root",
            "bridge link set dev p1 isolated off",
            "ip link set br0 type bridge fdb_flush",
            "ip link set br0 type bridge ageing_time 200",
            "ip link set br0 promisc on",
            "ip link set br0 promisc off",
        ];
        for (index, line) in lines.iter().cycle().take(2 * lines.len()).enumerate() {
            net.run(line);
            let table =
                [cachelane_bridge::Table::Shared, cachelane_bridge::Table::Split][index % 2];
            net.accelerator.as_ref().unwrap().set_table(table).unwrap();
            flows(net, &server, 1 << 20);
        }
        assert!(net.counters().unwrap().straight > 100);
        assert!(net.counters().unwrap().redirected > 100);
        finish(&server, session);
    });
}

#[test]
fn root_a_dropped_fast_path_loses_no_connection() {
    let test = "root_a_dropped_fast_path_loses_no_connection";
    with_fast_path(test, &addressed(), |net| {
        let (server, session) = stream(net);
        for _ in 0..5 {
            flows(net, &server, 4 << 20);
            net.until("the fast path has a part in it", |net| net.counters().unwrap().straight > 0);
            drop(net.accelerator.take());
            flows(net, &server, 4 << 20);
            assert_eq!(net.arm, Arm::Fast);
            net.start();
        }
        finish(&server, session);
    });
}
