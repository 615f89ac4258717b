//! A relay's life: who may listen, what a drain does with those who wait, where workers run, and
//! what comes of one that panics.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cachelane_relay::{Config, Engine, ErrorKind, Relay};
use common::*;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Starts relays on these addresses at the same moment; how many did, with the kernel's word for it.
fn start_at_once(addrs: &[SocketAddr]) -> usize {
    let (_listener, to) = backend();
    let (begin, over) = (Barrier::new(addrs.len()), Barrier::new(addrs.len()));
    std::thread::scope(|scope| {
        let starts = addrs.iter().map(|&listen| {
            let (begin, over) = (&begin, &over);
            scope.spawn(move || {
                let config = Config { listen: on(&[listen]), ..config(Engine::Copy, &[to]) };
                begin.wait();
                let relay = Relay::start(config);
                // Nobody leaves before all have tried.
                over.wait();
                match relay {
                    Ok(_) => 1,
                    Err(e) if e.kind() == ErrorKind::AddressInUse => 0,
                    Err(e) => panic!("{e}"),
                }
            })
        });
        let starts: Vec<_> = starts.collect();
        starts.into_iter().map(|start| start.join().unwrap()).sum()
    })
}

#[test]
fn of_relays_that_start_at_once_on_one_address_exactly_one_listens() {
    let free = |ip: &str| listener(&format!("{ip}:0")).1;
    let on = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    for _ in 0..25 {
        assert_eq!(start_at_once(&[free("127.0.0.1"); 8]), 1);
        assert_eq!(start_at_once(&[free("::"); 4]), 1);
        // A wildcard has all addresses, IPv4 too. Two that are not the same both listen.
        let port = free("127.0.0.1").port();
        let overlapping = ["::", "0.0.0.0", "::", "0.0.0.0"].map(|ip| on(ip, port));
        assert_eq!(start_at_once(&overlapping), 1);
        assert_eq!(start_at_once(&["127.0.0.1", "127.0.0.2"].map(|ip| on(ip, port))), 2);
    }
    assert_eq!(start_at_once(&[on("127.0.0.1", 0); 8]), 8, "each has a port of its own");
}

#[test]
fn a_specific_address_and_a_wildcard_do_not_share_a_port() {
    let (_listener, to) = backend();
    for (first, second) in [("[::]", "127.0.0.1"), ("127.0.0.1", "[::]"), ("0.0.0.0", "127.0.0.1")]
    {
        let listen = vec![format!("{first}:0").parse().unwrap()];
        let relay = Relay::start(Config { listen, ..config(Engine::Copy, &[to]) }).unwrap();
        let port = relay.addrs()[0].port();
        let listen = vec![format!("{second}:{port}").parse().unwrap()];
        let error = Relay::start(Config { listen, ..config(Engine::Copy, &[to]) }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddressInUse, "{first}, then {second}: {error}");
    }
}

#[test]
fn a_relay_listens_again_at_once_where_its_clients_are_still_parting() {
    let rig = Rig::new(Engine::Copy);
    let addr = rig.relay.addrs()[0];
    let (pair, held) = (rig.pair(), rig.pair());
    // The relay's end is the first to close, and stays in TIME_WAIT.
    drop(pair.backend);
    assert_eq!(receive_to_end(&pair.client), b"");
    drop(pair.client);
    let Rig { relay, listener } = rig;
    await_that("the connection ended", || relay.active() == 1);
    drop(relay);
    drop(held);
    let to = listener.local_addr().unwrap();
    let again = Config { listen: on(&[addr]), ..config(Engine::Copy, &[to]) };
    drop(Relay::start(again).unwrap());
}

#[test]
fn a_drain_serves_those_who_wait_past_the_limit() {
    let rig = Rig::with(Engine::Copy, |config| config.max_connections = Some(2));
    let first = [rig.pair(), rig.pair()];
    let addr = rig.relay.addrs()[0];
    let waiting: Vec<_> = (0..50).map(|_| connect(addr)).collect();
    await_that("they wait", || rig.relay.waiting() == 50);
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| rig.relay.drain(PATIENCE));
        await_that("nobody new is let in", || {
            TcpStream::connect_timeout(&addr, Duration::from_millis(50)).is_err()
        });
        first.into_iter().for_each(part);
        for client in waiting {
            // An end, not a reset. Each lets the next one in.
            scope.spawn(move || assert_eq!(receive_to_end(&client), b""));
        }
        // Besides these there may be some who came before nobody was let in.
        while !drained.is_finished() {
            drop(try_accept(&rig.listener, Duration::from_millis(20)));
        }
        assert!(drained.join().unwrap());
    });
    assert_eq!(rig.relay.stats().queue_reset, 0);
}

