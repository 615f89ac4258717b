//! Backends in every state: checked, full, in reserve, drained, by name, out of this host's reach.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cachelane_relay::{Backend, Balance, Config, Engine, Error, ErrorKind, Relay};
use common::*;
use lab::Lab;

/// Long enough that what would happen does, short enough to wait for it each time.
const MOMENT: Duration = Duration::from_millis(300);

/// A relay before these backends, with their options.
fn relay(backends: &[String], adjust: impl FnOnce(&mut Config)) -> Relay {
    try_relay(backends, adjust).unwrap()
}

fn try_relay(backends: &[String], adjust: impl FnOnce(&mut Config)) -> Result<Relay, Error> {
    let mut config = config(Engine::Auto, &[]);
    config.backends = backends.iter().map(|b| b.parse::<Backend>().unwrap()).collect();
    adjust(&mut config);
    Relay::start(config)
}

/// A client that is served, with its backend.
fn pair(relay: &Relay, listener: &TcpListener) -> Pair {
    Pair { client: connect(relay.addrs()[0]), backend: accept(listener) }
}

/// A backend that answers a question in a way that can be changed.
struct Answering {
    addr: SocketAddr,
    well: Arc<AtomicBool>,
}

impl Answering {
    fn new() -> Answering {
        let (listener, addr) = backend();
        let well = Arc::new(AtomicBool::new(true));
        let answers = Arc::clone(&well);
        // Its threads end with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let answers = Arc::clone(&answers);
                std::thread::spawn(move || {
                    let mut question = [0; 6];
                    while stream.read_exact(&mut question).is_ok() {
                        let well = answers.load(Relaxed);
                        let answer: &[u8] = if well { b"+PONG\r\n" } else { b"-ERROR\r\n" };
                        if stream.write_all(answer).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Answering { addr, well }
    }
}

#[test]
fn a_backend_whose_checks_fail_gets_no_connections_until_they_succeed() {
    let sick = Answering::new();
    let (live, addr) = backend();
    let check = r"inter=20ms,timeout=300ms,rise=2,fall=2,send=PING\r\n,expect=+PONG";
    let relay = relay(&[format!("{},{check}", sick.addr), addr.to_string()], |_| {});
    sick.well.store(false, Relaxed);
    await_that("it is found out", || relay.backends() == (2, 1));
    for _ in 0..6 {
        drop(pair(&relay, &live));
    }
    assert_eq!(relay.stats().connect_failed, 0);
    sick.well.store(true, Relaxed);
    await_that("it is back", || relay.backends() == (2, 2));
    await_that("it is used", || {
        let mut client = connect(relay.addrs()[0]);
        client.write_all(b"PING\r\n").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut answer = [0; 7];
        client.read_exact(&mut answer).is_ok() && &answer == b"+PONG\r\n"
    });
}

#[test]
fn a_backend_that_is_dead_from_the_start_is_found_by_its_first_check() {
    let (_kept, dead) = bound();
    let (hole, _full) = black_hole();
    let (live, addr) = backend();
    let all = [
        format!("{dead},check,inter=20ms,fall=1000"),
        format!("{hole},check,inter=20ms,timeout=100ms,fall=1000"),
        addr.to_string(),
    ];
    let relay = relay(&all, |_| {});
    await_that("both are found out", || relay.backends() == (3, 1));
    for _ in 0..6 {
        drop(pair(&relay, &live));
    }
    assert_eq!(relay.stats().connect_failed, 0);
}

/// Of 100 that do not answer, each is asked again as soon as it could have answered.
#[test]
fn checks_that_nobody_answers_do_not_hold_up_those_of_others() {
    let (hole, _full) = black_hole_everywhere();
    let silent =
        (1..=100).map(|n| format!("127.0.1.{n}:{},check,inter=1s,timeout=1s", hole.port()));
    let sick = Answering::new();
    let check = r"inter=50ms,timeout=1s,rise=1,fall=1,send=PING\r\n,expect=+PONG";
    let all: Vec<String> = silent.chain([format!("{},{check}", sick.addr)]).collect();
    let relay = relay(&all, |_| {});
    await_that("those that are silent are found out", || relay.backends() == (101, 1));
    for well in [false, true, false, true] {
        sick.well.store(well, Relaxed);
        let start = Instant::now();
        await_that("it is found out", || relay.backends().1 == usize::from(well));
        assert!(start.elapsed() < PATIENCE / 4, "{:?}", start.elapsed());
    }
}

#[test]
fn connections_past_a_backends_maximum_wait_for_their_turn() {
    let (listener, addr) = backend();
    let all = [format!("{addr},maxconn=2")];
    let relay = relay(&all, |config| config.queue_timeout = PATIENCE * 2);
    let clients: Vec<_> = (0..8).map(|_| connect(relay.addrs()[0])).collect();
    clients.iter().for_each(|client| send_all(client, FIRST));
    await_that("all are accepted", || relay.active() == 8);
    let mut served = vec![accept_heard(&listener), accept_heard(&listener)];
    await_that("the others wait", || relay.stats().queued == 6);
    for _ in 0..6 {
        assert!(try_accept(&listener, MOMENT / 10).is_none(), "more than the maximum");
        abort(served.remove(0));
        served.push(accept_heard(&listener));
    }
    served.into_iter().for_each(abort);
    await_that("all are gone", || relay.active() == 0);
    clients.iter().for_each(expect_reset);
    let stats = relay.stats();
    assert_eq!((stats.queue_full, stats.queue_timeout), (0, 0));
}

#[test]
fn a_place_that_another_worker_gives_back_is_taken_at_once() {
    let (listener, addr) = backend();
    let relay = relay(&[format!("{addr},maxconn=1")], |config| {
        config.queue_timeout = PATIENCE * 2;
    });
    std::thread::scope(|scope| {
        scope.spawn(|| (0..400).for_each(|_| drop(accept(&listener))));
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(receive_to_end(&connect(relay.addrs()[0])), b"");
                }
            });
        }
    });
    assert!(relay.stats().queued > 0);
}

