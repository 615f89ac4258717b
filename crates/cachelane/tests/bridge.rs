//! `cachelane bridge` as a user meets it, on a bridge of a test host.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Place, comes_true, root, text};
use lab::{Bridge, BridgeOptions, Host, Lab};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A bridge with two hosts behind it, and a folder to run the command from.
struct Scene {
    place: Place,
    bridge: Bridge,
    _members: [Host; 2],
    _lab: Lab,
}

impl Scene {
    fn new(name: &str) -> Scene {
        let lab = Lab::new(name).expect("a lab");
        let members = [lab.host("a").expect("a host"), lab.host("b").expect("a host")];
        let bridge = lab
            .bridge("switch", &[&members[0], &members[1]], BridgeOptions::default())
            .expect("a bridge");
        for table in ["iptables", "ip6tables", "arptables"] {
            let name = format!("net.bridge.bridge-nf-call-{table}");
            bridge.own.host.set_sysctl(&name, "0").expect("br_netfilter is there");
        }
        Scene { place: Place::new(), bridge, _members: members, _lab: lab }
    }

    /// The command, which knows of no process but those of this scene.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("CACHELANE_RUNTIME_DIR", self.place.path());
        command
    }

    /// The command's output, run in the bridge's host.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        self.bridge.own.host.run(move || command.output()).expect("the host").expect("it runs")
    }

    /// The command as somebody without privileges.
    fn run_unprivileged(&self, args: &[&str]) -> Output {
        let mut command = self.place.unprivileged(args);
        self.bridge.own.host.run(move || command.output()).expect("the host").expect("it runs")
    }

    /// Starts `cachelane bridge br0` and waits until it says that it accelerates.
    fn start(&self) -> Running {
        let mut command = self.command(&["bridge", "br0"]);
        let host = &self.bridge.own.host;
        let mut child = host.run(move || command.spawn()).expect("the host").expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let said =
            log.by_ref().map_while(Result::ok).any(|line| line.contains("ports accelerated"));
        assert!(said, "it ended: {:?}", child.wait());
        std::thread::spawn(move || log.for_each(drop));
        Running(child)
    }

    /// A counter of the process that runs.
    fn counter(&self, name: &str) -> u64 {
        let output = self.run(&["knob", "list", "--counters", "--json"]);
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let counters = list["processes"][0]["counters"].as_array().expect("counters").clone();
        let found = counters.iter().find(|counter| counter["name"] == name);
        found.and_then(|counter| counter["value"].as_u64()).expect("a counter of this name")
    }

    /// The programs on the ports' ingress, as the kernel lists them.
    fn programs(&self) -> Vec<u64> {
        let output = self.run(&["bridge", "br0", "--check", "--json"]);
        let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let ports = plan["ports"].as_array().expect("ports").iter();
        let ids = ports.flat_map(|port| port["tcx_before"].as_array().expect("ids").clone());
        ids.map(|id| id.as_u64().expect("an id")).collect()
    }
}

