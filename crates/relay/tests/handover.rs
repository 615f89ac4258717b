//! Handing listeners over to a successor, and what is left when that breaks off.

mod common;

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use cachelane_relay::{Config, Engine, Error, ErrorKind, Predecessor, Relay, register};
use common::*;
use knobs::{Answer, Client, Registry, Server};
use lanes::LaneMap;
use rustix::fs::{FlockOperation, MemfdFlags, flock, memfd_create};
use rustix::net::{Shutdown, shutdown, sockopt};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A relay that can be replaced.
struct Host {
    relay: Arc<Relay>,
    server: Server,
    dir: TempDir,
}

impl Host {
    fn new(to: SocketAddr) -> Host {
        Host::with(to, |_| ())
    }

    fn with(to: SocketAddr, adjust: impl FnOnce(&mut Config)) -> Host {
        let dir = TempDir::new().unwrap();
        let mut config = config(Engine::Copy, &[to]);
        adjust(&mut config);
        let relay = Arc::new(Relay::start(config).unwrap());
        let server = serve(&relay, &dir);
        Host { relay, server, dir }
    }

    fn addr(&self) -> SocketAddr {
        self.relay.addrs()[0]
    }

    /// Asks for its sockets, as a successor does.
    fn hand_over(&self) -> knobs::Result<(Value, Vec<OwnedFd>, OwnedFd)> {
        let with = json!({"addrs": self.relay.addrs()});
        let mut client = Client::connect(self.server.path())?;
        let Answer { value, mut files } = client.ask("relay.hand_over", with)?;
        let baton = files.pop().expect("a baton");
        Ok((value, files, baton))
    }

    fn release(&self, token: &Value) -> knobs::Result<Answer> {
        let with = json!({"token": token["token"]});
        Client::connect(self.server.path())?.ask("relay.release", with)
    }
}

fn serve(relay: &Arc<Relay>, dir: &TempDir) -> Server {
    let registry = Registry::new("relay");
    register(relay, LaneMap::detect().unwrap(), &registry).unwrap();
    Server::bind_in(registry, dir.path()).unwrap()
}

/// Takes the baton, if it is to be had.
fn take(baton: &OwnedFd) -> Option<File> {
    let path = format!("/proc/self/fd/{}", baton.as_raw_fd());
    let file = File::options().read(true).write(true).open(path).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| file)
}

/// Whether a relay serves clients, whichever it is.
#[track_caller]
fn serves(addr: SocketAddr, listener: &std::net::TcpListener) {
    let pairs: Vec<_> =
        (0..16).map(|_| Pair { client: connect(addr), backend: accept(listener) }).collect();
    pairs.iter().for_each(converse);
    pairs.into_iter().for_each(part);
}

#[test]
fn a_successor_serves_and_the_predecessor_ends_with_its_last_connection() {
    for workers in [1, 2] {
        let (listener, to) = backend();
        let host = Host::new(to);
        let old: Vec<_> = (0..8)
            .map(|_| Pair { client: connect(host.addr()), backend: accept(&listener) })
            .collect();
        let found =
            Predecessor::find_in(host.dir.path(), host.relay.listening_on()).unwrap().unwrap();
        assert!(!found.is_draining);
        let cpus = own_cpus().into_iter().take(workers).collect();
        let listen = on(host.relay.addrs());
        let successor = found
            .take_over(Config { listen, cpus, ..config(Engine::Copy, &[to]) }, vec![])
            .unwrap();
        assert_eq!(successor.addrs(), host.relay.addrs());
        assert_eq!(host.relay.replaced_by(), Some(std::process::id()));
        assert!(!host.relay.drain(Duration::from_millis(100)));
        serves(host.addr(), &listener);
        assert_eq!(successor.stats().accepted, 16);
        old.iter().for_each(converse);
        old.into_iter().for_each(part);
        assert!(host.relay.drain(PATIENCE));
        drop(host.relay);
        serves(successor.addrs()[0], &listener);
    }
}

#[test]
fn whom_nobody_accepted_the_successor_accepts() {
    let (listener, to) = backend();
    let host = Host::new(to);
    let limited = |max| {
        let listen = on(host.relay.addrs());
        Config { listen, max_connections: max, ..config(Engine::Copy, &[to]) }
    };
    // Its predecessor is full, and so leaves its queues as they are.
    let first = Predecessor::find_in(host.dir.path(), host.relay.listening_on()).unwrap().unwrap();
    let full = Arc::new(first.take_over(limited(Some(1)), vec![]).unwrap());
    assert!(host.relay.drain(PATIENCE), "its workers have seen it");
    assert!(host.relay.drain(PATIENCE), "no worker of the other accepts one more");
    let dir = TempDir::new().unwrap();
    let _server = serve(&full, &dir);
    let held = Pair { client: connect(full.addrs()[0]), backend: accept(&listener) };
    let waiting: Vec<_> = (0..20).map(|_| connect(full.addrs()[0])).collect();
    await_that("they wait", || full.waiting() == 20);
    let second = Predecessor::find_in(dir.path(), full.listening_on()).unwrap().unwrap();
    let successor = second.take_over(limited(None), vec![]).unwrap();
    // In whatever order.
    waiting.iter().for_each(|_| drop(accept(&listener)));
    for client in waiting {
        assert_eq!(receive_to_end(&client), b"", "an end, not a reset");
    }
    assert_eq!((successor.stats().accepted, full.stats().queue_reset), (20, 0));
    converse(&held);
}

