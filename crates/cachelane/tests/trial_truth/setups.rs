//! The mechanisms, as a user starts them, and their traffic.

use std::any::Any;
use std::convert::Infallible;
use std::fmt::Display;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use knobs::{MeterKind, Registry, Server};
use lab::testing::no_bridge_calls;
use lab::traffic::{
    BulkOptions, BulkServer, BulkSession, EchoOptions, EchoServer, FrameGenerator, FrameSink,
    RrOptions, RrSession, UdpSender,
};
use lab::{BridgeOptions, Host};
use lend::{Borrower, BorrowerOptions, Loan, Wait};

use crate::common::steer::{Exchange, HOPS, Steered, one_lane};
use crate::common::xsk::{Running, Scene, three};

/// A mechanism with its traffic.
pub(crate) struct Stage {
    /// Where the trial runs.
    pub(crate) host: Host,
    /// What it measures.
    pub(crate) measure: String,
    /// The process whose knob it tries, where several have it.
    pub(crate) pid: Option<String>,
    /// Dropped before the hosts.
    _there: Box<dyn Any>,
    pub(crate) scene: Scene,
}

impl Stage {
    fn new(scene: Scene, host: &Host, measure: String, there: impl Any) -> Stage {
        Stage { host: host.clone(), measure, pid: None, _there: Box::new(there), scene }
    }
}

/// Where a relay listens, and its backend.
const RELAY: ([u8; 4], u16) = ([127, 0, 0, 1], 1000);
const BACKEND: ([u8; 4], u16) = ([127, 0, 0, 1], 1001);
/// How long a bulk stream lasts: less than a trial settles, so that each window has streams of its
/// own arm only.
const STREAM: Duration = Duration::from_millis(100);
/// Bytes of an exchange.
const EXCHANGE: usize = 256;
/// Connections with an exchange under way.
const CONNECTIONS: usize = 32;
/// Datagrams a second.
const RATE: u64 = 20_000;
/// Where datagrams go.
const PORT: u16 = 9000;

/// A relay that copies, and bulk streams through it in writes of so many bytes: what its process pays
/// for a byte in CPU time, or what the whole machine does.
pub(crate) fn relay_bulk(write_size: usize, of_machine: bool) -> Stage {
    let scene = Scene::new("truth");
    let host = scene.host("host");
    let options = BulkOptions { write_size, ..BulkOptions::default() };
    let server = BulkServer::start(&host, BACKEND.into(), &options).expect("a server");
    let relay = relay(&scene, &host, &["--engine", "copy"]);
    let streams = Streams::start(&host, options);
    let pid = relay.pid();
    let bytes = format!("counter:relay.bytes_up@{pid}");
    let measure = match of_machine {
        true => format!("cpu.busy/{bytes}"),
        false => format!("process.cpu@{pid}/{bytes}"),
    };
    Stage::new(scene, &host, measure, (streams, relay, server))
}

/// A relay and its clients and backend, all on CPU 0: CPU 1 is busy where the relay is.
pub(crate) fn relay_cpus() -> Stage {
    let scene = Scene::new("truth");
    let host = scene.host("host");
    let options = EchoOptions { request: EXCHANGE, cpus: vec![0], ..EchoOptions::default() };
    let server = EchoServer::start(&host, BACKEND.into(), options).expect("a server");
    let relay = relay(&scene, &host, &["--cpus", "0"]);
    let clients = exchange(&host, RELAY.into(), Some(0));
    let measure = "cpu.busy@1,higher".into();
    Stage::new(scene, &host, measure, (clients, relay, server))
}