#[test]
fn a_queue_has_an_end_and_so_has_the_time_in_it() {
    for (queue_timeout, full) in [(PATIENCE * 5, true), (MOMENT, false)] {
        let (listener, addr) = backend();
        let relay = relay(&[format!("{addr},maxconn=1")], |config| {
            (config.max_queue, config.queue_timeout) = (1, queue_timeout);
        });
        let served = pair(&relay, &listener);
        let start = Instant::now();
        let waiting = connect(relay.addrs()[0]);
        if full {
            await_that("one waits", || relay.stats().queued == 1);
            expect_refusal(relay.addrs()[0]);
            drop(waiting);
        } else {
            expect_reset(&waiting);
            assert!(start.elapsed() >= queue_timeout, "{:?}", start.elapsed());
            converse(&served);
            // Nobody is in the way of the next.
            part(served);
            part(pair(&relay, &listener));
        }
        let stats = relay.stats();
        assert_eq!((stats.queue_full, stats.queue_timeout), (u64::from(full), u64::from(!full)));
    }
}

/// Two backends with room for one each, before which clients stand in lines of their own.
struct Lines {
    relay: Relay,
    backends: [(TcpListener, SocketAddr); 2],
}

/// What a client says first. A backend that has read it knows that the relay has seen the connection
/// made: one that ends before that is an attempt that failed.
const FIRST: &[u8] = b"first";

/// The next client of a backend.
fn accept_heard(listener: &TcpListener) -> TcpStream {
    let served = accept(listener);
    assert_eq!(receive(&served, FIRST.len()), FIRST);
    served
}

impl Lines {
    fn new() -> Lines {
        let backends = [backend(), backend()];
        let all = backends.each_ref().map(|(_, addr)| format!("{addr},maxconn=1"));
        let relay = relay(&all, |config| {
            (config.balance, config.accept_proxy) = (Balance::Source, true);
            config.queue_timeout = PATIENCE * 2;
        });
        Lines { relay, backends }
    }

