//! `cachelane up` with all mechanisms on a host of its own, under traffic.

mod common;

use std::net::TcpListener;

use common::daemon::Daemon;
use common::stage::{Flow, Stage};
use common::text;
use lab::testing::{comes_true, root};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn root_a_daemon_takes_the_place_of_another_and_no_packet_is_lost() {
    if !root("root_a_daemon_takes_the_place_of_another_and_no_packet_is_lost") {
        return;
    }
    let stage = Stage::new("upnew");
    let mut daemon = stage.scene.start(&[]);
    let flows = stage.flows();
    for round in 0..5 {
        for flow in &flows {
            assert!(flow.goes_on(), "{round}: {}: {}", flow.what, daemon.log());
        }
        for counter in ["bridge.straight", "steer.receives"] {
            let before = stage.counter(counter);
            let counts = comes_true(|| stage.counter(counter) > before + 100);
            assert!(counts, "{round}: {counter}: {}", daemon.log());
        }
        let next = stage.scene.spawn(&["--replace"]);
        let mut last: Daemon = std::mem::replace(&mut daemon, next);
        assert_eq!(last.ended(), Some(0), "{}", last.log());
        assert!(comes_true(|| stage.scene.all_run()), "{}", daemon.log());
    }
    for flow in flows {
        let what = flow.what;
        let (sent, lost) = flow.end();
        assert!(sent > 500 && lost == 0, "{what}: {lost} of {sent}: {}", daemon.log());
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
}

#[test]
fn root_bridges_are_found_by_patterns_and_followed() {
    if !root("root_bridges_are_found_by_patterns_and_followed") {
        return;
    }
    let stage = Stage::new("uppat");
    stage.scene.write("[bridge.docker]\nnames = [\"docker0\", \"br-*\"]\n");
    let daemon = stage.scene.start(&[]);
    let host = &stage.bridge.own.host;
    let bridges = || stage.counter("bridge.bridges");
    assert_eq!(bridges(), 0, "br0 is none of them");
    for (count, name) in [(1, "br-1234"), (2, "docker0"), (3, "br-abcd")] {
        host.ip(["link", "add", name, "type", "bridge"]).expect("root may");
        assert!(comes_true(|| bridges() == count), "{name}: {}", daemon.log());
    }
    host.ip(["link", "add", "brx", "type", "bridge"]).expect("root may");
    host.ip(["link", "del", "br-1234"]).expect("root may");
    assert!(comes_true(|| bridges() == 2), "{}", daemon.log());
    let check = stage.scene.run(&["bridge", "br-*", "docker0", "--check"]);
    for name in ["br-abcd:", "docker0:"] {
        assert!(text(&check.stdout).contains(name), "{check:?}");
    }
    assert!(!text(&check.stdout).contains("brx"), "{check:?}");
}

#[test]
fn root_a_device_that_comes_later_is_taken_then() {
    if !root("root_a_device_that_comes_later_is_taken_then") {
        return;
    }
    let stage = Stage::new("uplate");
    let host = &stage.bridge.own.host;
    stage.scene.write(
        "[steer.late]\ninterface = \"late0\"\nforce = true\n[relay.web]\nlisten = \"127.0.0.1:80\"\n\
         to = \"127.0.0.1:81\"\n",
    );
    let backend = host.run(|| TcpListener::bind("127.0.0.1:81")).expect("the host");
    let daemon = stage.scene.spawn(&["--retry-after", "100ms", "--retry-at-most", "1s"]);
    let trouble = || stage.scene.status().get("steer.late").and_then(|one| one.trouble.clone());
    assert!(comes_true(|| trouble().is_some()), "{}", daemon.log());
    for round in 0..2 {
        host.ip(["link", "add", "late0", "type", "veth", "peer", "name", "late1"])
            .expect("root may");
        for end in ["late0", "late1"] {
            host.ip(["link", "set", end, "up"]).expect("root may");
        }
        assert!(comes_true(|| stage.scene.all_run()), "{round}: {}", daemon.log());
        assert_eq!(trouble(), None);
        let relay = stage.scene.pid("relay.web");
        host.ip(["link", "del", "late0"]).expect("root may");
        assert!(comes_true(|| trouble().is_some()), "{round}: {}", daemon.log());
        assert_eq!(stage.scene.pid("relay.web"), relay, "it was not touched");
    }
    drop(backend);
}

/// How a container engine has it: 500 joins and leaves a minute, or more where the kernel is that fast.
#[test]
fn root_containers_that_come_and_go_are_followed() {
    if !root("root_containers_that_come_and_go_are_followed") {
        return;
    }
    const CONTAINERS: usize = 80;
    let stage = Stage::new("upchurn");
    stage.scene.write("[bridge.containers]\nnames = [\"br*\"]\n");
    let mut daemon = stage.scene.start(&[]);
    let pid = stage.scene.pid("bridge.containers");
    let host = &stage.bridge.own.host;
    let [a, b] = [&stage.bridge.members[0], &stage.bridge.members[1]];
    let flow = Flow::start("beside containers", &a.host, b);
    let before = stage.counter("bridge.straight");
    let start = std::time::Instant::now();
    for number in 0..CONTAINERS {
        let [port, inner] = ["port", "in"].map(|name| format!("{name}{number}"));
        host.ip(["link", "add", &port, "type", "veth", "peer", "name", &inner]).expect("root may");
        host.ip(["link", "set", &port, "master", "br0", "up"]).expect("root may");
        host.ip(["link", "set", &inner, "up"]).expect("root may");
        if number >= 8 {
            host.ip(["link", "del", &format!("port{}", number - 8)]).expect("root may");
        }
    }
    let rate = 2.0 * CONTAINERS as f64 / start.elapsed().as_secs_f64() * 60.0;
    println!("{rate:.0} joins and leaves a minute");
    let ports = || {
        let check = stage.scene.run(&["bridge", "br0", "--check", "--json"]);
        let check: Value = serde_json::from_slice(&check.stdout).expect("JSON");
        let ports = check["ports"].as_array().expect("ports").clone();
        ports.iter().filter(|port| port["attached"] == true).count()
    };
    assert!(comes_true(|| ports() == 10), "{}: {}", ports(), daemon.log());
    assert_eq!(stage.scene.pid("bridge.containers"), pid, "{}", daemon.log());
    assert!(stage.counter("bridge.straight") > before, "the fast path goes on meanwhile");
    let (sent, lost) = flow.end();
    assert!(sent > 100 && lost == 0, "{lost} of {sent}: {}", daemon.log());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
}
