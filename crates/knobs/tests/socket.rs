//! The control socket under clients that are many, slow, rude or somebody else.

use std::convert::Infallible;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use cachelane_knobs::{
    Client, Current, ErrorKind, Knob, MAX_LINE, MeterKind, Registry, Server, discover_in,
};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use tempfile::TempDir;

/// More than the server has places for.
const CROWD: usize = 24;

const LIST: &str = "{\"schema\":1,\"op\":\"list\"}\n";

#[test]
fn a_client_finds_a_process_and_drives_it() {
    let host = Host::new();
    let processes = discover_in(host.dir.path()).unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!((processes[0].kind.as_str(), processes[0].pid), ("test", std::process::id()));
    let mut client = Client::connect(&processes[0].path).unwrap();
    assert_eq!(client.list().unwrap(), host.registry.list());
    assert_eq!(client.set("t.mode", "on").unwrap(), "on");
    assert_eq!(client.get("t.mode").unwrap(), "on");
    assert_eq!(host.registry.get("t.mode").unwrap(), "on");
    assert_eq!(client.counters().unwrap(), host.registry.readings());
    assert_eq!(client.counters().unwrap()[0].value, Current::Value(41));
    let error = client.set("t.mode", "up").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadValue);
    assert_eq!(error.to_string(), "knob t.mode does not take \"up\" (expected off or on)");
    assert_eq!(client.get("t.x").unwrap_err().kind(), ErrorKind::UnknownKnob);
    let error = client.set("t.mode", &"x".repeat(MAX_LINE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(client.get("t.mode").unwrap(), "on");
}

#[test]
fn the_socket_is_private_and_goes_with_the_server() {
    let Host { server, dir, .. } = Host::new();
    let path = server.path().to_owned();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let mut client = Client::connect(&path).unwrap();
    drop(server);
    assert!(!path.exists());
    assert_eq!(client.list().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(Client::connect(&path).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(discover_in(dir.path()).unwrap(), []);
}

#[test]
fn a_process_serves_a_name_once() {
    let host = Host::new();
    let again = Server::bind_in(Registry::new("test"), host.dir.path()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Duplicate);
    let other = Server::bind_in(Registry::new("other"), host.dir.path()).unwrap();
    assert_eq!(discover_in(host.dir.path()).unwrap().len(), 2);
    drop(other);
    host.assert_alive();
    let error = Server::bind_in(Registry::new("../x"), host.dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadName);
}

#[test]
fn root_refuses_other_users() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: root_refuses_other_users: needs root");
        return;
    }
    let host = Host::new();
    fs::set_permissions(host.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let error = as_nobody(|| Client::connect(host.path()).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "the socket's mode: {error}");
    // Even with the file open to all, credentials are checked.
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o666)).unwrap();
    let error =
        as_nobody(|| Client::connect(host.path()).unwrap().set("t.mode", "on").unwrap_err());
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    let expected = "uid 65534 may not control this process (expected uid 0 or 0)";
    assert_eq!(error.to_string(), expected);
    assert_eq!(host.registry.get("t.mode").unwrap(), "off");
    host.assert_alive();
}

#[test]
fn garbage_gets_an_error_and_the_connection_goes_on() {
    let host = Host::new();
    let mut client = Raw::connect(host.path());
    for garbage in [b"\n".as_slice(), b"\0\xff\xfe\n", b"GET / HTTP/1.1\r\n", b"{\"schema\":1}\n"] {
        client.write(garbage);
        assert!(client.line().contains("\"malformed\""));
    }
    client.write(LIST.as_bytes());
    assert!(client.line().contains("\"ok\""));
}

#[test]
fn an_oversized_line_gets_one_error_and_the_connection_goes_on() {
    let host = Host::new();
    let mut client = Raw::connect(host.path());
    let flood = vec![b'x'; MAX_LINE * 5];
    client.write(&flood);
    assert!(client.line().contains("\"too_large\""));
    client.write(&flood);
    client.write(b"\n");
    client.write(LIST.as_bytes());
    assert!(client.line().contains("\"ok\""));
}

