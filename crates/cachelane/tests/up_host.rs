//! `cachelane up` with all mechanisms on a host of its own, under traffic.

mod common;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use common::daemon::{Daemon, Scene};
use common::text;
use lab::testing::{comes_true, root};
use lab::{Bridge, BridgeOptions, End, Host, Lab, Link, LinkOptions};
use rustix::process::Signal;
use serde_json::Value;

/// A host with a bridge of two members, and two devices at which a neighbour sends to it.
struct Stage {
    scene: Scene,
    bridge: Bridge,
    steered: Link,
    lent: Link,
    _lab: Lab,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let lab = Lab::new(name).expect("a lab");
        let [a, b, c] = ["a", "b", "c"].map(|name| lab.host(name).expect("a host"));
        let bridge = lab.bridge("host", &[&a, &b], BridgeOptions::default()).expect("a bridge");
        let host = bridge.own.host.clone();
        for table in ["iptables", "ip6tables", "arptables"] {
            let name = format!("net.bridge.bridge-nf-call-{table}");
            host.set_sysctl(&name, "0").expect("br_netfilter is there");
        }
        let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
        let steered = lab.link(&c, &host, options.clone()).expect("a link");
        let lent = lab.link(&c, &host, options).expect("a link");
        let mut scene = Scene::new("");
        scene.host = Some(host);
        scene.write(&format!(
            "[bridge.all]\nnames = [\"br*\"]\n[steer.in]\ninterface = \"{}\"\nforce = true\n\
             [lend.dns]\ninterface = \"{}\"\nsocket = \"dns.lend\"\nudp-port = 53\nframes = 4096\n",
            steered.b.device, lent.b.device
        ));
        Stage { scene, bridge, steered, lent, _lab: lab }
    }

    /// A counter of the one process of this kind.
    fn counter(&self, name: &str) -> u64 {
        let output = self.scene.run(&["knob", "list", "--counters", "--json"]);
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let processes = list["processes"].as_array().expect("processes");
        let all = processes.iter().flat_map(|one| one["counters"].as_array().into_iter().flatten());
        all.filter(|one| one["name"] == name).filter_map(|one| one["value"].as_u64()).sum()
    }

    fn flows(&self) -> [Flow; 3] {
        let [a, b] = [&self.bridge.members[0], &self.bridge.members[1]];
        [
            Flow::start("bridged", &a.host, b),
            Flow::start("steered", &self.steered.a.host, &self.steered.b),
            Flow::start("by the lender", &self.lent.a.host, &self.lent.b),
        ]
    }
}

/// Numbered datagrams, a thousand a second, and those that arrive.
struct Flow {
    what: &'static str,
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    send: JoinHandle<u64>,
    receive: JoinHandle<HashSet<u64>>,
}

impl Flow {
    fn start(what: &'static str, from: &Host, to: &End) -> Flow {
        let at: SocketAddr = (to.v4, 0).into();
        let bound = move || UdpSocket::bind(at);
        let receiver = to.host.run(bound).expect("the host").expect("a port is free");
        let at = receiver.local_addr().expect("an address");
        let bound = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let sender = from.run(bound).expect("the host").expect("a port is free");
        sender.connect(at).expect("a route");
        receiver.connect(sender_address(&sender)).expect("a route");
        receiver.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let over = Arc::clone(&stop);
        let send = move || {
            let mut next = 0_u64;
            while !over.load(Relaxed) {
                sender.send(&next.to_ne_bytes()).expect("it is sent");
                next += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            next
        };
        let count = Arc::clone(&arrived);
        let over = Arc::clone(&stop);
        let receive = move || {
            let mut seen = HashSet::new();
            let mut number = [0; 8];
            loop {
                match receiver.recv(&mut number) {
                    Ok(8) => {
                        assert!(seen.insert(u64::from_ne_bytes(number)), "{number:?} came twice");
                        count.store(seen.len() as u64, Relaxed);
                    }
                    // Nothing has come for a second.
                    _ if over.load(Relaxed) => return seen,
                    _ => {}
                }
            }
        };
        let (send, receive) = (std::thread::spawn(send), std::thread::spawn(receive));
        Flow { what, stop, arrived, send, receive }
    }

    /// Whether more arrive from now on.
    fn goes_on(&self) -> bool {
        let before = self.arrived.load(Relaxed);
        comes_true(|| self.arrived.load(Relaxed) > before + 100)
    }

    /// How many were sent, and how many of them were lost.
    fn end(self) -> (u64, u64) {
        self.stop.store(true, Relaxed);
        let sent = self.send.join().expect("no panic");
        let arrived = self.receive.join().expect("no panic").len() as u64;
        println!("{}: {sent} sent, {} lost", self.what, sent - arrived);
        (sent, sent - arrived)
    }
}

fn sender_address(sender: &UdpSocket) -> SocketAddr {
    sender.local_addr().expect("it is connected")
}

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
