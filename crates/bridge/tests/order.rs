//! Order: what a station sends arrives in the order in which it was sent, while the kernel's own
//! entry for it is kept fresh.

mod common;

use std::time::{Duration, Instant};

use common::net::command;
use common::{Net, Reason, Setup, compare, with_fast_path};
use lab::traffic::FrameCapture;

/// Frames that follow one another without a pause.
const BURST: usize = 60;

fn setup() -> Setup {
    Setup { addresses: true, ageing: Duration::from_secs(4), ..Default::default() }
}

/// Makes ready for bursts between the first two members.
fn prepare(net: &mut Net) {
    net.run_at(0, "ethtool -K eth0 tx-udp-segmentation off");
    for (one, other) in [(0, 1), (1, 0)] {
        let (address, mac) = (net.bridge.members[other].v4, lab::Mac(net.mac(other)));
        net.run_at(one, &format!("ip neigh replace {address} lladdr {mac} dev eth0"));
    }
    net.introduce();
}

/// Sends so many bursts, and writes down how many frames arrived, and how many after a later one.
fn bursts(net: &mut Net, bursts: usize, pause: Duration) {
    for _ in 0..bursts {
        net.burst(0, 1, BURST);
        std::thread::sleep(pause);
    }
    let order = net.order(1);
    let late = order.windows(2).filter(|pair| pair[1] < pair[0]).count();
    net.note(format!("{} frames of {bursts} bursts arrived, {late} late", order.len()));
}

#[test]
fn root_a_burst_arrives_in_order_while_its_station_is_refreshed() {
    let test = "root_a_burst_arrives_in_order_while_its_station_is_refreshed";
    compare(test, &setup(), |net| {
        prepare(net);
        // Longer than the ageing time.
        bursts(net, 300, Duration::from_millis(20));
        assert!(net.knows(net.mac(0), 0), "{:?}", net.arm);
        net.step("bursts").straight(300);
    });
}

/// Lets two members talk for a time, and says how many copies were made and how many packets took
/// the kernel path to refresh their stations.
fn refreshes(net: &mut Net, time: Duration) -> (u64, u64) {
    let before = net.counters().unwrap();
    let until = Instant::now() + time;
    while Instant::now() < until {
        net.murmur(0, 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    net.pass();
    let after = net.counters().unwrap();
    let packets = after.kernel(Reason::Refresh) - before.kernel(Reason::Refresh);
    (after.copies - before.copies, packets)
}

#[test]
fn root_a_packet_refreshes_where_a_copy_would_do_harm() {
    let test = "root_a_packet_refreshes_where_a_copy_would_do_harm";
    let setup = Setup { ageing: Duration::from_secs(2), ..Default::default() };
    with_fast_path(test, &setup, |net| {
        net.introduce();
        let time = Duration::from_millis(2500);
        let (copies, packets) = refreshes(net, time);
        assert!(copies >= 4 && packets == 0, "{copies} copies, {packets} packets");
        for (on, off) in [
            ("bridge no_linklocal_learn 1", "bridge no_linklocal_learn 0"),
            ("bridge group_fwd_mask 0x4000", "bridge group_fwd_mask 0"),
        ] {
            net.run(&format!("ip link set br0 type {on}"));
            let (copies, packets) = refreshes(net, time);
            assert!(copies == 0 && packets >= 4, "{on}: {copies} copies, {packets} packets");
            assert!(net.knows(net.mac(0), 0) && net.knows(net.mac(1), 1), "{on}");
            net.run(&format!("ip link set br0 type {off}"));
        }
        // Of one port alone.
        net.run("ip link set p0 type bridge_slave group_fwd_mask 0x4000");
        let (copies, packets) = refreshes(net, time);
        assert!(copies >= 2 && packets >= 2, "of a port: {copies} copies, {packets} packets");
        net.run("ip link set p0 type bridge_slave group_fwd_mask 0");
        let mut capture = FrameCapture::open(&net.bridge.own.host, "p0").unwrap();
        net.sync();
        let (copies, packets) = refreshes(net, time);
        assert!(copies >= 2 && packets >= 2, "captured: {copies} copies, {packets} packets");
        let seen: Vec<_> = capture.waiting().unwrap();
        assert!(seen.len() > 50 && seen.iter().all(|frame| frame.bytes[0] & 1 == 0));
    });
}

#[test]
fn root_a_port_that_learns_nothing_is_not_refreshed() {
    let test = "root_a_port_that_learns_nothing_is_not_refreshed";
    let setup = Setup { ageing: Duration::from_secs(2), ..Default::default() };
    compare(test, &setup, |net| {
        net.introduce();
        net.run("bridge link set dev p0 learning off");
        net.talk(0, 1, 1);
        net.step("no longer learned");
        let until = Instant::now() + Duration::from_secs(6);
        while Instant::now() < until && net.knows(net.mac(0), 0) {
            net.murmur(0, 1);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!net.knows(net.mac(0), 0) && net.knows(net.mac(1), 1), "{:?}", net.arm);
        net.sync();
        net.talk(0, 1, 1);
        net.step("forgotten").arrives(1, 1).arrives(0, 1).arrives(2, 1);
    });
}

#[test]
fn root_copies_are_neither_counted_by_devices_nor_seen_by_members() {
    let test = "root_copies_are_neither_counted_by_devices_nor_seen_by_members";
    // The third member is silent, and on a busy machine the others take long.
    let setup = Setup { ageing: Duration::from_secs(300), ..setup() };
    compare(test, &setup, |net| {
        net.introduce();
        for _ in 0..150 {
            net.talk(0, 1, 1);
            std::thread::sleep(Duration::from_millis(20));
        }
        net.pass();
        let shown = command(&net.bridge.own.host, "ip -s -j link show p0");
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let received = &shown[0]["stats64"]["rx"];
        for name in ["dropped", "errors", "over_errors", "multicast"] {
            net.note(format!("p0: {name}: {}", received[name]));
        }
        if let Some(stats) = net.counters() {
            assert!(stats.copies >= 2, "{stats:?}");
        }
        net.step("three seconds").arrives(0, 150).arrives(1, 150).arrives(2, 0);
    });
}

#[test]
fn root_ages_are_true_to_a_second_while_traffic_flows() {
    let test = "root_ages_are_true_to_a_second_while_traffic_flows";
    let setup = Setup { ageing: Duration::from_secs(300), ..setup() };
    compare(test, &setup, |net| {
        net.introduce();
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            net.murmur(0, 1);
            std::thread::sleep(Duration::from_millis(20));
        }
        // More than once, as this thread may have to wait for a CPU in between.
        net.until("both are a second old at most", |net| {
            net.murmur(0, 1);
            net.pass();
            (0..2).all(|member| net.age(net.mac(member)) <= 1)
        });
        assert!(net.age(net.mac(2)) >= 4, "{:?}: the silent one", net.arm);
        net.talk(0, 1, 1);
        net.step("after a while").straight(2);
    });
}
