//! The table of clients, alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use super::*;

fn clients(most: Option<u32>, rate: Option<&str>) -> Arc<Clients> {
    let addr: SocketAddr = "192.0.2.1:1".parse().unwrap();
    let mut config = Config::new(vec![addr], vec![addr], [0].into_iter().collect());
    (config.client_connections, config.client_rate) =
        (most, rate.map(|rate| rate.parse().unwrap()));
    Clients::new(&config).unwrap()
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn numbered(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(n).into()
}

#[test]
fn addresses_are_one_client_as_the_mask_says() {
    for (mask, a, b, same) in [
        ("32,64", "10.0.0.1", "10.0.0.2", false),
        ("32,64", "10.0.0.1", "::ffff:10.0.0.1", true),
        ("24,64", "10.0.0.1", "10.0.0.2", true),
        ("24,64", "10.0.0.1", "10.0.1.1", false),
        ("32,64", "2001:db8::1", "2001:db8::ffff:0:0:1", true),
        ("32,64", "2001:db8:0:1::1", "2001:db8:0:2::1", false),
        ("32,128", "2001:db8::1", "2001:db8::2", false),
        // Of either family all are one, and the families two.
        ("0,0", "10.0.0.1", "192.0.2.1", true),
        ("0,0", "2001:db8::1", "fe80::1", true),
        ("0,1", "10.0.0.1", "8000::1", false),
    ] {
        let mask: ClientMask = mask.parse().unwrap();
        assert_eq!(mask.client(ip(a)) == mask.client(ip(b)), same, "{a} and {b} by {mask:?}");
    }
    for bad in ["", "32", "33,64", "32,129", "32,64,1", "a,b", "-1,64"] {
        let error = bad.parse::<ClientMask>().unwrap_err().to_string();
        assert!(error.contains(&format!("'{bad}'")) && error.contains("32,64"), "{error}");
    }
}

#[test]
fn a_client_has_as_many_connections_as_it_may_and_each_that_ends_makes_room() {
    let (clients, now) = (clients(Some(2), None), Instant::now());
    let one = clients.enter(ip("10.0.0.1"), now).unwrap();
    let two = clients.enter(ip("::ffff:10.0.0.1"), now).unwrap();
    let enter = |s| clients.enter(ip(s), now);
    assert_eq!(enter("10.0.0.1").unwrap_err(), Excess::Connections);
    let other = enter("10.0.0.2").unwrap();
    assert_eq!(clients.count(), [2, 0]);
    drop(one);
    let three = enter("10.0.0.1").unwrap();
    assert_eq!(enter("10.0.0.1").unwrap_err(), Excess::Connections);
    drop((two, three, other));
    // Nothing is left of those who have gone.
    assert_eq!(clients.count(), [0, 0]);
}

#[test]
fn a_client_that_comes_and_goes_is_not_forgotten_before_its_time() {
    let (clients, now) = (clients(Some(1), Some("3/1h")), Instant::now());
    let enter = |at| clients.enter(ip("10.0.0.1"), at);
    for _ in 0..2 {
        drop(enter(now).unwrap());
    }
    let stays = enter(now).unwrap();
    // Who has too many connections pays no token for it.
    assert_eq!(enter(now).unwrap_err(), Excess::Connections);
    drop(stays);
    for _ in 0..100 {
        assert_eq!(enter(now).unwrap_err(), Excess::Rate);
    }
    assert_eq!(clients.count(), [0, 1]);
    drop(clients.enter(ip("10.0.0.2"), now).unwrap());
    let later = now + Duration::from_secs(20 * 60);
    drop(enter(later).unwrap());
    assert_eq!(enter(later).unwrap_err(), Excess::Rate);
}

#[test]
fn those_who_could_as_well_be_new_are_forgotten() {
    let mut shard = Shard::new(1);
    for n in 0..100 {
        shard.remember(Client(Ipv6Addr::from_bits(n)), 1000, 10);
    }
    // One that is due is not remembered at all, and drops two others that are.
    shard.remember(Client(Ipv6Addr::from_bits(200)), 1000, 1000);
    assert_eq!(shard.away.len(), 98);
    shard.remember(Client(Ipv6Addr::from_bits(201)), 2000, 1000);
    assert_eq!(shard.away.len(), 97);
}

/// A million addresses that come and go, and a thousand that stay.
#[test]
fn at_its_bound_the_table_forgets_who_has_been_away_longest_and_never_who_is_there() {
    let (clients, now) = (clients(Some(1), Some("1/1h")), Instant::now());
    let stay: Vec<_> = (0..1000).map(|n| clients.enter(numbered(n), now).unwrap()).collect();
    let start = Instant::now();
    for n in 0..1_000_000 {
        drop(clients.enter(numbered(1 << 24 | n), now).unwrap());
    }
    let each = start.elapsed() / 1_000_000;
    let [present, away] = clients.count();
    assert_eq!(present, 1000);
    assert!(away <= REMEMBERED && away > REMEMBERED / 2, "{away}");
    assert!(each < Duration::from_micros(100), "{each:?} for a client");
    for n in 0..1000 {
        assert_eq!(clients.enter(numbered(n), now).unwrap_err(), Excess::Connections);
    }
    // The last ones are known, and the first ones are not.
    let known = |n: u32| clients.enter(numbered(1 << 24 | n), now).is_err();
    assert!((990_000..1_000_000).all(known));
    assert!(!(0..100).any(known));
    drop(stay);
    assert_eq!(clients.count()[0], 0);
}

#[test]
fn threads_together_get_no_more_than_a_client_may_have() {
    const MOST: u32 = 5;
    let (clients, now) = (clients(Some(MOST), None), Instant::now());
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..20_000 {
                    // Some of the others stand in the same shards.
                    let _other = clients.enter(numbered(n), now);
                    let Ok(guest) = clients.enter(ip("192.0.2.1"), now) else { continue };
                    assert!(inside.fetch_add(1, SeqCst) < MOST);
                    inside.fetch_sub(1, SeqCst);
                    drop(guest);
                }
            });
        }
    });
    assert_eq!(clients.count(), [0, 0]);
}

#[test]
fn a_guest_whose_thread_panics_is_gone() {
    let clients = clients(Some(1), None);
    let guest = clients.enter(ip("10.0.0.1"), Instant::now()).unwrap();
    let panicked = std::thread::spawn(move || {
        let _guest = guest;
        // Without the hook, which would print it.
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.join().is_err());
    assert_eq!(clients.count(), [0, 0]);
}
