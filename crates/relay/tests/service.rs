//! What the relay does around the bytes: addresses, backends, limits, drain, CPUs, engines.

mod common;

use std::io::{ErrorKind as Io, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use cachelane_relay::{Balance, Config, Engine, ErrorKind, Relay};
use common::*;

/// Long enough that what would happen does, short enough to wait for it each time.
const MOMENT: Duration = Duration::from_millis(300);

/// Whether the client's connection is served, and by which of `listeners`.
fn served_by(client: &TcpStream, listeners: &[&TcpListener]) -> Option<usize> {
    for (index, listener) in listeners.iter().enumerate() {
        if let Some(backend) = try_accept(listener, Duration::from_millis(20)) {
            converse(&Pair { client: client.try_clone().unwrap(), backend });
            return Some(index);
        }
    }
    None
}

fn served_within(wait: Duration, client: &TcpStream, listeners: &[&TcpListener]) -> Option<usize> {
    let deadline = Instant::now() + wait;
    loop {
        match served_by(client, listeners) {
            None if Instant::now() < deadline => {}
            served => return served,
        }
    }
}

#[test]
fn either_address_family_listens_and_either_is_a_backend() {
    // To where the relay listens, the client connects on these.
    let cases: [(&str, &[&str]); 3] =
        [("127.0.0.1:0", &["127.0.0.1"]), ("[::1]:0", &["::1"]), ("[::]:0", &["127.0.0.1", "::1"])];
    for (listen, clients) in cases {
        for backend in ["127.0.0.1:0", "[::1]:0"] {
            let (listener, addr) = listener(backend);
            let listen = vec![listen.parse().unwrap()];
            let config = Config { listen, ..config(Engine::Auto, &[addr]) };
            let rig = Rig { relay: Relay::start(config).unwrap(), listener };
            for ip in clients {
                let at = SocketAddr::new(ip.parse().unwrap(), rig.relay.addrs()[0].port());
                let pair = Pair { client: connect(at), backend: accept(&rig.listener) };
                converse(&pair);
                part(pair);
            }
        }
    }
}

#[test]
fn where_ipv6_is_off_every_address_still_listens_root() {
    if !lab::testing::root("where_ipv6_is_off_every_address_still_listens_root") {
        return;
    }
    let lab = lab::Lab::new("no-ipv6").unwrap();
    let host = lab.host("host").unwrap();
    host.set_sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    host.run(|| {
        let listen = vec!["[::]:0".parse().unwrap()];
        let rig = Rig::with(Engine::Auto, |config| config.listen = listen);
        let at = SocketAddr::from(([127, 0, 0, 1], rig.relay.addrs()[0].port()));
        converse(&Pair { client: connect(at), backend: accept(&rig.listener) });
    })
    .unwrap();
}

#[test]
fn several_addresses_listen_at_once() {
    let (listener, addr) = backend();
    let listen = vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()];
    let relay = Relay::start(Config { listen, ..config(Engine::Auto, &[addr]) }).unwrap();
    assert_eq!(relay.addrs().len(), 2);
    for &at in relay.addrs() {
        converse(&Pair { client: connect(at), backend: accept(&listener) });
    }
}

#[test]
fn round_robin_gives_each_backend_its_share() {
    let backends = [backend(), backend(), backend()];
    let relay = Relay::start(config(Engine::Auto, &backends.each_ref().map(|b| b.1))).unwrap();
    let mut served = [0; 3];
    let clients: Vec<_> = (0..60).map(|_| connect(relay.addrs()[0])).collect();
    for client in &clients {
        let listeners = backends.each_ref().map(|b| &b.0);
        // Which client a backend's next connection belongs to is not known: each is only counted.
        let _ = client;
        let index = (0..)
            .find_map(|i| try_accept(listeners[i % 3], Duration::from_millis(1)).map(|_| i % 3));
        served[index.unwrap()] += 1;
    }
    // Each worker goes round by itself.
    assert!(served.iter().all(|&n| (18..=22).contains(&n)), "{served:?}");
}

