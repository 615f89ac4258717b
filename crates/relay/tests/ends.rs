//! How a connection ends when one of its ends goes in the middle of things: the other one gets what
//! it is owed, or a reset, and never waits for ever.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use cachelane_relay::{Engine, Inherited, Relay};
use common::pattern::{Pattern, Rng};
use common::*;
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use rustix::event::PollFlags;
use rustix::net::sockopt::set_socket_linger;

on_every_engine! {
    what_is_on_its_way_when_a_client_that_has_ended_dies_arrives,
    a_backend_may_write_while_it_is_owed_what_a_client_that_died_has_sent,
}

/// Accepted sockets inherit how a listener lingers, and a relay may be given any listener.
#[test]
fn who_comes_by_a_listener_that_resets_on_close_gets_all_and_a_good_end() {
    for early in [true, false] {
        let (server, to) = backend();
        let manager = TcpListener::bind("127.0.0.1:0").unwrap();
        set_socket_linger(&manager, Some(Duration::ZERO)).unwrap();
        let addr = manager.local_addr().unwrap();
        let inherited = Inherited::of_manager(manager.try_clone().unwrap().into()).unwrap();
        let start = || Relay::start_on(config(Engine::Copy, &[to]), vec![inherited]).unwrap();
        // It waits in the queue for the relay, or comes later.
        let (client, relay) = if early {
            let client = connect(addr);
            (client, start())
        } else {
            let relay = start();
            (connect(addr), relay)
        };
        let server = accept(&server);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(receive_to_end(&server), b"");
        let answer: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        send_all(&server, &answer);
        drop(server);
        await_that("the relay has passed it all on", || relay.active() == 0);
        assert_eq!(receive_to_end(&client), answer, "early: {early}");
    }
}

/// Which end was first to end its stream, where both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Client,
    Backend,
}

/// Both ends have ended their streams, and the backend has not acknowledged what it is owed: a reset
/// that the relay asks for in this state is not sent (Linux: `tcp_need_reset`).
fn what_is_on_its_way_when_a_client_that_has_ended_dies_arrives(engine: Engine) {
    for first in [First::Client, First::Backend] {
        for warmth in Warmth::ALL {
            if (engine, warmth) == (Engine::Sockmap, Warmth::Up) {
                // It passes the client's end on when all before it is acknowledged.
                continue;
            }
            ends_cross_and_the_client_dies(engine, first, warmth);
        }
    }
}

fn ends_cross_and_the_client_dies(engine: Engine, first: First, warmth: Warmth) {
    let rig = rig_of_one_worker(engine);
    let Pair { client, backend } = rig.warm_pair(warmth);
    shrink_buffers(&client, 16 * 1024);
    clog(&rig, &backend, |_| vec![7; 16 * 1024]);
    let deaf = Deaf::new(&backend);
    let question = Pattern::new(1).at(0, 3000);
    send_all(&client, question);
    let ends = || client.shutdown(Shutdown::Write).unwrap();
    if first == First::Client {
        ends();
        await_state(&backend, FIN_WAIT1, "the client's end is passed on");
        backend.shutdown(Shutdown::Write).unwrap();
        await_state(&backend, CLOSING, "both ends cross");
    } else {
        backend.shutdown(Shutdown::Write).unwrap();
        await_state(&backend, CLOSE_WAIT, "the backend's end comes");
        ends();
        await_state(&backend, LAST_ACK, "the client's end is passed on");
    }
    abort(client);
    rig.await_empty();
    drop(deaf);
    assert!(receive_to_end(&backend) == question, "{first:?} ends first, {warmth:?}");
    let reset = rig.relay.stats().reset;
    assert_eq!(reset, 1, "{first:?} ends first, {warmth:?}: the relay did not have to wait");
}

/// The client has ended its stream and died. The backend, before it reads what it is owed, writes all
/// that is taken from it: it gets an end, though what it writes goes nowhere.
fn a_backend_may_write_while_it_is_owed_what_a_client_that_died_has_sent(engine: Engine) {
    for warmth in Warmth::ALL {
        let rig = rig_of_one_worker(engine);
        let Pair { client, backend } = rig.warm_pair(warmth);
        shrink_buffers(&backend, 32 * 1024);
        let (pattern, mut rng) = (Pattern::new(2), Rng::new(3));
        let owed = clog(&rig, &client, |offset| pattern.at(offset, rng.size(30_000)).to_vec());
        client.shutdown(Shutdown::Write).unwrap();
        await_state(&client, CLOSE_WAIT, "the relay's kernel has all of it");
        // It dies with something unread, and so by a reset.
        send_all(&backend, b"answer");
        await_that("the answer comes", || client.peek(&mut [0]).is_ok_and(|n| n > 0));
        drop(client);
        let refused = write_all_that_is_taken(&backend, &mut rng);
        let (mut received, mut bytes) = (0, vec![0; 64 * 1024]);
        let reset = loop {
            match (&backend).read(&mut bytes) {
                // A write that was refused has taken the error.
                Ok(0) => break refused,
                Ok(n) => {
                    pattern.check(received, &bytes[..n]);
                    received += n as u64;
                }
                Err(e) => break e.kind() == ErrorKind::ConnectionReset,
            }
        };
        assert!(reset, "{warmth:?}: an end that looks well after {received} of {owed} bytes");
        rig.await_empty();
    }
}

