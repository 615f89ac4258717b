//! The frame generator and its sink, behind a Linux bridge.

mod common;

use std::{fs, time::Duration};

use bpf::tcx::{self, Hook};
use cachelane_lab::testing::{comes_true, root};
use cachelane_lab::{
    Bridge, BridgeOptions, ErrorKind, Host, Lab, Mac,
    traffic::{EchoOptions, EchoServer, FrameGenerator, FrameSink, RrOptions, RrSession, Stations},
};
use common::fdb;

fn bridge(lab: &Lab) -> Bridge {
    let hosts: Vec<Host> = ["a", "b"].map(|name| lab.host(name).expect("a host")).into();
    let hosts: Vec<&Host> = hosts.iter().collect();
    lab.bridge("bridge", &hosts, BridgeOptions::default()).expect("a bridge")
}

fn online() -> usize {
    std::thread::available_parallelism().expect("CPUs").get()
}

#[test]
fn root_each_frame_injected_into_a_port_arrives_behind_the_bridge() {
    if !root("root_each_frame_injected_into_a_port_arrives_behind_the_bridge") {
        return;
    }
    let lab = Lab::new("frames").expect("a lab");
    let bridge = bridge(&lab);
    let [a, b] = &bridge.members[..] else { panic!("two members") };
    let sink = FrameSink::attach(b).expect("a sink");
    let generator =
        FrameGenerator::new(&bridge.own.host, &bridge.ports[0], a.mac, b.mac).expect("a generator");
    for _ in 0..3 {
        let before = sink.arrived().expect("a count");
        let injection = generator.start(&[Some(0)]).expect("starts");
        assert!(comes_true(|| sink.arrived().expect("a count") > before + 1_000));
        injection.stop().expect("nothing went wrong");
        let injected = generator.injected().expect("a count");
        assert!(comes_true(|| sink.arrived().expect("a count") == injected), "of {injected}");
    }
    // The bridge has learnt where they come from.
    let fdb = fdb(&bridge);
    assert!(fdb.lines().any(|line| line.starts_with(&format!("{} dev p0", a.mac))), "{fdb}");
}

#[test]
fn root_a_sink_leaves_other_traffic_alone_and_goes_without_a_trace() {
    if !root("root_a_sink_leaves_other_traffic_alone_and_goes_without_a_trace") {
        return;
    }
    let lab = Lab::new("frames").expect("a lab");
    let bridge = bridge(&lab);
    let [a, b] = &bridge.members[..] else { panic!("two members") };
    let sink = FrameSink::attach(b).expect("a sink");
    let echo = EchoServer::start(&b.host, b.socket(0), EchoOptions::default()).expect("a server");
    let options = RrOptions { connections: 1, ..Default::default() };
    let session = RrSession::start(&a.host, echo.address(), &options).expect("connects");
    let window = session.measure(Duration::from_millis(50));
    assert!(window.exchanges > 0 && window.errors == 0, "{window:?}");
    assert_eq!(sink.arrived().expect("a count"), 0);
    let index = b.attribute("ifindex").expect("reads").parse().expect("a number");
    let programs = || b.host.run(|| tcx::programs(index, Hook::Ingress)).expect("runs");
    assert_eq!(programs().expect("there is tcx").len(), 1);
    drop(sink);
    assert_eq!(programs().expect("there is tcx").len(), 0);
}

#[test]
fn root_threads_inject_until_they_are_stopped_from_random_stations() {
    if !root("root_threads_inject_until_they_are_stopped_from_random_stations") {
        return;
    }
    let lab = Lab::new("frames").expect("a lab");
    let bridge = bridge(&lab);
    let b = &bridge.members[1];
    let sink = FrameSink::attach(b).expect("a sink");
    let from = Stations { first: Mac([2, 0x63, 1, 0, 0, 0]), count: 5 };
    let to = Stations { first: Mac([2, 0x63, 2, 0, 0, 0]), count: 7 };
    let host = &bridge.own.host;
    for mac in to.addresses() {
        let mac = mac.to_string();
        let args = ["fdb", "add", &mac, "dev", "p1", "master", "dynamic"];
        host.command("bridge").args(args).run().expect("an entry");
    }
    let generator = FrameGenerator::new(host, "p0", from, to).expect("a generator");
    let injection = generator.start(&vec![None; online()]).expect("starts");
    assert!(comes_true(|| sink.arrived().expect("a count") > 10_000));
    injection.stop().expect("nothing went wrong");
    let injected = generator.injected().expect("a count");
    assert!(injected > 10_000, "{injected}");
    // Nothing is flooded to the other end: each of them was known.
    assert!(comes_true(|| sink.arrived().expect("a count") == injected), "of {injected}");
    let fdb = fdb(&bridge);
    for mac in from.addresses() {
        assert!(fdb.lines().any(|line| line.starts_with(&format!("{mac} dev p0"))), "{mac}: {fdb}");
    }
    assert_eq!(fdb.lines().filter(|line| line.starts_with("02:63:01:")).count(), 5, "{fdb}");
}

#[test]
fn root_what_cannot_be_injected_is_refused_with_the_reason() {
    if !root("root_what_cannot_be_injected_is_refused_with_the_reason") {
        return;
    }
    let lab = Lab::new("frames").expect("a lab");
    let host = lab.host("host").expect("a host");
    let one = Stations::from(Mac([2, 0, 0, 0, 0, 1]));
    let none = Stations { count: 0, ..one };
    let refused = FrameGenerator::new(&host, "lo", one, none).map(drop).expect_err("no station");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let refused = FrameGenerator::new(&host, "p0", one, one).map(drop).expect_err("no device");
    assert_eq!((refused.kind(), refused.to_string().contains("p0")), (ErrorKind::Invalid, true));
    let generator = FrameGenerator::new(&host, "lo", one, one).expect("a generator");
    let cpu = fs::read_to_string("/sys/devices/system/cpu/possible").expect("CPUs");
    let beyond = cpu.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    let refused = generator.start(&[beyond.map(|last| last + 1)]).map(drop);
    assert!(beyond.is_some() && refused.is_err(), "{beyond:?} {refused:?}");
}
