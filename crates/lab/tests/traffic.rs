//! The traffic drivers against themselves: on loopback, over a link, and behind a bridge.

use std::{
    collections::HashSet,
    io::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use cachelane_lab::testing::{comes_true, root};
use cachelane_lab::{
    BridgeOptions, ErrorKind, Host, Lab, LinkOptions,
    traffic::{
        BulkOptions, BulkServer, BulkSession, EchoOptions, EchoServer, ExchangeWindow, Moves,
        RrOptions, RrSession, Then, UdpSender,
    },
};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(10);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn here() -> Host {
    Host::here().expect("a host")
}

/// Runs each driver from `client` to an address of `server`.
fn exercise(client: &Host, server: &Host, address: SocketAddr) {
    bulk(client, server, address, BulkOptions { streams: 2, ..Default::default() });
    let echo = EchoServer::start(server, address, EchoOptions::default()).expect("a server");
    rr(client, echo.address());
    connect(client, &echo);
    drop(echo); // and with it what still waited to be accepted, which would count among the idle
    let echo = EchoServer::start(server, address, EchoOptions::default()).expect("a server");
    idle(client, &echo, 100);
    udp(client, server, address);
}

/// A transfer in which every byte is checked and nothing may be missing.
fn bulk(client: &Host, server: &Host, address: SocketAddr, options: BulkOptions) {
    let options = BulkOptions { verify: true, ..options };
    let server = BulkServer::start(server, address, &options).expect("a server");
    let session = BulkSession::start(client, server.address(), &options).expect("connects");
    let bulk = session.measure(&server, SHORT).expect("bytes arrive");
    assert!(bulk.elapsed >= SHORT && bulk.received > 0, "{bulk:?}, {options:?}");
    let (up, down) = session.finish(&server, LONG).expect("ends in order");
    assert_eq!((up.sent, up.received), (down.received, down.sent), "{options:?}");
    for side in [up, down] {
        assert_eq!((side.corrupt, side.failed), (0, 0), "{options:?}");
    }
}

fn rr(client: &Host, address: SocketAddr) {
    let options = RrOptions { connections: 20, verify: true, ..Default::default() };
    let session = RrSession::start(client, address, &options).expect("connects");
    let window = session.measure(SHORT);
    assert!(window.exchanges > 20 && window.elapsed >= SHORT, "{window:?}");
    assert_eq!((window.errors, window.corrupt), (0, 0), "{window:?}");
    assert_eq!(window.latency.count(), window.exchanges);
    let latency = &window.latency;
    assert!(latency.p50() > Duration::ZERO && latency.p50() <= latency.p99(), "{latency:?}");
}

fn connect(client: &Host, server: &EchoServer) {
    let (before, options) = (server.counters().accepted, RrOptions::default());
    let options = RrOptions { connections: 16, then: Then::Reopen, verify: true, ..options };
    let session = RrSession::start(client, server.address(), &options).expect("starts");
    let window = session.measure(SHORT);
    assert!(window.exchanges > 5, "{window:?}");
    assert_eq!((window.errors, window.corrupt), (0, 0), "{window:?}");
    assert!(server.counters().accepted >= before + window.exchanges);
}

/// Opens connections that do nothing more once they have had an answer.
fn idle(client: &Host, server: &EchoServer, connections: usize) -> RrSession {
    let before = server.counters().answered;
    let options = RrOptions { request: 1, then: Then::Rest, ..Default::default() };
    let options = RrOptions { connections, ..options };
    let session = RrSession::start(client, server.address(), &options).expect("opens");
    let window = session.measure(SHORT);
    assert_eq!((window.exchanges, window.errors), (0, 0), "{window:?}");
    assert_eq!(server.counters().answered, before + connections as u64);
    assert!(server.counters().open >= connections as u64);
    session
}

/// Few enough datagrams that a receive buffer holds them all, so that none may be lost.
fn udp(client: &Host, server: &Host, address: SocketAddr) {
    let receiver = server.run(|| UdpSocket::bind(address)).expect("runs").expect("an address");
    let target = receiver.local_addr().expect("its address");
    let sender = UdpSender::start(client, target, 5_000, 3).expect("a sender");
    std::thread::sleep(SHORT / 2);
    drop(sender);
    receiver.set_nonblocking(true).expect("it is a socket");
    let (mut next, mut ports) = ([0; 3], HashSet::new());
    let mut datagram = [0; 100];
    while let Ok((bytes, from)) = receiver.recv_from(&mut datagram) {
        assert_eq!((bytes, &datagram[..4]), (64, &b"CLud"[..]));
        let flow = u32::from_be_bytes(*datagram[4..].first_chunk().expect("a flow"));
        let number = u64::from_be_bytes(*datagram[8..].first_chunk().expect("a number"));
        let expected = &mut next[flow as usize];
        assert_eq!(number, *expected, "of flow {flow}");
        *expected += 1;
        ports.insert(from);
    }
    assert!(next.iter().sum::<u64>() > 10 && ports.len() == 3, "{next:?} {ports:?}");
}

#[test]
fn drivers_work_on_loopback() {
    exercise(&here(), &here(), LOOPBACK);
    exercise(&here(), &here(), (Ipv6Addr::LOCALHOST, 0).into());
}

#[test]
fn root_drivers_work_over_a_link() {
    if !root("root_drivers_work_over_a_link") {
        return;
    }
    for wire_like in [false, true] {
        let lab = Lab::new("drivers").expect("a lab");
        let (a, b) = (lab.host("client").expect("a host"), lab.host("server").expect("a host"));
        let options = LinkOptions { wire_like, ..Default::default() };
        let link = lab.link(&a, &b, options).expect("a link");
        exercise(&a, &b, link.b.socket(5000));
        exercise(&a, &b, link.b.socket_v6(5000));
    }
}

#[test]
fn root_drivers_work_behind_a_bridge() {
    if !root("root_drivers_work_behind_a_bridge") {
        return;
    }
    let lab = Lab::new("drivers").expect("a lab");
    let hosts = ["client", "server"].map(|name| lab.host(name).expect("a host"));
    let members = hosts.each_ref();
    let bridge = lab.bridge("switch", &members, BridgeOptions::default()).expect("a bridge");
    let [client, server] = &hosts;
    exercise(client, server, bridge.members[1].socket(5000));
    exercise(client, server, bridge.members[1].socket_v6(5000));
}

#[test]
fn bulk_carries_each_size_without_loss() {
    for write_size in [64, 1000, 1 << 20] {
        let options = BulkOptions { write_size, client_cpus: vec![0], ..Default::default() };
        bulk(&here(), &here(), LOOPBACK, options);
    }
}

#[test]
fn one_bulk_server_serves_several_sessions_in_turn() {
    let options = BulkOptions::default();
    let server = BulkServer::start(&here(), LOOPBACK, &options).expect("a server");
    for _ in 0..3 {
        let session = BulkSession::start(&here(), server.address(), &options).expect("connects");
        session.measure(&server, Duration::ZERO).expect("bytes arrive");
        let (client, server) = session.finish(&server, LONG).expect("ends in order");
        assert!(server.received >= client.sent);
    }
}

#[test]
fn bulk_notices_wrong_bytes_and_resets() {
    let options = BulkOptions { verify: true, ..Default::default() };
    let server = BulkServer::start(&here(), LOOPBACK, &options).expect("a server");
    let mut wrong = TcpStream::connect(server.address()).expect("connects");
    wrong.write_all(&[0, 1, 2, 9]).expect("sends");
    drop(wrong);
    assert!(comes_true(|| server.totals().received == 4 && server.totals().corrupt == 1));
    let reset = TcpStream::connect(server.address()).expect("connects");
    rustix::net::sockopt::set_socket_linger(&reset, Some(Duration::ZERO)).expect("sets it");
    drop(reset);
    assert!(comes_true(|| server.totals().failed == 1));
}

#[test]
fn requests_of_each_size_are_answered() {
    for request in [1, 300, 100_000] {
        let options = EchoOptions { request, ..Default::default() };
        let server = EchoServer::start(&here(), LOOPBACK, options).expect("a server");
        let options = RrOptions { connections: 4, request, verify: true, ..Default::default() };
        let session = RrSession::start(&here(), server.address(), &options).expect("connects");
        let window = session.measure(SHORT);
        assert!(window.exchanges > 5, "{request}: {window:?}");
        assert_eq!((window.errors, window.corrupt), (0, 0), "{request}: {window:?}");
        drop(session);
        assert!(comes_true(|| server.counters().open == 0));
        assert!(server.counters().answered >= window.exchanges);
    }
}

#[test]
fn connections_that_fail_are_counted_and_tried_again() {
    let server = EchoServer::start(&here(), LOOPBACK, EchoOptions::default()).expect("a server");
    let address = server.address();
    let session = RrSession::start(&here(), address, &RrOptions::default()).expect("connects");
    assert!(session.measure(SHORT).exchanges > 0);
    drop(server);
    let broken = session.measure(SHORT);
    assert!(broken.errors > 0 && broken.last_error.is_some(), "{broken:?}");
    let _server = EchoServer::start(&here(), address, EchoOptions::default()).expect("a server");
    assert!(comes_true(|| session.take_window().exchanges > 0));
}

#[test]
fn an_answer_that_never_comes_shows_as_pending() {
    let silent = TcpListener::bind(LOOPBACK).expect("a listener");
    let address = silent.local_addr().expect("its address");
    let session = RrSession::start(&here(), address, &RrOptions::default()).expect("connects");
    let window = session.measure(Duration::from_millis(400));
    assert_eq!((window.exchanges, window.errors), (0, 0));
    assert!(window.longest_pending >= Duration::from_millis(200), "{window:?}");
}

#[test]
fn a_target_where_nobody_listens_is_an_error_that_says_so() {
    // Bound and not listening, so that nobody else takes the port.
    let taken = UdpSocket::bind(LOOPBACK).expect("a port");
    let address = taken.local_addr().expect("its address");
    let bulk = BulkSession::start(&here(), address, &BulkOptions::default()).map(drop);
    assert!(bulk.expect_err("refused").to_string().contains("refused"));
    let options = RrOptions { connect_limit: SHORT, ..Default::default() };
    let rr = RrSession::start(&here(), address, &options).map(drop).expect_err("refused");
    assert_eq!(rr.kind(), ErrorKind::TimedOut);
    assert!(rr.to_string().contains("refused"), "{rr}");
}

#[test]
fn options_out_of_range_are_refused() {
    let bulk = |options: BulkOptions| BulkServer::start(&here(), LOOPBACK, &options).map(drop);
    let server = EchoServer::start(&here(), LOOPBACK, EchoOptions::default()).expect("a server");
    let session =
        |options: BulkOptions| BulkSession::start(&here(), server.address(), &options).map(drop);
    let rr = |options: RrOptions| RrSession::start(&here(), LOOPBACK, &options).map(drop);
    let udp = |rate, flows| UdpSender::start(&here(), LOOPBACK, rate, flows).map(drop);
    let cases = [
        ("write", bulk(BulkOptions { write_size: 63, ..Default::default() })),
        ("streams", bulk(BulkOptions { streams: 0, ..Default::default() })),
        ("cpu", rr(RrOptions { cpu: Some(1 << 20), ..Default::default() })),
        ("request", rr(RrOptions { request: 0, ..Default::default() })),
        ("connections", rr(RrOptions { connections: 1 << 40, ..Default::default() })),
        ("flows", udp(1, 0)),
        ("rate", udp(0, 1)),
        ("CPUs", session(BulkOptions { client_cpus: vec![1 << 20], ..Default::default() })),
    ];
    for (name, result) in cases {
        assert_eq!(result.expect_err(name).kind(), ErrorKind::Invalid, "{name}");
    }
}

#[test]
fn idle_connections_that_break_are_noticed() {
    let server = EchoServer::start(&here(), LOOPBACK, EchoOptions::default()).expect("a server");
    let idle = idle(&here(), &server, 300);
    drop(server);
    assert!(comes_true(|| idle.take_window().errors > 0));
}

#[test]
fn root_thousands_of_connections_are_served_at_once() {
    if !root("root_thousands_of_connections_are_served_at_once") {
        return;
    }
    let lab = Lab::new("many").expect("a lab");
    let (a, b) = (lab.host("client").expect("a host"), lab.host("server").expect("a host"));
    let link = lab.link(&a, &b, LinkOptions::default()).expect("a link");
    let options = EchoOptions { threads: 2, ..Default::default() };
    let server = EchoServer::start(&b, link.b.socket(5000), options).expect("a server");
    let idle = idle(&a, &server, 2_000);
    let options = RrOptions { connections: 1_000, verify: true, ..Default::default() };
    let session = RrSession::start(&a, server.address(), &options).expect("connects");
    let window = session.measure(Duration::from_millis(300));
    assert!(window.exchanges >= 1_000, "{window:?}");
    assert_eq!((window.errors, window.corrupt), (0, 0), "{window:?}");
    assert_eq!(server.counters().open, 3_000);
    assert_eq!(idle.take_window().errors, 0);
}

#[test]
fn threads_take_as_many_connections_as_they_may_and_move() {
    let moves = Moves { cpus: vec![0], every: 5 };
    let options = EchoOptions {
        threads: 4,
        request: 64,
        per_thread: Some(2),
        moves: Some(moves),
        look: true,
        ..Default::default()
    };
    let server = EchoServer::start(&here(), LOOPBACK, options).expect("a server");
    let options = RrOptions { connections: 8, verify: true, ..Default::default() };
    let session = RrSession::start(&here(), server.address(), &options).expect("connects");
    // All eight are answered only if each thread has two of them.
    let fresh = |window: ExchangeWindow| window.exchanges > 100 && window.corrupt == 0;
    assert!(comes_true(|| fresh(session.measure(SHORT)) && server.counters().open == 8));
    let window = session.measure(Duration::from_millis(300));
    assert!(window.longest_pending < Duration::from_millis(250), "{window:?}");
    let counters = server.counters();
    assert!(counters.moves >= counters.answered / 5 - 8, "{counters:?}");
    assert!(counters.looked_at >= counters.answered && counters.looked_at > 0, "{counters:?}");
    assert!(counters.same_cpu <= counters.looked_at, "{counters:?}");
    // A place that is left is taken again.
    drop(session);
    assert!(comes_true(|| server.counters().open == 0));
    let session = RrSession::start(
        &here(),
        server.address(),
        &RrOptions { connections: 8, ..Default::default() },
    );
    assert!(comes_true(|| server.counters().open == 8));
    assert!(session.expect("connects").measure(SHORT).exchanges > 0);
}
