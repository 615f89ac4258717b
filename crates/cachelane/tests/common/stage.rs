//! A host on which all mechanisms have something to do, and flows that they carry.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use lab::testing::{comes_true, no_bridge_calls};
use lab::{Bridge, BridgeOptions, End, Host, Lab, Link, LinkOptions};
use rustix::net::sockopt;
use serde_json::Value;

use super::daemon::Scene;

/// A host with a bridge of two members, and two devices at which a neighbour sends to it.
pub(crate) struct Stage {
    pub(crate) scene: Scene,
    pub(crate) bridge: Bridge,
    pub(crate) steered: Link,
    pub(crate) lent: Link,
    _lab: Lab,
}

impl Stage {
    pub(crate) fn new(name: &str) -> Stage {
        let lab = Lab::new(name).expect("a lab");
        let [a, b, c] = ["a", "b", "c"].map(|name| lab.host(name).expect("a host"));
        let bridge = lab.bridge("host", &[&a, &b], BridgeOptions::default()).expect("a bridge");
        let host = bridge.own.host.clone();
        no_bridge_calls(&host);
        let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
        let steered = lab.link(&c, &host, options.clone()).expect("a link");
        let lent = lab.link(&c, &host, options).expect("a link");
        let mut scene = Scene::new("");
        scene.host = Some(host);
        let stage = Stage { scene, bridge, steered, lent, _lab: lab };
        stage.scene.write(&stage.config());
        stage
    }

    /// A bridge, a steered device, and a lender.
    pub(crate) fn config(&self) -> String {
        format!(
            "[bridge.all]\nnames = [\"br*\"]\n[steer.in]\ninterface = \"{}\"\nforce = true\n\
             [lend.dns]\ninterface = \"{}\"\nsocket = \"dns.lend\"\nudp-port = 53\nframes = 4096\n",
            self.steered.b.device, self.lent.b.device
        )
    }

    /// A counter of the one process of this kind.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let output = self.scene.run(&["knob", "list", "--counters", "--json"]);
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let processes = list["processes"].as_array().expect("processes");
        let all = processes.iter().flat_map(|one| one["counters"].as_array().into_iter().flatten());
        all.filter(|one| one["name"] == name).filter_map(|one| one["value"].as_u64()).sum()
    }

    pub(crate) fn flows(&self) -> [Flow; 3] {
        let [a, b] = [&self.bridge.members[0], &self.bridge.members[1]];
        [
            Flow::start("bridged", &a.host, b),
            Flow::start("steered", &self.steered.a.host, &self.steered.b),
            Flow::start("by the lender", &self.lent.a.host, &self.lent.b),
        ]
    }
}

/// Bytes of datagrams that may wait for their receiver: of 4 KiB each, as those are that come by XDP, for
/// several seconds.
const ROOM: usize = 32 << 20;

/// Numbered datagrams, a thousand a second, and those that arrive.
pub(crate) struct Flow {
    pub(crate) what: &'static str,
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    send: JoinHandle<u64>,
    receive: JoinHandle<u64>,
    to: Host,
}

impl Flow {
    pub(crate) fn start(what: &'static str, from: &Host, to: &End) -> Flow {
        let at: SocketAddr = (to.v4, 0).into();
        let bound = move || UdpSocket::bind(at);
        let receiver = to.host.run(bound).expect("the host").expect("a port is free");
        // What is lost is to be lost on the way, not where this process waits for a CPU.
        sockopt::set_socket_recv_buffer_size_force(&receiver, ROOM).expect("root may");
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
            // Not a set, which stands still while it grows.
            let (mut seen, mut arrived) = (Vec::new(), 0_u64);
            let mut number = [0; 8];
            loop {
                match receiver.recv(&mut number) {
                    Ok(8) => {
                        let number = u64::from_ne_bytes(number) as usize;
                        seen.resize(seen.len().max(number + 1), false);
                        assert!(!std::mem::replace(&mut seen[number], true), "{number} came twice");
                        arrived += 1;
                        count.store(arrived, Relaxed);
                    }
                    // Nothing has come for a second.
                    _ if over.load(Relaxed) => return arrived,
                    _ => {}
                }
            }
        };
        let (send, receive) = (std::thread::spawn(send), std::thread::spawn(receive));
        Flow { what, stop, arrived, send, receive, to: to.host.clone() }
    }

    /// Whether more arrive from now on.
    pub(crate) fn goes_on(&self) -> bool {
        let before = self.arrived.load(Relaxed);
        comes_true(|| self.arrived.load(Relaxed) > before + 100)
    }

    /// How many were sent, and how many of them were lost.
    pub(crate) fn end(self) -> (u64, u64) {
        self.stop.store(true, Relaxed);
        let sent = self.send.join().expect("no panic");
        let arrived = self.receive.join().expect("no panic");
        let lost = sent - arrived;
        let snmp = || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
        let udp = self.to.run(snmp).expect("the host");
        let udp: Vec<_> = udp.lines().filter(|line| line.starts_with("Udp: ")).collect();
        println!("{}: {sent} sent, {lost} lost; there {udp:?}", self.what);
        (sent, sent - arrived)
    }
}

fn sender_address(sender: &UdpSocket) -> SocketAddr {
    sender.local_addr().expect("it is connected")
}
