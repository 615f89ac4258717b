//! What the relay's tests share: a relay between a client and a backend in this process, bytes
//! that can be checked at any offset, and waiting for what must come true.

// Each test file uses a part of this.
#![allow(dead_code, unreachable_pub)]

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use cachelane_relay::{Config, Engine, Listen, Relay};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, setrlimit};

pub mod pattern;
pub mod race;
pub mod unix;

/// How long anything may take before a test calls it stuck.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Set in a process that a test starts of its own program.
pub const CHILD: &str = "RELAY_TEST_CHILD";

/// Runs `body` in a child with at most `files` open files; the test is `name`.
pub fn with_files(name: &str, files: u64, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).unwrap();
        return body();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// A configuration on loopback with one worker for each of the first two CPUs of this process.
pub fn config(engine: Engine, backends: &[SocketAddr]) -> Config {
    let listen: Vec<SocketAddr> = vec!["127.0.0.1:0".parse().unwrap()];
    let cpus = own_cpus().into_iter().take(2).collect();
    Config { engine, ..Config::new(listen, backends.to_vec(), cpus) }
}

/// The same addresses, to listen on.
pub fn on(addrs: &[SocketAddr]) -> Vec<Listen> {
    addrs.iter().map(|&addr| addr.into()).collect()
}

/// The CPUs that this process may run on.
pub fn own_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// A backend that listens, and where.
pub fn backend() -> (TcpListener, SocketAddr) {
    listener("127.0.0.1:0")
}

/// A listener on `addr`, and where.
pub fn listener(addr: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(addr).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A connection through the relay, both of its ends here.
pub struct Pair {
    pub client: TcpStream,
    pub backend: TcpStream,
}

/// A relay before one backend.
pub struct Rig {
    pub relay: Relay,
    pub listener: TcpListener,
}

impl Rig {
    pub fn new(engine: Engine) -> Rig {
        Rig::with(engine, |_| {})
    }

    pub fn with(engine: Engine, adjust: impl FnOnce(&mut Config)) -> Rig {
        let (listener, addr) = backend();
        let mut config = config(engine, &[addr]);
        adjust(&mut config);
        Rig { relay: Relay::start(config).unwrap(), listener }
    }

    /// One more connection. The only one under way, or the ends may belong to different ones.
    pub fn pair(&self) -> Pair {
        let client = connect(self.relay.addrs()[0]);
        Pair { client, backend: accept(&self.listener) }
    }

    /// A connection in the state that `warmth` names.
    pub fn warm_pair(&self, warmth: Warmth) -> Pair {
        self.warm_pairs(&[warmth]).pop().expect("one for each")
    }

    /// A connection in each of these states. All get there at once, so that none has idled for long
    /// where CPUs are short.
    pub fn warm_pairs(&self, warmths: &[Warmth]) -> Vec<Pair> {
        let pairs: Vec<_> = warmths.iter().map(|_| self.pair()).collect();
        let taken = self.relay.stats().sockmap_taken;
        std::thread::scope(|scope| {
            for (warmth, Pair { client, backend }) in warmths.iter().zip(&pairs) {
                match warmth {
                    Warmth::Cold => {}
                    Warmth::Up => drop(scope.spawn(|| self.send_bulk(client, backend))),
                    Warmth::Down => drop(scope.spawn(|| self.send_bulk(backend, client))),
                }
            }
        });
        if self.relay.engine() == Engine::Sockmap {
            // A pause is what a hand-over waits for.
            let warm = warmths.iter().filter(|warmth| **warmth != Warmth::Cold).count() as u64;
            let all = || self.relay.stats().sockmap_taken >= taken + warm;
            await_that("sockmap took the flows", all);
        }
        pairs
    }

    fn send_bulk(&self, from: &TcpStream, to: &TcpStream) {
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(from, &vec![7; BULK]));
            assert_eq!(receive(to, BULK), vec![7; BULK]);
        });
    }

    /// Waits until the relay has no connection left.
    pub fn await_empty(&self) {
        await_that("the relay let go of its connections", || self.relay.active() == 0);
    }
}

/// Bytes that make a connection warm.
pub const BULK: usize = 6 << 20;

/// What a connection has been through before a test begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Nothing.
    Cold,
    /// Bulk from the client, so that the engine has done for this direction what it does.
    Up,
    /// Bulk from the backend.
    Down,
}

impl Warmth {
    pub const ALL: [Warmth; 3] = [Warmth::Cold, Warmth::Up, Warmth::Down];
}

/// Makes a module of tests for each engine out of functions that take an engine.
#[macro_export]
macro_rules! on_every_engine {
    ($($case:ident,)*) => {
        $crate::on_every_engine!(@ copy, cachelane_relay::Engine::Copy, $($case,)*);
        $crate::on_every_engine!(@ splice, cachelane_relay::Engine::Splice, $($case,)*);
        $crate::on_every_engine!(@ auto, cachelane_relay::Engine::Auto, $($case,)*);
        $crate::on_every_engine!(@ sockmap_root, cachelane_relay::Engine::Sockmap, $($case,)*);
    };
    (@ $module:ident, $engine:expr, $($case:ident,)*) => {
        mod $module {
            $(#[test]
            fn $case() {
                if $crate::common::may_use($engine, concat!(stringify!($module), "::", stringify!($case))) {
                    super::$case($engine);
                }
            })*
        }
    };
}

/// Whether this process may use `engine`; if not, says that `test` is skipped.
pub fn may_use(engine: Engine, test: &str) -> bool {
    engine != Engine::Sockmap || lab::testing::root(test)
}

