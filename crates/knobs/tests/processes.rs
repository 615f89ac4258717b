//! Finding and asking several processes, some of which do not answer, are of another version, of
//! another user or of another PID namespace.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cachelane_knobs::{
    Client, Current, ErrorKind, Knob, MAX_LINE, ProcessName, Registry, Select, Server, Subject,
    Values, ask_each, discover_in,
};
use parking_lot::Mutex;
use tempfile::TempDir;

fn registry(kind: &str, name: &str) -> Registry {
    let registry = Registry::named(kind, name.parse::<ProcessName>().unwrap());
    let mode = Arc::new(Mutex::new("a"));
    let shown = mode.clone();
    let knob = Knob::choice(
        "t.mode",
        "a test",
        &["a", "b", "c"],
        "a",
        move || Ok::<_, String>(*shown.lock()),
        move |new| {
            *mode.lock() = new;
            Ok::<_, String>(())
        },
    );
    registry.register(knob).unwrap();
    registry
}

/// A process that answers the first client that asks with this line, whatever it asks.
fn answering(dir: &Path, pid: u32, line: &'static str) -> PathBuf {
    let path = dir.join(format!("newer-{pid}.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let got = BufReader::new(&stream).read_line(&mut String::new());
            if got.is_ok_and(|got| got > 0) {
                writeln!(stream, "{line}").unwrap();
            }
        }
    });
    path
}

#[test]
fn one_that_does_not_answer_delays_no_other() {
    let dir = TempDir::new().unwrap();
    let _live = Server::bind_in(registry("live", "live"), dir.path()).unwrap();
    // More than are asked at a time would be needed for this to be slow if they were asked in turn.
    let silent: Vec<_> = (1..=20)
        .map(|pid| UnixListener::bind(dir.path().join(format!("mute-{pid}.sock"))).unwrap())
        .collect();
    let processes = discover_in(dir.path()).unwrap();
    assert_eq!(processes.len(), silent.len() + 1);
    let answered = Mutex::new(None);
    let start = Instant::now();
    let patience = Duration::from_secs(2);
    let answers = ask_each(&processes, |process| {
        let listing = Client::connect_timeout(&process.path, patience)?.listing()?;
        *answered.lock() = Some(start.elapsed());
        Ok(listing)
    });
    let (whole, answered) = (start.elapsed(), answered.into_inner().unwrap());
    assert!(answered < whole && whole < patience * silent.len() as u32, "{answered:?} {whole:?}");
    for (process, answer) in processes.iter().zip(answers) {
        match process.kind.as_str() {
            "live" => assert_eq!(answer.unwrap().name, "live"),
            _ => assert_eq!(answer.unwrap_err().kind(), ErrorKind::Timeout),
        }
    }
}

#[test]
fn a_knob_is_found_beside_a_process_that_does_not_answer() {
    let dir = TempDir::new().unwrap();
    let _live = Server::bind_in(registry("live", "live :80"), dir.path()).unwrap();
    let _mute = UnixListener::bind(dir.path().join("mute-1.sock")).unwrap();
    let find = |name: Option<&str>| {
        let select = Select { pid: None, name: name.map(str::to_owned) };
        Subject::find_in("t.mode", select, dir.path())
    };
    // Each waits for the silent one.
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(find(None).unwrap().process().unwrap().kind, "live"));
        scope.spawn(|| assert_eq!(find(Some("live :80")).unwrap().process().unwrap().kind, "live"));
        let other = find(Some("live :81")).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Timeout, "it may be the silent one");
    });
}

#[test]
fn where_no_process_runs_the_directory_is_named() {
    let dir = TempDir::new().unwrap();
    let error = Subject::find_in("t.mode", None, dir.path()).unwrap_err();
    let said =
        format!("knob \"t.mode\": no cachelane process runs (searched: {})", dir.path().display());
    assert_eq!(error.to_string(), said);
}

#[test]
fn what_a_newer_process_says_is_shown() {
    let dir = TempDir::new().unwrap();
    let line = r#"{"schema":1,"ok":{"process":"newer","name":"n 1","pid":1,"colour":3,"knobs":[
        {"name":"t.a","help":"","values":{"range":[1,9]},"default":7,"reach":"soon","value":8},
        {"name":"t.b","values":{"one_of":["x"]},"value":"x","until":{"s":5},"held":"by me"},
        {"name":"t.c"}, 5],"counters":[
        {"name":"t.n","unit":"s","help":"","kind":"histogram","value":[1,2]},
        {"name":"t.m","unit":"s","help":"","kind":"counter","value":3,"by":"cpu"}]}}"#;
    let line: &str = Box::leak(line.replace('\n', "").into_boxed_str());
    let mut client = Client::connect(&answering(dir.path(), 1, line)).unwrap();
    let listing = client.listing().unwrap();
    let [a, b, c, five] = listing.knobs.try_into().unwrap();
    assert_eq!(listing.name, "n 1");
    assert!(matches!(a.values, Values::Unknown(_)));
    assert_eq!((a.values.to_string().as_str(), a.default.as_str()), ("{\"range\":[1,9]}", "7"));
    assert_eq!(a.value, Current::Value("8".into()));
    assert_eq!((b.value, b.held), (Current::Value("x".into()), None));
    assert_eq!(b.more["until"]["s"], 5, "programs are shown it, too");
    assert!(matches!(c.value, Current::Error(_)) && five.name == "5");
    let [n, m] = client.counters().unwrap().try_into().unwrap();
    assert_eq!(n.value.to_string(), "unreadable: [1,2] is no count that is known here");
    assert_eq!((m.value, &m.more["by"]), (Current::Value(3), &"cpu".into()));
}

