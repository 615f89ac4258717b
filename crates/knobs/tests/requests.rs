//! Requests that a process answers by a handler of its own, with open files.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use cachelane_knobs::{Answer, Client, ErrorKind, MAX_FILES, Registry, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A process with the requests `t.files`, which gives as many files as it is asked for, each of which
/// holds its number, and `t.no`, which refuses; and how often the first was called.
struct Host {
    server: Server,
    called: Arc<AtomicU32>,
    _dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let (registry, dir) = (Registry::new("test"), TempDir::new().unwrap());
        let called = Arc::new(AtomicU32::new(0));
        let calls = called.clone();
        let files = move |with: &Value, peer| {
            calls.fetch_add(1, Relaxed);
            let count = with["count"].as_u64().ok_or("no count")?;
            let files = (0..count).map(numbered).collect();
            Ok::<_, &str>(Answer { value: json!(format!("to {peer}")), files })
        };
        registry.on_request("t.files", files).unwrap();
        registry.on_request("t.no", |_, _| Err::<Answer, _>("not now")).unwrap();
        let again = registry.on_request("t.no", |_, _| Err::<Answer, _>("never"));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Duplicate);
        let server = Server::bind_in(registry, dir.path()).unwrap();
        Self { server, called, _dir: dir }
    }

    fn path(&self) -> &Path {
        self.server.path()
    }
}

fn numbered(number: u64) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    write!(file, "{number}").unwrap();
    file.into()
}

fn read(file: OwnedFd) -> String {
    let (mut file, mut text) = (File::from(file), String::new());
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn an_answer_brings_its_files_in_order_however_many() {
    let host = Host::new();
    let mut client = Client::connect(host.path()).unwrap();
    // The kernel takes 253 with one message.
    for count in [0, 1, 253, 254, 300] {
        let answer = client.ask("t.files", json!({"count": count})).unwrap();
        let us =
            format!("to uid {}, pid {}", rustix::process::geteuid().as_raw(), std::process::id());
        assert_eq!(answer.value, us);
        let numbers: Vec<_> = answer.files.into_iter().map(read).collect();
        let expected: Vec<_> = (0..count).map(|number| number.to_string()).collect();
        assert_eq!(numbers, expected);
        assert!(client.list().unwrap().is_empty());
    }
}

#[test]
fn what_is_refused_or_unknown_says_so_and_is_asked_once() {
    let host = Host::new();
    let mut client = Client::connect(host.path()).unwrap();
    for (request, kind, said) in [
        ("t.no", ErrorKind::Refused, "test refused t.no: not now"),
        ("t.files", ErrorKind::Refused, "test refused t.files: no count"),
        ("t.x", ErrorKind::UnknownRequest, "test answers no request \"t.x\""),
    ] {
        let error = client.ask(request, Value::Null).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, said));
    }
    assert_eq!(host.called.load(Relaxed), 1);
}

#[test]
fn a_client_that_vanishes_costs_no_descriptor() {
    let host = Host::new();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let ask = || {
        let mut stream = std::os::unix::net::UnixStream::connect(host.path()).unwrap();
        let line =
            "{\"schema\":1,\"op\":\"ask\",\"request\":\"t.files\",\"with\":{\"count\":300}}\n";
        stream.write_all(line.as_bytes()).unwrap();
    };
    let before = open();
    (0..20).for_each(|_| ask());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    // Other tests of this program open files too, but they end.
    while host.called.load(Relaxed) < 20 || open() > before {
        assert!(std::time::Instant::now() < deadline, "{} files, {before} before", open());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn more_files_than_an_answer_may_carry_are_an_error() {
    let registry = Registry::new("test");
    let dir = TempDir::new().unwrap();
    // Not opened so often: a duplicate of one is as good.
    let null = File::open("/dev/null").unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit < MAX_FILES as u64 + 1000) {
        eprintln!("skipped: more_files_than_an_answer_may_carry_are_an_error: needs ulimit -n");
        return;
    }
    let many = move |_: &Value, _| {
        let files = (0..=MAX_FILES).map(|_| null.try_clone().map(OwnedFd::from));
        files.collect::<Result<_, _>>().map(|files| Answer { value: Value::Null, files })
    };
    registry.on_request("t.many", many).unwrap();
    let server = Server::bind_in(registry, dir.path()).unwrap();
    let error = Client::connect(server.path()).unwrap().ask("t.many", Value::Null).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}