    /// A client with the address 10.0.0.`n`.
    fn client(&self, n: u8) -> TcpStream {
        let client = connect(self.relay.addrs()[0]);
        send_all(&client, format!("PROXY TCP4 10.0.0.{n} 10.0.1.1 1 1\r\n").as_bytes());
        send_all(&client, FIRST);
        client
    }

    /// One client of each backend.
    fn clients(&self) -> [u8; 2] {
        let (first, second): (Vec<u8>, Vec<u8>) = (1..=8).partition(|n| self.is_of_first(*n));
        [first[0], second[0]]
    }

    fn is_of_first(&self, n: u8) -> bool {
        let client = self.client(n);
        let mut at = 0;
        await_that("it is served", || {
            let wait = Duration::from_millis(1);
            let found = (0..2).find_map(|i| Some((i, try_accept(&self.backends[i].0, wait)?)));
            found.is_some_and(|(index, served)| {
                assert_eq!(receive(&served, FIRST.len()), FIRST);
                at = index;
                true
            })
        });
        drop(client);
        await_that("it is gone", || self.relay.active() == 0);
        at == 0
    }
}

/// Clients that wait for their own backend do not wait for each other.
#[test]
fn a_line_for_one_backend_holds_up_no_client_of_another() {
    let lines = Lines::new();
    let [one, other] = lines.backends.each_ref().map(|(listener, _)| listener);
    let [n, m] = lines.clients();
    let clients = [n, n, n, m, m, m].map(|n| lines.client(n));
    await_that("four wait", || lines.relay.stats().queued == 4);
    let kept = accept_heard(one);
    for _ in 0..3 {
        abort(accept_heard(other));
    }
    assert!(try_accept(one, MOMENT).is_none());
    abort(kept);
    drop((accept(one), clients));
}

/// While a backend is drained, its clients wait for the other one. Once it is back they are its own
/// again, however many stand between them and the first in the other's line.
#[test]
fn those_that_wait_elsewhere_come_back_with_their_own_backend() {
    let lines = Lines::new();
    let [one, other] = lines.backends.each_ref();
    let [n, m] = lines.clients();
    let set = |to| lines.relay.set_backends(&format!("{}={to}", one.1).parse().unwrap()).unwrap();
    set("drain");
    let queued = || lines.relay.stats().queued;
    let before = queued();
    // One is served, and at least one of each worker's is first in the line.
    let others: Vec<_> = (0..40).map(|_| lines.client(m)).collect();
    let kept = accept_heard(&other.0);
    await_that("the others wait", || queued() == before + 39);
    let own: Vec<_> = (0..300).map(|_| lines.client(n)).collect();
    await_that("all wait", || queued() == before + 339);
    set("ready");
    for _ in 0..300 {
        abort(accept_heard(&one.0));
    }
    assert!(try_accept(&other.0, MOMENT / 10).is_none(), "more than the maximum");
    drop((kept, others, own));
}

#[test]
fn a_backup_serves_while_the_others_are_down() {
    let (socket, main) = bound();
    let (backup, addr) = backend();
    let all = [main.to_string(), format!("{addr},backup")];
    let relay = relay(&all, |config| config.retry_after = MOMENT);
    drop(pair(&relay, &backup));
    rustix::net::listen(&socket, 16).unwrap();
    let main = TcpListener::from(socket);
    await_that("the main one serves again", || {
        let client = connect(relay.addrs()[0]);
        let served = try_accept(&main, Duration::from_millis(20)).is_some();
        drop(client);
        served
    });
}

