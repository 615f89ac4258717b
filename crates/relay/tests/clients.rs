//! Limits for each client, over all workers: as many connections as it may have, as fast as it may make
//! them.

mod common;

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cachelane_relay::{AccessLog, Config, Engine, LogFormat, LogSample, LogTarget, proxy};
use common::*;
use serde_json::Value;

fn limited(most: Option<u32>, rate: Option<&str>, adjust: impl FnOnce(&mut Config)) -> Rig {
    Rig::with(Engine::Auto, |config| {
        config.client_connections = most;
        config.client_rate = rate.map(|rate| rate.parse().unwrap());
        adjust(config);
    })
}

fn addr(rig: &Rig) -> SocketAddr {
    rig.relay.addrs()[0]
}

fn served(rig: &Rig, from: &str) -> Pair {
    let client = connect_from(from, addr(rig)).unwrap();
    let pair = Pair { client, backend: accept(&rig.listener) };
    converse(&pair);
    pair
}

/// A client that a PROXY header names.
fn named(rig: &Rig, from: &str) -> TcpStream {
    let client = connect(addr(rig));
    let ends = (SocketAddr::new(from.parse().unwrap(), 1), "192.0.2.80:80".parse().unwrap());
    send_all(&client, &proxy::write(Some(ends)));
    client
}

/// Nothing is counted any more.
#[track_caller]
fn await_nobody(rig: &Rig) {
    await_that("all are given back", || rig.relay.clients()[0] == 0 && rig.relay.active() == 0);
}

#[test]
fn a_client_has_as_many_connections_as_it_may_over_all_workers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let rig = limited(Some(6), None, |config| {
        let (target, sample) = (LogTarget::File(path.clone()), LogSample::default());
        config.access_log = Some(AccessLog { target, format: LogFormat::Json, sample });
    });
    let mut pairs: Vec<_> = (0..6).map(|_| served(&rig, "127.0.0.1")).collect();
    let others: Vec<_> = (0..6).map(|_| served(&rig, "127.0.0.2")).collect();
    assert_eq!(rig.relay.clients(), [2, 0]);
    for _ in 0..5 {
        expect_refusal_of("127.0.0.1", addr(&rig));
    }
    assert_eq!(rig.relay.stats().over_client_connections, 5);
    await_that("lines", || fs::read_to_string(&path).is_ok_and(|log| log.lines().count() == 5));
    for line in fs::read_to_string(&path).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["state"], &line["backend"]), (&"PR".into(), &Value::Null), "{line}");
        assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    assert!(try_accept(&rig.listener, Duration::ZERO).is_none());
    // One that ends, however it does, makes room for one.
    for abrupt in [true, false] {
        let before = rig.relay.active();
        let pair = pairs.pop().unwrap();
        if abrupt {
            abort(pair.client)
        } else {
            part(pair)
        }
        await_that("it has ended", || rig.relay.active() < before);
        pairs.push(served(&rig, "127.0.0.1"));
        expect_refusal_of("127.0.0.1", addr(&rig));
    }
    drop((pairs, others));
    await_nobody(&rig);
}

#[test]
fn a_client_makes_connections_no_faster_than_it_may() {
    let rig = limited(None, Some("4/1h"), |_| {});
    for _ in 0..4 {
        part(served(&rig, "127.0.0.1"));
    }
    for _ in 0..4 {
        expect_refusal_of("127.0.0.1", addr(&rig));
    }
    part(served(&rig, "127.0.0.2"));
    let stats = rig.relay.stats();
    assert_eq!((stats.over_client_rate, stats.over_client_connections), (4, 0));
    await_nobody(&rig);
    assert_eq!(rig.relay.clients(), [0, 2]);
}

#[test]
fn a_rate_gives_a_connection_again_in_time_and_no_sooner() {
    const EACH: Duration = Duration::from_millis(100);
    let rig = limited(None, Some("1/100ms"), |_| {});
    let is_done = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                if let Some(backend) = try_accept(&rig.listener, EACH) {
                    send_all(&backend, b"!");
                }
            }
        });
        let is_served = || connect_from("127.0.0.1", addr(&rig))?.read(&mut [0]);
        for n in 0..5u32 {
            await_that("one more", || is_served().is_ok());
            assert!(start.elapsed() >= EACH * n, "{n} after {:?}", start.elapsed());
        }
        is_done.store(true, Relaxed);
    });
    assert_eq!(rig.relay.stats().accepted - rig.relay.stats().over_client_rate, 5);
}