/// A bridge that one CPU makes frames for: how many arrive behind it.
pub(crate) fn bridge() -> Stage {
    let scene = Scene::new("truth");
    let members = [scene.host("a"), scene.host("b")];
    let bridge = scene.bridge("switch", &members.each_ref(), BridgeOptions::default());
    let host = bridge.own.host.clone();
    no_bridge_calls(&host);
    let [from, to] = [0, 1].map(|member: usize| bridge.members[member].mac);
    for (port, mac) in bridge.ports.iter().zip([from, to]) {
        let args = ["fdb", "replace", &mac.to_string(), "dev", port, "master", "static"];
        host.command("bridge").args(args).run().expect("bridge");
    }
    let running = scene.start(&host, &["bridge", "br0"], "br0: 2 of 2 ports accelerated");
    let sink = Arc::new(FrameSink::attach(&bridge.members[1]).expect("a sink"));
    let served = serve(scene.place.path(), "frames", move || sink.arrived());
    let generator = FrameGenerator::new(&host, &bridge.ports[0], from, to).expect("a generator");
    let last = lanes::LaneMap::detect().expect("CPUs").allowed().iter().last();
    let frames = generator.start(&[last]).expect("frames");
    let measure = format!("counter:counted.frames@{},higher", process::id());
    Stage::new(scene, &host, measure, (frames, generator, running, served, bridge))
}

/// Steering under a consumer that moves between CPUs of one lane: records that are written for a
/// packet that is steered.
pub(crate) fn steer() -> Stage {
    let steered = Steered::new("truthsteer");
    let running = steered.start(&["--lanes", &one_lane()]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, HOPS);
    exchange.goes_on(100);
    let pid = running.pid();
    let measure = format!("counter:steer.written@{pid}/counter:steer.steered@{pid},lower");
    let Steered { scene, link } = steered;
    let host = link.b.host.clone();
    Stage::new(scene, &host, measure, (exchange, running, link))
}

/// A lender with one borrower: what the lender pays for a packet in CPU time.
pub(crate) fn lend() -> Stage {
    let scene = Scene::new("truth");
    let link = scene.link("a", "b");
    let socket = scene.place.path().join("lend.sock");
    let (port, path) = (PORT.to_string(), socket.to_str().expect("text"));
    let args = ["lend", &link.b.device, "--udp-port", &port, "--socket", path];
    let lender = scene.start(&link.b.host, &args, "lending UDP to port");
    let borrowing = Borrowing::start(&socket);
    let sender = UdpSender::start(&link.a.host, link.b.socket(PORT), RATE, 8).expect("a sender");
    let pid = lender.pid();
    let measure = format!("process.cpu@{pid}/counter:lend.lent@{pid}");
    let host = link.b.host.clone();
    Stage::new(scene, &host, measure, (sender, borrowing, lender, link))
}

/// A forwarder of two threads that are told that they are in two lanes: what it pays for a packet in
/// CPU time.
pub(crate) fn forward() -> Stage {
    let scene = Scene::new("truth");
    let (near, far) = three(&scene);
    let args = ["xsk", "forward", &near.b.device, "--to", &far.a.device, "--split"];
    let more = ["--cpus", "0,1", "--lanes", "0|1", "--alien-free", "auto"];
    let forwarder = scene.start(&near.b.host, &[&args[..], &more].concat(), "forwarding");
    let (mac, rate) = (far.b.mac.to_string(), RATE.to_string());
    let args = ["xsk", "send", &near.a.device, "--dst-mac", &mac, "--rate", &rate];
    let sender = scene.start(&near.a.host, &args, "sending");
    let pid = forwarder.pid();
    let measure = format!("process.cpu@{pid}/counter:xsk.tx_packets@{pid}");
    let host = near.b.host.clone();
    // The sender has the knob as well.
    Stage {
        pid: Some(pid.to_string()),
        ..Stage::new(scene, &host, measure, (sender, forwarder, near, far))
    }
}

