//! A `cachelane bridge` that is stopped follows nothing any more: its packet path leaves all to the
//! kernel before long, and takes nothing again before the process has looked at the host.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

use common::Place;
use lab::testing::{comes_true, root};
use lab::traffic::{FrameCapture, FrameSender};
use lab::{Bridge, BridgeOptions, Lab};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The longest lease, and what a crowded machine adds before a command has had its effect.
const LEASE: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_millis(500);
/// How long nothing may arrive before that is believed.
const SILENCE: Duration = Duration::from_millis(300);

/// A bridge with two members, a running command, and frames from the first member to the second.
struct Scene {
    running: Child,
    sender: FrameSender,
    capture: FrameCapture,
    frame: Vec<u8>,
    back: (FrameSender, Vec<u8>),
    place: Place,
    bridge: Bridge,
    _lab: Lab,
}

impl Scene {
    fn new(name: &str) -> Scene {
        let lab = Lab::new(name).expect("a lab");
        let members = [lab.host("a").expect("a host"), lab.host("b").expect("a host")];
        let options = BridgeOptions { quiet: true, ..BridgeOptions::default() };
        let bridge = lab.bridge("switch", &[&members[0], &members[1]], options).expect("a bridge");
        let place = Place::new();
        let mut command = place.command(&["bridge", "br0"]);
        command.env("CACHELANE_RUNTIME_DIR", place.path());
        let started = bridge.own.host.run(move || command.spawn());
        let mut running = started.expect("the host").expect("it starts");
        let mut log = BufReader::new(running.stderr.take().expect("a pipe")).lines();
        assert!(log.by_ref().map_while(Result::ok).any(|line| line.contains("ports accelerated")));
        std::thread::spawn(move || log.for_each(drop));
        let [a, b] = bridge.members.as_slice() else { panic!("two members") };
        let sender = FrameSender::open(&a.host, &a.device).expect("a socket");
        let capture = FrameCapture::open(&b.host, &b.device).expect("a socket");
        let back = FrameSender::open(&b.host, &b.device).expect("a socket");
        let (frame, back) = (frame(b.mac.0, a.mac.0), (back, frame(a.mac.0, b.mac.0)));
        Scene { running, sender, capture, frame, back, place, bridge, _lab: lab }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.running), signal).expect("it runs");
    }

    fn run(&self, line: &str) {
        let mut words = line.split(' ');
        let command = self.bridge.own.host.command(words.next().expect("a word"));
        command.args(words).run().expect("the command succeeds");
    }

    /// A counter of the process that runs.
    fn counter(&self, name: &str) -> u64 {
        let mut command = self.place.command(&["knob", "list", "--counters", "--json"]);
        command.env("CACHELANE_RUNTIME_DIR", self.place.path());
        let output = command.output().expect("it runs");
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let counters = list["processes"][0]["counters"].as_array().expect("counters").clone();
        let found = counters.iter().find(|counter| counter["name"] == name);
        found.and_then(|counter| counter["value"].as_u64()).expect("a counter of this name")
    }

    /// Sends a frame each way and waits a little. Returns how many arrived at the second member.
    fn exchange(&mut self) -> usize {
        let _ = self.back.0.send(&self.back.1);
        // A device that is down refuses it.
        let _ = self.sender.send(&self.frame);
        std::thread::sleep(Duration::from_millis(5));
        self.capture
            .waiting()
            .expect("the device is there")
            .iter()
            .filter(|it| it.bytes == self.frame)
            .count()
    }

    /// Whether the fast path forwards, at some time.
    fn comes_to_forward(&mut self) -> bool {
        let (before, until) = (self.counter("bridge.straight"), Instant::now() + 10 * LEASE);
        while self.counter("bridge.straight") < before + 10 {
            self.exchange();
            if Instant::now() > until {
                return false;
            }
        }
        true
    }

    /// Exchanges frames until none has arrived for a while. Returns when the last one did.
    fn last_arrival(&mut self) -> Option<Instant> {
        let (begin, mut last) = (Instant::now(), None);
        while last.unwrap_or(begin).elapsed() < SILENCE && begin.elapsed() < 5 * LEASE {
            if self.exchange() > 0 {
                last = Some(Instant::now());
            }
        }
        last
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

/// A short frame of a protocol that no host's stack sends.
fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5]].concat();
    bytes.resize(60, 0);
    bytes
}

