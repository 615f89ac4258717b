//! Clients that leave before a backend has accepted them give their places back.

mod common;

use std::net::Shutdown;
use std::path::PathBuf;
use std::time::Duration;

use cachelane_relay::{AccessLog, Config, Engine, LogFormat, LogSample, LogTarget, Relay};
use common::*;

/// How a client leaves.
type Leave = fn(std::net::TcpStream);
const WAYS: [Leave; 2] = [abort, |stream| drop(stream)];

/// A relay before one backend that takes one connection at a time, with a log.
fn relay(backend: std::net::SocketAddr, adjust: impl FnOnce(&mut Config)) -> (Relay, PathBuf) {
    let name = format!("relay-leaving-{}-{}", std::process::id(), backend.port());
    let log = std::env::temp_dir().join(name);
    let mut config = config(Engine::Auto, &[]);
    config.backends = vec![format!("{backend},maxconn=1").parse().unwrap()];
    let (target, format) = (LogTarget::File(log.clone()), LogFormat::Text);
    config.access_log = Some(AccessLog { target, format, sample: LogSample::default() });
    (config.queue_timeout, config.max_queue) = (PATIENCE * 9, 1);
    config.connect_timeout = PATIENCE * 9;
    config.connect_deadline = PATIENCE * 9;
    adjust(&mut config);
    (Relay::start(config).unwrap(), log)
}

/// The termination states in the log, once there are so many.
fn await_states(log: &PathBuf, most: usize) -> Vec<String> {
    let states = || -> Vec<String> {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let of = |line: &str| line.split(' ').nth(6).map(str::to_owned);
        text.lines().filter_map(of).collect()
    };
    await_that("the log has them all", || states().len() >= most);
    // Of two workers, either may write first.
    let mut states = states();
    states.sort_unstable();
    states
}

#[test]
fn a_client_that_leaves_the_queue_makes_room_for_the_next() {
    let (listener, addr) = backend();
    let (relay, log) = relay(addr, |_| {});
    let served = Pair { client: connect(relay.addrs()[0]), backend: accept(&listener) };
    for (n, leave) in WAYS.into_iter().enumerate() {
        let client = connect(relay.addrs()[0]);
        await_that("it waits", || relay.stats().queued == n as u64 + 1);
        leave(client);
        await_that("it is gone", || relay.active() == 1);
    }
    // One that has said something and ended its stream waits for the answer.
    let asks = connect(relay.addrs()[0]);
    send_all(&asks, b"question");
    asks.shutdown(Shutdown::Write).unwrap();
    await_that("it waits", || relay.stats().queued == 3);
    converse(&served);
    assert_eq!((relay.active(), relay.stats().queue_full), (2, 0));
    part(served);
    let backend = accept(&listener);
    assert_eq!(receive_to_end(&backend), b"question");
    send_all(&backend, b"answer");
    drop(backend);
    assert_eq!(receive_to_end(&asks), b"answer");
    assert_eq!(await_states(&log, 4), ["--", "--", "CQ", "CQ"]);
    let _ = std::fs::remove_file(log);
}

#[test]
fn a_client_that_leaves_while_a_backend_is_asked_frees_the_place_there() {
    let (hole, _full) = black_hole();
    let (relay, log) = relay(hole, |_| {});
    for (n, leave) in WAYS.into_iter().enumerate() {
        let client = connect(relay.addrs()[0]);
        await_that("a backend is asked", || relay.active() == 1);
        std::thread::sleep(Duration::from_millis(20));
        leave(client);
        await_that("it is gone", || relay.active() == 0);
        assert_eq!(await_states(&log, n + 1)[n], "CC");
    }
    assert_eq!((relay.stats().queued, relay.stats().connect_failed), (0, 0));
    assert_eq!(relay.backends(), (1, 1), "nothing is known of the backend");
    let _ = std::fs::remove_file(log);
}

/// A server that speaks first may be asked by a client that has nothing to say.
#[test]
fn a_client_that_ends_its_stream_at_once_hears_a_server_that_speaks_first() {
    let (listener, addr) = backend();
    let (relay, log) = relay(addr, |_| {});
    for _ in 0..20 {
        let client = connect(relay.addrs()[0]);
        client.shutdown(Shutdown::Write).unwrap();
        let backend = accept(&listener);
        send_all(&backend, b"banner");
        drop(backend);
        assert_eq!(receive_to_end(&client), b"banner");
        await_that("it is gone", || relay.active() == 0);
    }
    let _ = std::fs::remove_file(log);
}
