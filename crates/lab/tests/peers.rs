//! Peers relay bytes, report what is wrong, and are gone when they should be.

use std::time::Duration;

use cachelane_lab::testing::{comes_true, root};
use cachelane_lab::{
    End, ErrorKind, Host, Lab, LinkOptions,
    peer::{Iperf3Options, Peer, Program, Proxy, ProxyOptions, installed, iperf3},
    traffic::{BulkOptions, BulkServer, BulkSession, Direction, EchoOptions, EchoServer},
    traffic::{RrOptions, RrSession},
    usage,
};

const LONG: Duration = Duration::from_secs(10);

/// A client, a relay and a server in a row.
struct Row {
    lab: Lab,
    client: Host,
    front: End,
    back: End,
}

fn row() -> Row {
    let lab = Lab::new("row").expect("a lab");
    let host = |name| lab.host(name).expect("a host");
    let (client, relay, server) = (host("client"), host("relay"), host("server"));
    let front = lab.link(&client, &relay, LinkOptions::default()).expect("a link").b;
    let back = lab.link(&relay, &server, LinkOptions::default()).expect("a link").b;
    Row { lab, client, front, back }
}

/// Whether a program is there; says so on stderr if not.
fn has(program: Program, test: &str) -> bool {
    let found = installed(program).is_some();
    if !found {
        eprintln!("skipped: {test}: needs {}", program.name());
    }
    found
}

#[test]
fn root_each_proxy_relays_bytes_unchanged() {
    let name = "root_each_proxy_relays_bytes_unchanged";
    if !root(name) {
        return;
    }
    let proxies = [
        (Proxy::Haproxy { splice: false }, 1),
        (Proxy::Haproxy { splice: true }, 1),
        (Proxy::Nginx { buffer: None }, 3),
        (Proxy::Nginx { buffer: Some(256 << 10) }, 3),
    ];
    for (proxy, processes) in proxies {
        if !has(proxy.program(), name) {
            continue;
        }
        let Row { lab, client, front, back } = row();
        let options =
            BulkOptions { direction: Direction::Both, verify: true, ..Default::default() };
        let server = BulkServer::start(&back.host, back.socket(5000), &options).expect("a server");
        let echo = EchoServer::start(&back.host, back.socket_v6(5001), EchoOptions::default());
        let echo = echo.expect("a server");
        let start = |listen, to| {
            let options =
                ProxyOptions { threads: 2, cpus: vec![0], ..ProxyOptions::new(listen, to) };
            Peer::proxy(&lab, &front.host, proxy, &options).expect("it starts")
        };
        let bulk_peer = start(front.socket(4000), server.address());
        let rr_peer = start(front.socket_v6(4001), echo.address());
        let pids = bulk_peer.pids();
        assert_eq!(pids.len(), processes, "{proxy:?}");

        let session = BulkSession::start(&client, bulk_peer.listen(), &options).expect("connects");
        let before = bulk_peer.cpu().expect("it runs");
        session.measure(&server, Duration::from_millis(200)).expect("bytes arrive");
        assert!(bulk_peer.cpu().expect("it runs") > before, "{proxy:?}");
        assert!(bulk_peer.memory().expect("it runs").rss > 1 << 20, "{proxy:?}");
        let (up, down) = session.finish(&server, LONG).expect("ends in order");
        assert_eq!((up.sent, down.sent), (down.received, up.received), "{proxy:?}");
        assert_eq!((up.corrupt, down.corrupt, up.failed, down.failed), (0, 0, 0, 0), "{proxy:?}");

        let options = RrOptions { connections: 50, verify: true, ..Default::default() };
        let session = RrSession::start(&client, rr_peer.listen(), &options).expect("connects");
        let window = session.measure(Duration::from_millis(100));
        assert!(window.exchanges > 0, "{proxy:?}: {window:?}");
        assert_eq!((window.errors, window.corrupt), (0, 0), "{proxy:?}: {window:?}");

        bulk_peer.stop().expect("it ends");
        assert!(comes_true(|| pids.iter().all(|pid| usage::start_time(*pid).is_none())));
    }
}

#[test]
fn root_iperf3_measures_both_directions() {
    let name = "root_iperf3_measures_both_directions";
    if !root(name) || !has(Program::Iperf3, name) {
        return;
    }
    let Row { lab, client, front, .. } = row();
    let peer = Peer::iperf3_server(&lab, &front.host, front.socket(5201)).expect("it starts");
    for reverse in [false, true] {
        let options = Iperf3Options { reverse, streams: 2, ..Default::default() };
        let report = iperf3(&client, peer.listen(), &options).expect("it measures");
        assert!(report.received > 100_000 && report.rate() > 100_000.0, "{report:?}");
        assert!(report.elapsed > Duration::from_millis(500), "{report:?}");
    }
    peer.stop().expect("it ends");
    let error = iperf3(&client, front.socket(5201), &Iperf3Options::default()).expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Command);
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn root_a_peer_that_cannot_start_says_why() {
    let name = "root_a_peer_that_cannot_start_says_why";
    if !root(name) || !has(Program::Haproxy, name) || !has(Program::Nginx, name) {
        return;
    }
    let Row { lab, front, back, .. } = row();
    let nginx = Proxy::Nginx { buffer: None };
    let haproxy = Proxy::Haproxy { splice: false };
    // An address that the host does not have.
    let foreign = ProxyOptions::new(back.socket(4000), back.socket(5000));
    let cases = [(haproxy, "cannot bind"), (nginx, "Cannot assign requested address")];
    for (proxy, part) in cases {
        let error = Peer::proxy(&lab, &front.host, proxy, &foreign).expect_err("it cannot");
        assert_eq!(error.kind(), ErrorKind::Command, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let options = ProxyOptions::new(front.socket(4000), back.socket(5000));
    let _first = Peer::proxy(&lab, &front.host, haproxy, &options).expect("it starts");
    let error = Peer::proxy(&lab, &front.host, nginx, &options).expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let none = ProxyOptions { threads: 0, ..options };
    let error = Peer::proxy(&lab, &front.host, haproxy, &none).expect_err("no threads");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
