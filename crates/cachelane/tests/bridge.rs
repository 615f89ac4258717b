//! `cachelane bridge` as a user meets it, on a bridge of a test host.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Place, text};
use lab::testing::{br_netfilter, comes_true, no_bridge_calls, root};
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
        no_bridge_calls(&bridge.own.host);
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
        let running = self.start_with(&["br0"]);
        assert!(running.says("br0: 2 of 2 ports accelerated"), "{:?}", running.log());
        running
    }

    /// Starts `cachelane bridge` with these arguments.
    fn start_with(&self, args: &[&str]) -> Running {
        let mut command = self.command(&[&["bridge"], args].concat());
        let host = &self.bridge.own.host;
        let mut child = host.run(move || command.spawn()).expect("the host").expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            stderr.map_while(Result::ok).for_each(|line| lines.lock().expect("lines").push(line));
        });
        Running { child, log }
    }

    /// What `--check` says of a bridge.
    fn check(&self, bridge: &str) -> Value {
        let output = self.run(&["bridge", bridge, "--check", "--json"]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Makes a bridge that has no ports.
    fn add_bridge(&self, name: &str) {
        let host = &self.bridge.own.host;
        host.ip(["link", "add", name, "type", "bridge"]).expect("root may");
        host.ip(["link", "set", name, "up"]).expect("root may");
    }

    /// A counter of the process that runs.
    fn counter(&self, name: &str) -> u64 {
        let output = self.run(&["knob", "list", "--counters", "--json"]);
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let counters = list["processes"][0]["counters"].as_array().expect("counters").clone();
        let found = counters.iter().find(|counter| counter["name"] == name);
        found.and_then(|counter| counter["value"].as_u64()).expect("a counter of this name")
    }

    /// The ports of br0 that a program of ours is on.
    fn attached(&self) -> usize {
        let plan = self.check("br0");
        let ports = plan["ports"].as_array().expect("ports").iter();
        assert_eq!(plan["ports"][0]["tcx_before"], serde_json::json!([]), "none but ours");
        ports.filter(|port| port["attached"] == true).count()
    }
}

/// The command while it runs; killed when dropped.
struct Running {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    fn end(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.ended()
    }

    /// Waits for its end.
    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        let ended = comes_true(|| {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        });
        assert!(ended, "it goes on: {:?}", self.log());
        status.expect("it has ended")
    }

    /// What it has said.
    fn log(&self) -> Vec<String> {
        self.log.lock().expect("lines").clone()
    }

    /// Whether it comes to say this.
    fn says(&self, text: &str) -> bool {
        comes_true(|| self.log().iter().any(|line| line.contains(text)))
    }

    /// How often it has said this.
    fn has_said(&self, text: &str) -> usize {
        self.log().iter().filter(|line| line.contains(text)).count()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        [Signal::KILL, Signal::TERM, Signal::INT, Signal::ABORT, Signal::TRAP, Signal::KILL]
    {
        let running = scene.start();
        assert_eq!(scene.attached(), 2, "one on each port");
        let before = scene.counter("bridge.straight");
        assert!(comes_true(|| scene.counter("bridge.straight") > before + 100), "{signal:?}");
        running.end(signal);
        assert_eq!(scene.attached(), 0, "after {signal:?}");
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
        assert_eq!(scene.attached(), if on { 2 } else { 0 }, "with {knob} {value}");
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
    assert_eq!(running.ended().code(), Some(1));
}

#[test]
fn root_a_second_process_on_the_same_bridge_is_refused() {
    if !root("root_a_second_process_on_the_same_bridge_is_refused") {
        return;
    }
    let scene = Scene::new("brtwice");
    scene.add_bridge("empty");
    let running = scene.start_with(&["br0", "empty"]);
    assert!(running.says("empty: 0 of 0 ports accelerated"), "{:?}", running.log());
    let pid = running.child.id();
    let says = format!("already accelerated by pid {pid}");
    for bridge in ["br0", "empty"] {
        for (args, code) in [
            (&["bridge", bridge][..], 1),
            (&["bridge", bridge, "--wait"], 1),
            (&["bridge", bridge, "--fastpath", "off"], 1),
            (&["bridge", bridge, "--dry-run"], 1),
            (&["bridge", "--all", "--dry-run"], 0),
        ] {
            let second = scene.run(args);
            assert_eq!(second.status.code(), Some(code), "{args:?}: {second:?}");
            let said = [&second.stdout[..], &second.stderr].concat();
            assert!(text(&said).contains(&says), "{args:?}: {second:?}");
        }
        let plan = scene.check(bridge);
        assert_eq!(plan["accelerated_by"]["pid"], pid, "{plan}");
        assert!(text(&scene.run(&["bridge", bridge, "--check"]).stdout).contains(&says));
    }
    // A bridge of this name in another namespace is another one.
    let elsewhere = Scene::new("brelse");
    let other = elsewhere.start();
    assert_eq!(elsewhere.check("br0")["accelerated_by"]["pid"], other.child.id());
    // With the process goes what it had.
    running.end(Signal::KILL);
    assert_eq!(scene.check("empty")["accelerated_by"], Value::Null);
    let next = scene.start_with(&["empty"]);
    assert!(next.says("empty: 0 of 0 ports accelerated"), "{:?}", next.log());
}

#[test]
fn root_of_two_processes_that_start_at_once_one_has_the_bridge() {
    if !root("root_of_two_processes_that_start_at_once_one_has_the_bridge") {
        return;
    }
    let scene = Scene::new("brrace");
    for _ in 0..5 {
        let mut all: Vec<Running> = (0..4).map(|_| scene.start_with(&["br0"])).collect();
        let accelerates = |one: &Running| one.has_said("ports accelerated") > 0;
        let mut refused = 0;
        assert!(comes_true(|| all.iter().any(accelerates)));
        assert!(comes_true(|| {
            let refusals = all.iter().filter(|one| one.has_said("already accelerated by pid") > 0);
            refusals.count() == 3
        }));
        for one in all.iter_mut().filter(|one| !accelerates(one)) {
            assert_eq!(one.ended().code(), Some(1));
            refused += 1;
        }
        assert_eq!(refused, 3);
        assert_eq!(scene.attached(), 2);
    }
}

#[test]
fn root_bridges_that_come_and_go_are_followed_by_name_or_all() {
    if !root("root_bridges_that_come_and_go_are_followed_by_name_or_all") {
        return;
    }
    let host = |scene: &Scene| scene.bridge.own.host.clone();
    let scene = Scene::new("brwait");
    for args in [&["br0", "br5", "--wait"][..], &["--all"]] {
        let running = scene.start_with(args);
        assert!(running.says("br0: 2 of 2 ports accelerated"), "{:?}", running.log());
        let accelerated = |bridge: &str| {
            comes_true(|| scene.check(bridge)["accelerated_by"]["pid"] == running.child.id())
        };
        for time in 1..=2 {
            assert_eq!(running.has_said("br5: 0 of 0"), time - 1);
            scene.add_bridge("br5");
            assert!(accelerated("br5"), "{args:?}, time {time}: {:?}", running.log());
            assert!(comes_true(|| running.has_said("br5: 0 of 0") == time), "{:?}", running.log());
            host(&scene).ip(["link", "delete", "br5"]).expect("root may");
            assert!(comes_true(|| running.has_said("br5: the fast path has ended") == time));
        }
        // One that has another name is the same bridge, and its old name is free for another.
        scene.add_bridge("br5");
        assert!(accelerated("br5"));
        host(&scene).ip(["link", "set", "br5", "name", "br6"]).expect("root may");
        scene.add_bridge("br5");
        assert!(accelerated("br5") && accelerated("br6"), "{args:?}: {:?}", running.log());
        // The knob is for all of them, and for those that come.
        let set = |value| scene.run(&["knob", "set", "bridge.fastpath", value]);
        assert!(set("off").status.success());
        assert_eq!(scene.attached(), 0);
        assert_eq!(scene.counter("bridge.bridges"), 3);
        assert!(set("on").status.success());
        assert_eq!(scene.attached(), 2);
        for bridge in ["br5", "br6"] {
            host(&scene).ip(["link", "delete", bridge]).expect("root may");
        }
        assert!(comes_true(|| scene.counter("bridge.bridges") == 1));
        assert_eq!(running.end(Signal::INT).code(), Some(0));
    }
}

#[test]
fn root_the_process_outlives_a_bridge_and_ends_with_the_last() {
    if !root("root_the_process_outlives_a_bridge_and_ends_with_the_last") {
        return;
    }
    let scene = Scene::new("brlast");
    scene.add_bridge("br1");
    let mut running = scene.start_with(&["br1", "br0"]);
    assert!(running.says("br0: 2 of 2 ports accelerated"), "{:?}", running.log());
    let stream = Stream::start(&scene.bridge);
    assert!(comes_true(|| scene.counter("bridge.straight") > 100));
    scene.bridge.own.host.ip(["link", "delete", "br1"]).expect("root may");
    assert!(running.says("br1: the fast path has ended"), "{:?}", running.log());
    assert!(stream.goes_on());
    stream.end();
    let before = scene.counter("bridge.straight");
    assert!(before > 0 && scene.attached() == 2);
    scene.bridge.own.host.ip(["link", "delete", "br0"]).expect("root may");
    assert_eq!(running.ended().code(), Some(1));
    assert!(running.says("no bridge is left"), "{:?}", running.log());
    assert!(running.says("forwarded"), "what it has done: {:?}", running.log());
}

#[test]
fn root_all_waits_where_there_is_no_bridge_and_for_one_that_somebody_else_has() {
    if !root("root_all_waits_where_there_is_no_bridge_and_for_one_that_somebody_else_has") {
        return;
    }
    let scene = Scene::new("brall");
    let first = scene.start();
    let second = scene.start_with(&["--all"]);
    assert!(second.says("br0: 'br0' is already accelerated by pid"), "{:?}", second.log());
    assert!(second.says("no bridge yet: waiting"));
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(second.has_said("already accelerated"), 1, "said once: {:?}", second.log());
    first.end(Signal::KILL);
    assert!(second.says("br0: 2 of 2 ports accelerated"), "{:?}", second.log());
    assert_eq!(scene.attached(), 2);
    let list = scene.run(&["bridge", "--all", "--check", "--json"]);
    let list: Value = serde_json::from_slice(&list.stdout).expect("JSON");
    assert_eq!(list["bridges"][0]["bridge"], "br0", "{list}");
    assert_eq!(second.end(Signal::TERM).code(), Some(0));
}

#[test]
fn root_what_cannot_be_used_is_named() {
    if !root("root_what_cannot_be_used_is_named") {
        return;
    }
    let scene = Scene::new("brbad");
    let cases: [(&[&str], i32, &[&str]); 13] = [
        (&["bridge", "nope"], 2, &["no such device: 'nope'", "bridges here: br0"]),
        (&["bridge", "lo"], 2, &["'lo' is not a bridge", "bridges here: br0"]),
        (&["bridge", "p0"], 2, &["'p0' is a port of 'br0'"]),
        (&["bridge", "a-name-far-too-long"], 2, &["no such device"]),
        (&["bridge"], 2, &["<NAME>"]),
        (&["bridge", "br0", "--max-stations", "0"], 2, &["0 stations", "expected 1 to"]),
        (&["bridge", "br0", "--fdb", "both"], 2, &["'both'", "split or shared"]),
        (&["bridge", "br0", "--json"], 2, &["--check"]),
        (&["bridge", "br0", "nope"], 2, &["no such device: 'nope'"]),
        (&["bridge", "br0", "lo", "--wait"], 2, &["'lo' is not a bridge"]),
        (&["bridge", "br0", "br0"], 2, &["'br0' is given twice"]),
        (&["bridge", "br0", "--all"], 2, &["--all"]),
        (&["bridge", "--all", "--max-stations", "0"], 2, &["0 stations", "expected 1 to"]),
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
    assert_eq!(scene.attached(), 0);
}

#[test]
fn root_check_says_for_each_port_what_stands_in_the_way() {
    let test = "root_check_says_for_each_port_what_stands_in_the_way";
    if !root(test) {
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
    // What is left to the kernel as a whole is left to it on every port.
    host.ip(["link", "set", "br0", "promisc", "on"]).expect("root may");
    let whole = plan(1);
    assert_eq!(whole["obstacles"][0]["id"], "promiscuous");
    for port in whole["ports"].as_array().expect("a list") {
        assert_eq!((&port["from"], &port["to"]), (&"kernel".into(), &"kernel".into()), "{port}");
    }
    let table = scene.run(&["bridge", "br0", "--check"]);
    let table = text(&table.stdout);
    assert!(!table.contains("straight") && !table.contains("fast  "), "{table}");
    host.ip(["link", "set", "br0", "promisc", "off"]).expect("root may");

    let shaped = plan(0);
    assert_eq!(shaped["ports"][0]["to"], "queue");
    assert_eq!(shaped["ports"][0]["against_better_to"][0]["id"], "queue-discipline");

    let has_calls = br_netfilter(&format!("{test}, the part with iptables"));
    if has_calls {
        host.set_sysctl("net.bridge.bridge-nf-call-iptables", "1").expect("root may");
        assert_eq!(plan(0)["left_to_kernel"], serde_json::json!(["IPv4", "PPPoE"]));
    }

    host.command("bridge").args(["link", "set", "dev", "p1", "state", "2"]).run().expect("bridge");
    let blocked = plan(1);
    assert_eq!(blocked["ports"][1]["against_from"][0]["id"], "stp-state");
    let table = scene.run(&["bridge", "br0", "--check"]);
    let table = text(&table.stdout);
    for part in ["p0", "queue", "a queue discipline", "p1", "spanning tree state learning"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert_eq!(table.contains("IPv4"), has_calls, "{table}");
    let would = scene.run(&["bridge", "br0", "--dry-run"]);
    assert!(would.status.success() && would.stderr.is_empty(), "{would:?}");
    assert!(text(&would.stdout).contains("would attach a tcx program to p0's ingress"));
    assert_eq!(scene.attached(), 0);
}

#[test]
fn root_check_says_in_which_vlans_a_port_is() {
    let test = "root_check_says_in_which_vlans_a_port_is";
    if !root(test) {
        return;
    }
    let scene = Scene::new("brvlan");
    let host = &scene.bridge.own.host;
    if let Err(error) = host.ip("link set br0 type bridge vlan_filtering 1".split(' ')) {
        assert!(error.to_string().contains("not supported"), "{error}");
        eprintln!("skipped: {test}: this kernel's bridges know no VLANs");
        return;
    }
    let vlan = |line: &str| host.command("bridge").args(line.split(' ')).run().expect("root may");
    vlan("vlan add dev p0 vid 20-29");
    let table = scene.run(&["bridge", "br0", "--check"]);
    assert!(table.status.success(), "{table:?}");
    for part in ["VLANS", "11, pvid 1", "it goes by VLAN tags of 802.1Q"] {
        assert!(text(&table.stdout).contains(part), "{part}: {table:?}");
    }
    let json = scene.run(&["bridge", "br0", "--check", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["vlan_protocol"], "802.1Q");
    let port = &json["ports"][0];
    assert_eq!([&port["pvid"], &port["vlans"], &port["vlans_not_forwarding"]], [1, 11, 0]);
    // They meet nowhere any more.
    vlan("vlan del dev p0 vid 1");
    let apart = scene.run(&["bridge", "br0", "--check", "--json"]);
    assert_eq!(apart.status.code(), Some(1), "{apart:?}");
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
