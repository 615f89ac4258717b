//! From an accepted client to a backend: which are tried, how often, and for how long.

mod common;

use std::time::{Duration, Instant};

use cachelane_relay::{Config, Engine, Relay};
use common::*;

#[test]
fn a_client_of_a_hundred_dead_backends_is_told_so() {
    let dead: Vec<_> = (0..100).map(|_| bound()).collect();
    let addrs: Vec<_> = dead.iter().map(|(_, addr)| *addr).collect();
    let config = Config { retry_after: PATIENCE, ..config(Engine::Auto, &addrs) };
    let relay = Relay::start(config).unwrap();
    expect_refusal(relay.addrs()[0]);
    let stats = relay.stats();
    assert_eq!((stats.no_backend, stats.connect_failed, relay.backends().1), (1, 100, 0));
    // Now that they are known to be down, only a few are asked.
    for _ in 0..5 {
        expect_refusal(relay.addrs()[0]);
    }
    assert_eq!(relay.stats().connect_failed, 115);
}

#[test]
fn one_live_backend_behind_a_hundred_dead_ones_is_found() {
    let dead: Vec<_> = (0..100).map(|_| bound()).collect();
    let (live, addr) = backend();
    let mut addrs: Vec<_> = dead.iter().map(|(_, addr)| *addr).collect();
    addrs.push(addr);
    let relay = Relay::start(config(Engine::Auto, &addrs)).unwrap();
    for _ in 0..3 {
        let pair = Pair { client: connect(relay.addrs()[0]), backend: accept(&live) };
        converse(&pair);
    }
    assert_eq!(relay.stats().no_backend, 0);
}

#[test]
fn a_client_of_many_backends_that_do_not_answer_waits_for_the_deadline_and_no_longer() {
    let (hole, _kept) = black_hole();
    let connect_deadline = Duration::from_millis(700);
    let relay = Relay::start(Config {
        connect_timeout: Duration::from_millis(200),
        connect_deadline,
        ..config(Engine::Auto, &[hole; 100])
    })
    .unwrap();
    let start = Instant::now();
    expect_refusal(relay.addrs()[0]);
    assert!(start.elapsed() >= connect_deadline, "{:?}", start.elapsed());
    let stats = relay.stats();
    assert_eq!(stats.no_backend, 1);
    assert!(stats.connect_failed <= 4, "{} backends were tried", stats.connect_failed);
    // An attempt under way ends with the deadline, too.
    let relay = Relay::start(Config {
        connect_timeout: PATIENCE * 2,
        connect_deadline,
        ..config(Engine::Auto, &[hole; 100])
    })
    .unwrap();
    expect_refusal(relay.addrs()[0]);
    assert_eq!((relay.stats().no_backend, relay.stats().connect_failed), (1, 1));
}