#[test]
fn a_successor_that_stops_with_the_sockets_in_its_hands_takes_nothing_away() {
    let (listener, to) = backend();
    let host = Host::new(to);
    let (token, sockets, baton) = host.hand_over().unwrap();
    assert_eq!(sockets.len(), host.relay.worker_threads().len());
    assert!(take(&baton).is_none(), "the relay has it");
    serves(host.addr(), &listener);
    let busy = host.hand_over().unwrap_err();
    assert!(busy.to_string().contains("is taking over already"), "{busy}");

    // Nothing comes of it; another one may try when that one has had its time.
    let mut again = None;
    await_that("another gets its turn", || {
        again = host.hand_over().ok();
        again.is_some()
    });
    let late = host.release(&token).unwrap_err();
    assert!(late.to_string().contains("another's turn"), "{late}");
    let (token, _, baton) = again.unwrap();
    host.release(&token).unwrap();

    // This one does not take the baton, or dies with it.
    drop(take(&baton).expect("it was released"));
    await_that("the relay has it back", || {
        host.relay.tend().unwrap();
        take(&baton).is_none()
    });
    assert_eq!(host.relay.replaced_by(), None);
    serves(host.addr(), &listener);

    // A socket that others still have open keeps nobody waiting when the relay ends.
    let addr = host.addr();
    drop(host.server);
    drop(Arc::into_inner(host.relay).expect("the last"));
    let refused = std::net::TcpStream::connect(addr).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    drop(sockets);
}

#[test]
fn a_successor_that_cannot_tell_is_in_charge_all_the_same() {
    let (_listener, to) = backend();
    let host = Host::new(to);
    let (token, sockets, baton) = host.hand_over().unwrap();
    host.release(&token).unwrap();
    let _taken = take(&baton).expect("it was released");
    await_that("the relay found out", || {
        host.relay.tend().unwrap();
        host.relay.replaced_by().is_some()
    });
    assert!(host.relay.drain(PATIENCE));
    // It has left the sockets to their new owner.
    drop(host.relay);
    assert!(sockets.iter().all(|s| rustix::net::sockopt::socket_acceptconn(s).unwrap()));
}

