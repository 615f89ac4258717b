//! What the tests of `cachelane steer` share: two hosts on a link like a wire, and a consumer that
//! runs where it is told.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use lab::{Host, Link, LinkOptions};
use serde_json::Value;

use super::xsk::{Running, Scene};

/// Datagrams after which a consumer that hops is on another CPU.
const HOP: u64 = 16;

/// Two hosts on a link like a wire; the flows that the second one receives are steered.
pub(crate) struct Steered {
    pub(crate) scene: Scene,
    pub(crate) link: Link,
}

impl Steered {
    pub(crate) fn new(name: &str) -> Steered {
        let scene = Scene::new(name);
        let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
        let (a, b) = (scene.host("a"), scene.host("b"));
        let link = scene.lab.link(&a, &b, options).expect("a link");
        // None of those that the kernel makes itself, which are a while in the making.
        for end in [&link.a, &link.b] {
            end.host.ip(["-6", "address", "flush", "dev", &end.device]).expect("ip");
            let address = format!("{}/64", end.v6);
            let args = ["-6", "address", "add", &address, "dev", &end.device, "nodad"];
            end.host.ip(args).expect("ip");
        }
        Steered { scene, link }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.link.b.host
    }

    pub(crate) fn device(&self) -> &str {
        &self.link.b.device
    }

    /// `cachelane steer DEVICE` with more, to its end.
    pub(crate) fn run(&self, more: &[&str]) -> Output {
        self.scene.run(self.host(), &[&["steer", self.device()], more].concat())
    }

    /// What `--check --json` finds, and the exit code.
    pub(crate) fn check(&self, more: &[&str]) -> (Option<i32>, Value) {
        let output = self.run(&[&["--check", "--json"], more].concat());
        let found = serde_json::from_slice(&output.stdout);
        (output.status.code(), found.unwrap_or_else(|error| panic!("{error}: {output:?}")))
    }

    /// Starts it, whatever stands against it, and waits until it steers.
    pub(crate) fn start(&self, more: &[&str]) -> Running {
        let args = ["steer", self.device(), "--force"];
        self.scene.start(self.host(), &[&args[..], more].concat(), "steering flows of")
    }

    pub(crate) fn counter(&self, of: &Running, name: &str) -> u64 {
        self.scene.counter(of, &format!("steer.{name}"))
    }

    /// Runs a shell in the second host with its own sysfs.
    pub(crate) fn shell(&self, script: &str) {
        let script = format!("mount -t sysfs sysfs /sys && {script}");
        let command = self.host().command("unshare");
        command.args(["--mount", "sh", "-ec", &script]).run().expect("the shell");
    }
}

