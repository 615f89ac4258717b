use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::pool::LAST_RESORTS;
use super::routes::Route;
use super::*;
use crate::config::Backend;

fn backends(all: Vec<Backend>, balance: Balance) -> Arc<Backends> {
    let listen: Vec<SocketAddr> = vec!["127.0.0.1:1".parse().unwrap()];
    let retry_after = Duration::from_secs(2);
    let config = Config::new(listen, all, [0].into_iter().collect());
    Arc::new(Backends::new(&Config { balance, retry_after, max_queue: 2, ..config }))
}

/// Backends of ports from 1 on.
fn plain(n: u16, balance: Balance) -> (Arc<Backends>, Pool) {
    let all = (1..=n).map(|p| SocketAddr::from(([127, 0, 0, 1], p)).into()).collect();
    pool(backends(all, balance))
}

fn given(all: &[&str], balance: Balance) -> (Arc<Backends>, Pool) {
    pool(backends(all.iter().map(|b| b.parse().unwrap()).collect(), balance))
}

/// Its first turn is the first server's.
fn pool(backends: Arc<Backends>) -> (Arc<Backends>, Pool) {
    let pool = Pool::new(Arc::clone(&backends), usize::MAX);
    (backends, pool)
}

fn client(n: u32) -> Option<IpAddr> {
    Some(IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n)))
}