#[test]
fn least_connections_fills_up_the_emptiest_backend() {
    let backends = [backend(), backend()];
    let addrs = backends.each_ref().map(|b| b.1);
    let balance = Balance::LeastConnections;
    let relay = Relay::start(Config { balance, ..config(Engine::Auto, &addrs) }).unwrap();
    let listeners = backends.each_ref().map(|b| &b.0);
    let open = || {
        let client = connect(relay.addrs()[0]);
        let index = served_within(PATIENCE, &client, &listeners).unwrap();
        (index, client)
    };
    let (mut first, mut second): (Vec<_>, Vec<_>) = (0..8).map(|_| open()).partition(|c| c.0 == 0);
    assert_eq!((first.len(), second.len()), (4, 4));
    first.truncate(1);
    await_that("three have left", || relay.active() == 5);
    for _ in 0..3 {
        let (index, client) = open();
        assert_eq!(index, 0);
        second.push((index, client));
    }
}

#[test]
fn a_dead_backend_is_skipped_and_used_again_when_it_is_back() {
    let (socket, dead) = bound();
    let (live, addr) = backend();
    let config = Config { retry_after: MOMENT, ..config(Engine::Auto, &[dead, addr]) };
    let relay = Relay::start(config).unwrap();
    for _ in 0..8 {
        let client = connect(relay.addrs()[0]);
        assert_eq!(served_within(PATIENCE, &client, &[&live]), Some(0));
    }
    assert_eq!(relay.backends().0, 2);
    let failed = relay.stats().connect_failed;
    assert!((1..8).contains(&failed), "it was asked {failed} times");

    rustix::net::listen(&socket, 16).unwrap();
    let revived = TcpListener::from(socket);
    await_that("both are used", || {
        let client = connect(relay.addrs()[0]);
        served_within(PATIENCE, &client, &[&revived, &live]) == Some(0)
    });
    assert_eq!(relay.backends(), (2, 2));
}

#[test]
fn without_a_backend_a_client_gets_a_reset_and_the_others_go_on() {
    let rig = Rig::new(Engine::Auto);
    let served = rig.pair();
    drop(rig.listener);
    for _ in 0..3 {
        expect_refusal(rig.relay.addrs()[0]);
    }
    assert_eq!(rig.relay.stats().no_backend, 3);
    converse(&served);
    part(served);
}

#[test]
fn a_backend_that_does_not_answer_in_time_is_given_up() {
    let (hole, _kept) = black_hole();
    let alone = Config { connect_timeout: MOMENT, ..config(Engine::Auto, &[hole]) };
    let relay = Relay::start(alone.clone()).unwrap();
    let start = Instant::now();
    expect_refusal(relay.addrs()[0]);
    assert!(start.elapsed() >= MOMENT, "{:?}", start.elapsed());
    assert_eq!((relay.stats().connect_failed, relay.stats().no_backend), (1, 1));

    let (live, addr) = backend();
    let relay = Relay::start(Config { backends: vec![hole.into(), addr.into()], ..alone }).unwrap();
    for _ in 0..4 {
        let client = connect(relay.addrs()[0]);
        assert_eq!(served_within(PATIENCE, &client, &[&live]), Some(0));
    }
}

#[test]
fn one_client_at_a_time_tries_a_backend_that_did_not_answer() {
    let (hole, _kept) = black_hole();
    let (live, addr) = backend();
    let connect_timeout = Duration::from_secs(2);
    let relay = Relay::start(Config {
        connect_timeout,
        retry_after: MOMENT,
        ..config(Engine::Auto, &[hole, addr])
    })
    .unwrap();
    await_that("it was found out", || {
        let client = connect(relay.addrs()[0]);
        assert_eq!(served_within(PATIENCE, &client, &[&live]), Some(0));
        relay.stats().connect_failed > 0
    });
    await_that("it is due to be tried again", || relay.backends().1 == 2);
    let start = Instant::now();
    let clients: Vec<_> = (0..12).map(|_| connect(relay.addrs()[0])).collect();
    let early = (0..12).filter(|_| {
        let left = connect_timeout.saturating_sub(start.elapsed());
        try_accept(&live, left / 2).is_some()
    });
    let early = early.count();
    assert!(early >= 11, "{} of 12 clients waited for a dead backend", 12 - early);
    drop(clients);
}