/// The command while it runs; killed when dropped.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }

    fn end(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.0.wait().expect("its status")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One TCP connection from the first member to the second that carries numbers, in order.
struct Stream {
    arrived: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    ends: Vec<JoinHandle<Result<(), String>>>,
}

impl Stream {
    fn start(bridge: &Bridge) -> Stream {
        let (from, to) = (&bridge.members[0], &bridge.members[1]);
        let address: SocketAddr = (to.v4, 0).into();
        let listener = to.host.run(move || TcpListener::bind(address)).expect("the host");
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("its address");
        let arrived = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (counter, ended) = (Arc::clone(&arrived), Arc::clone(&stop));
        let receive = to.host.spawn_thread("receive", move || receive(&listener, &counter));
        let send = from.host.spawn_thread("send", move || send(address, &ended));
        let ends = vec![receive.expect("a thread"), send.expect("a thread")];
        Stream { arrived, stop, ends }
    }

    /// Whether more numbers arrive from now on.
    fn goes_on(&self) -> bool {
        let before = self.arrived.load(Relaxed);
        comes_true(|| self.arrived.load(Relaxed) > before + 1000)
    }

    fn end(mut self) {
        self.stop.store(true, Relaxed);
        for end in self.ends.drain(..) {
            end.join().expect("no panic").expect("the connection lasts to its end");
        }
    }
}

impl Drop for Stream {
    /// The hosts wait for their threads, also where a test has failed.
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn send(address: SocketAddr, stop: &AtomicBool) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
    let mut next = 0_u64;
    while !stop.load(Relaxed) {
        let chunk: Vec<u8> = (next..next + 1024).flat_map(u64::to_ne_bytes).collect();
        stream.write_all(&chunk).map_err(|e| format!("after {next} numbers: {e}"))?;
        next += 1024;
    }
    Ok(())
}

fn receive(listener: &TcpListener, arrived: &AtomicU64) -> Result<(), String> {
    let (stream, _) = listener.accept().map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(|e| e.to_string())?;
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let mut number = [0; 8];
    for expected in 0_u64.. {
        match reader.read_exact(&mut number) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            other => other.map_err(|e| format!("after {expected} numbers: {e}"))?,
        }
        if u64::from_ne_bytes(number) != expected {
            return Err(format!("{} came where {expected} should", u64::from_ne_bytes(number)));
        }
        arrived.store(expected, Relaxed);
    }
    Ok(())
}

#[test]
fn root_a_connection_outlives_the_process_however_it_ends() {
    if !root("root_a_connection_outlives_the_process_however_it_ends") {
        return;
    }
    let scene = Scene::new("brkill");
    let stream = Stream::start(&scene.bridge);
    for signal in
        [Signal::KILL, Signal::TERM, Signal::INT, Signal::ABORT, Signal::QUIT, Signal::KILL]
    {
        let running = scene.start();
        assert_eq!(scene.programs().len(), 2, "one on each port");
        let before = scene.counter("bridge.straight");
        assert!(comes_true(|| scene.counter("bridge.straight") > before + 100), "{signal:?}");
        running.end(signal);
        assert_eq!(scene.programs(), Vec::<u64>::new(), "after {signal:?}");
        assert!(stream.goes_on(), "after {signal:?}");
    }
    stream.end();
}

#[test]
fn root_the_fast_path_is_flipped_under_a_connection() {
    if !root("root_the_fast_path_is_flipped_under_a_connection") {
        return;
    }
    let scene = Scene::new("brknob");
    let running = scene.start();
    let stream = Stream::start(&scene.bridge);
    for (knob, value) in [
        ("bridge.fdb", "shared"),
        ("bridge.fastpath", "off"),
        ("bridge.fdb", "split"),
        ("bridge.fastpath", "on"),
    ] {
        let output = scene.run(&["knob", "set", knob, value]);
        assert!(output.status.success(), "{knob} {value}: {output:?}");
        assert_eq!(text(&scene.run(&["knob", "get", knob]).stdout).trim(), value);
        assert!(stream.goes_on(), "with {knob} {value}");
        let on = text(&scene.run(&["knob", "get", "bridge.fastpath"]).stdout).trim() == "on";
        assert_eq!(scene.programs().len(), if on { 2 } else { 0 }, "with {knob} {value}");
    }
    let before = scene.counter("bridge.straight");
    assert!(comes_true(|| scene.counter("bridge.straight") > before + 100));
    let refused = scene.run(&["knob", "set", "bridge.fdb", "both"]);
    assert_eq!(refused.status.code(), Some(2));
    stream.end();
    assert_eq!(running.end(Signal::TERM).code(), Some(0));
}