#[test]
fn a_client_that_closes_its_sending_side_still_gets_its_answers() {
    let host = Host::new();
    let mut client = Raw::connect(host.path());
    client.write(format!("{LIST}{}", LIST.trim_end()).as_bytes());
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    assert!(client.line().contains("\"ok\""));
    assert!(client.line().contains("\"ok\""));
    let mut rest = String::new();
    client.0.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn clients_that_vanish_do_no_harm() {
    let host = Host::new();
    for sent in ["", "{\"sch", LIST, "\n\n\n\n"] {
        for how in [Shutdown::Read, Shutdown::Both] {
            let mut client = Raw::connect(host.path());
            client.write(sent.as_bytes());
            client.0.get_ref().shutdown(how).unwrap();
        }
    }
    host.assert_alive();
}

#[test]
fn many_clients_at_once_are_all_served() {
    let host = Host::new();
    thread::scope(|scope| {
        for _ in 0..CROWD * 2 {
            scope.spawn(|| {
                let mut client = Client::connect(host.path()).unwrap();
                for _ in 0..20 {
                    assert_eq!(client.list().unwrap().len(), 1);
                }
            });
        }
    });
}

#[test]
fn slow_clients_do_not_hold_up_others_or_take_all_places() {
    let host = Host::new();
    let mut slow: Vec<_> = (0..CROWD).map(|_| Raw::connect(host.path())).collect();
    slow.iter_mut().for_each(|client| client.write(b"{\"schema\":1,"));
    host.assert_alive();
}

#[test]
fn clients_that_never_read_do_not_hold_up_others() {
    let host = Host::new();
    let deaf: Vec<_> = (0..4)
        .map(|_| {
            let mut client = Raw::connect(host.path()).0.into_inner();
            client.set_nonblocking(true).unwrap();
            // Until the kernel takes no more, because the server does not keep up or has stopped.
            while client.write(LIST.repeat(100).as_bytes()).is_ok() {}
            client
        })
        .collect();
    host.assert_alive();
    drop(deaf);
    host.assert_alive();
}

#[test]
fn a_client_that_lost_its_place_connects_again() {
    let host = Host::new();
    let mut client = Client::connect(host.path()).unwrap();
    assert_eq!(client.get("t.mode").unwrap(), "off");
    // Each of these takes a place and is answered, so that the silent client has to go.
    let mut crowd: Vec<_> = (0..CROWD).map(|_| Raw::connect(host.path())).collect();
    for other in &mut crowd {
        other.write(LIST.as_bytes());
    }
    crowd.last_mut().unwrap().line();
    assert_eq!(client.set("t.mode", "on").unwrap(), "on");
}

#[test]
fn a_process_that_does_not_answer_is_a_timeout() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(format!("test-{}.sock", std::process::id()));
    let _mute = UnixListener::bind(&path).unwrap();
    let mut client = Client::connect_timeout(&path, Duration::from_millis(50)).unwrap();
    assert_eq!(client.list().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(client.list().unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn an_error_kind_of_a_later_version_keeps_its_words() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("test-1.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = r#"{"schema":1,"error":{"kind":"too_hot","message":"wait"},"hint":1}"#;
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            writeln!(stream, "{answer}").unwrap();
        });
        let error = Client::connect(&path).unwrap().list().unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Other, "wait"));
    });
}

#[test]
fn sockets_of_dead_processes_are_removed_and_of_live_ones_kept() {
    let dir = TempDir::new().unwrap();
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let abandoned = |name: &str| {
        let path = dir.path().join(name);
        drop(UnixListener::bind(&path).unwrap());
        path
    };
    let dead = abandoned(&format!("relay-{}.sock", child.id()));
    // A name always listens, so this is a dead process's of another PID namespace.
    let elsewhere = abandoned("relay-1.sock");
    let starting = abandoned(".relay-1.0.new");
    let foreign = abandoned("relay.sock");
    assert_eq!(discover_in(dir.path()).unwrap(), []);
    assert!(!dead.exists() && !elsewhere.exists() && starting.exists() && foreign.exists());
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let (last_access, last_modification) = (timespec(hour_ago), timespec(hour_ago));
    let times = rustix::fs::Timestamps { last_access, last_modification };
    use rustix::fs::{AtFlags, CWD, utimensat};
    utimensat(CWD, &starting, &times, AtFlags::empty()).unwrap();
    assert_eq!(discover_in(dir.path()).unwrap(), []);
    assert!(!starting.exists());

    let dead = abandoned(&format!("relay-{}.sock", child.id()));
    assert_eq!(Client::connect(&dead).unwrap_err().kind(), ErrorKind::Gone);
    assert!(!dead.exists());

    // An earlier process had our id.
    let ours = abandoned(&format!("relay-{}.sock", std::process::id()));
    let dead = abandoned(&format!("relay-{}.sock", child.id()));
    let server = Server::bind_in(Registry::new("relay"), dir.path()).unwrap();
    assert!(server.path() == ours && !dead.exists());
    assert!(Client::connect(&ours).unwrap().list().unwrap().is_empty());
}

struct Host {
    registry: Registry,
    server: Server,
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let registry = Registry::new("test");
        let value = Arc::new(AtomicBool::new(false));
        let shown = value.clone();
        let get = move || Ok::<_, Infallible>(shown.load(Relaxed));
        let knob = Knob::off_on("t.mode", "a test", false, get, move |new| {
            value.store(new, Relaxed);
            Ok(())
        });
        registry.register(knob).unwrap();
        let read = || Ok::<_, Infallible>([41]);
        registry.meters(MeterKind::Counter, "t", [("bytes", "bytes", "sent")], read).unwrap();
        let dir = TempDir::new().unwrap();
        let server = Server::bind_in(registry.clone(), dir.path()).unwrap();
        Self { registry, server, dir }
    }

    fn path(&self) -> &Path {
        self.server.path()
    }

    fn assert_alive(&self) {
        assert_eq!(Client::connect(self.path()).unwrap().list().unwrap(), self.registry.list());
    }
}

fn timespec(at: std::time::SystemTime) -> rustix::fs::Timespec {
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap();
    rustix::fs::Timespec { tv_sec: since.as_secs() as i64, tv_nsec: 0 }
}

/// A client without manners, and with a time limit so that a hang fails.
struct Raw(BufReader<UnixStream>);

impl Raw {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(BufReader::new(stream))
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
}

/// Runs `work` on a thread that belongs to nobody: the kernel keeps credentials per thread.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        let nobody = Uid::from_raw(65534);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}