#[test]
fn root_a_stopped_process_is_not_believed_for_long() {
    if !root("root_a_stopped_process_is_not_believed_for_long") {
        return;
    }
    let mut scene = Scene::new("brstop");
    scene.run("ip link add br9 type bridge");
    scene.run("ip link set br9 up");
    // What the kernel is told while the process is stopped, and how it is taken back.
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &["bridge link set dev p0 isolated on", "bridge link set dev p1 isolated on"],
            &["bridge link set dev p0 isolated off", "bridge link set dev p1 isolated off"],
        ),
        (
            &[
                "nft add table bridge t",
                "nft add chain bridge t c { type filter hook forward priority 0 ; policy drop ; }",
            ],
            &["nft delete table bridge t"],
        ),
        (&["ip link set p1 master br9"], &["ip link set p1 master br0"]),
    ];
    for (steps, back) in cases {
        assert!(scene.comes_to_forward(), "before {steps:?}");
        scene.signal(Signal::STOP);
        steps.iter().for_each(|step| scene.run(step));
        let told = Instant::now();
        let last = scene.last_arrival();
        let late = last.map(|last| last.saturating_duration_since(told)).unwrap_or_default();
        assert!(late < LEASE + SLACK, "{steps:?}: forwarded for {late:?}");
        // It goes on by what it finds, not by what it knew.
        scene.signal(Signal::CONT);
        assert_eq!(scene.last_arrival(), None, "{steps:?}: after it went on");
        back.iter().for_each(|step| scene.run(step));
        assert!(comes_true(|| scene.counter("bridge.kernel.lease") > 0), "{steps:?}");
    }
    assert!(scene.comes_to_forward(), "in the end");
}

#[test]
fn root_rules_hold_for_the_next_frame_while_the_process_is_stopped() {
    if !root("root_rules_hold_for_the_next_frame_while_the_process_is_stopped") {
        return;
    }
    let mut scene = Scene::new("brrules");
    for (table, chain) in [
        ("bridge", "type filter hook forward priority 0 ; policy drop ;"),
        ("netdev", "type filter hook egress device p1 priority 0 ; policy drop ;"),
    ] {
        assert!(scene.comes_to_forward(), "before {table}");
        let before = scene.counter("bridge.kernel.rules");
        scene.signal(Signal::STOP);
        scene.run(&format!("nft add table {table} t"));
        scene.run(&format!("nft add chain {table} t c {{ {chain} }}"));
        // Well within the lease.
        let arrived: usize = (0..50).map(|_| scene.exchange()).sum();
        scene.signal(Signal::CONT);
        assert_eq!(arrived, 0, "{table}: after the command had returned");
        assert!(comes_true(|| scene.counter("bridge.kernel.rules") > before), "{table}");
        scene.run(&format!("nft delete table {table} t"));
    }
    assert!(scene.comes_to_forward(), "in the end");
}

#[test]
fn root_a_stopped_process_leaves_traffic_to_the_kernel_until_it_has_looked_again() {
    if !root("root_a_stopped_process_leaves_traffic_to_the_kernel_until_it_has_looked_again") {
        return;
    }
    let mut scene = Scene::new("brstopped");
    assert!(scene.comes_to_forward());
    let before = scene.counter("bridge.kernel.lease");
    scene.signal(Signal::STOP);
    std::thread::sleep(LEASE);
    let arrived: usize = (0..20).map(|_| scene.exchange()).sum();
    // The bridge forwards them.
    assert!(arrived >= 19, "{arrived} of 20 arrived");
    scene.signal(Signal::CONT);
    assert!(scene.counter("bridge.kernel.lease") >= before + 20);
    assert!(scene.comes_to_forward());
}