/// The ids of a list of obstacles or notes.
pub(crate) fn ids(found: &Value, list: &str) -> Vec<String> {
    let list = found[list].as_array().expect("a list");
    list.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

/// Connected UDP to and fro: the second host's thread receives on the CPU that it is told, and answers
/// what it got. The first one's is on CPU 0, or on CPU 1 while the other one is there.
pub(crate) struct Exchange {
    cpu: Arc<AtomicUsize>,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// The first host's socket and the second's.
    pub(crate) ends: [SocketAddr; 2],
}

/// The consumer goes from CPU 0 to CPU 1 and back all the time.
pub(crate) const HOPS: usize = usize::MAX;

impl Exchange {
    pub(crate) fn start(link: &Link, from: IpAddr, to: IpAddr, cpu: usize) -> Exchange {
        let socket = |host: &Host, address: IpAddr| {
            let socket = host.run(move || UdpSocket::bind((address, 0))).expect("the host");
            let socket = socket.expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
            socket
        };
        let (client, server) = (socket(&link.a.host, from), socket(&link.b.host, to));
        let address = |socket: &UdpSocket| socket.local_addr().expect("its address");
        let ends = [&client, &server].map(address);
        client.connect(ends[1]).expect("connected");
        server.connect(ends[0]).expect("connected");
        let at = Arc::new(AtomicUsize::new(cpu));
        let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (told, ended) = (Arc::clone(&at), Arc::clone(&stop));
        let consumer = std::thread::spawn(move || consume(&server, &told, &ended));
        let (counted, ended) = (Arc::clone(&done), Arc::clone(&stop));
        let not_there = Arc::clone(&at);
        let asker = std::thread::spawn(move || ask(&client, &not_there, &counted, &ended));
        Exchange { cpu: at, done, stop, threads: vec![consumer, asker], ends }
    }

    /// Where the consumer runs from now on.
    pub(crate) fn consume_on(&self, cpu: usize) {
        self.cpu.store(cpu, Relaxed);
    }

    /// Exchanges so far.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Waits for so many more.
    pub(crate) fn goes_on(&self, more: u64) {
        let before = self.done();
        assert!(lab::testing::comes_true(|| self.done() >= before + more), "nothing comes back");
    }

    pub(crate) fn end(mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("what was sent came back"));
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn consume(socket: &UdpSocket, cpu: &AtomicUsize, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    let (mut at, mut count) = (usize::MAX, 0_u64);
    while !stop.load(Relaxed) {
        let wanted = match cpu.load(Relaxed) {
            HOPS => (count / HOP % 2) as usize,
            cpu => cpu,
        };
        if wanted != at {
            at = wanted;
            // One that is offline leaves it where it is.
            let _ = lanes::pin(at);
        }
        if let Ok(length) = socket.recv(&mut buffer) {
            count += 1;
            // A full queue is the asker's to notice.
            let _ = socket.send(&buffer[..length]);
        }
    }
}

/// Asks from another CPU than the consumer's, or from the two by turns if that hops: on a veth packets
/// arrive where they are sent, and what arrives on its consumer's CPU is left there.
///
/// Asks again what had no answer in time; an answer that is not of the last question is a late one,
/// and may not be of a later one.
fn ask(socket: &UdpSocket, not_on: &AtomicUsize, done: &AtomicU64, stop: &AtomicBool) {
    let (mut number, mut avoided) = (1_u64, HOPS);
    while !stop.load(Relaxed) {
        let avoid = match not_on.load(Relaxed) {
            // At a pace of its own.
            HOPS => (number / (3 * HOP) % 2) as usize,
            consumer => consumer,
        };
        if avoid != avoided {
            avoided = avoid;
            lanes::pin(usize::from(avoid == 0)).expect("a CPU that is there");
        }
        let _ = socket.send(&number.to_ne_bytes());
        let mut buffer = [0; 64];
        while let Ok(length) = socket.recv(&mut buffer) {
            assert_eq!(length, 8);
            let answer = u64::from_ne_bytes(*buffer.first_chunk().expect("eight bytes"));
            assert!(answer <= number, "{answer} was never asked, {number} was");
            if answer == number {
                number += 1;
                done.store(number, Relaxed);
                break;
            }
        }
    }
}

/// Whether a test that needs two CPUs can run; says so if not.
pub(crate) fn two_cpus(test: &str) -> bool {
    let cpus = rustix::thread::sched_getaffinity(None).expect("our own");
    let there = cpus.is_set(0) && cpus.is_set(1);
    if !there {
        eprintln!("skipped: {test}: needs CPUs 0 and 1");
    }
    there
}

/// Makes VLAN devices `tagged` on both ends, if this kernel has such; says so if not.
pub(crate) fn tagged(test: &str, link: &Link) -> Option<[IpAddr; 2]> {
    let addresses = [[10, 99, 7, 1], [10, 99, 7, 2]].map(IpAddr::from);
    for (end, address) in [&link.a, &link.b].into_iter().zip(addresses) {
        let device = &end.device;
        let ip = |line: String| end.host.ip(line.split(' ').collect::<Vec<_>>());
        if ip(format!("link add link {device} name tagged type vlan id 7")).is_err() {
            eprintln!("skipped: {test}, the part with VLAN devices: needs the kernel's 8021q");
            return None;
        }
        ip(format!("address add {address}/24 dev tagged")).expect("ip");
        ip("link set tagged up".into()).expect("ip");
    }
    Some(addresses)
}

/// All CPUs in one lane, as `--lanes` takes it.
pub(crate) fn one_lane() -> String {
    std::fs::read_to_string("/sys/devices/system/cpu/online").expect("CPUs").trim().to_owned()
}

/// Each CPU a lane, as `--lanes` takes it.
pub(crate) fn lane_per_cpu() -> String {
    let online: lanes::CpuSet = one_lane().parse().expect("a list");
    online.iter().map(|cpu| cpu.to_string()).collect::<Vec<_>>().join("|")
}
