//! Whoever watches in the bridge's host sees what it would see without the fast path.

mod common;

use std::collections::BTreeMap;

use common::frame::{Arrival, station};
use common::{Net, Reason, Setup, compare};
use lab::traffic::FrameCapture;

/// Opens a capture on a device of the bridge's host.
fn watch(net: &Net, device: &str) -> FrameCapture {
    let capture = FrameCapture::both_ways(&net.bridge.own.host, device).unwrap();
    net.sync();
    capture
}

/// Writes down what a capture has seen in this step.
fn note(net: &mut Net, name: &str, capture: &mut FrameCapture) -> usize {
    // Whatever is under way has passed when this returns; it is looked at by the caller's step.
    net.pass();
    let frames = capture.waiting().unwrap();
    let mut counts = BTreeMap::<Arrival, usize>::new();
    for arrival in frames.iter().filter_map(Arrival::of) {
        *counts.entry(arrival).or_default() += 1;
    }
    let seen = counts.values().sum();
    for (arrival, count) in counts {
        net.note(format!("{name} saw {count} times {arrival:?}"));
    }
    seen
}

#[test]
fn root_a_packet_socket_on_a_port_sees_the_same_frames() {
    let test = "root_a_packet_socket_on_a_port_sees_the_same_frames";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        let mut watched = ["p0", "p1", "p2"].map(|port| (port, watch(net, port)));
        net.talk(0, 1, 3);
        net.send(0, station(9), net.mac(0));
        let seen = watched.each_mut().map(|(port, capture)| note(net, port, capture));
        assert_eq!(seen, [7, 7, 1], "{:?}", net.arm);
        // The watchers see what goes through the queue too.
        net.step("watched ports").arrives(0, 3).arrives(1, 4).straight_at_most(0);
        drop(watched);
        // A child of another test, between its fork and its exec, may hold a socket for a moment.
        net.until("the sockets are gone", |net| {
            net.sync();
            let straight =
                |port: &cachelane_bridge::PortPlan| port.send == cachelane_bridge::Way::Straight;
            net.accelerator.as_ref().is_none_or(|fast| fast.plan().ports.iter().all(straight))
        });
        net.talk(0, 1, 3);
        net.step("nobody watches").arrives(0, 3).arrives(1, 3).straight(6);
    });
}

#[test]
fn root_a_packet_socket_on_the_bridge_sees_the_same_frames() {
    let test = "root_a_packet_socket_on_the_bridge_sees_the_same_frames";
    compare(test, &Setup::default(), |net| {
        net.introduce();
        let mut capture = watch(net, "br0");
        net.talk(0, 1, 3);
        net.send(0, station(9), net.mac(0));
        note(net, "br0", &mut capture);
        net.step("not promiscuous").arrives(0, 3).arrives(1, 4);
        net.run("ip link set br0 promisc on");
        net.talk(0, 1, 3);
        net.send(0, station(9), net.mac(0));
        assert_eq!(note(net, "br0", &mut capture), 7, "{:?}", net.arm);
        net.step("promiscuous").arrives(0, 3).arrives(1, 4).kernel_only().left(Reason::Off, 7);
        net.run("ip link set br0 promisc off");
        net.talk(0, 1, 3);
        net.step("not promiscuous any more").arrives(0, 3).arrives(1, 3).fast(6);
    });
}
