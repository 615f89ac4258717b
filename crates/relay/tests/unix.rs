//! Unix sockets, on either side of the relay or on both: what passes, and how it ends.

mod common;

use std::fs;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cachelane_relay::{AccessLog, Engine, LogFormat, LogSample, LogTarget, ProxyHeader, Relay};
use common::pattern::Pattern;
use common::unix::*;
use common::{
    PATIENCE, await_that, expect_refusal, expect_reset, fill, own_cpus, race, ready, receive,
    receive_to_end, send_all, shrink_buffers,
};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};

on_every_engine! {
    sixty_four_mib_pass_both_ways_at_once,
    a_half_close_passes_and_the_other_side_still_answers,
    whoever_closes_at_once_has_sent_all,
    a_close_with_unread_bytes_is_a_reset,
    a_slow_reader_costs_no_more_than_the_budget,
}

/// Sends the stream of `seed`, and checks that it arrives, and its end with it.
fn carry(from: &TcpStream, to: &TcpStream, seed: u64) {
    const ALL: u64 = 64 << 20;
    const PIECE: usize = 256 * 1024;
    let pattern = Pattern::new(seed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for offset in (0..ALL).step_by(PIECE) {
                send_all(from, pattern.at(offset, PIECE));
            }
            from.shutdown(Shutdown::Write).unwrap();
        });
        for offset in (0..ALL).step_by(PIECE) {
            pattern.check(offset, &receive(to, PIECE));
        }
        assert_eq!(receive_to_end(to), b"");
    });
}

fn sixty_four_mib_pass_both_ways_at_once(engine: Engine) {
    for way in WAYS {
        let rig = Rig::new(way, engine);
        let (client, backend) = rig.pair();
        std::thread::scope(|scope| {
            scope.spawn(|| carry(&client, &backend, 1));
            carry(&backend, &client, 2);
        });
        rig.await_empty();
        let stats = rig.relay.stats();
        assert_eq!((stats.closed, stats.reset, stats.sockmap_taken), (1, 0, 0), "{way:?}");
    }
}

fn a_half_close_passes_and_the_other_side_still_answers(engine: Engine) {
    for way in WAYS {
        let rig = Rig::new(way, engine);
        for place in 0..2 {
            let (client, backend) = rig.pair();
            let (first, second) = if place == 0 { (client, backend) } else { (backend, client) };
            send_all(&first, b"question");
            first.shutdown(Shutdown::Write).unwrap();
            assert_eq!(receive_to_end(&second), b"question", "{way:?}");
            let answer = Pattern::new(3).at(0, 300_000);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    send_all(&second, answer);
                    drop(second);
                });
                assert!(receive_to_end(&first) == answer, "{way:?}");
            });
            rig.await_empty();
        }
        assert_eq!((rig.relay.stats().closed, rig.relay.stats().reset), (2, 0), "{way:?}");
    }
}

/// A Unix socket hangs up when its peer closes, although there are bytes left to read.
fn whoever_closes_at_once_has_sent_all(engine: Engine) {
    for (way, place) in WAYS.into_iter().flat_map(|way| [(way, 0), (way, 1)]) {
        let rig = Rig::with(way, engine, |config| config.budget = 1 << 20);
        let (client, backend) = rig.pair();
        let (writer, reader) = if place == 0 { (client, backend) } else { (backend, client) };
        let pattern = Pattern::new(8);
        shrink_buffers(&reader, 16 * 1024);
        let sent = fill(&writer, |offset| pattern.at(offset, 64 * 1024).to_vec());
        drop(writer);
        let received = receive_to_end(&reader);
        assert_eq!(received.len() as u64, sent, "{way:?}, {place}");
        for (n, piece) in received.chunks(64 * 1024).enumerate() {
            pattern.check((n * 64 * 1024) as u64, piece);
        }
        drop(reader);
        rig.await_empty();
        let stats = rig.relay.stats();
        assert_eq!((stats.closed, stats.reset), (1, 0), "{way:?}, {place}");
    }
}

/// What a Unix socket has of a reset: its peer, too, sees one where the kernel can say so.
fn a_close_with_unread_bytes_is_a_reset(engine: Engine) {
    for (way, place) in [(Way::UnixToTcp, 0), (Way::TcpToUnix, 1)] {
        let in_role =
            |(client, backend)| if place == 0 { (client, backend) } else { (backend, client) };
        let rig = Rig::with(way, engine, |config| config.budget = 1 << 20);
        // From a Unix socket to one of TCP.
        let (unix, tcp) = in_role(rig.pair());
        send_all(&tcp, b"nobody reads this");
        assert!(ready(&unix, PollFlags::IN, PATIENCE));
        drop(unix);
        expect_reset(&tcp);
        // And back, while the relay has yet to read what the Unix socket has sent.
        let (unix, tcp) = in_role(rig.pair());
        fill(&unix, |_| vec![9; 64 * 1024]);
        common::abort(tcp);
        expect_reset(&unix);
        // With nothing unread, it sees an end, and that nobody reads what it sends.
        let (unix, tcp) = in_role(rig.pair());
        common::abort(tcp);
        assert_eq!(receive_to_end(&unix), b"");
        let sent = rustix::net::send(&unix, b"x", SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(Errno::PIPE));
        rig.await_empty();
        assert_eq!((rig.relay.stats().closed, rig.relay.stats().reset), (0, 3), "{way:?}");
    }
}

