//! How a connection ends when one of its ends goes in the middle of things: the other one gets what
//! it is owed, or a reset, and never waits for ever.

mod common;

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use cachelane_relay::Engine;
use common::pattern::Pattern;
use common::*;
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};

on_every_engine! {
    what_is_on_its_way_when_a_client_that_has_ended_dies_arrives,
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
            let rig = Rig::with(engine, |config| config.budget = 1 << 20);
            let Pair { client, backend } = rig.warm_pair(warmth);
            shrink_buffers(&client, 16 * 1024);
            clog(&rig, &backend);
            let deaf = Deaf::new(&backend);
            let question = Pattern::new(1).at(0, 3000);
            send_all(&client, question);
            let ends = || client.shutdown(Shutdown::Write).unwrap();
            if first == First::Client {
                ends();
                await_that("the client's end is passed on", || state_before(&backend) == FIN_WAIT1);
                backend.shutdown(Shutdown::Write).unwrap();
                await_that("both ends cross", || state_before(&backend) == CLOSING);
            } else {
                backend.shutdown(Shutdown::Write).unwrap();
                await_that("the backend's end comes", || state_before(&backend) == CLOSE_WAIT);
                ends();
                await_that("the client's end is passed on", || state_before(&backend) == LAST_ACK);
            }
            abort(client);
            rig.await_empty();
            assert_eq!(rig.relay.stats().reset, 1, "{first:?} ends first, {warmth:?}");
            drop(deaf);
            assert!(receive_to_end(&backend) == question, "{first:?} ends first, {warmth:?}");
        }
    }
}

/// Sends from the backend until some of it waits in the relay, and no more.
fn clog(rig: &Rig, backend: &TcpStream) {
    // Sockmap sends the rest the slow way then, and holds it.
    let clogs = || rig.relay.stats().backpressure + rig.relay.stats().sockmap_held;
    let before = clogs();
    backend.set_nonblocking(true).unwrap();
    await_that("the relay is clogged", || {
        let _ = (&mut &*backend).write(&[7; 16 * 1024]);
        clogs() > before
    });
    backend.set_nonblocking(false).unwrap();
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

/// The state of the relay's socket that `stream` is the peer of.
fn state_before(stream: &TcpStream) -> u8 {
    let port = |addr: std::net::SocketAddr| format!(":{:04X}", addr.port());
    let ends = [stream.peer_addr(), stream.local_addr()].map(|addr| port(addr.unwrap()));
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words[1].ends_with(&ends[0]) && words[2].ends_with(&ends[1]))
        .map_or(0, |words| u8::from_str_radix(words[3], 16).unwrap())
}
