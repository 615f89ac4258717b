//! What ends a connection by time: the relay's timeouts, and peers that vanish.

mod common;

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cachelane_relay::{Config, Engine, Relay};
use common::*;
use lab::{Host, Lab, LinkOptions};

/// Long enough that what would happen does, short enough to wait for it each time.
const MOMENT: Duration = Duration::from_millis(400);

on_every_engine! {
    a_silent_client_and_a_silent_backend_have_timeouts_of_their_own,
    the_timeout_of_the_side_that_takes_nothing_applies,
    a_half_closed_connection_has_a_timeout_of_its_own,
    a_shorter_timeout_that_applies_again_is_not_late,
}

fn a_silent_client_and_a_silent_backend_have_timeouts_of_their_own(engine: Engine) {
    for client in [true, false] {
        let rig = Rig::with(engine, |config| {
            let (mine, other) = (Some(MOMENT), Some(PATIENCE * 5));
            config.client_timeout = if client { mine } else { other };
            config.server_timeout = if client { other } else { mine };
        });
        let pair = rig.pair();
        converse(&pair);
        let start = Instant::now();
        expect_reset(&pair.client);
        expect_reset(&pair.backend);
        assert!(start.elapsed() >= MOMENT, "{:?}", start.elapsed());
        let stats = rig.relay.stats();
        let expected = if client { (1, 0, 0) } else { (0, 1, 0) };
        assert_eq!((stats.client_timeout, stats.server_timeout, stats.idle_timeout), expected);
    }
}

/// A backend that takes nothing is not the client's fault.
fn the_timeout_of_the_side_that_takes_nothing_applies(engine: Engine) {
    let rig = Rig::with(engine, |config| {
        config.budget = Config::MIN_BUDGET;
        config.client_timeout = Some(MOMENT);
        config.server_timeout = Some(MOMENT * 4);
    });
    let pair = rig.pair();
    shrink_buffers(&pair.client, 64 * 1024);
    shrink_buffers(&pair.backend, 64 * 1024);
    fill(&pair.client, |_| vec![1; 16 * 1024]);
    rig.await_empty();
    let stats = rig.relay.stats();
    assert_eq!((stats.client_timeout, stats.server_timeout), (0, 1));
}

/// While bytes wait for the client, its timeout alone applies, which is longer; then both do.
fn a_shorter_timeout_that_applies_again_is_not_late(engine: Engine) {
    let rig = Rig::with(engine, |config| {
        config.budget = Config::MIN_BUDGET;
        config.client_timeout = Some(PATIENCE * 5);
        config.server_timeout = Some(MOMENT);
    });
    let pair = rig.pair();
    shrink_buffers(&pair.client, 64 * 1024);
    shrink_buffers(&pair.backend, 64 * 1024);
    let sent = fill(&pair.backend, |_| vec![1; 16 * 1024]);
    std::thread::sleep(MOMENT * 3);
    assert_eq!(rig.relay.active(), 1, "nothing is expected of the backend");
    assert_eq!(receive(&pair.client, sent as usize).len(), sent as usize);
    let start = Instant::now();
    expect_reset(&pair.client);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert_eq!(rig.relay.stats().server_timeout, 1);
}

fn a_half_closed_connection_has_a_timeout_of_its_own(engine: Engine) {
    let rig = Rig::with(engine, |config| config.half_closed_timeout = Some(MOMENT));
    let (whole, half) = (rig.pair(), rig.pair());
    half.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive_to_end(&half.backend), b"");
    // It goes on for as long as bytes move.
    let start = Instant::now();
    while start.elapsed() < MOMENT * 2 {
        send_all(&half.backend, b"x");
        assert_eq!(receive(&half.client, 1), b"x");
        std::thread::sleep(MOMENT / 20);
    }
    expect_reset(&half.client);
    assert_eq!(rig.relay.stats().half_closed_timeout, 1);
    converse(&whole);
}

/// A relay between a client and a backend on hosts of their own.
struct Apart {
    relay: Relay,
    client: (Host, TcpStream),
    backend: (Host, TcpStream),
    _lab: Lab,
}

impl Apart {
    fn new(adjust: impl FnOnce(&mut Config)) -> Apart {
        let lab = Lab::new("vanish").unwrap();
        let [left, middle, right] = ["left", "middle", "right"].map(|name| lab.host(name).unwrap());
        let front = lab.link(&left, &middle, LinkOptions::default()).unwrap();
        let back = lab.link(&middle, &right, LinkOptions::default()).unwrap();
        let at = |ip: std::net::Ipv4Addr| std::net::SocketAddr::from((ip, 0));
        let listener = right.run(|| TcpListener::bind(at(back.b.v4))).unwrap().unwrap();
        let mut config = config(Engine::Auto, &[listener.local_addr().unwrap()]);
        config.listen = on(&[at(front.b.v4)]);
        adjust(&mut config);
        let relay = middle.run(|| Relay::start(config).unwrap()).unwrap();
        let to = relay.addrs()[0];
        let client = left.run(|| connect(to)).unwrap();
        let backend = accept(&listener);
        Apart { relay, client: (left, client), backend: (right, backend), _lab: lab }
    }
}

#[test]
fn a_peer_that_vanishes_is_found_root() {
    if !lab::testing::root("a_peer_that_vanishes_is_found_root") {
        return;
    }
    let second = Some(Duration::from_secs(1));
    for (user_timeout, bytes_under_way) in [(None, false), (second, false), (second, true)] {
        for client_goes in [true, false] {
            let apart = Apart::new(|config| {
                (config.keepalive, config.user_timeout) = (second, user_timeout);
            });
            let (client, backend) = (&apart.client.1, &apart.backend.1);
            converse(&Pair {
                client: client.try_clone().unwrap(),
                backend: backend.try_clone().unwrap(),
            });
            let (gone, other) =
                if client_goes { (&apart.client.0, backend) } else { (&apart.backend.0, client) };
            gone.ip(["link", "set", "eth0", "down"]).unwrap();
            if bytes_under_way {
                send_all(other, &[1; 1000]);
            }
            expect_reset(other);
            await_that("the relay let go of it", || apart.relay.active() == 0);
        }
    }
}

#[test]
fn a_quiet_peer_that_is_there_is_kept_root() {
    if !lab::testing::root("a_quiet_peer_that_is_there_is_kept_root") {
        return;
    }
    let second = Some(Duration::from_secs(1));
    let apart = Apart::new(|config| (config.keepalive, config.user_timeout) = (second, second));
    std::thread::sleep(Duration::from_secs(4));
    converse(&Pair { client: apart.client.1, backend: apart.backend.1 });
}
