//! Peers relay bytes, report what is wrong, and are gone when they should be.

mod common;

use std::time::Duration;

use cachelane_lab::testing::{comes_true, root};
use cachelane_lab::{
    End, ErrorKind, Host, Lab, LinkOptions,
    peer::{Peer, Program, Proxy, ProxyOptions, installed},
    traffic::{BulkOptions, BulkServer, BulkSession, EchoOptions, EchoServer},
    traffic::{RrOptions, RrSession},
};
use common::lives;

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
        let options = BulkOptions { verify: true, ..Default::default() };
        let server = BulkServer::start(&back.host, back.socket(5000), &options).expect("a server");
        let echo = EchoServer::start(&back.host, back.socket_v6(5001), EchoOptions::default());
        let echo = echo.expect("a server");
        let start = |listen, to| {
            let options = ProxyOptions { threads: 2, ..ProxyOptions::new(listen, to) };
            Peer::proxy(&lab, &front.host, proxy, &options).expect("it starts")
        };
        let bulk_peer = start(front.socket(4000), server.address());
        let rr_peer = start(front.socket_v6(4001), echo.address());
        let pids = bulk_peer.pids();
        assert_eq!(pids.len(), processes, "{proxy:?}");

        let session = BulkSession::start(&client, bulk_peer.listen(), &options).expect("connects");
        session.measure(&server, Duration::from_millis(200)).expect("bytes arrive");
        assert!(bulk_peer.memory().expect("it runs") > 1 << 20, "{proxy:?}");
        let (up, down) = session.finish(&server, LONG).expect("ends in order");
        assert_eq!(up.sent, down.received, "{proxy:?}");
        assert_eq!((up.corrupt, down.corrupt, up.failed, down.failed), (0, 0, 0, 0), "{proxy:?}");

        let options = RrOptions { connections: 50, verify: true, ..Default::default() };
        let session = RrSession::start(&client, rr_peer.listen(), &options).expect("connects");
        let window = session.measure(Duration::from_millis(100));
        assert!(window.exchanges > 0, "{proxy:?}: {window:?}");
        assert_eq!((window.errors, window.corrupt), (0, 0), "{proxy:?}: {window:?}");

        drop(bulk_peer);
        assert!(comes_true(|| pids.iter().all(|pid| !lives(*pid))));
    }
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
