//! Who is let in by address, and whose PROXY headers are taken.

mod common;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use cachelane_relay::{
    AccessLog, AddressEntry, Config, Engine, LogFormat, LogSample, LogTarget, proxy,
};
use common::*;
use serde_json::Value;

fn list(entries: &str) -> Vec<AddressEntry> {
    entries.split_whitespace().map(|entry| entry.parse().unwrap()).collect()
}

fn header(from: &str) -> Vec<u8> {
    proxy::write(Some((from.parse().unwrap(), "198.51.100.9:443".parse().unwrap())))
}

/// A relay to where the client connects, for both families.
fn dual(adjust: impl FnOnce(&mut Config)) -> Rig {
    Rig::with(Engine::Auto, |config| {
        config.listen = vec!["[::]:0".parse().unwrap()];
        adjust(config);
    })
}

fn at(rig: &Rig, ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), rig.relay.addrs()[0].port())
}

/// A client from this address is served, and the first bytes that its backend gets are `expected`.
#[track_caller]
fn serves(rig: &Rig, from: &str, to: &str, sent: &[u8], expected: &[u8]) {
    let client = connect_from(from, at(rig, to)).unwrap();
    send_all(&client, sent);
    let pair = Pair { client, backend: accept(&rig.listener) };
    assert_eq!(receive(&pair.backend, expected.len()), expected, "{from}");
    converse(&pair);
    part(pair);
}

fn logged(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn clients_that_the_lists_do_not_let_in_are_reset_logged_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let rig = dual(|config| {
        config.allow = list("127.0.0.0/8 ::1");
        config.deny = list("127.0.0.2 127.1.0.0/16");
        let (target, sample) = (LogTarget::File(path.clone()), LogSample::default());
        config.access_log = Some(AccessLog { target, format: LogFormat::Json, sample });
    });
    let refused = ["127.0.0.2", "127.1.2.3", "127.1.255.255"];
    for from in refused {
        expect_refusal_of(from, at(&rig, "127.0.0.1"));
    }
    assert_eq!(rig.relay.stats().denied, refused.len() as u64);
    assert_eq!(rig.relay.statistics().listeners[0].refused, refused.len() as u64);
    await_that("lines", || logged(&path).len() == refused.len());
    let mut clients = Vec::new();
    for line in logged(&path) {
        let client: SocketAddr = line["client"].as_str().unwrap().parse().unwrap();
        clients.push(client.ip().to_string());
        assert_eq!((&line["state"], &line["backend"]), (&"PR".into(), &Value::Null), "{line}");
    }
    clients.sort();
    assert_eq!(clients, refused);
    assert!(try_accept(&rig.listener, Duration::ZERO).is_none());
    for (from, to) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.3", "127.0.0.1"), ("::1", "::1")] {
        serves(&rig, from, to, b"", b"");
    }
}

#[test]
fn the_lists_judge_the_address_in_a_proxy_header() {
    let rig = dual(|config| {
        config.accept_proxy = true;
        config.allow = list("192.0.2.0/24 127.0.0.3");
    });
    serves(&rig, "127.0.0.1", "127.0.0.1", &header("192.0.2.7:1"), b"");
    // A header that names nobody leaves the peer's own address.
    serves(&rig, "127.0.0.3", "127.0.0.1", &proxy::write(None), b"");
    for sent in [header("198.51.100.7:1"), header("[2001:db8::1]:1"), proxy::write(None)] {
        let client = connect(at(&rig, "127.0.0.1"));
        send_all(&client, &sent);
        expect_reset(&client);
    }
    let stats = rig.relay.stats();
    assert_eq!((stats.denied, stats.bad_proxy_header), (3, 0));
    assert!(try_accept(&rig.listener, Duration::ZERO).is_none());
}

#[test]
fn headers_are_taken_from_trusted_peers_alone_and_all_others_are_plain_clients() {
    let rig = dual(|config| {
        config.accept_proxy = true;
        config.proxy_from = list("127.0.0.2 ::1");
        config.deny = list("192.0.2.1 127.0.0.9");
        config.connect_timeout = Duration::from_millis(400);
    });
    serves(&rig, "127.0.0.2", "127.0.0.1", &[header("192.0.2.7:1"), b"x".into()].concat(), b"x");
    serves(&rig, "::1", "::1", &header("192.0.2.7:1"), b"");
    // What looks like a header is no more than bytes of a client that is not to be believed, also
    // where the name in it would be refused.
    for from in ["192.0.2.7:1", "192.0.2.1:1"] {
        serves(&rig, "127.0.0.3", "127.0.0.1", &header(from), &header(from));
    }
    // It need not send anything first.
    serves(&rig, "127.0.0.1", "127.0.0.1", b"", b"");
    assert_eq!(rig.relay.stats().bad_proxy_header, 0);
    // A trusted peer has to send one; a plain client is judged by its own address.
    let silent = connect_from("127.0.0.2", at(&rig, "127.0.0.1")).unwrap();
    expect_reset(&silent);
    let named = connect_from("127.0.0.2", at(&rig, "127.0.0.1")).unwrap();
    send_all(&named, &header("192.0.2.1:1"));
    expect_reset(&named);
    expect_refusal_of("127.0.0.9", at(&rig, "127.0.0.1"));
    let stats = rig.relay.stats();
    assert_eq!((stats.bad_proxy_header, stats.denied), (1, 2));
}

#[test]
fn lists_that_are_read_again_hold_for_new_connections() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rig = dual(|config| config.deny = vec![AddressEntry::File(file.path().into())]);
    let served = rig.relay.addrs()[0];
    let pair = Pair { client: connect(at(&rig, "127.0.0.1")), backend: accept(&rig.listener) };
    fs::write(file.path(), "127.0.0.0/8 # all of them\n").unwrap();
    rig.relay.reread_addresses().unwrap();
    expect_refusal_of("127.0.0.1", at(&rig, "127.0.0.1"));
    converse(&pair);
    fs::write(file.path(), "10.0.0.0/8\nnobody\n").unwrap();
    let error = rig.relay.reread_addresses().unwrap_err().to_string();
    let line = format!("{}:2: 'nobody'", file.path().display());
    assert!(error.contains(&line), "{error}");
    expect_refusal_of("127.0.0.1", at(&rig, "127.0.0.1"));
    fs::write(file.path(), "").unwrap();
    rig.relay.reread_addresses().unwrap();
    serves(&rig, "127.0.0.1", "127.0.0.1", b"", b"");
    part(pair);
    assert_eq!(rig.relay.addrs()[0], served);
}