fn a_slow_reader_costs_no_more_than_the_budget(engine: Engine) {
    let budget = 1 << 20;
    for way in WAYS {
        let rig = Rig::with(way, engine, |config| config.budget = budget);
        for (place, piece) in [(0, race::BULK), (1, race::BULK), (0, 1)] {
            let ends = || {
                let (client, backend) = rig.pair();
                if place == 0 { (client, backend) } else { (backend, client) }
            };
            let name = format!("{engine}, {way:?}, {place}, pieces of {piece}");
            let time = Duration::from_millis(500);
            race::expect_bound(&name, budget, piece, time, ends, &rig.relay);
        }
    }
}

#[test]
fn a_backend_that_says_all_and_closes_at_once_is_heard() {
    for way in [Way::UnixToUnix, Way::TcpToUnix] {
        let rig = Rig::new(way, Engine::Copy);
        for _ in 0..100 {
            let client = connect(&rig.relay.listening_on()[0]);
            send_all(&rig.server.accept(), b"hello");
            assert_eq!(receive_to_end(&client), b"hello");
        }
        assert_eq!(rig.relay.stats().connect_failed, 0);
    }
}

/// A read of a Unix socket stops where files were sent along: the rest must not wait for an event.
#[test]
fn files_that_are_sent_along_are_closed_and_hold_up_nothing() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    for engine in [Engine::Copy, Engine::Splice] {
        let rig = Rig::new(Way::UnixToTcp, engine);
        let (client, backend) = rig.pair();
        for round in 0..50u8 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let bytes = [round; 100];
            let files = [theirs.as_fd()];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut along = SendAncillaryBuffer::new(&mut space);
            assert!(along.push(SendAncillaryMessage::ScmRights(&files)));
            let piece = [std::io::IoSlice::new(&bytes)];
            assert_eq!(sendmsg(&client, &piece, &mut along, SendFlags::empty()).unwrap(), 100);
            send_all(&client, &bytes);
            assert_eq!(receive(&backend, 200), [round; 200], "{engine}");
            drop(theirs);
            assert_eq!(receive_to_end(&stream(ours)), b"", "nobody has the file any more");
        }
    }
}

#[test]
fn whom_a_backend_has_no_room_for_waits_until_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backend");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let server = Server::Unix(socket.into());
    let relay = Relay::start(config(Engine::Auto, &at(&front(&dir)), &at(&path))).unwrap();
    let clients: Vec<_> = (0..10).map(|_| connect(&relay.listening_on()[0])).collect();
    await_that("all have come", || relay.active() == 10);
    clients.iter().for_each(|client| {
        send_all(client, b"?");
        client.shutdown(Shutdown::Write).unwrap();
    });
    for _ in &clients {
        let backend = server.accept();
        assert_eq!(receive_to_end(&backend), b"?");
        send_all(&backend, b"!");
    }
    for client in &clients {
        assert_eq!(receive_to_end(client), b"!");
    }
    assert_eq!(relay.stats().connect_failed, 0);
}

#[test]
fn whom_a_backend_never_has_room_for_is_turned_away_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backend");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let mut config = config(Engine::Auto, "127.0.0.1:0", &at(&path));
    config.connect_timeout = Duration::from_millis(200);
    config.connect_deadline = Duration::from_millis(400);
    let relay = Relay::start(config).unwrap();
    let _held = common::connect(relay.addrs()[0]);
    await_that("it has the one place", || relay.stats().accepted == 1);
    let refused = common::connect(relay.addrs()[0]);
    await_that("it gave up", || relay.stats().no_backend > 0);
    expect_reset(&refused);
    assert!(relay.stats().connect_failed > 0);
}

#[test]
fn a_backend_that_is_not_there_is_down_until_it_comes() {
    for options in ["", ",check,inter=20ms"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backend");
        let mut config = config(Engine::Auto, "127.0.0.1:0", &format!("{}{options}", at(&path)));
        config.retry_after = Duration::from_millis(20);
        let relay = Relay::start(config).unwrap();
        expect_refusal(relay.addrs()[0]);
        assert!(relay.stats().connect_failed > 0 && relay.stats().connect_local == 0);
        let server = Server::unix(&path);
        await_that("it is up", || relay.backends() == (1, 1));
        let client = common::connect(relay.addrs()[0]);
        let mut backend = server.accept();
        if !options.is_empty() {
            // Checks come here, too.
            await_that("the client has come", || {
                send_all(&client, b"x");
                let here = ready(&backend, PollFlags::IN, Duration::from_millis(50))
                    && !receive_some(&backend).is_empty();
                if !here {
                    backend = server.accept();
                }
                here
            });
        }
        client.shutdown(Shutdown::Write).unwrap();
        receive_to_end(&backend);
        drop(backend);
        assert_eq!(receive_to_end(&client), b"");
        assert_eq!(relay.statistics().backends[0].addr, at(&path));
    }
}

