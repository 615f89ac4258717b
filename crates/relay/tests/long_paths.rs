//! Over a long path a stream gets more of its connection's memory than a buffer's share, and the
//! connection no more than before.

// What `sockopt_impl` makes has none.
#![allow(missing_docs)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cachelane_relay::{Engine, Relay};
use common::pattern::Pattern;
use common::*;
use lab::testing::End;
use lab::{Host, Lab, LinkOptions, PathOptions};
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};
use parking_lot::Mutex;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// The least of a round trip between client and relay.
const ROUND_TRIP: Duration = Duration::from_millis(100);

/// One test at a time: each looks for sockets among those of the process.
static TURN: Mutex<()> = Mutex::new(());

/// How long a stream may take to get as far as it is expected to.
const GROWTH: Duration = Duration::from_secs(40);

/// How long it goes on, to a slow reader, after that.
const SLOW: Duration = Duration::from_secs(2);

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// What a socket may hold beyond its size: a packet, with the kernel's overhead.
const PACKET: usize = 72 << 10;

sockopt_impl!(MemInfo, GetOnly, libc::SOL_SOCKET, libc::SO_MEMINFO, [u32; 9]);
sockopt_impl!(BufferLock, GetOnly, libc::SOL_SOCKET, libc::SO_BUF_LOCK, u32);
sockopt_impl!(TcpInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, [u8; 128]);

/// Which ends send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ways {
    Up,
    Down,
    Both,
}

macro_rules! cases {
    ($($name:ident: $engine:ident, $ways:ident;)*) => {
        $(#[test]
        fn $name() {
            if lab::testing::root(stringify!($name)) {
                stream(Engine::$engine, Ways::$ways);
            }
        })*
    };
}

cases! {
    root_a_download_by_copy_has_more_under_way_than_a_share: Copy, Down;
    root_an_upload_by_copy_has_more_under_way_than_a_share: Copy, Up;
    root_a_download_by_splice_has_more_under_way_than_a_share: Splice, Down;
    root_an_upload_by_splice_has_more_under_way_than_a_share: Splice, Up;
    root_streams_both_ways_share_the_memory: Auto, Both;
}

#[test]
fn root_who_waits_in_the_listen_queue_holds_no_more_than_all_four_buffers_may() {
    if !lab::testing::root(
        "root_who_waits_in_the_listen_queue_holds_no_more_than_all_four_buffers_may",
    ) {
        return;
    }
    let _turn = TURN.lock();
    let rig = Rig::new(Engine::Copy);
    let pair = rig.warm_pair(Warmth::Up);
    let sight = Sight { client: other_end(&pair.client), backend: other_end(&pair.backend) };
    let (_, shares) = sight.buffers();
    let listeners = Vec::from_iter(own_sockets(|local, peer| {
        local == rig.relay.addrs().first().copied() && peer.is_none()
    }));
    assert!(!listeners.is_empty());
    for listener in listeners {
        // Accepted sockets inherit both.
        let size = getsockopt(&listener, MemInfo).unwrap()[1] as usize;
        assert_eq!((size, getsockopt(&listener, BufferLock).unwrap()), (shares.iter().sum(), 3));
    }
}

/// A client, a long path, a relay, and a backend near it.
struct World {
    pair: Pair,
    relay: Relay,
    _lab: Lab,
    _hosts: [Host; 3],
    _path: lab::Path,
}

impl World {
    fn new(engine: Engine) -> World {
        let lab = Lab::new("long").unwrap();
        let hosts = ["client", "relay", "backend"].map(|name| lab.host(name).unwrap());
        let [far, middle, near] = &hosts;
        let options = PathOptions { delay: ROUND_TRIP / 2, ..PathOptions::default() };
        let path = lab.path(far, middle, options).unwrap();
        let link = lab.link(middle, near, LinkOptions::default()).unwrap();
        let (listener, addr) = near.run(|| listener(&link.b.socket(0).to_string())).unwrap();
        let mut config = config(engine, &[addr]);
        config.listen = on(&[path.b.socket(8080)]);
        let relay = middle.run(|| Relay::start(config)).unwrap().unwrap();
        let client = far.run(|| connect(relay.addrs()[0])).unwrap();
        let pair = Pair { client, backend: accept(&listener) };
        World { pair, relay, _lab: lab, _hosts: hosts, _path: path }
    }
}

/// What is seen of a connection from outside while bytes flow.
struct Sight {
    client: OwnedFd,
    backend: OwnedFd,
}

impl Sight {
    /// What the relay's two sockets hold, and the sizes of their four buffers.
    fn buffers(&self) -> ([usize; 4], [usize; 4]) {
        // linux/sock_diag.h.
        let [client, backend] = [&self.client, &self.backend]
            .map(|socket| getsockopt(socket, MemInfo).unwrap().map(|bytes| bytes as usize));
        (
            [client[0], client[5], backend[0], backend[5]],
            [client[1], client[3], backend[1], backend[3]],
        )
    }
}

/// Bytes that a socket has sent and its peer has not acknowledged.
fn under_way(socket: impl std::os::fd::AsFd) -> usize {
    let info = getsockopt(&socket, TcpInfo).unwrap();
    let word = |at: usize| u32::from_ne_bytes(*info[at..].first_chunk().unwrap()) as usize;
    // struct tcp_info: tcpi_snd_mss, tcpi_unacked.
    word(16) * word(24)
}