#[test]
fn those_who_wait_when_a_drain_takes_too_long_are_known() {
    let rig = Rig::with(Engine::Copy, |config| config.max_connections = Some(1));
    let _first = rig.pair();
    let addr = rig.relay.addrs()[0];
    let waiting: Vec<_> = (0..5).map(|_| connect(addr)).collect();
    await_that("they wait", || rig.relay.waiting() == 5);
    assert!(!rig.relay.drain(Duration::from_millis(500)));
    assert_eq!(rig.relay.waiting(), 5, "they wait for as long as the relay is there");
    drop(rig.relay);
    for client in &waiting {
        expect_reset(client);
    }
}

#[test]
fn a_drain_beside_a_growing_set_of_cpus_ends_and_loses_nobody() {
    let cpus = own_cpus();
    if cpus.len() < 2 {
        eprintln!("skipped: a_drain_beside_a_growing_set_of_cpus…: needs two CPUs");
        return;
    }
    for round in 0..20 {
        let rig = Rig::with(Engine::Copy, |config| config.cpus = [cpus[0]].into_iter().collect());
        let addr = rig.relay.addrs()[0];
        let begin = Barrier::new(3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                rig.relay.set_cpus(&cpus[..2].iter().copied().collect()).unwrap();
            });
            let drained = scope.spawn(|| {
                begin.wait();
                rig.relay.drain(PATIENCE)
            });
            let clients: Vec<_> = (0..10).map(|_| connect(addr)).collect();
            let server = scope.spawn(|| (0..10).for_each(|_| drop(accept(&rig.listener))));
            begin.wait();
            for client in &clients {
                assert_eq!(receive_to_end(client), b"", "round {round}");
            }
            drop(clients);
            assert!(drained.join().unwrap(), "round {round}");
            server.join().unwrap();
        });
        assert!(rig.relay.worker_threads().len() <= 2);
        assert!(rig.relay.drain(Duration::ZERO), "every worker has returned");
    }
}

#[test]
fn cpus_may_be_set_when_the_workers_have_returned() {
    let rig = Rig::new(Engine::Copy);
    assert!(rig.relay.drain(PATIENCE));
    let workers = rig.relay.worker_threads();
    rig.relay.set_cpus(&own_cpus().into_iter().take(1).collect()).unwrap();
    rig.relay.set_cpus(&own_cpus().into_iter().take(2).collect()).unwrap();
    assert_eq!(rig.relay.worker_threads(), workers, "nobody is hired for a relay that ends");
}

/// The only CPU that a worker may run on.
fn pinned_to(thread: u32) -> Option<usize> {
    let set = sched_getaffinity(Pid::from_raw(thread as i32)).unwrap();
    let cpus: Vec<_> = (0..1024).filter(|&cpu| set.is_set(cpu)).collect();
    (cpus.len() == 1).then(|| cpus[0])
}

#[test]
fn a_worker_that_the_kernel_moved_is_brought_back() {
    let rig = Rig::new(Engine::Copy);
    let workers = rig.relay.worker_threads();
    let before: Vec<_> = workers.iter().map(|&tid| pinned_to(tid)).collect();
    assert!(before.iter().all(Option::is_some));
    // What it does with a thread whose CPU goes offline.
    let all = sched_getaffinity(None).unwrap();
    for &tid in &workers {
        sched_setaffinity(Pid::from_raw(tid as i32), &all).unwrap();
    }
    rig.relay.tend().unwrap();
    assert_eq!(workers.iter().map(|&tid| pinned_to(tid)).collect::<Vec<_>>(), before);
    converse(&rig.pair());
}