#[test]
fn connections_past_the_limit_wait_and_are_served_later() {
    let rig = Rig::with(Engine::Auto, |config| config.max_connections = Some(2));
    for _ in 0..20 {
        let first = [rig.pair(), rig.pair()];
        let waiting: Vec<_> = (0..6).map(|_| connect(rig.relay.addrs()[0])).collect();
        assert!(try_accept(&rig.listener, Duration::from_millis(10)).is_none());
        assert_eq!(rig.relay.active(), 2);
        first.into_iter().for_each(part);
        // One at a time: each is let in by the one before it.
        for _ in &waiting {
            let backend = accept(&rig.listener);
            assert!(rig.relay.active() <= 2);
            abort(backend);
        }
        rig.await_empty();
    }
    assert!(rig.relay.stats().limit_reached > 0);
}

#[test]
fn a_burst_at_the_limit_is_served_to_the_last() {
    let rig = Rig::with(Engine::Auto, |config| config.max_connections = Some(3));
    let addr = rig.relay.addrs()[0];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..800 {
                match try_accept(&rig.listener, PATIENCE) {
                    Some(backend) => drop(backend),
                    None => panic!("{n} of 800 were served; {:?}", rig.relay.stats()),
                }
            }
        });
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(receive_to_end(&connect(addr)), b"");
                }
            });
        }
    });
}

#[test]
fn a_drain_refuses_new_connections_and_waits_for_the_old_ones() {
    let rig = Rig::new(Engine::Auto);
    let pairs = [rig.pair(), rig.pair(), rig.pair()];
    let addr = rig.relay.addrs()[0];
    let Rig { relay, listener } = rig;
    // A connection that slips in before the drain begins is reset, and holds nothing up.
    drop(listener);
    let begun = Barrier::new(2);
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| {
            begun.wait();
            relay.drain(PATIENCE)
        });
        begun.wait();
        await_that("new connections are refused", || {
            TcpStream::connect(addr).is_err_and(|e| e.kind() == Io::ConnectionRefused)
        });
        for pair in pairs {
            converse(&pair);
            assert!(relay.stats().accepted >= 3, "who asks is answered meanwhile");
            part(pair);
        }
        assert!(drained.join().unwrap());
    });
    assert!(relay.drain(Duration::ZERO), "a drained relay stays drained");
}

#[test]
fn a_drain_that_takes_too_long_says_so_and_may_be_asked_again() {
    let rig = Rig::new(Engine::Auto);
    let pair = rig.pair();
    let start = Instant::now();
    assert!(!rig.relay.drain(MOMENT));
    assert!(start.elapsed() >= MOMENT && start.elapsed() < PATIENCE / 2);
    converse(&pair);
    part(pair);
    assert!(rig.relay.drain(PATIENCE));
}

#[test]
fn an_address_in_use_is_refused_as_that() {
    let (_taken, addr) = backend();
    let (_dead, to) = bound();
    let rig = Rig::new(Engine::Auto);
    for listen in [addr, rig.relay.addrs()[0]] {
        let config = Config { listen: on(&[listen]), ..config(Engine::Auto, &[to]) };
        let error = Relay::start(config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddressInUse, "{error}");
        assert!(error.to_string().contains(&listen.to_string()), "{error}");
    }
    let elsewhere = vec!["192.0.2.1:0".parse().unwrap()];
    let config = Config { listen: elsewhere, ..config(Engine::Auto, &[addr]) };
    assert_eq!(Relay::start(config).unwrap_err().kind(), ErrorKind::AddressNotAvailable);
}

