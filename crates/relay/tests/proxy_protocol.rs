//! PROXY protocol headers on the wire: sent to backends, taken from clients, refused when bad.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cachelane_relay::proxy::{self, Parsed};
use cachelane_relay::{Config, Engine, ProxyHeader, Relay};
use common::*;

const FROM: &str = "192.0.2.7:4711";
const TO: &str = "198.51.100.9:443";

fn header() -> Vec<u8> {
    proxy::write(Some((FROM.parse().unwrap(), TO.parse().unwrap())))
}

fn rig(engine: Engine, accept: bool, send: bool) -> Rig {
    Rig::with(engine, |config| {
        (config.accept_proxy, config.send_proxy) = (accept, send.then_some(ProxyHeader::V2));
        config.connect_timeout = Duration::from_millis(400);
    })
}

/// Reads a header as a backend does, and returns the addresses in it.
fn addresses(stream: &std::net::TcpStream, length: usize) -> Option<(SocketAddr, SocketAddr)> {
    match proxy::parse(&receive(stream, length)) {
        Parsed::Header(header) if header.length == length => header.addresses,
        other => panic!("not a header of {length} bytes: {other:?}"),
    }
}

on_every_engine! {
    a_sent_header_names_the_client_before_its_bytes,
    an_accepted_header_is_not_passed_on_and_what_follows_is,
}

fn a_sent_header_names_the_client_before_its_bytes(engine: Engine) {
    let rig = rig(engine, false, true);
    for _ in 0..20 {
        let pair = rig.pair();
        send_all(&pair.client, b"hello");
        let expected = (pair.client.local_addr().unwrap(), rig.relay.addrs()[0]);
        assert_eq!(addresses(&pair.backend, 28), Some(expected));
        assert_eq!(receive(&pair.backend, 5), b"hello");
        converse(&pair);
        part(pair);
    }
    // The greeting must not upset the sockmap engine's reckoning of what was sent.
    let pair = rig.pair();
    addresses(&pair.backend, 28);
    let bulk = vec![1; 3 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&pair.client, &bulk));
        assert!(receive(&pair.backend, bulk.len()) == bulk);
    });
    converse(&pair);
    part(pair);
}

fn an_accepted_header_is_not_passed_on_and_what_follows_is(engine: Engine) {
    let rig = rig(engine, true, false);
    let glued = [header(), b"data".to_vec()].concat();
    let unnamed = [proxy::write(None), b"data".to_vec()].concat();
    for (bytes, piece) in [(&glued, 1), (&glued, 7), (&glued, 27), (&glued, 99), (&unnamed, 3)] {
        let client = connect(rig.relay.addrs()[0]);
        for part in bytes.chunks(piece) {
            send_all(&client, part);
        }
        let pair = Pair { client, backend: accept(&rig.listener) };
        assert_eq!(receive(&pair.backend, 4), b"data", "in pieces of {piece}");
        converse(&pair);
        part(pair);
    }
    // A header and nothing more is a client that waits for the backend to speak.
    let client = connect(rig.relay.addrs()[0]);
    send_all(&client, &header());
    let pair = Pair { client, backend: accept(&rig.listener) };
    send_all(&pair.backend, b"banner");
    assert_eq!(receive(&pair.client, 6), b"banner");
    part(pair);
    assert_eq!(rig.relay.stats().bad_proxy_header, 0);
}

#[test]
fn an_ipv6_client_is_named_as_such_and_a_mapped_one_as_ipv4() {
    for (listen, ip, length) in
        [("[::1]:0", "::1", 52), ("[::]:0", "127.0.0.1", 28), ("[::]:0", "::1", 52)]
    {
        let (listener, addr) = backend();
        let listen = vec![listen.parse().unwrap()];
        let config =
            Config { listen, send_proxy: Some(ProxyHeader::V2), ..config(Engine::Auto, &[addr]) };
        let relay = Relay::start(config).unwrap();
        let at = SocketAddr::new(ip.parse().unwrap(), relay.addrs()[0].port());
        let client = connect(at);
        let backend = accept(&listener);
        assert_eq!(addresses(&backend, length), Some((client.local_addr().unwrap(), at)), "{ip}");
    }
}