/// The relay's socket at the other end of this one: it is in this process.
fn other_end(stream: &TcpStream) -> OwnedFd {
    let [own, other] = [stream.peer_addr(), stream.local_addr()].map(|addr| Some(addr.unwrap()));
    let found = own_sockets(|local, peer| local == own && peer == other).next();
    found.expect("the relay has a socket at the other end")
}

/// Sockets of this process, chosen by their address and their peer's.
fn own_sockets(
    choose: impl Fn(Option<SocketAddr>, Option<SocketAddr>) -> bool,
) -> impl Iterator<Item = OwnedFd> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = numbers.filter_map(move |entry| {
        let number = entry.ok()?.file_name().to_str()?.parse().ok()?;
        pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).ok()
    });
    files.filter(move |file| {
        let local = rustix::net::getsockname(file).ok();
        let peer = rustix::net::getpeername(file).ok().flatten();
        let [local, peer] = [local, peer].map(|addr| SocketAddr::try_from(addr?).ok());
        choose(local, peer)
    })
}

/// How the threads of a test are told what to do.
#[derive(Default)]
struct Orders {
    /// Read slowly.
    slow: AtomicBool,
    /// Send no more.
    end: AtomicBool,
}

fn stream(engine: Engine, ways: Ways) {
    let _turn = TURN.lock();
    let world = World::new(engine);
    let Pair { client, backend } = &world.pair;
    let sight = Sight { client: other_end(client), backend: other_end(backend) };
    let orders = Orders::default();
    std::thread::scope(|scope| {
        let end = End(&orders.end);
        for (from, to, way) in [(client, backend, Ways::Up), (backend, client, Ways::Down)] {
            if ways == way || ways == Ways::Both {
                let sent = scope.spawn(|| send_pattern(from, &orders));
                scope.spawn(|| {
                    let received = receive_pattern(to, &orders);
                    assert_eq!(received, sent.join().unwrap());
                });
            }
        }
        watch(&format!("{engine}, {ways:?}"), ways, client, &sight, &orders);
        drop(end);
        drop(sight);
    });
    drop(world.pair);
    await_that("the connection has ended", || world.relay.active() == 0);
}

/// Checks what is under way on the long path, and what the relay's sockets hold: while the readers are as
/// fast as they can be, and then while they are slow.
fn watch(name: &str, ways: Ways, client: &TcpStream, sight: &Sight, orders: &Orders) {
    let (_, shares) = sight.buffers();
    // More than shares alone could have: of one buffer, or of both that hold bytes for the long path.
    let tenths = if ways == Ways::Both { 21 } else { 15 };
    let expected = shares[0].max(shares[1]) * tenths / 10;
    let mut bound = Bound { pool: shares.iter().sum(), last: [0; 3], most: 0 };
    let (start, mut most) = (Instant::now(), 0);
    while most < expected {
        bound.check(name, sight);
        let up = if ways == Ways::Down { 0 } else { under_way(client) };
        let down = if ways == Ways::Up { 0 } else { under_way(&sight.client) };
        most = most.max(up + down);
        assert!(
            start.elapsed() < GROWTH,
            "{name}: {most} of {expected} bytes under way, {:?}",
            sight.buffers()
        );
        std::thread::sleep(LOOK);
    }
    let growth = start.elapsed();
    orders.slow.store(true, Relaxed);
    while start.elapsed() < growth + SLOW {
        bound.check(name, sight);
        std::thread::sleep(LOOK);
    }
    orders.slow.store(false, Relaxed);
    println!(
        "{name}: {most} bytes under way after {growth:?}, held {} of {}",
        bound.most, bound.pool
    );
}

/// What the relay's sockets may hold, and what they did.
struct Bound {
    pool: usize,
    last: [usize; 3],
    most: usize,
}

impl Bound {
    fn check(&mut self, name: &str, sight: &Sight) {
        let (held, sizes) = sight.buffers();
        // What moves from one to another in the midst of a look is seen twice, but not in each look.
        self.last = [self.last[1], self.last[2], held.iter().sum()];
        let sum = self.last.into_iter().min().unwrap();
        self.most = self.most.max(sum);
        let Bound { pool, .. } = *self;
        assert!(sum <= pool + 4 * PACKET, "{name}: {held:?} held of {pool}, sizes {sizes:?}");
    }
}

fn send_pattern(mut to: &TcpStream, orders: &Orders) -> u64 {
    let (pattern, mut sent) = (Pattern::new(3), 0);
    while !orders.end.load(Relaxed) {
        match to.write(pattern.at(sent, 64 << 10)) {
            Ok(n) => sent += n as u64,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("a write failed: {e}"),
        }
    }
    to.shutdown(Shutdown::Write).unwrap();
    sent
}

fn receive_pattern(mut from: &TcpStream, orders: &Orders) -> u64 {
    let (pattern, mut received) = (Pattern::new(3), 0);
    let mut bytes = vec![0; 256 << 10];
    loop {
        if orders.slow.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let n = from.read(&mut bytes).expect("what was sent arrives");
        if n == 0 {
            return received;
        }
        pattern.check(received, &bytes[..n]);
        received += n as u64;
    }
}