#[test]
fn a_drained_backend_keeps_its_connections_and_gets_no_more() {
    let (one, two) = (backend(), backend());
    let relay = relay(&[one.1.to_string(), two.1.to_string()], |_| {});
    let set = |setting: String| relay.set_backends(&setting.parse().unwrap());
    set(format!("{}=drain", two.1)).unwrap();
    let kept = pair(&relay, &one.0);
    set(format!("{}=drain {}=ready", one.1, two.1)).unwrap();
    for _ in 0..6 {
        part(pair(&relay, &two.0));
    }
    converse(&kept);
    set(format!("{}=weight=0 {}=ready", two.1, one.1)).unwrap();
    for _ in 0..6 {
        part(pair(&relay, &one.0));
    }
    let expected = format!("{}=ready,weight=1 {}=ready,weight=0", one.1, two.1);
    assert_eq!(relay.backend_settings().to_string(), expected);
    assert_eq!(set("elsewhere:1=drain".into()).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_client_comes_to_the_same_backend_through_every_relay() {
    let all = [backend(), backend(), backend()];
    let addrs = all.each_ref().map(|(_, addr)| addr.to_string());
    let source = |config: &mut Config| config.balance = Balance::Source;
    let relays = [relay(&addrs, source), relay(&addrs, source)];
    let clients: Vec<_> =
        (0..8).flat_map(|_| &relays).map(|relay| connect(relay.addrs()[0])).collect();
    let counts = all
        .each_ref()
        .map(|(listener, _)| std::iter::from_fn(|| try_accept(listener, MOMENT)).count());
    assert!(counts.contains(&clients.len()), "{counts:?}");
}

#[test]
fn a_name_has_all_its_addresses_and_one_that_does_not_resolve_stops_nobody() {
    let (v4, addr) = backend();
    let both = format!("[::1]:{}", addr.port());
    let Ok(v6) = TcpListener::bind(&both) else {
        eprintln!("skipped: a_name_has_all_its_addresses: needs IPv6 on loopback");
        return;
    };
    let all = [format!("localhost:{}", addr.port()), "nowhere.invalid:80".to_string()];
    let relay = relay(&all, |_| {});
    await_that("the name is resolved", || relay.backends().0 > 0);
    for _ in 0..4 {
        let client = connect(relay.addrs()[0]);
        let mut backend = None;
        await_that("it is served", || {
            let next = |listener| try_accept(listener, Duration::from_millis(5));
            backend = next(&v4).or_else(|| next(&v6));
            backend.is_some()
        });
        converse(&Pair { client, backend: backend.unwrap() });
    }
}

#[test]
fn a_relay_to_itself_is_refused() {
    let (listener, addr) = backend();
    drop(listener);
    for (listen, backend) in
        [("127.0.0.1", "127.0.0.1"), ("[::]", "127.0.0.1"), ("0.0.0.0", "0.0.0.0")]
    {
        let [listen, backend] = [listen, backend].map(|ip| format!("{ip}:{}", addr.port()));
        let error = try_relay(std::slice::from_ref(&backend), |config| {
            config.listen = vec![listen.parse().unwrap()];
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&backend), "{error}");
    }
}

#[test]
fn an_attempt_that_this_host_cannot_make_says_nothing_of_the_backend_root() {
    if !lab::testing::root("an_attempt_that_this_host_cannot_make_says_nothing_of_the_backend_root")
    {
        return;
    }
    let lab = Lab::new("local").unwrap();
    let host = lab.host("host").unwrap();
    // A rule of the host's own: sending fails with EPERM, or EACCES.
    host.ip(["route", "add", "prohibit", "198.51.100.0/24"]).unwrap();
    host.run(|| {
        let (listener, addr) = backend();
        // No route at all, a prohibited one, and one that works.
        let all = ["192.0.2.1:80".to_string(), "198.51.100.1:80".to_string(), addr.to_string()];
        let relay = relay(&all, |_| {});
        for _ in 0..8 {
            converse(&pair(&relay, &listener));
        }
        assert_eq!(relay.backends(), (3, 3));
        let stats = relay.stats();
        assert_eq!((stats.connect_failed, stats.no_backend), (0, 0));
        assert!(stats.connect_local >= 2, "{stats:?}");
        // With nothing else, the client is told.
        let relay = self::relay(&all[..2], |_| {});
        expect_refusal(relay.addrs()[0]);
        assert_eq!((relay.stats().no_backend, relay.backends()), (1, (2, 2)));
    })
    .unwrap();
}