/// A router between two hosts: packets that leave it on the far side.
pub(crate) fn router() -> Stage {
    let scene = Scene::new("truth");
    let (near, far) = three(&scene);
    let host = near.b.host.clone();
    host.set_sysctl("net.ipv4.ip_forward", "1").expect("a sysctl");
    for (end, by) in [(&near.a, near.b.v4), (&far.b, far.a.v4)] {
        let by = by.to_string();
        end.host.ip(["route", "add", "default", "via", &by]).expect("a route");
    }
    // Nobody reads it: what does not fit is dropped.
    let receiver = far.b.host.run(|| UdpSocket::bind(far.b.socket(PORT))).expect("the host");
    let sender = UdpSender::start(&near.a.host, far.b.socket(PORT), RATE, 8).expect("a sender");
    let measure = format!("net.packets@{}", far.a.device);
    Stage::new(scene, &host, measure, (sender, receiver.expect("one"), near, far))
}

/// Two hosts that exchange requests and answers: how many in a second.
pub(crate) fn exchanges() -> Stage {
    let scene = Scene::new("truth");
    let link = scene.link("a", "b");
    let options = EchoOptions { request: EXCHANGE, ..EchoOptions::default() };
    let server = EchoServer::start(&link.b.host, link.b.socket(PORT), options).expect("a server");
    let server = Arc::new(server);
    let clients = exchange(&link.a.host, link.b.socket(PORT), None);
    let counted = Arc::clone(&server);
    let answered = move || Ok::<_, Infallible>(counted.counters().answered);
    let served = serve(scene.place.path(), "requests", answered);
    let measure = format!("counter:counted.requests@{},higher", process::id());
    let host = link.b.host.clone();
    Stage::new(scene, &host, measure, (served, clients, server, link))
}

fn relay(scene: &Scene, host: &Host, more: &[&str]) -> Running {
    let [listen, to] = [RELAY, BACKEND].map(|address| SocketAddr::from(address).to_string());
    let args = [&["relay", "--listen", &listen, "--to", &to], more].concat();
    scene.start(host, &args, "relaying ")
}

fn exchange(host: &Host, to: SocketAddr, cpu: Option<usize>) -> RrSession {
    let (connections, request) = (CONNECTIONS, EXCHANGE);
    let options = RrOptions { connections, request, cpu, ..RrOptions::default() };
    RrSession::start(host, to, &options).expect("exchanges")
}

/// Serves a count of this process as the counter `counted.NAME`.
fn serve<E: Display>(
    dir: &Path,
    name: &'static str,
    count: impl Fn() -> Result<u64, E> + Send + Sync + 'static,
) -> Server {
    let registry = Registry::new("counted");
    let read = move || count().map(|count| [count]);
    let field = (name, name, "What arrived.");
    registry.meters(MeterKind::Counter, "counted", [field], read).expect("a name of its own");
    Server::bind_in(registry, dir).expect("a control socket")
}

/// A thread that does something until it is dropped.
struct Working {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Working {
    fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Working {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Working { stop, thread: Some(std::thread::spawn(move || work(&told))) }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Bulk streams through the relay, one after the other.
struct Streams;

impl Streams {
    fn start(host: &Host, options: BulkOptions) -> Working {
        let host = host.clone();
        Working::start(move |stop| {
            while !stop.load(Relaxed) {
                let stream = BulkSession::start(&host, RELAY.into(), &options).expect("a stream");
                // It goes on by itself.
                std::thread::sleep(STREAM);
                drop(stream);
            }
        })
    }
}

/// A borrower that takes what it gets and gives it back.
struct Borrowing;

impl Borrowing {
    fn start(socket: &Path) -> Working {
        let options = BorrowerOptions::default().name("truth".into()).quota(256);
        let mut borrower = Borrower::connect(socket, &options).expect("a borrower");
        Working::start(move |stop| {
            let mut loans: Vec<Loan> = Vec::new();
            while !stop.load(Relaxed) {
                let waited = borrower.wait(Some(Duration::from_millis(50)));
                if waited.expect("a lender") == Wait::Closed {
                    break;
                }
                borrower.receive(&mut loans, 64).expect("loans");
                borrower.give_back(loans.drain(..));
            }
        })
    }
}
