//! Watching real traffic, on CPUs that are said to be in two lanes.

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use lab::testing::{comes_true, root};
use lab::{Lab, LinkOptions};
use lanes::CpuSet;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::*;

/// For so long one look watches.
const LOOK: Duration = Duration::from_millis(200);
/// Events that make a share.
const LEAST: u64 = 20 * Watch::EVERY;

/// Two CPUs, and the machine with them in two lanes; none, and why, where there are no two.
fn two_lanes(test: &str) -> Option<([usize; 2], LaneMap)> {
    let found = LaneMap::detect().expect("this machine");
    let mut cpus = found.allowed().iter();
    let (Some(first), Some(second), true) = (cpus.next(), cpus.next(), root(test)) else {
        eprintln!("skipped: {test}: needs root and two CPUs");
        return None;
    };
    let others = found.online().difference(&CpuSet::from_iter([first]));
    let lanes = found.with_override(&format!("{first}|{others}")).expect("lanes");
    Some(([first, second], lanes))
}

/// Two connected sockets of one host.
fn tcp() -> [OwnedFd; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    accepted(&listener, near)
}

/// Two connected sockets, one at each end of a link.
fn tcp_over(link: &lab::Link) -> [OwnedFd; 2] {
    let (near, far) = (&link.a.host, &link.b.host);
    let listener = far.run(|| TcpListener::bind(link.b.socket(0)).expect("a socket"));
    let listener = listener.expect("the host");
    let address = listener.local_addr().expect("an address");
    let near = near.run(|| TcpStream::connect(address).expect("connected")).expect("the host");
    accepted(&listener, near)
}

fn accepted(listener: &TcpListener, near: TcpStream) -> [OwnedFd; 2] {
    let (far, _) = listener.accept().expect("accepted");
    for one in [&near, &far] {
        one.set_nodelay(true).expect("it may");
    }
    [near.into(), far.into()]
}

fn udp() -> [OwnedFd; 2] {
    let both = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket"));
    let address = |one: &UdpSocket| one.local_addr().expect("an address");
    both[0].connect(address(&both[1])).expect("connected");
    both[1].connect(address(&both[0])).expect("connected");
    both.map(OwnedFd::from)
}

/// Two threads, each on a CPU, that send a byte back and forth until this is dropped.
struct BackAndForth {
    sockets: Arc<[OwnedFd; 2]>,
    threads: Vec<JoinHandle<()>>,
}

impl BackAndForth {
    fn start(sockets: [OwnedFd; 2], cpus: [usize; 2]) -> Self {
        let sockets = Arc::new(sockets);
        send(&sockets[0], &[7], SendFlags::empty()).expect("it is sent");
        let start = |(side, cpu): (usize, usize)| {
            let sockets = Arc::clone(&sockets);
            thread::spawn(move || {
                lanes::pin(cpu).expect("it may run there");
                let socket = &sockets[side];
                while let Ok((1, _)) = recv(socket, &mut [0_u8][..], RecvFlags::empty()) {
                    if send(socket, &[7], SendFlags::NOSIGNAL).is_err() {
                        break;
                    }
                }
            })
        };
        let threads = cpus.into_iter().enumerate().map(start).collect();
        Self { sockets, threads }
    }
}

