//! A relay on Unix sockets: who may have a path, what becomes of its file, and of those who wait.

mod common;

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use cachelane_relay::{Engine, ErrorKind, Inherited, Relay};
use common::unix::*;
use common::{PATIENCE, await_that, expect_reset, receive_to_end, send_all};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

#[test]
fn of_relays_that_start_at_once_on_one_path_exactly_one_listens() {
    for left_behind in [false, true] {
        for _ in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            let path = front(&dir);
            if left_behind {
                drop(UnixListener::bind(&path).unwrap());
            }
            let start = || Relay::start(config(Engine::Copy, &at(&path), "127.0.0.1:9"));
            let starts: Vec<_> = std::thread::scope(|scope| {
                let starts: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                starts.into_iter().map(|start| start.join().unwrap()).collect()
            });
            let (up, refused): (Vec<_>, Vec<_>) = starts.into_iter().partition(|one| one.is_ok());
            assert_eq!(up.len(), 1, "{refused:?}");
            for error in refused.into_iter().map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::AddressInUse, "{error}");
                assert!(error.to_string().contains(&at(&path)), "{error}");
            }
            connect(&at(&path).parse().unwrap());
            drop(up);
            let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

#[test]
fn a_file_goes_with_its_relay_unless_another_has_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = front(&dir);
    let start = || Relay::start(config(Engine::Copy, &at(&path), "127.0.0.1:9")).unwrap();
    let drained = start();
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    assert!(drained.drain(PATIENCE));
    assert!(!path.exists());
    // While it is still there, another one begins.
    let second = start();
    drop(drained);
    connect(&second.listening_on()[0]);
    // Somebody takes the path away.
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(second);
    assert!(UnixStream::connect(&path).is_ok());
    drop(other);
}

#[test]
fn those_in_the_queue_are_served_when_it_drains_and_nobody_comes_any_more() {
    for listen in ["unix:@cachelane-test-drain", ""] {
        let dir = tempfile::tempdir().unwrap();
        let (server, to) = common::backend();
        let listen = if listen.is_empty() { at(&front(&dir)) } else { listen.to_string() };
        let mut config = config(Engine::Copy, &listen, &to.to_string());
        config.max_connections = Some(1);
        let relay = Relay::start(config).unwrap();
        let connect = || {
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
            let name = match listen.strip_prefix("unix:@") {
                Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
                None => SocketAddrUnix::new(front(&dir))?,
            };
            rustix::net::connect(&socket, &name).map(|()| stream(socket))
        };
        let clients: Vec<_> = (0..5).map(|_| connect().unwrap()).collect();
        assert_eq!(relay.waiting(), 1, "some wait");
        assert!(!relay.drain(Duration::ZERO));
        let refused = connect().unwrap_err();
        assert!(matches!(refused, Errno::NOENT | Errno::CONNREFUSED), "{refused}");
        for client in clients {
            let backend = common::accept(&server);
            send_all(&backend, b"served");
            drop(backend);
            assert_eq!(receive_to_end(&client), b"served");
        }
        assert!(relay.drain(PATIENCE));
        assert_eq!(relay.stats().accepted, 5);
    }
}

#[test]
fn whoever_waits_when_it_stops_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, to) = common::backend();
    let mut config = config(Engine::Copy, &at(&front(&dir)), &to.to_string());
    config.max_connections = Some(1);
    let relay = Relay::start(config).unwrap();
    let clients: Vec<_> = (0..5).map(|_| connect(&relay.listening_on()[0])).collect();
    clients.iter().for_each(|client| send_all(client, b"x"));
    await_that("one is in", || relay.active() == 1);
    drop(relay);
    // Those in the queue have sent what nobody has read.
    clients[1..].iter().for_each(expect_reset);
}

#[test]
fn root_a_file_has_the_permissions_that_were_asked_for() {
    if !lab::testing::root("root_a_file_has_the_permissions_that_were_asked_for") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("{},mode=617,user=1,group=2", at(&front(&dir)));
    let relay = Relay::start(config(Engine::Copy, &listen, "127.0.0.1:9")).unwrap();
    let file = fs::metadata(front(&dir)).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o617, 1, 2));
    drop(relay);
    assert!(!front(&dir).exists());
}

#[test]
fn a_service_manager_keeps_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (server, to) = common::backend();
    let manager = UnixListener::bind(front(&dir)).unwrap();
    let inherit = || Inherited::of_manager(manager.try_clone().unwrap().into()).unwrap();
    for _ in 0..2 {
        let config = config(Engine::Auto, &at(&front(&dir)), &to.to_string());
        let relay = Relay::start_on(config, vec![inherit()]).unwrap();
        // All workers serve it.
        for _ in 0..20 {
            let client = connect(&relay.listening_on()[0]);
            send_all(&common::accept(&server), b"hello");
            assert_eq!(receive_to_end(&client), b"hello");
        }
        assert!(relay.drain(PATIENCE));
    }
    assert!(UnixStream::connect(front(&dir)).is_ok());
    // A socket without a name, and one of datagrams.
    let unnamed = UnixStream::pair().unwrap().0;
    assert!(Inherited::of_manager(unnamed.into()).is_err());
}