#[test]
fn a_relay_that_drains_has_nothing_to_hand_over() {
    let (_listener, to) = backend();
    let host = Host::new(to);
    let (token, sockets, baton) = host.hand_over().unwrap();
    assert!(host.relay.drain(PATIENCE));
    host.release(&token).unwrap_err();
    assert!(take(&baton).is_none(), "as long as it is there");
    let found = Predecessor::find_in(host.dir.path(), host.relay.listening_on()).unwrap().unwrap();
    assert!(found.is_draining);
    let listen = on(host.relay.addrs());
    let error =
        found.take_over(Config { listen, ..config(Engine::Copy, &[to]) }, vec![]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(sockets.iter().all(|s| !rustix::net::sockopt::socket_acceptconn(s).unwrap()));
}

#[test]
fn a_relay_whose_successor_came_and_went_unseen_is_replaced_and_keeps_its_connections() {
    let (listener, to) = backend();
    let host = Host::new(to);
    let held = Pair { client: connect(host.addr()), backend: accept(&listener) };
    let (token, sockets, baton) = host.hand_over().unwrap();
    host.release(&token).unwrap();
    let taken = take(&baton).expect("it was released");
    // As a relay in charge ends.
    sockets.iter().for_each(|socket| shutdown(socket, Shutdown::Read).unwrap());
    drop(taken);
    await_that("it found out", || {
        host.relay.tend().unwrap();
        host.relay.replaced_by().is_some()
    });
    converse(&held);
    part(held);
    assert!(host.relay.drain(PATIENCE));
}

#[test]
fn a_relay_whose_sockets_were_shut_down_says_so_and_does_not_spin() {
    let (_listener, to) = backend();
    let host = Host::new(to);
    let (_token, sockets, _baton) = host.hand_over().unwrap();
    sockets.iter().for_each(|socket| shutdown(socket, Shutdown::Read).unwrap());
    let error = host.relay.tend().unwrap_err();
    assert!(error.to_string().contains("shut down"), "{error}");
    for thread in host.relay.worker_threads() {
        let path = format!("/proc/self/task/{thread}/stat");
        let sleeps = || std::fs::read_to_string(&path).unwrap().contains(") S ");
        await_that("its workers sleep", || (0..20).all(|_| sleeps()));
    }
}

#[test]
fn those_who_wait_for_a_worker_hired_after_the_offer_are_served_by_the_predecessor() {
    let cpus = own_cpus();
    if cpus.len() < 2 {
        eprintln!("skipped: those_who_wait_for_a_worker_hired…: needs two CPUs");
        return;
    }
    let (listener, to) = backend();
    let host = Host::with(to, |config| {
        config.cpus = cpus.iter().copied().take(1).collect();
        config.max_connections = Some(1);
    });
    let held = Pair { client: connect(host.addr()), backend: accept(&listener) };
    let (token, sockets, baton) = host.hand_over().unwrap();
    host.relay.set_cpus(&cpus.iter().copied().take(2).collect()).unwrap();
    let clients: Vec<_> = (0..32).map(|_| connect(host.addr())).collect();
    await_that("they wait", || host.relay.waiting() == clients.len());
    host.release(&token).unwrap();
    let _taken = take(&baton).expect("it was released");
    await_that("it found out", || {
        host.relay.tend().unwrap();
        host.relay.replaced_by().is_some()
    });
    // What the successor has, and what it has not.
    let [socket] = sockets.try_into().unwrap();
    let theirs = TcpListener::from(socket);
    let accepted = std::iter::from_fn(|| theirs.accept().ok()).count();
    part(held);
    let left = clients.len() - accepted;
    std::thread::scope(|scope| {
        for client in clients {
            // Each lets the next one in.
            scope.spawn(move || assert_eq!(receive_to_end(&client), b"", "an end, not a reset"));
        }
        (0..left).for_each(|_| drop(accept(&listener)));
    });
    assert!(host.relay.drain(PATIENCE));
}

/// A predecessor that hands `files` over, of which the last is its baton, and does `release` when it
/// is to release that.
fn fake(
    addr: SocketAddr,
    files: Vec<OwnedFd>,
    release: impl Fn() + Send + Sync + 'static,
) -> (Server, TempDir, Predecessor) {
    let registry = Registry::new("relay");
    let network = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let listeners = json!({"addrs": [addr], "draining": false, "network": network});
    let answer = |value: Value, files| Ok::<_, Error>(Answer { value, files });
    registry
        .on_request("relay.listeners", move |_: &Value, _| answer(listeners.clone(), vec![]))
        .unwrap();
    let offer = move |_: &Value, _| {
        let files = files.iter().map(|file| file.try_clone().unwrap()).collect();
        answer(json!({"token": 1, "manager": []}), files)
    };
    registry.on_request("relay.hand_over", offer).unwrap();
    registry
        .on_request("relay.release", move |_: &Value, _| {
            release();
            answer(Value::Null, vec![])
        })
        .unwrap();
    let dir = TempDir::new().unwrap();
    let server = Server::bind_in(registry, dir.path()).unwrap();
    let found = Predecessor::find_in(dir.path(), &[addr.into()]).unwrap().unwrap();
    (server, dir, found)
}

fn new_baton() -> OwnedFd {
    memfd_create("baton", MemfdFlags::CLOEXEC).unwrap()
}

#[test]
fn what_a_predecessor_passes_is_checked() {
    let ((listener, addr), (other, _)) = (backend(), backend());
    let config = || Config { listen: on(&[addr]), ..config(Engine::Copy, &[addr]) };
    let refused = |files: Vec<OwnedFd>, says: &str| {
        let (_server, _dir, found) = fake(addr, files, || ());
        let error = found.take_over(config(), vec![]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(vec![other.into(), new_baton()], "expected one on");
    refused(vec![new_baton(), new_baton()], "no stream socket that listens");
    refused(vec![listener.into(), File::open("/dev/null").unwrap().into()], "no file in memory");
}

#[test]
fn a_successor_accepts_nobody_before_it_is_in_charge() {
    let ((listener, addr), (_backend, to)) = (backend(), backend());
    // Its successor has more workers, whose sockets may join.
    sockopt::set_socket_reuseport(&listener, true).unwrap();
    let baton = new_baton();
    let held = take(&baton).unwrap();
    let ours: TcpListener = listener.try_clone().unwrap();
    let (_server, _dir, found) = fake(addr, vec![listener.into(), baton], move || {
        for _ in 0..32 {
            let client = connect(addr);
            let backend = accept(&ours);
            part(Pair { client, backend });
        }
    });
    let error = found
        .take_over(Config { listen: on(&[addr]), ..config(Engine::Copy, &[to]) }, vec![])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("in charge"), "{error}");
    drop(held);
}

#[test]
fn root_a_relay_of_another_network_namespace_is_no_predecessor() {
    if !lab::testing::root("root_a_relay_of_another_network_namespace_is_no_predecessor") {
        return;
    }
    let (_listener, to) = backend();
    let host = Host::new(to);
    let find = || Predecessor::find_in(host.dir.path(), host.relay.listening_on()).unwrap();
    assert!(find().is_some());
    let lab = lab::Lab::new("relay-handover").unwrap();
    let elsewhere = lab.host("elsewhere").unwrap();
    assert!(elsewhere.run(find).unwrap().is_none());
}