fn lease_of(pool: &mut Pool, tried: &mut Tried, from: u32, now: Instant) -> Lease {
    match pool.choose(Route::default(), tried, || client(from), now) {
        Choice::Try(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn lease(pool: &mut Pool, now: Instant) -> Lease {
    lease_of(pool, &mut Tried::default(), 0, now)
}

fn port_of(lease: &Lease) -> u16 {
    lease.addr().ip().expect("an address of IP").port()
}

fn port(pool: &mut Pool, now: Instant) -> u16 {
    port_of(&lease(pool, now))
}

#[test]
fn round_robin_takes_each_in_turn_and_as_often_as_its_weight_says() {
    let now = Instant::now();
    let (_, mut pool) = plain(3, Balance::RoundRobin);
    assert_eq!([(); 6].map(|()| port(&mut pool, now)), [1, 2, 3, 1, 2, 3]);
    let all = ["127.0.0.1:1,weight=4", "127.0.0.1:2", "127.0.0.1:3,weight=0"];
    let (_, mut pool) = given(&all, Balance::RoundRobin);
    let ports = [(); 10].map(|()| port(&mut pool, now));
    assert_eq!(ports.iter().filter(|p| **p == 2).count(), 2, "{ports:?}");
    assert!(!ports.contains(&3), "{ports:?}");
}

#[test]
fn least_connections_takes_the_emptiest_for_its_weight_and_leases_give_back() {
    let (_, mut pool) = plain(2, Balance::LeastConnections);
    let now = Instant::now();
    let (first, second) = (lease(&mut pool, now), lease(&mut pool, now));
    assert_ne!(first.addr(), second.addr());
    let freed = second.addr().clone();
    drop(second);
    assert_eq!(*lease(&mut pool, now).addr(), freed);
    let all = ["127.0.0.1:1,weight=3", "127.0.0.1:2"];
    let (_, mut pool) = given(&all, Balance::LeastConnections);
    let leases = [(); 8].map(|()| lease(&mut pool, now));
    assert_eq!(leases.iter().filter(|lease| port_of(lease) == 1).count(), 6);
}

#[test]
fn random_takes_the_emptier_of_two() {
    let (_, mut pool) = plain(10, Balance::Random);
    let now = Instant::now();
    let leases: Vec<_> = (0..1000).map(|_| lease(&mut pool, now)).collect();
    let mut each = HashMap::new();
    leases.iter().for_each(|lease| *each.entry(lease.addr()).or_insert(0) += 1);
    // Of one draw alone, the fullest would have some 120.
    assert!(each.len() == 10 && each.values().all(|n| (90..=110).contains(n)), "{each:?}");
}

#[test]
fn a_client_keeps_its_server_and_only_those_of_one_that_goes_move() {
    let (backends, mut pool) = plain(5, Balance::Source);
    let now = Instant::now();
    let all = |pool: &mut Pool| {
        (0..1000)
            .map(|n| port_of(&lease_of(pool, &mut Tried::default(), n, now)))
            .collect::<Vec<u16>>()
    };
    let before = all(&mut pool);
    assert_eq!(all(&mut Pool::new(Arc::clone(&backends), 3)), before, "another worker agrees");
    for port in 1..=5 {
        let share = before.iter().filter(|p| **p == port).count();
        assert!((140..=260).contains(&share), "{port}: {share}");
    }
    backends.set(&"127.0.0.1:2=drain".parse().unwrap()).unwrap();
    let during = all(&mut pool);
    assert!(before.iter().zip(&during).all(|(b, d)| if *b == 2 { *d != 2 } else { b == d }));
    backends.set(&"127.0.0.1:2=ready".parse().unwrap()).unwrap();
    assert_eq!(all(&mut pool), before);
}

#[test]
fn a_dead_server_is_skipped_and_retried_later() {
    let (backends, mut pool) = plain(2, Balance::RoundRobin);
    let now = Instant::now();
    assert!(lease(&mut pool, now).failed(now));
    assert_eq!(backends.count(now), (2, 1));
    assert_eq!([(); 3].map(|()| port(&mut pool, now)), [2; 3]);
    let later = now + Duration::from_millis(2001);
    let again = [(); 2].map(|()| lease(&mut pool, later));
    let again = again.iter().find(|lease| port_of(lease) == 1).expect("it is tried");
    assert!(again.succeeded(later));
    assert_eq!(backends.count(now), (2, 2));
}

#[test]
fn a_server_that_is_due_is_tried_by_one_connection() {
    for balance in [Balance::RoundRobin, Balance::LeastConnections, Balance::Random] {
        let (backends, mut pool) = plain(2, balance);
        let now = Instant::now();
        let first = lease(&mut pool, now);
        let dead = first.addr().clone();
        first.failed(now);
        drop(first);
        let later = now + Duration::from_millis(2001);
        let mut tries = |at| {
            let leases = [(); 20].map(|()| lease(&mut pool, at));
            leases.iter().filter(|lease| *lease.addr() == dead).count()
        };
        // Its client may have given up before it knew: then it is another's turn.
        assert_eq!((tries(later), tries(later + backends.times.trial)), (1, 1), "{balance:?}");
    }
}

#[test]
fn any_number_of_servers_is_tried_once_each() {
    for n in [2, 64, 65, 200] {
        for balance in [Balance::RoundRobin, Balance::Random, Balance::Source] {
            let (_, mut pool) = plain(n, balance);
            let (now, mut tried) = (Instant::now(), Tried::default());
            let mut ports: Vec<u16> = (0..n)
                .map(|_| {
                    let lease = lease_of(&mut pool, &mut tried, 7, now);
                    lease.failed(now);
                    port_of(&lease)
                })
                .collect();
            ports.sort_unstable();
            assert_eq!(ports, (1..=n).collect::<Vec<_>>());
            let next = pool.choose(Route::default(), &mut tried, || client(7), now);
            assert!(matches!(next, Choice::Nobody), "{next:?}");
        }
    }
}

#[test]
fn when_all_are_down_a_few_are_still_tried() {
    let (_, mut pool) = plain(100, Balance::RoundRobin);
    let now = Instant::now();
    for _ in 0..100 {
        lease(&mut pool, now).failed(now);
    }
    let mut tried = Tried::default();
    for _ in 0..LAST_RESORTS {
        lease_of(&mut pool, &mut tried, 0, now);
    }
    assert!(matches!(pool.choose(Route::default(), &mut tried, || None, now), Choice::Nobody));
}

#[test]
fn backups_are_for_when_no_other_is_up() {
    let all = ["127.0.0.1:1,backup", "127.0.0.1:2", "127.0.0.1:3,backup"];
    let (backends, mut pool) = given(&all, Balance::RoundRobin);
    let now = Instant::now();
    let main = lease(&mut pool, now);
    assert_eq!((port_of(&main), port(&mut pool, now)), (2, 2));
    main.failed(now);
    let mut ports = [(); 2].map(|()| port(&mut pool, now));
    ports.sort_unstable();
    assert_eq!(ports, [1, 3]);
    main.succeeded(now);
    assert_eq!(port(&mut pool, now), 2);
    backends.set(&"127.0.0.1:2=drain".parse().unwrap()).unwrap();
    assert_ne!(port(&mut pool, now), 2);
}

#[test]
fn full_servers_make_connections_wait_and_so_many_may() {
    for balance in [Balance::RoundRobin, Balance::LeastConnections, Balance::Random] {
        let all = ["127.0.0.1:1,maxconn=2", "127.0.0.1:2,maxconn=1", "127.0.0.1:3,backup"];
        let (backends, mut pool) = given(&all, balance);
        let now = Instant::now();
        let leases = [(); 3].map(|()| lease(&mut pool, now));
        let full = pool.choose(Route::default(), &mut Tried::default(), || None, now);
        let any = Route::default();
        assert!(
            matches!(full, Choice::Wait(Place::Of(route)) if route == any),
            "{balance:?}: {full:?}"
        );
        let waiting = (pool.wait(any).unwrap(), pool.wait(any).unwrap());
        assert!(pool.wait(any).is_none());
        drop(waiting);
        assert_eq!(backends.waiting(), 0);
        drop(leases);
        lease(&mut pool, now);
    }
}

#[test]
fn a_client_waits_for_its_own_server() {
    let all = ["127.0.0.1:1,maxconn=1", "127.0.0.1:2,maxconn=1"];
    let (_, mut pool) = given(&all, Balance::Source);
    let now = Instant::now();
    let first = lease_of(&mut pool, &mut Tried::default(), 1, now);
    let again = pool.choose(Route::default(), &mut Tried::default(), || client(1), now);
    let own = Place::At(Route::default(), first.addr().clone());
    assert!(matches!(&again, Choice::Wait(place) if *place == own), "{again:?}");
    let place = pool.place(Route::default(), &mut Tried::default(), || client(1), now);
    assert_eq!(place, own, "what others are asked to wait for");
    // If that one fails, it is another's.
    let mut tried = Tried::default();
    tried.add(&first);
    assert_ne!(lease_of(&mut pool, &mut tried, 1, now).addr(), first.addr());
}

#[test]
fn a_route_whose_servers_are_full_takes_no_place_in_the_queue_from_another() {
    let (backends, pool) =
        given(&["127.0.0.1:1", "127.0.0.1:2,sni=a.example"], Balance::RoundRobin);
    let [any, named] = [None, Some("a.example")].map(|name| backends.routes.find(name).unwrap());
    let all = (pool.wait(named).unwrap(), pool.wait(named).unwrap());
    assert!(pool.wait(named).is_none());
    let other = pool.wait(any).unwrap();
    assert_eq!(backends.waiting(), 3);
    drop((all, other));
    assert_eq!(backends.waiting(), 0);
    pool.wait(named).unwrap();
}

#[test]
fn an_address_that_a_name_has_again_is_what_it_was_while_connections_to_it_are_left() {
    let (backends, mut pool) = given(&["db:1,maxconn=1"], Balance::RoundRobin);
    let spec = Arc::clone(&backends.specs[0]);
    let [one, other] = ["10.0.0.1:1", "10.0.0.2:1"].map(|addr| addr.parse::<SocketAddr>().unwrap());
    let now = Instant::now();
    backends.set_addresses(&spec, &[one]);
    let kept = lease(&mut pool, now);
    assert_eq!(kept.addr(), &Addr::Ip(one));
    backends.set_addresses(&spec, &[other]);
    assert_eq!(lease(&mut pool, now).addr(), &Addr::Ip(other));
    backends.set_addresses(&spec, &[one]);
    let full = pool.choose(Route::default(), &mut Tried::default(), || None, now);
    assert!(matches!(full, Choice::Wait(_)), "{full:?}");
    assert!(kept.failed(now), "its health is that of the one in use");
    assert_eq!(backends.count(now), (1, 0));
    // Without a connection, nothing is known of it and nothing is kept.
    drop(kept);
    backends.set_addresses(&spec, &[other]);
    pool.place(Route::default(), &mut Tried::default(), || None, now);
    backends.set_addresses(&spec, &[one]);
    assert_eq!(backends.count(now), (1, 1));
}

#[test]
fn times_without_end_do_not_overflow() {
    let listen: Vec<SocketAddr> = vec!["127.0.0.1:1".parse().unwrap()];
    let all: Vec<Backend> = vec!["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
    let config = Config::new(listen, all, [0].into_iter().collect());
    let for_ever = Config { retry_after: Duration::MAX, connect_timeout: Duration::MAX, ..config };
    let (backends, mut pool) = pool(Arc::new(Backends::new(&for_ever)));
    let now = Instant::now();
    lease(&mut pool, now).failed(now);
    let later = now + Duration::from_secs(1 << 30);
    assert_eq!(backends.count(later), (2, 1));
    let brief = Config { retry_after: Duration::ZERO, ..for_ever };
    let (backends, mut pool) = self::pool(Arc::new(Backends::new(&brief)));
    lease(&mut pool, now).failed(now);
    let tried = [(); 4].map(|()| lease(&mut pool, later));
    assert_eq!(
        tried.iter().filter(|lease| lease.addr().to_string().ends_with(":1")).count(),
        1,
        "{tried:?}"
    );
    assert_eq!(backends.count(later), (2, 1));
}

#[test]
fn a_server_that_has_come_up_gets_its_share_slowly() {
    let all = ["127.0.0.1:1,slowstart=10s", "127.0.0.1:2"];
    let (_, mut pool) = given(&all, Balance::RoundRobin);
    let now = Instant::now() + Duration::from_secs(1);
    let share = |pool: &mut Pool, at| (0..1000).filter(|_| port(pool, at) == 1).count();
    assert_eq!(share(&mut pool, now), 500, "at the start all are warm");
    let down = [(); 2].map(|()| lease(&mut pool, now));
    let down = down.iter().find(|lease| port_of(lease) == 1).unwrap();
    down.failed(now);
    down.succeeded(now);
    for (after, expected) in [(0, 0..60), (5, 180..330), (10, 500..501)] {
        let share = share(&mut pool, now + Duration::from_secs(after));
        assert!(expected.contains(&share), "{share} after {after} s");
    }
}