/// Programs spin on all CPUs, and a worker that has much to do gets little of its own.
#[test]
fn a_worker_that_waits_for_its_cpu_may_use_its_neighbours_until_it_waits_no_more() {
    const NAME: &str =
        "a_worker_that_waits_for_its_cpu_may_use_its_neighbours_until_it_waits_no_more";
    let map = lanes::LaneMap::detect().unwrap();
    let cpus = own_cpus();
    let Some(two) = cpus.get(..2).filter(|two| map.same_lane(two[0], two[1])) else {
        eprintln!("skipped: {NAME}: needs two CPUs in one lane");
        return;
    };
    let rig = Rig::with(Engine::Copy, |config| config.cpus = two.iter().copied().collect());
    let workers = rig.relay.worker_threads();
    let pinned = || workers.iter().map(|&tid| pinned_to(tid)).collect::<Vec<_>>();
    let home = pinned();
    assert!(home.iter().all(Option::is_some));
    let comes = |condition: &dyn Fn() -> bool| {
        lab::testing::comes_true(|| {
            rig.relay.tend().unwrap();
            condition()
        })
    };
    let (over, pairs) = (AtomicBool::new(false), (0..8).map(|_| rig.pair()).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let spin = || {
            while !over.load(Relaxed) {
                std::hint::spin_loop();
            }
        };
        for &cpu in two.iter().cycle().take(8) {
            scope.spawn(move || lanes::pin(cpu).map(|()| spin()));
        }
        for Pair { client, backend } in &pairs {
            scope.spawn(move || while (&*client).write_all(&[1; 1 << 16]).is_ok() {});
            scope.spawn(move || while (&*backend).read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0) {});
        }
        let loosened = comes(&|| pinned().iter().any(Option::is_none));
        over.store(true, Relaxed);
        for Pair { client, backend } in &pairs {
            let _ = client.shutdown(Shutdown::Both);
            let _ = backend.shutdown(Shutdown::Both);
        }
        assert!(loosened, "{:?}", rig.relay.stats());
    });
    assert!(comes(&|| pinned() == home), "{:?}, not {home:?}", pinned());
}

#[test]
fn a_worker_that_panics_begins_anew_and_loses_no_client_in_its_queue() {
    let rig = Rig::new(Engine::Auto);
    let workers = rig.relay.worker_threads();
    for _ in 0..3 {
        let pairs: Vec<_> = (0..16).map(|_| rig.pair()).collect();
        pairs.iter().for_each(converse);
        for worker in 0..workers.len() {
            rig.relay.sabotage(worker);
        }
        for pair in &pairs {
            expect_reset(&pair.client);
            expect_reset(&pair.backend);
        }
        rig.await_empty();
        // As many as to be sure that each worker gets some.
        let pairs: Vec<_> = (0..32).map(|_| rig.pair()).collect();
        pairs.iter().for_each(converse);
        pairs.into_iter().for_each(part);
        rig.await_empty();
    }
    assert_eq!(rig.relay.stats().reset, 48);
    assert_eq!(rig.relay.worker_threads(), workers);
    rig.relay.tend().unwrap();
    assert!(rig.relay.drain(PATIENCE));
}

#[test]
fn root_an_address_that_is_yet_to_come_is_claimed_like_any_other() {
    if !lab::testing::root("root_an_address_that_is_yet_to_come_is_claimed_like_any_other") {
        return;
    }
    let lab = lab::Lab::new("relay-life").unwrap();
    let host = lab.host("a").unwrap();
    let addr = "192.0.2.7:80".parse().unwrap();
    assert_eq!(host.run(|| start_kind(addr)).unwrap(), Some(ErrorKind::AddressNotAvailable));
    host.set_sysctl("net.ipv4.ip_nonlocal_bind", "1").unwrap();
    for _ in 0..5 {
        assert_eq!(host.run(|| start_at_once(&[addr; 4])).unwrap(), 1);
    }
}

/// Why a relay does not start on this address, if it does not.
fn start_kind(addr: SocketAddr) -> Option<ErrorKind> {
    let (_listener, to) = backend();
    let config = Config { listen: on(&[addr]), ..config(Engine::Copy, &[to]) };
    Relay::start(config).err().map(|error| error.kind())
}