#[test]
fn clients_of_one_host_are_spread_over_all_workers() {
    let cpu = own_cpus()[0];
    let rig = Rig::with(Engine::Auto, |config| config.cpus = [cpu].into_iter().collect());
    if own_cpus().len() < 2 {
        eprintln!("skipped: clients_of_one_host_are_spread_over_all_workers: needs two CPUs");
        return;
    }
    rig.relay.set_cpus(&own_cpus().into_iter().take(2).collect()).unwrap();
    let pairs: Vec<_> = (0..64).map(|_| rig.pair()).collect();
    let each: Vec<u64> = rig.relay.worker_stats().iter().map(|s| s.accepted).collect();
    // Chance alone puts fewer than 12 of 64 on one of two less than once in ten million times.
    assert!(each.len() == 2 && each.iter().all(|&n| n >= 12), "{each:?}");
    assert_eq!(each.iter().sum::<u64>(), 64);
    drop(pairs);
}

/// The CPUs that each worker may run on, as the kernel says.
fn affinities(relay: &Relay) -> Vec<String> {
    let read = |tid| std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    let list = |status: String| {
        let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list:")).unwrap();
        line.split_whitespace().last().unwrap().to_string()
    };
    relay.worker_threads().into_iter().map(|tid| list(read(tid))).collect()
}

#[test]
fn workers_move_to_other_cpus_with_their_connections() {
    let cpus = own_cpus();
    if cpus.len() < 2 {
        eprintln!("skipped: workers_move_to_other_cpus_with_their_connections: needs two CPUs");
        return;
    }
    let rig = Rig::new(Engine::Auto);
    let pairs: Vec<_> = (0..8).map(|_| rig.pair()).collect();
    for (set, expected) in [
        (vec![cpus[1]], [cpus[1], cpus[1]]),
        (vec![cpus[0]], [cpus[0], cpus[0]]),
        (vec![cpus[0], cpus[1]], [cpus[0], cpus[1]]),
    ] {
        rig.relay.set_cpus(&set.into_iter().collect()).unwrap();
        assert_eq!(affinities(&rig.relay), expected.map(|cpu| cpu.to_string()));
        pairs.iter().for_each(converse);
        converse(&rig.pair());
    }
}

#[test]
fn a_cpu_that_is_not_there_is_refused_and_nothing_changes() {
    let rig = Rig::new(Engine::Auto);
    let pair = rig.pair();
    let (cpus, before) = (rig.relay.cpus(), affinities(&rig.relay));
    let absent = (0..1024).rfind(|cpu| !own_cpus().contains(cpu)).unwrap();
    let error = rig.relay.set_cpus(&[own_cpus()[0], absent].into_iter().collect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains(&format!("cpu {absent}")), "{error}");
    assert!(rig.relay.set_cpus(&[].into_iter().collect()).is_err());
    assert_eq!((rig.relay.cpus(), affinities(&rig.relay)), (cpus, before));
    converse(&pair);
}

#[test]
fn an_engine_set_while_running_is_for_new_connections() {
    let rig = Rig::new(Engine::Copy);
    let old = rig.pair();
    rig.relay.set_engine(Engine::Splice).unwrap();
    let new = rig.pair();
    converse(&old);
    await_that("what it copied is counted", || rig.relay.stats().bytes_copied == 16);
    assert_eq!(rig.relay.stats().bytes_spliced, 0);
    converse(&new);
    await_that("what it spliced is counted", || rig.relay.stats().bytes_spliced == 16);
    assert_eq!(rig.relay.stats().bytes_copied, 16);
}

#[test]
fn an_idle_client_before_its_backend_answers_is_not_forgotten() {
    // A client that leaves while its backend has yet to answer frees its place.
    let (hole, _kept) = black_hole();
    let config = Config { connect_timeout: MOMENT, ..config(Engine::Auto, &[hole]) };
    let relay = Relay::start(config).unwrap();
    let mut client = connect(relay.addrs()[0]);
    await_that("it was accepted", || relay.active() == 1);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), Io::ConnectionReset);
    await_that("it is gone", || relay.active() == 0);
}
