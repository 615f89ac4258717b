//! The traffic drivers against themselves: on loopback, over a link, and behind a bridge.

use std::{
    io::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use cachelane_lab::testing::{comes_true, root};
use cachelane_lab::{
    BridgeOptions, ErrorKind, Host, Lab, LinkOptions,
    traffic::{
        BulkOptions, BulkServer, BulkSession, Close, ConnectOptions, ConnectSession, Direction,
        EchoOptions, EchoServer, ExchangeWindow, IdleSession, Moves, RrOptions, RrSession,
        UdpOptions, UdpReceiver, UdpSender,
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
    connect(client, echo.address(), Close::Client);
    let mut idle = IdleSession::open(client, echo.address(), 100, LONG).expect("opens");
    assert_eq!((idle.ping(LONG).expect("pings"), idle.held()), (100, 100));
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
    assert_eq!((up.sent, down.sent), (down.received, up.received), "{options:?}");
    assert_eq!(up.sent > 0, options.direction != Direction::Download);
    assert_eq!(down.sent > 0, options.direction != Direction::Upload);
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

fn connect(client: &Host, address: SocketAddr, close: Close) {
    let options = ConnectOptions { close, verify: true, ..Default::default() };
    let session = ConnectSession::start(client, address, &options).expect("starts");
    let window = session.measure(SHORT);
    assert!(window.exchanges > 5, "{close:?}: {window:?}");
    assert_eq!((window.errors, window.corrupt), (0, 0), "{close:?}: {window:?}");
}

/// Few enough datagrams that a receive buffer holds them all, so that none may be lost.
fn udp(client: &Host, server: &Host, address: SocketAddr) {
    let receiver = UdpReceiver::start(server, address, None).expect("a receiver");
    let options =
        UdpOptions { flows: 3, rate: Some(5_000), count: Some(200), ..Default::default() };
    let sender = UdpSender::start(client, receiver.address(), &options).expect("a sender");
    assert_eq!(sender.finish(), 200);
    assert!(comes_true(|| receiver.counters().total().received == 200));
    let counters = receiver.counters();
    let total = counters.total();
    assert_eq!((counters.flows.len(), counters.foreign), (3, 0));
    assert_eq!((total.missing(), total.reordered, total.duplicates), (0, 0, 0), "{total:?}");
    assert_eq!((total.span, total.bytes), (200, 200 * 64));
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
fn bulk_carries_each_direction_and_size_without_loss() {
    for direction in [Direction::Upload, Direction::Download, Direction::Both] {
        for write_size in [64, 1000, 1 << 20] {
            let cpus = vec![0];
            let options = BulkOptions {
                direction,
                write_size,
                client_cpus: cpus.clone(),
                server_cpus: cpus,
                ..Default::default()
            };
            bulk(&here(), &here(), LOOPBACK, options);
        }
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
fn a_slow_receiver_holds_the_sender_back() {
    let (rate, buffer) = (1_000_000, 64 << 10);
    let options = BulkOptions {
        receive_rate: Some(rate),
        receive_buffer: Some(buffer),
        ..Default::default()
    };
    let server = BulkServer::start(&here(), LOOPBACK, &options).expect("a server");
    let session = BulkSession::start(&here(), server.address(), &options).expect("connects");
    let bulk = session.measure(&server, Duration::from_millis(500)).expect("bytes arrive");
    let share = bulk.rate() / rate as f64;
    assert!((0.5..=2.0).contains(&share), "{bulk:?}");
    let ahead = session.totals().sent - server.totals().received;
    assert!(ahead < 8 << 20, "{ahead} bytes wait");
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
    server.wait(LONG).expect("all streams have ended");
}

#[test]
fn answers_may_have_another_size_than_requests() {
    for (request, response) in [(1, 1), (1, 100_000), (100_000, 1), (300, 5_000)] {
        let options = EchoOptions { request, response: Some(response), ..Default::default() };
        let server = EchoServer::start(&here(), LOOPBACK, options).expect("a server");
        let options = RrOptions { connections: 4, request, response, ..Default::default() };
        let session = RrSession::start(&here(), server.address(), &options).expect("connects");
        let window = session.measure(SHORT);
        assert!(window.exchanges > 5, "{request} → {response}: {window:?}");
        assert_eq!(window.errors, 0, "{request} → {response}: {window:?}");
        drop(session);
        assert!(comes_true(|| server.counters().open == 0));
        assert!(server.counters().answered >= window.exchanges);
    }
}

#[test]
fn connections_can_be_closed_by_either_side_or_reset() {
    for close in [Close::Client, Close::Reset, Close::Server] {
        let close_after = (close == Close::Server).then_some(1);
        let options = EchoOptions { request: 64, close_after, threads: 2, ..Default::default() };
        let server = EchoServer::start(&here(), LOOPBACK, options).expect("a server");
        connect(&here(), server.address(), close);
        assert!(server.counters().accepted > 5);
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
    let idle = IdleSession::open(&here(), address, 10, LONG).map(drop).expect_err("refused");
    assert!(idle.to_string().contains("refused"), "{idle}");
}

#[test]
fn options_out_of_range_are_refused() {
    let bulk = |options: BulkOptions| BulkServer::start(&here(), LOOPBACK, &options).map(drop);
    let rr = |options: RrOptions| RrSession::start(&here(), LOOPBACK, &options).map(drop);
    let udp = |options: UdpOptions| UdpSender::start(&here(), LOOPBACK, &options).map(drop);
    let cases = [
        ("write", bulk(BulkOptions { write_size: 63, ..Default::default() })),
        ("read", bulk(BulkOptions { read_size: (1 << 20) + 1, ..Default::default() })),
        ("streams", bulk(BulkOptions { streams: 0, ..Default::default() })),
        ("rate", bulk(BulkOptions { receive_rate: Some(0), ..Default::default() })),
        ("cpu", rr(RrOptions { cpu: Some(1 << 20), ..Default::default() })),
        ("request", rr(RrOptions { request: 0, ..Default::default() })),
        ("verify", rr(RrOptions { response: 65, verify: true, ..Default::default() })),
        ("connections", rr(RrOptions { connections: 1 << 40, ..Default::default() })),
        ("size", udp(UdpOptions { size: 15, ..Default::default() })),
        ("flows", udp(UdpOptions { flows: 0, ..Default::default() })),
        ("idle", IdleSession::open(&here(), LOOPBACK, 1 << 40, SHORT).map(drop)),
    ];
    for (name, result) in cases {
        assert_eq!(result.expect_err(name).kind(), ErrorKind::Invalid, "{name}");
    }
}

#[test]
fn idle_connections_that_break_are_noticed() {
    let server = EchoServer::start(&here(), LOOPBACK, EchoOptions::default()).expect("a server");
    let mut idle = IdleSession::open(&here(), server.address(), 300, LONG).expect("opens");
    assert_eq!(server.counters().open, 300);
    drop(server);
    assert_eq!(idle.ping(LONG).expect("pings"), 0);
    assert_eq!(idle.held(), 0);
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
    let mut idle = IdleSession::open(&a, server.address(), 2_000, LONG).expect("opens");
    let options = RrOptions { connections: 1_000, verify: true, ..Default::default() };
    let session = RrSession::start(&a, server.address(), &options).expect("connects");
    let window = session.measure(Duration::from_millis(300));
    assert!(window.exchanges >= 1_000, "{window:?}");
    assert_eq!((window.errors, window.corrupt), (0, 0), "{window:?}");
    assert_eq!(server.counters().open, 3_000);
    assert_eq!(idle.ping(LONG).expect("pings"), 2_000);
}

#[test]
fn a_sender_without_a_count_sends_until_it_is_finished() {
    let receiver = UdpReceiver::start(&here(), LOOPBACK, Some(0)).expect("a receiver");
    let options = UdpOptions { rate: Some(1_000), cpu: Some(0), ..Default::default() };
    let sender = UdpSender::start(&here(), receiver.address(), &options).expect("a sender");
    assert!(comes_true(|| receiver.counters().total().received >= 100));
    let sent = sender.finish();
    assert!(sent >= 100);
    assert!(comes_true(|| receiver.counters().total().span == sent));
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