#[test]
fn the_client_is_the_one_that_the_proxy_header_names_and_an_ipv6_network_is_one() {
    let rig = limited(Some(1), None, |config| config.accept_proxy = true);
    let mut kept = Vec::new();
    for (from, is_served) in [
        ("192.0.2.1", true),
        ("192.0.2.2", true),
        ("192.0.2.1", false),
        ("::ffff:192.0.2.2", false),
        ("2001:db8:0:1::1", true),
        ("2001:db8:0:1:ffff::9", false),
        ("2001:db8:0:2::1", true),
    ] {
        let client = named(&rig, from);
        if is_served {
            let pair = Pair { client, backend: accept(&rig.listener) };
            converse(&pair);
            kept.push(pair);
        } else {
            expect_reset(&client);
        }
    }
    assert_eq!(rig.relay.clients()[0], kept.len());
}

#[test]
fn a_place_is_given_back_whatever_becomes_of_the_connection() {
    let (_socket, dead) = bound();
    // No backend to be had.
    let rig = limited(Some(1), None, |config| config.backends = vec![dead.into()]);
    (0..5).for_each(|_| expect_refusal(addr(&rig)));
    assert_eq!(rig.relay.stats().no_backend, 5);
    await_nobody(&rig);
    // No place at the backend, nor in the queue.
    let rig = limited(Some(2), None, |config| {
        config.backends[0].max_connections = Some(1);
        (config.max_queue, config.queue_timeout) = (1, Duration::from_millis(200));
    });
    let first = served(&rig, "127.0.0.1");
    for _ in 0..3 {
        expect_refusal(addr(&rig));
    }
    assert_eq!(rig.relay.stats().queue_timeout, 3);
    drop(first);
    await_nobody(&rig);
    // A client that asks for a name that there is not.
    let rig = limited(Some(1), None, |config| config.backends[0].names = vec!["a.example".into()]);
    for _ in 0..3 {
        let client = connect(addr(&rig));
        send_all(&client, b"GET / HTTP/1.1\r\n\r\n");
        expect_reset(&client);
    }
    assert_eq!(rig.relay.stats().no_route, 3);
    await_nobody(&rig);
    // A worker that panics.
    let rig = limited(Some(2), None, |_| {});
    for worker in 0..rig.relay.worker_threads().len() {
        let pairs = [served(&rig, "127.0.0.1"), served(&rig, "127.0.0.1")];
        expect_refusal(addr(&rig));
        rig.relay.sabotage(worker);
        drop(pairs);
        await_nobody(&rig);
    }
    // One that drains.
    let pair = served(&rig, "127.0.0.1");
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| rig.relay.drain(PATIENCE));
        converse(&pair);
        drop(pair);
        assert!(drained.join().unwrap());
    });
    await_nobody(&rig);
}

/// Connections that were reset before a listener's side of the handshake was complete (`EmbryonicRsts`):
/// to their clients they were there.
fn reset_halfway() -> u64 {
    let all = std::fs::read_to_string("/proc/net/netstat").unwrap();
    let mut lines = all.lines().filter(|line| line.starts_with("TcpExt:"));
    let [names, values] = [lines.next(), lines.next()].map(|line| line.unwrap().split(' '));
    let found = names.zip(values).find(|(name, _)| *name == "EmbryonicRsts");
    found.unwrap().1.parse().unwrap()
}

#[test]
#[ignore = "slow: half a minute"]
fn a_client_that_comes_and_goes_100_000_times_leaves_nothing_behind() {
    let rig = limited(Some(64), Some("1000/1s"), |_| {});
    let (refused, before) = (AtomicU64::new(0), reset_halfway());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..25_000 {
                    let from = format!("127.0.{}.{}", n % 7, 1 + n % 200);
                    match connect_from(&from, addr(&rig)) {
                        Ok(client) if n % 3 == 0 => abort(client),
                        Ok(client) => drop(client),
                        Err(_) => drop(refused.fetch_add(1, Relaxed)),
                    }
                }
            });
        }
        // Those that get through.
        scope.spawn(|| while try_accept(&rig.listener, Duration::from_secs(2)).is_some() {});
    });
    await_nobody(&rig);
    let stats = rig.relay.stats();
    let never_there = refused.into_inner() + reset_halfway() - before;
    assert!(stats.accepted + stats.queue_reset >= 100_000 - never_there, "{stats:?}");
    assert!(rig.relay.clients()[1] <= 7 * 200);
    part(served(&rig, "127.0.9.9"));
}