#[test]
fn a_process_of_an_earlier_version_is_called_by_its_kind() {
    let dir = TempDir::new().unwrap();
    let line = r#"{"schema":1,"ok":{"process":"relay","pid":1,"knobs":[]}}"#;
    let mut client = Client::connect(&answering(dir.path(), 1, line)).unwrap();
    assert_eq!(client.listing().unwrap().name, "relay");
}

#[test]
fn a_value_is_set_only_if_the_knob_has_the_one_that_it_was_thought_to_have() {
    let (dir, registry) = (TempDir::new().unwrap(), registry("t", "t"));
    let server = Server::bind_in(registry.clone(), dir.path()).unwrap();
    let mut client = Client::connect(server.path()).unwrap();
    assert_eq!(client.set_if("t.mode", "a", "b").unwrap(), "b");
    let error = client.set_if("t.mode", "a", "c").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert_eq!(error.to_string(), "knob t.mode is \"b\", not \"a\", so it is left as it is");
    assert_eq!(registry.get("t.mode").unwrap(), "b");
    // Of many who want to move it on from one value, one does.
    let won: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::connect(server.path()).unwrap();
                    usize::from(client.set_if("t.mode", "b", "c").is_ok())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(won, 1);
}

#[test]
fn a_path_longer_than_an_address_works() {
    let dir = TempDir::new().unwrap();
    let deep = dir.path().join("d".repeat(100)).join("e".repeat(100));
    let server = Server::bind_in(registry("long", "long"), &deep).unwrap();
    assert!(server.path().as_os_str().len() > 108);
    assert_eq!(discover_in(&deep).unwrap().len(), 1);
    assert_eq!(Client::connect(server.path()).unwrap().get("t.mode").unwrap(), "a");
    let path = server.path().to_owned();
    drop(server);
    assert!(!path.exists());
    assert_eq!(Client::connect(&path).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
}

#[test]
fn processes_of_one_id_do_not_collide() {
    let dir = TempDir::new().unwrap();
    // Another PID namespace's process with our id has the name: it answers as somebody else.
    let ours = dir.path().join(format!("relay-{}.sock", std::process::id()));
    let mut other = listening_elsewhere(&ours);
    let server = Server::bind_in(registry("relay", "relay :81"), dir.path()).unwrap();
    let name = format!("relay-{}.2.sock", std::process::id());
    assert_eq!(server.path(), dir.path().join(name));
    assert_eq!(Client::connect(server.path()).unwrap().listing().unwrap().name, "relay :81");
    let processes = discover_in(dir.path()).unwrap();
    let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.contains(&std::process::id()) && pids.contains(&other.id()), "{pids:?}");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(discover_in(dir.path()).unwrap().len(), 1);
    assert!(!ours.exists() && server.path().exists());
}

/// A process that listens at a path.
fn listening_elsewhere(path: &Path) -> std::process::Child {
    let script = "import socket,sys\n\
                  s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1]);s.listen(9)\n\
                  while True: s.accept()";
    let child = Command::new("python3").args(["-c", script]).arg(path).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while UnixStream::connect(path).is_err() {
        assert!(Instant::now() < deadline, "it does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn a_thousand_silent_clients_keep_nobody_out() {
    let dir = TempDir::new().unwrap();
    let server = Server::bind_in(registry("t", "t"), dir.path()).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let crowd = if limit.is_none_or(|limit| limit >= 4096) { 1000 } else { 300 };
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let crowds: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| {
                    let connect = |_| UnixStream::connect(server.path()).unwrap();
                    let clients: Vec<_> = (0..crowd / 10).map(connect).collect();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(10));
                    }
                    drop(clients);
                })
            })
            .collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        while Client::connect(server.path()).and_then(|mut client| client.list()).is_err() {
            assert!(Instant::now() < deadline, "nobody else is served");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        crowds.into_iter().for_each(|crowd| crowd.join().unwrap());
    });
    assert_eq!(Client::connect(server.path()).unwrap().list().unwrap().len(), 1);
}

#[test]
fn a_line_that_comes_byte_by_byte_is_answered() {
    let dir = TempDir::new().unwrap();
    let server = Server::bind_in(registry("t", "t"), dir.path()).unwrap();
    let stream = UnixStream::connect(server.path()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answers = BufReader::new(&stream);
    for _ in 0..3 {
        for byte in b"{\"schema\":1,\"op\":\"get\",\"knob\":\"t.mode\"}\n" {
            (&stream).write_all(&[*byte]).unwrap();
        }
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        assert!(line.contains("\"value\":\"a\""), "{line}");
    }
    // One that never ends is given up at its longest.
    let flood = vec![b' '; MAX_LINE + 1];
    (&stream).write_all(&flood).unwrap();
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    assert!(line.contains("too_large"), "{line}");
}

#[test]
fn root_believes_a_users_directory_only_about_that_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: root_believes_a_users_directory_only_about_that_user: needs root");
        return;
    }
    let dir = TempDir::new().unwrap();
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    fs::DirBuilder::new().mode(0o700).create(&theirs).unwrap();
    let server = Server::bind_in(registry("t", "t"), &ours).unwrap();
    // A link in the user's directory to a socket of root's.
    let link = theirs.join("relay-7.sock");
    symlink(server.path(), &link).unwrap();
    chown(&theirs, Some(65534), None).unwrap();
    let error = Client::connect(&link).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    assert!(error.to_string().starts_with("uid 0 answers at "), "{error}");
    // And what a dead process of the user's left is the user's to remove.
    let stale = theirs.join("relay-8.sock");
    drop(UnixListener::bind(&stale).unwrap());
    assert_eq!(Client::connect(&stale).unwrap_err().kind(), ErrorKind::Gone);
    assert!(stale.exists());
    assert_eq!(fs::metadata(&theirs).unwrap().permissions().mode() & 0o7777, 0o700);
}