impl Drop for BackAndForth {
    fn drop(&mut self) {
        for socket in &*self.sockets {
            // The other one's end may have ended it.
            let _ = shutdown(socket, Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.join().expect("no panic");
        }
    }
}

/// A thread of a host that sends datagrams to where nobody listens, from a CPU.
struct InVain {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl InVain {
    fn start(from: &lab::End, to: &lab::End, cpu: usize) -> Self {
        let (stop, target) = (Arc::new(AtomicBool::new(false)), to.socket(9));
        let seen = Arc::clone(&stop);
        let thread = from.host.spawn_thread("in-vain", move || {
            lanes::pin(cpu).expect("it may run there");
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
            socket.connect(target).expect("a route");
            // Relaxed: the join orders the rest.
            while !seen.load(Relaxed) {
                // Now and then it learns that nobody listens.
                let _ = socket.send(&[7; 64]);
            }
        });
        Self { stop, thread: Some(thread.expect("a thread")) }
    }
}

impl Drop for InVain {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}

/// Whether in some look the share is nearly all, or nearly none: other traffic of the machine is
/// seen as well.
fn is_seen(lanes: &LaneMap, absent: &[&CStr], far: bool, of: fn(&Watch) -> (u64, u64)) -> bool {
    let mut last = (0, 0);
    let seen = comes_true(|| {
        let watching = Watching::without(lanes, absent).expect("it watches");
        last = of(&watching.until(LOOK).expect("counts"));
        let (part, all) = last;
        let share = part as f64 / all.max(1) as f64;
        all >= LEAST && if far { share > 0.8 } else { share < 0.2 }
    });
    if !seen {
        eprintln!("of {} events {} were in another lane", last.1, last.0);
    }
    seen
}

/// One test, since each sees the others' traffic.
#[test]
fn root_consumers_and_frees_in_other_lanes_are_seen_and_those_in_the_same_are_not() {
    let test = "root_consumers_and_frees_in_other_lanes_are_seen_and_those_in_the_same_are_not";
    let Some(([first, second], lanes)) = two_lanes(test) else { return };
    let older: &[&CStr] = &[c"sock_recv_length"];
    let receives = |watch: &Watch| (watch.receives_other_lane, watch.receives);
    let local = |watch: &Watch| (watch.receives_other_lane_local, watch.receives_other_lane);
    for (what, sockets, absent) in [
        ("tcp", tcp as fn() -> _, &[][..]),
        ("udp", udp, &[]),
        ("tcp on an older kernel", tcp, older),
    ] {
        for (cpus, far) in [([first, first], false), ([first, second], true)] {
            let _traffic = BackAndForth::start(sockets(), cpus);
            assert!(is_seen(&lanes, absent, far, receives), "{what} on CPUs {cpus:?}");
            assert!(!far || is_seen(&lanes, absent, true, local), "{what} by loopback");
        }
    }
    let lab = Lab::new("watch").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let link = lab.link(&a, &b, LinkOptions::default()).expect("a link");
    // What comes is handled on the first CPU, wherever it was sent.
    let there = CpuSet::from_iter([first]).to_mask();
    for end in [&link.a, &link.b] {
        end.set_attribute("queues/rx-0/rps_cpus", &there).expect("root may");
    }
    for (cpu, far) in [(first, false), (second, true)] {
        let _traffic = BackAndForth::start(tcp_over(&link), [cpu, cpu]);
        assert!(is_seen(&lanes, &[], far, receives), "tcp over a link on CPU {cpu}");
        assert!(!far || is_seen(&lanes, &[], false, local), "tcp over a link is not loopback");
    }
    let frees = |watch: &Watch| (watch.frees_other_lane, watch.frees);
    for (cpu, far) in [(first, false), (second, true)] {
        let _traffic = InVain::start(&link.a, &link.b, cpu);
        assert!(is_seen(&lanes, &[], far, frees), "datagrams in vain from CPU {cpu}");
    }
}

#[test]
fn root_what_a_kernel_does_not_let_see_is_said() {
    let test = "root_what_a_kernel_does_not_let_see_is_said";
    let Some((_, lanes)) = two_lanes(test) else { return };
    for (absent, says) in [
        (&[][..], &[][..]),
        (&[c"sock_recv_length"], &["what UDP sockets receive"]),
        (&[c"sock_recv_length", c"tcp_rcv_space_adjust"], &["what sockets receive"]),
        (&[c"kfree_skb"], &["where packet buffers are freed: the kernel lacks a tracepoint"]),
    ] {
        let watching = Watching::without(&lanes, absent).expect("it watches");
        let said = watching.not_seen();
        assert_eq!(said.len(), says.len(), "{absent:?}: {said:?}");
        for (said, says) in said.iter().zip(says) {
            assert!(said.starts_with(says), "{absent:?}: {said}");
        }
    }
}