#[test]
fn a_line_of_text_is_sent_and_accepted_as_well() {
    let rig = Rig::with(Engine::Auto, |config| {
        (config.accept_proxy, config.send_proxy) = (true, Some(ProxyHeader::V1));
    });
    let line = "PROXY TCP4 192.0.2.7 198.51.100.9 4711 443\r\n".to_string();
    for header in [line.clone().into_bytes(), header()] {
        for piece in [1, 5, 200] {
            let client = connect(rig.relay.addrs()[0]);
            for part in [&header[..], b"data"].concat().chunks(piece) {
                send_all(&client, part);
            }
            let pair = Pair { client, backend: accept(&rig.listener) };
            assert_eq!(receive(&pair.backend, line.len()), line.as_bytes());
            assert_eq!(receive(&pair.backend, 4), b"data");
            converse(&pair);
            part(pair);
        }
    }
    // Who is not named by the header is named by the connection.
    let client = connect(rig.relay.addrs()[0]);
    send_all(&client, b"PROXY UNKNOWN\r\n");
    let backend = accept(&rig.listener);
    let (from, to) = (client.local_addr().unwrap(), rig.relay.addrs()[0]);
    let line = format!("PROXY TCP4 {} {} {} {}\r\n", from.ip(), to.ip(), from.port(), to.port());
    assert_eq!(receive(&backend, line.len()), line.as_bytes());
}

/// With the smallest budget, whose chunk and receive buffer are smaller than the header.
#[test]
fn the_longest_header_is_taken_off_whole() {
    let rig = Rig::with(Engine::Auto, |config| {
        (config.accept_proxy, config.send_proxy) = (true, Some(ProxyHeader::V2));
        config.budget = Config::MIN_BUDGET;
    });
    for (family, named) in [(0x11, true), (0x21, true), (0x31, false), (0x00, false)] {
        let mut header = proxy::write(Some((FROM.parse().unwrap(), TO.parse().unwrap())));
        if family == 0x21 {
            let v6 = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 1);
            header = proxy::write(Some((v6("2001:db8::1"), v6("2001:db8::2"))));
        }
        header[13] = family;
        header[14..16].copy_from_slice(&[0xff, 0xff]);
        header.resize(16 + 0xffff, 0x04);
        header.extend(b"data");
        let client = connect(rig.relay.addrs()[0]);
        send_all(&client, &header);
        let backend = accept(&rig.listener);
        let length = if family == 0x21 { 52 } else { 28 };
        let (from, _) = addresses(&backend, length).unwrap();
        assert_eq!(from != client.local_addr().unwrap(), named, "family {family:#x}");
        assert_eq!(receive(&backend, 4), b"data");
        converse(&Pair { client, backend });
    }
    assert_eq!(rig.relay.stats().bad_proxy_header, 0);
}

#[test]
fn a_header_is_handed_down_by_a_chain_of_relays() {
    let rig = rig(Engine::Auto, true, true);
    for (sent, expected) in
        [(header(), Some((FROM.parse().unwrap(), TO.parse().unwrap()))), (proxy::write(None), None)]
    {
        let client = connect(rig.relay.addrs()[0]);
        send_all(&client, &sent);
        let backend = accept(&rig.listener);
        let expected =
            expected.unwrap_or_else(|| (client.local_addr().unwrap(), rig.relay.addrs()[0]));
        assert_eq!(addresses(&backend, 28), Some(expected));
    }
}

#[test]
fn a_client_without_a_good_header_gets_a_reset_and_no_backend_hears_of_it() {
    let rig = rig(Engine::Auto, true, false);
    let served = {
        let client = connect(rig.relay.addrs()[0]);
        send_all(&client, &header());
        Pair { client, backend: accept(&rig.listener) }
    };
    let mut version = header();
    version[12] = 0x11;
    let cases = [
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec(), Duration::ZERO),
        ("another version", version, Duration::ZERO),
        ("half a line", b"PROXY TCP4 1.2.3.4 ".to_vec(), Duration::from_millis(400)),
        ("a line too long", [b"PROXY ".as_slice(), &[b'x'; 200]].concat(), Duration::ZERO),
        ("a line of nothing", b"PROXY \r\n".to_vec(), Duration::ZERO),
        ("nothing", Vec::new(), Duration::from_millis(400)),
        ("half a header", header()[..20].to_vec(), Duration::from_millis(400)),
    ];
    let count = cases.len() as u64;
    for (name, bytes, wait) in cases {
        let start = Instant::now();
        let client = connect(rig.relay.addrs()[0]);
        send_all(&client, &bytes);
        expect_reset(&client);
        assert!(start.elapsed() >= wait, "{name}: reset after {:?}", start.elapsed());
    }
    for bytes in [Vec::new(), header()[..20].to_vec()] {
        let client = connect(rig.relay.addrs()[0]);
        send_all(&client, &bytes);
        let start = Instant::now();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        expect_reset(&client);
        // It cannot become a header any more: nothing is left to wait for.
        assert!(start.elapsed() < Duration::from_millis(300), "{:?}", start.elapsed());
    }
    assert_eq!(rig.relay.stats().bad_proxy_header, count + 2);
    assert!(try_accept(&rig.listener, Duration::ZERO).is_none());
    converse(&served);
}
