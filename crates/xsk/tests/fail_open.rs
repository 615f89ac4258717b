//! The kernel's path goes on when the process is gone, however it went.

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;

use common::{root, small, two, umem};
use lab::LinkOptions;
use xsk::{Device, Filter, Program, ProgramOptions, Socket};

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
    let options = ProgramOptions { filter, ..ProgramOptions::default() };
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

#[test]
fn root_the_kernel_gets_every_packet_once_the_process_is_killed() {
    if !root("root_the_kernel_gets_every_packet_once_the_process_is_killed") {
        return;
    }
    let two = two(LinkOptions::default());
    let open = |address| UdpSocket::bind(address).expect("a socket");
    let kernel = two.b.host.run(|| open(two.b.end.socket(9000))).expect("the host");
    let client = two.a.host.run(|| open(two.a.end.socket(0))).expect("the host");
    let send = || client.send_to(b"hello", two.b.end.socket(9000)).expect("sent");
    let mut buffer = [0; 16];
    kernel.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    // Resolves the address, so that nothing waits for that later.
    send();
    kernel.recv(&mut buffer).expect("the kernel's path");

    let us = std::env::current_exe().expect("this program");
    let env = format!("{ROLE}={}", two.b.device);
    let command = two.b.host.command("env").arg(env).arg(us);
    let command = command.args(["--exact", "the_process_that_is_killed", "--nocapture"]);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("the process");
    let stdout = process.pipes().stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines().map(|line| line.expect("a line"));
    assert!(lines.by_ref().any(|line| line.contains("ready")), "it did not start");
    send();
    assert!(lines.by_ref().any(|line| line.contains("received")), "it did not receive");
    kernel.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    assert!(kernel.recv(&mut buffer).is_err(), "the socket's packet went to the kernel");

    // `env` has become the process.
    let pid = rustix::process::Pid::from_raw(process.pid().cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    process.wait_within(Duration::from_secs(5)).expect("it ends");
    kernel.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    send();
    assert_eq!(kernel.recv(&mut buffer).expect("the kernel's path"), 5);
    // And the queue and the hook are free for the next one.
    let umem = umem(128, 2048);
    let socket = two.b.bind(&umem, 0, &small());
    two.b.try_attach(&ProgramOptions::default()).expect("free").insert(&socket).expect("inserted");
}
