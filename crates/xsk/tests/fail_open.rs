//! The kernel's path goes on when the process is gone, however it went, and while it is stopped.

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cachelane_xsk::{Device, Filter, LEASE, Program, ProgramOptions, Socket};
use common::{PATIENCE, Two, small, two, umem};
use lab::testing::root;
use lab::{LinkOptions, Process};
use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "CACHELANE_XSK_TEST_HOLDS";

/// Not a test by itself: what the killed process does.
#[test]
fn the_process_that_is_killed() {
    let Ok(device) = std::env::var(ROLE) else { return };
    let device = Device::find(&device).expect("the device");
    let umem = umem(128, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut socket = Socket::bind(&umem, &device, 0, &small()).expect("a socket");
    let filter = Filter::UdpPorts(vec![9000]);
    let options = ProgramOptions::default().filters(vec![filter]);
    let mut program = Program::attach(&device, &options).expect("a program");
    program.insert(&socket).expect("inserted");
    socket.fill(&mut cache, 64);
    println!("ready");
    let mut packets = Vec::new();
    loop {
        socket.wait(None).expect("waited");
        socket.receive(&mut packets, 64);
        packets.drain(..).for_each(|packet| cache.put(packet.frame));
        println!("received");
    }
}

/// Two hosts with a UDP socket each, and the process on one of them, which has the packets of its
/// host's socket.
struct Scene {
    two: Two,
    kernel: UdpSocket,
    client: UdpSocket,
    process: Process,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Scene {
    fn new() -> Self {
        let two = two(LinkOptions::default());
        let open = |address| UdpSocket::bind(address).expect("a socket");
        let kernel = two.b.host.run(|| open(two.b.end.socket(9000))).expect("the host");
        let client = two.a.host.run(|| open(two.a.end.socket(0))).expect("the host");
        client.connect(two.b.end.socket(9000)).expect("connected");
        let us = std::env::current_exe().expect("this program");
        let env = format!("{ROLE}={}", two.b.device);
        let command = two.b.host.command("env").arg(env).arg(us);
        let command = command.args(["--exact", "the_process_that_is_killed", "--nocapture"]);
        // Resolves the address, so that nothing waits for that later.
        client.send(b"hello").expect("sent");
        kernel.recv(&mut [0; 16]).expect("the kernel's path");
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the process");
        let stdout = process.pipes().stdout.take().expect("a pipe");
        let lines = Box::new(BufReader::new(stdout).lines().map(|line| line.expect("a line")));
        let mut this = Self { two, kernel, client, process, lines };
        this.says("ready");
        this
    }

    fn says(&mut self, what: &str) {
        assert!(self.lines.any(|line| line.contains(what)), "the process never says '{what}'");
    }

    fn send(&self) {
        self.client.send(b"hello").expect("sent");
    }

    /// Whether a packet comes to the kernel's socket in this time.
    fn kernel_has_one_within(&self, milliseconds: u64) -> bool {
        self.kernel.set_read_timeout(Some(Duration::from_millis(milliseconds))).expect("a timeout");
        self.kernel.recv(&mut [0; 16]).is_ok()
    }

    /// `env` has become the process.
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.pid().cast_signed()).expect("a pid");
        kill_process(pid, signal).expect("a signal");
    }
}

#[test]
fn root_the_kernel_gets_every_packet_once_the_process_is_killed() {
    if !root("root_the_kernel_gets_every_packet_once_the_process_is_killed") {
        return;
    }
    let mut scene = Scene::new();
    scene.send();
    scene.says("received");
    assert!(!scene.kernel_has_one_within(50), "the socket's packet went to the kernel");
    scene.signal(Signal::KILL);
    scene.process.wait_within(Duration::from_secs(5)).expect("it ends");
    scene.send();
    assert!(scene.kernel_has_one_within(5000), "the kernel's path");
    // And the queue and the hook are free for the next one.
    let umem = umem(128, 2048);
    let b = &scene.two.b;
    let socket = b.bind(&umem, 0, &small());
    b.try_attach(&ProgramOptions::default()).expect("free").insert(&socket).expect("inserted");
}

#[test]
fn root_the_kernel_gets_the_packets_while_the_process_is_stopped() {
    if !root("root_the_kernel_gets_the_packets_while_the_process_is_stopped") {
        return;
    }
    let mut scene = Scene::new();
    // A process that only waits for packets keeps them coming.
    std::thread::sleep(2 * LEASE);
    let until = Instant::now() + PATIENCE;
    // It, too, may have to wait for a CPU.
    while {
        scene.send();
        scene.kernel_has_one_within(50)
    } {
        assert!(Instant::now() < until, "nothing goes to a process that waits");
    }
    scene.says("received");

    scene.signal(Signal::STOP);
    let stopped = Instant::now();
    while {
        scene.send();
        !scene.kernel_has_one_within(20)
    } {
        assert!(stopped.elapsed() < PATIENCE, "the kernel's path does not come back");
    }
    // It may have looked a moment before, and sending takes its time as well.
    let lost_for = stopped.elapsed();
    assert!(lost_for < Duration::from_secs(2), "the kernel's path came back after {lost_for:?}");
    for packet in 0..100 {
        scene.send();
        assert!(scene.kernel_has_one_within(5000), "packet {packet} was lost");
    }

    scene.signal(Signal::CONT);
    let until = Instant::now() + PATIENCE;
    while {
        scene.send();
        scene.kernel_has_one_within(50)
    } {
        assert!(Instant::now() < until, "nothing goes to the process that goes on");
    }
    scene.says("received");
}