#[test]
fn root_the_process_ends_when_the_bridge_is_gone() {
    if !root("root_the_process_ends_when_the_bridge_is_gone") {
        return;
    }
    let scene = Scene::new("brgone");
    let mut running = scene.start();
    scene.bridge.own.host.ip(["link", "delete", "br0"]).expect("root may");
    let status = running.0.wait().expect("its status");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn root_a_second_process_on_the_same_bridge_is_refused() {
    if !root("root_a_second_process_on_the_same_bridge_is_refused") {
        return;
    }
    let scene = Scene::new("brtwice");
    let _running = scene.start();
    let second = scene.run(&["bridge", "br0"]);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(text(&second.stderr).contains("another process accelerates this bridge already"));
}

#[test]
fn root_what_cannot_be_used_is_named() {
    if !root("root_what_cannot_be_used_is_named") {
        return;
    }
    let scene = Scene::new("brbad");
    let cases: [(&[&str], i32, &[&str]); 8] = [
        (&["bridge", "nope"], 2, &["no such device: 'nope'", "bridges here: br0"]),
        (&["bridge", "lo"], 2, &["'lo' is not a bridge", "bridges here: br0"]),
        (&["bridge", "p0"], 2, &["'p0' is a port of 'br0'"]),
        (&["bridge", "a-name-far-too-long"], 2, &["no such device"]),
        (&["bridge"], 2, &["<NAME>"]),
        (&["bridge", "br0", "--max-stations", "0"], 2, &["0 stations", "expected 1 to"]),
        (&["bridge", "br0", "--fdb", "both"], 2, &["'both'", "split or shared"]),
        (&["bridge", "br0", "--json"], 2, &["--check"]),
    ];
    for (args, code, parts) in cases {
        let output = scene.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        for part in parts {
            assert!(text(&output.stderr).contains(part), "{args:?}: {output:?}");
        }
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    let denied = scene.run_unprivileged(&["bridge", "br0"]);
    assert_eq!(denied.status.code(), Some(4), "{denied:?}");
    assert_eq!(scene.programs(), Vec::<u64>::new());
}

#[test]
fn root_check_says_for_each_port_what_stands_in_the_way() {
    if !root("root_check_says_for_each_port_what_stands_in_the_way") {
        return;
    }
    let scene = Scene::new("brcheck");
    let host = &scene.bridge.own.host;
    let plan = |code| {
        let output = scene.run(&["bridge", "br0", "--check", "--json"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let all = plan(0);
    assert_eq!((&all["schema"], &all["can_forward"]), (&1.into(), &true.into()));
    assert_eq!(
        (&all["ports"][0]["from"], &all["ports"][0]["to"]),
        (&"fast".into(), &"straight".into())
    );

    host.command("tc")
        .args(["qdisc", "add", "dev", "p0", "root", "tbf"])
        .args(["rate", "1gbit", "burst", "100k", "latency", "50ms"])
        .run()
        .expect("tbf");
    let shaped = plan(0);
    assert_eq!(shaped["ports"][0]["to"], "queue");
    assert_eq!(shaped["ports"][0]["against_better_to"][0]["id"], "queue-discipline");

    host.set_sysctl("net.bridge.bridge-nf-call-iptables", "1").expect("root may");
    assert_eq!(plan(0)["left_to_kernel"], serde_json::json!(["IPv4", "PPPoE"]));

    host.command("bridge").args(["link", "set", "dev", "p1", "state", "2"]).run().expect("bridge");
    let blocked = plan(1);
    assert_eq!(blocked["ports"][1]["against_from"][0]["id"], "stp-state");
    let table = scene.run(&["bridge", "br0", "--check"]);
    let table = text(&table.stdout);
    for part in ["p0", "queue", "a queue discipline", "p1", "spanning tree state learning", "IPv4"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    let would = scene.run(&["bridge", "br0", "--dry-run"]);
    assert!(would.status.success() && would.stderr.is_empty(), "{would:?}");
    assert!(text(&would.stdout).contains("would attach a tcx program to p0's ingress"));
    assert_eq!(scene.programs(), Vec::<u64>::new());
}

#[test]
fn root_ctrl_c_ends_it_at_once() {
    if !root("root_ctrl_c_ends_it_at_once") {
        return;
    }
    let scene = Scene::new("brint");
    let running = scene.start();
    running.signal(Signal::USR1);
    let asked = Instant::now();
    assert_eq!(running.end(Signal::INT).code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
}