fn receive_some(mut from: &TcpStream) -> Vec<u8> {
    use std::io::Read as _;
    let mut bytes = [0; 64];
    let n = from.read(&mut bytes).unwrap();
    bytes[..n].to_vec()
}

#[test]
fn a_proxy_header_names_whom_a_unix_socket_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let local = b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A\x20\x00\x00\x00".as_slice();
    for (version, expected) in
        [(ProxyHeader::V1, b"PROXY UNKNOWN\r\n".as_slice()), (ProxyHeader::V2, local)]
    {
        let rig = Rig::with(Way::UnixToTcp, Engine::Auto, |c| c.send_proxy = Some(version));
        let (client, backend) = rig.pair();
        send_all(&client, b"x");
        assert_eq!(receive(&backend, expected.len() + 1), [expected, b"x"].concat());
    }
    // Told on from the client of another proxy, whose header says who that is.
    let log = dir.path().join("access.log");
    let rig = Rig::with(Way::UnixToUnix, Engine::Auto, |config| {
        (config.accept_proxy, config.send_proxy) = (true, Some(ProxyHeader::V1));
        // One worker logs in order.
        config.cpus = own_cpus().into_iter().take(1).collect();
        config.access_log = Some(AccessLog {
            target: LogTarget::File(log.clone()),
            format: LogFormat::Json,
            sample: LogSample::default(),
        });
    });
    let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n";
    for (header, passed) in [(line.as_slice(), line.as_slice()), (local, b"PROXY UNKNOWN\r\n")] {
        let client = connect(&rig.relay.listening_on()[0]);
        send_all(&client, &[header, b"x"].concat());
        let backend = rig.server.accept();
        assert_eq!(receive(&backend, passed.len() + 1), [passed, b"x"].concat());
        drop(client);
        assert_eq!(receive_to_end(&backend), b"");
        drop(backend);
        rig.await_empty();
    }
    let backend = at(&rig.dir.path().join("backend"));
    drop(rig.relay);
    let log = fs::read_to_string(log).unwrap();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["client"], "192.0.2.1:1234");
    assert_eq!(lines[1]["client"], format!("unix:{}", std::process::id()));
    assert_eq!(lines[1]["client_uid"], rustix::process::getuid().as_raw());
    assert_eq!(lines[1]["backend"], backend);
}

/// As the services of one configuration would be.
#[test]
fn two_relays_in_one_process_leave_each_other_alone() {
    let dir = tempfile::tempdir().unwrap();
    let one = Rig::with(Way::UnixToUnix, Engine::Copy, |config| config.max_connections = Some(4));
    let other = Rig::with(Way::TcpToUnix, Engine::Splice, |config| {
        config.max_connections = Some(8);
        config.listen.push(at(&front(&dir)).parse().unwrap());
    });
    let pairs: Vec<_> = (0..4).flat_map(|_| [one.pair(), other.pair()]).collect();
    std::thread::scope(|scope| {
        for (n, (client, backend)) in pairs.iter().enumerate() {
            scope.spawn(move || {
                let bytes = Pattern::new(n as u64).at(0, 400_000);
                std::thread::scope(|scope| {
                    scope.spawn(|| send_all(client, bytes));
                    assert!(receive(backend, bytes.len()) == bytes);
                });
            });
        }
    });
    assert_eq!((one.relay.max_connections(), other.relay.max_connections()), (4, 8));
    assert_eq!((one.relay.active(), other.relay.active()), (4, 4));
    assert_eq!((one.relay.engine(), other.relay.engine()), (Engine::Copy, Engine::Splice));
    let [copied, spliced] = [one.relay.stats(), other.relay.stats()];
    assert_eq!((copied.bytes_spliced, spliced.bytes_copied), (0, 0));
    assert_eq!((copied.bytes_up, spliced.bytes_up), (1_600_000, 1_600_000));
    one.relay.set_engine(Engine::Auto).unwrap();
    assert_eq!(other.relay.engine(), Engine::Splice);
    // One ends, the other goes on.
    drop(one);
    for ends in pairs.chunks(2) {
        let [(ended, _), (client, backend)] = ends else { unreachable!("two of each") };
        assert_eq!(receive_to_end(ended), b"");
        send_all(client, b"still here");
        assert_eq!(receive(backend, 10), b"still here");
    }
    assert_eq!(other.relay.active(), 4);
    let to: SocketAddr = other.relay.addrs()[0];
    assert_eq!(other.relay.listening_on(), [to.into(), at(&front(&dir)).parse().unwrap()]);
}