/// A client's connection that fails rather than hangs.
pub fn connect(addr: SocketAddr) -> TcpStream {
    patient(TcpStream::connect_timeout(&addr, PATIENCE).unwrap())
}

/// A client's connection from this address, or why there is none.
pub fn connect_from(ip: &str, addr: SocketAddr) -> io::Result<TcpStream> {
    let ip: IpAddr = ip.parse().unwrap();
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    // A port that only another connection between the same ends would keep it from.
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true)?;
    rustix::net::bind(&socket, &SocketAddr::new(ip, 0))?;
    rustix::net::connect(&socket, &addr)?;
    Ok(patient(socket.into()))
}

/// The next connection at a backend, waited for.
pub fn accept(listener: &TcpListener) -> TcpStream {
    try_accept(listener, PATIENCE).expect("no connection reached the backend")
}

/// The next connection at a backend, if one comes in time.
pub fn try_accept(listener: &TcpListener, wait: Duration) -> Option<TcpStream> {
    ready(listener, PollFlags::IN, wait).then(|| patient(listener.accept().unwrap().0))
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A socket that is bound and does not listen: connections to it are refused.
pub fn bound() -> (OwnedFd, SocketAddr) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&socket, &any).unwrap();
    let addr = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    (socket, addr)
}

/// A listener whose queue is full, so that the kernel drops what asks for more: its address, and
/// what must be kept for as long as it is to stay so.
pub fn black_hole() -> (SocketAddr, Vec<OwnedFd>) {
    let (socket, addr) = bound();
    fill_up(socket, addr)
}

/// The same on every address of this host.
pub fn black_hole_everywhere() -> (SocketAddr, Vec<OwnedFd>) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    rustix::net::bind(&socket, &any).unwrap();
    let mut addr = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    addr.set_ip([127, 0, 0, 1].into());
    fill_up(socket, addr)
}

fn fill_up(socket: OwnedFd, addr: SocketAddr) -> (SocketAddr, Vec<OwnedFd>) {
    rustix::net::listen(&socket, 0).unwrap();
    let mut kept = vec![socket];
    while let Ok(filler) = TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
        kept.push(filler.into());
        assert!(kept.len() < 16, "a listen queue of length 0 takes connections for ever");
    }
    (addr, kept)
}

pub fn send_all(mut to: &TcpStream, bytes: &[u8]) {
    to.write_all(bytes).unwrap();
}

/// Exactly `length` bytes.
pub fn receive(mut from: &TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

/// Everything up to a clean end.
pub fn receive_to_end(mut from: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Sends a message one way and another back.
pub fn converse(pair: &Pair) {
    for (from, to, message) in [
        (&pair.client, &pair.backend, b"question?".as_slice()),
        (&pair.backend, &pair.client, b"answer!".as_slice()),
    ] {
        send_all(from, message);
        assert_eq!(receive(to, message.len()), message);
    }
}

/// Ends a connection well, from both sides, and checks that both see it.
pub fn part(pair: Pair) {
    pair.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive_to_end(&pair.backend), b"");
    drop(pair.backend);
    assert_eq!(receive_to_end(&pair.client), b"");
}

/// Reads until the stream ends, and checks that it ends by a reset.
pub fn expect_reset(mut stream: &TcpStream) {
    let ended = io::copy(&mut stream, &mut io::sink());
    match ended {
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
        other => panic!("expected a reset, got {other:?}"),
    }
}

/// Connects, and checks that the connection ends by a reset.
pub fn expect_refusal(addr: SocketAddr) {
    refused(TcpStream::connect(addr));
}

/// Connects from this address, and checks that the connection ends by a reset.
pub fn expect_refusal_of(ip: &str, addr: SocketAddr) {
    refused(connect_from(ip, addr));
}

fn refused(connected: io::Result<TcpStream>) {
    match connected {
        // It may come before connect(2) has returned.
        Err(e) => assert_eq!(e.kind(), io::ErrorKind::ConnectionReset, "{e}"),
        Ok(stream) => {
            // An error here is the reset again.
            let _ = stream.set_read_timeout(Some(PATIENCE));
            expect_reset(&stream);
        }
    }
}

/// Closes a stream such that its peer gets a reset.
pub fn abort(stream: TcpStream) {
    set_abrupt(&stream);
}

/// Makes the stream's peer get a reset when it is closed.
pub fn set_abrupt(stream: &TcpStream) {
    sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

/// Limits what the kernel holds for one end of a connection.
pub fn shrink_buffers(stream: &TcpStream, bytes: usize) {
    sockopt::set_socket_recv_buffer_size(stream, bytes).unwrap();
    sockopt::set_socket_send_buffer_size(stream, bytes).unwrap();
}

/// Waits for something that happens on another thread and raises no event here.
#[track_caller]
pub fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes until nothing more is taken for a while. Returns how many bytes were.
pub fn fill(mut to: &TcpStream, mut next: impl FnMut(u64) -> Vec<u8>) -> u64 {
    const STUCK: Duration = Duration::from_millis(250);
    to.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match to.write(&next(sent)) {
            Ok(n) => sent += n as u64,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if !ready(to, PollFlags::OUT, STUCK) {
                    break;
                }
            }
            Err(e) => panic!("a write failed: {e}"),
        }
    }
    to.set_nonblocking(false).unwrap();
    sent
}

/// Waits until a socket is ready for `flags`; false: it was not in time.
pub fn ready(socket: impl AsFd, flags: PollFlags, wait: Duration) -> bool {
    let mut polled = [PollFd::new(&socket, flags)];
    poll(&mut polled, Some(&wait.try_into().unwrap())).unwrap() > 0
}