/// Writes until nothing more is taken for a while, or so much is that it goes nowhere. Returns whether
/// a write was refused.
fn write_all_that_is_taken(mut to: &TcpStream, rng: &mut Rng) -> bool {
    const NOWHERE: u64 = 16 << 20;
    to.set_nonblocking(true).unwrap();
    let mut written = 0;
    let refused = loop {
        match to.write(&vec![1; rng.size(30_000)]) {
            Ok(n) => written += n as u64,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if !ready(to, PollFlags::OUT, Duration::from_millis(500)) {
                    break false;
                }
            }
            Err(_) => break true,
        }
        if written > NOWHERE {
            break false;
        }
    };
    to.set_nonblocking(false).unwrap();
    refused
}

/// All connections have the same worker.
fn rig_of_one_worker(engine: Engine) -> Rig {
    Rig::with(engine, |config| {
        config.budget = 1 << 20;
        config.cpus = own_cpus().into_iter().take(1).collect();
    })
}

/// Sends until some of it stays in the relay's socket, and no more. Returns how many bytes.
fn clog(rig: &Rig, mut from: &TcpStream, mut next: impl FnMut(u64) -> Vec<u8>) -> u64 {
    const STAYS: Duration = Duration::from_millis(500);
    const TURNS: u32 = 10;
    from.set_nonblocking(true).unwrap();
    let unread = || before(from).map_or(0, |socket| socket.unread);
    // The kernel does not take off all that was redirected.
    let (mut sent, none) = (0, unread());
    // What stays because the worker gets no CPU is read before another connection has its answers.
    let other = rig.pair();
    let stays = || {
        std::thread::sleep(STAYS / TURNS);
        converse(&other);
        unread() > none
    };
    while unread() <= none || !(0..TURNS).all(|_| stays()) {
        sent += from.write(&next(sent)).unwrap_or(0) as u64;
        std::thread::sleep(Duration::from_millis(1));
    }
    part(other);
    from.set_nonblocking(false).unwrap();
    sent
}

/// Lets no packet in to a socket while it is there.
struct Deaf<'a>(&'a TcpStream);

sockopt_impl!(
    /// Drops packets that the program says to drop.
    AttachFilter,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_ATTACH_FILTER,
    libc::sock_fprog
);
sockopt_impl!(
    /// Drops none any more.
    DetachFilter,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_DETACH_FILTER,
    libc::c_int
);

impl Deaf<'_> {
    fn new(stream: &TcpStream) -> Deaf<'_> {
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let mut nothing = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
        setsockopt(stream, AttachFilter, &program).unwrap();
        Deaf(stream)
    }
}

impl Drop for Deaf<'_> {
    fn drop(&mut self) {
        setsockopt(self.0, DetachFilter, &0).unwrap();
    }
}

/// States of `/proc/net/tcp` (include/net/tcp_states.h).
const FIN_WAIT1: u8 = 4;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// The relay's socket that a stream here is the peer of, as `/proc/net/tcp` shows it.
struct Before {
    state: u8,
    /// Bytes that the relay has not read.
    unread: u64,
}

fn before(stream: &TcpStream) -> Option<Before> {
    let port = |addr: SocketAddr| format!(":{:04X}", addr.port());
    let ends = [stream.peer_addr(), stream.local_addr()].map(|addr| port(addr.unwrap()));
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let words = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words[1].ends_with(&ends[0]) && words[2].ends_with(&ends[1]))?;
    let unread = words[4].split(':').nth(1).unwrap();
    Some(Before {
        state: u8::from_str_radix(words[3], 16).unwrap(),
        unread: u64::from_str_radix(unread, 16).unwrap(),
    })
}

fn await_state(stream: &TcpStream, state: u8, what: &str) {
    await_that(what, || before(stream).is_some_and(|socket| socket.state == state));
}
