//! The command as a user meets it: what it prints, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn cachelane(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachelane"));
    command.env("CACHELANE_RUNTIME_DIR", dir).env("NO_COLOR", "1");
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    cachelane(dir).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A private directory for control sockets.
fn runtime_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("cachelane-cli-").tempdir().unwrap()
}

/// A relay that runs until it is dropped.
struct Relay {
    child: Child,
    addr: SocketAddr,
}

impl Relay {
    fn start(dir: &Path, to: SocketAddr, more: &[&str]) -> Relay {
        let mut child = cachelane(dir)
            .args(["relay", "--listen", "127.0.0.1:0", "--to", &to.to_string()])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = log.by_ref().map(Result::unwrap).find(|l| l.contains("relaying ")).unwrap();
        let addr = line.split("relaying ").nth(1).unwrap().split(' ').next().unwrap();
        let addr = addr.parse().unwrap();
        // Read on, so that the relay never blocks on its log.
        std::thread::spawn(move || log.for_each(drop));
        Relay { child, addr }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(&mut self) -> i32 {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap();
            }
            assert!(Instant::now() < deadline, "the relay did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that sends back what it reads.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                // Ends when the client does, by whatever.
                let _ = std::io::copy(&mut stream, &mut back);
            });
        }
    });
    addr
}

fn exchange(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
}

#[test]
fn bad_values_are_named_with_what_was_expected_and_exit_with_2() {
    let dir = runtime_dir();
    for (args, says) in [
        (vec!["relay", "--listen", "80", "--to", "127.0.0.1:1"], "listen address '80'"),
        (vec!["relay", "--listen", ":0", "--to", "nowhere"], "backend 'nowhere' does not parse"),
        (vec!["relay", "--listen", ":0", "--to", "127.0.0.1:0"], "has port 0"),
        (vec!["relay", "--listen", ":0", "--to", "[::1]:1", "--engine", "x"], "engine 'x'"),
        (vec!["relay", "--listen", ":0", "--to", "[::1]:1", "--cpus", "0-"], "at character"),
        (vec!["relay", "--listen", ":0", "--to", "[::1]:1", "--cpus", "999"], "cpu 999"),
        (vec!["relay", "--listen", ":0", "--to", "[::1]:1", "--cpus", "lane:99"], "lane 99"),
        (vec!["relay", "--listen", ":0", "--to", "[::1]:1", "--budget", "1K"], "at least 262144"),
        (vec!["relay", "--listen", ":0", "--to", "[::1]:1", "--budget", "x"], "'x' is not a size"),
        (vec!["relay", "--listen", ":0", "--to", "[::1]:1", "--idle-timeout", "x"], "expected"),
        (vec!["relay", "--to", "[::1]:1"], "--listen"),
        (vec!["relay", "--access-log", "here"], "access log 'here'"),
        (vec!["relay", "--access-log", "stderr", "--access-log-sample", "5"], "'5'"),
        (vec!["relay", "--access-log", "stderr", "--access-log-format", "x"], "text or json"),
        (vec!["frobnicate"], "frobnicate"),
    ] {
        let output = run(dir.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_port_in_use_is_an_error_that_names_the_address() {
    let dir = runtime_dir();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let args = ["relay", "--listen", &taken.to_string(), "--to", "127.0.0.1:1"];
    let output = run(dir.path(), &args);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("cannot listen on {taken}")), "{}", stderr(&output));
}

#[test]
fn too_few_open_files_is_said_with_how_many_connections_they_allow() {
    let dir = runtime_dir();
    let args = ["relay", "--listen", ":0", "--to", "[::1]:1", "--max-connections", "99999999"];
    let output = run(dir.path(), &args);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("ask for at most"), "{}", stderr(&output));
}

#[test]
fn a_dry_run_says_what_it_would_do_and_listens_on_nothing() {
    let dir = runtime_dir();
    // An address of its own: nobody else takes the port meanwhile.
    let free = TcpListener::bind("127.44.0.1:0").unwrap().local_addr().unwrap();
    let args = ["relay", "--listen", &free.to_string(), "--to", "127.0.0.1:1", "--dry-run"];
    let output = run(dir.path(), &args);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains(&format!("would listen on {free}")), "{}", stdout(&output));
    assert!(TcpStream::connect(free).is_err());
}

#[test]
fn knobs_are_listed_read_and_set_while_connections_run() {
    let dir = runtime_dir();
    let relay = Relay::start(dir.path(), echo(), &["--engine", "copy"]);
    let mut stream = TcpStream::connect(relay.addr).unwrap();
    exchange(&mut stream);
    let listed = run(dir.path(), &["knob", "list", "--counters"]);
    assert!(stdout(&listed).contains("relay.engine") && stdout(&listed).contains("relay.accepted"));
    let set = run(dir.path(), &["knob", "set", "relay.engine", "splice"]);
    assert_eq!((set.status.code(), stdout(&set).trim()), (Some(0), "splice"), "{}", stderr(&set));
    assert_eq!(stdout(&run(dir.path(), &["knob", "get", "relay.engine"])).trim(), "splice");
    let set = run(dir.path(), &["knob", "set", "relay.cpus", "0"]);
    assert_eq!(set.status.code(), Some(0), "{}", stderr(&set));
    exchange(&mut stream);
    let json = run(dir.path(), &["knob", "list", "--json", "--counters"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["schema"], 1);
    let counters = json["processes"][0]["counters"].as_array().unwrap();
    let up = counters.iter().find(|c| c["name"] == "relay.bytes_up").unwrap();
    assert_eq!(up["value"], 10);
}

#[test]
fn a_knob_that_does_not_take_a_value_stays_as_it_was() {
    let dir = runtime_dir();
    let _relay = Relay::start(dir.path(), echo(), &["--engine", "copy"]);
    for (knob, value, says) in [
        ("relay.engine", "warp", "expected copy, splice, sockmap or auto"),
        ("relay.cpus", "0,,1", "at character"),
        ("relay.cpus", "999", "cpu 999"),
        ("relay.speed", "11", "there are relay.backends, relay.cpus, relay.engine"),
    ] {
        let before = stdout(&run(dir.path(), &["knob", "list"]));
        let output = run(dir.path(), &["knob", "set", knob, value]);
        assert_ne!(output.status.code(), Some(0));
        assert!(stderr(&output).contains(says), "{knob} {value}: {}", stderr(&output));
        assert_eq!(stdout(&run(dir.path(), &["knob", "list"])), before);
    }
}

#[test]
fn a_held_knob_is_listed_as_such_and_set_only_by_force() {
    let dir = runtime_dir();
    let _relay = Relay::start(dir.path(), echo(), &["--engine", "copy"]);
    let subject = knobs::Subject::find_in("relay.engine", None, dir.path()).unwrap();
    assert_eq!(subject.reach(), knobs::Reach::NewConnections);
    let mut held = subject.hold("a test", knobs::MAX_HOLD).unwrap();
    held.set("splice").unwrap();
    let listed = stdout(&run(dir.path(), &["knob", "list"]));
    assert!(listed.contains("splice (held by a test)"), "{listed}");
    let json = run(dir.path(), &["knob", "list", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let knobs = json["processes"][0]["knobs"].as_array().unwrap();
    let engine = knobs.iter().find(|knob| knob["name"] == "relay.engine").unwrap();
    assert_eq!(
        (&engine["held"]["holder"], &engine["held"]["before"]),
        (&"a test".into(), &"copy".into())
    );
    let refused = run(dir.path(), &["knob", "set", "relay.engine", "auto"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("is held by a test, for "), "{}", stderr(&refused));
    let forced = run(dir.path(), &["knob", "set", "--force", "relay.engine", "auto"]);
    assert_eq!((forced.status.code(), stdout(&forced).trim()), (Some(0), "auto"));
    assert_eq!(held.restore().unwrap_err().kind(), knobs::ErrorKind::NotHeld);
    assert_eq!(stdout(&run(dir.path(), &["knob", "get", "relay.engine"])).trim(), "auto");
}

/// A relay that was told to end and listens no more, and the connection that it still has.
fn draining(dir: &Path, more: &[&str]) -> (Relay, TcpStream) {
    let relay = Relay::start(dir, echo(), more);
    let mut stream = TcpStream::connect(relay.addr).unwrap();
    exchange(&mut stream);
    relay.signal(Signal::TERM);
    while TcpStream::connect(relay.addr).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    (relay, stream)
}

#[test]
fn sigterm_drains_and_leaves_no_socket_behind() {
    let dir = runtime_dir();
    let (mut relay, mut stream) = draining(dir.path(), &[]);
    exchange(&mut stream);
    assert!(relay.child.try_wait().unwrap().is_none(), "it ended before its connection did");
    drop(stream);
    assert_eq!(relay.wait(), 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_second_signal_ends_a_drain_and_resets_what_is_left() {
    let dir = runtime_dir();
    let (mut relay, mut stream) = draining(dir.path(), &[]);
    relay.signal(Signal::INT);
    assert_eq!(relay.wait(), 0);
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn an_access_log_is_opened_anew_also_during_a_drain() {
    let dir = runtime_dir();
    let (path, moved) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let log = ["--access-log", path.to_str().unwrap()];
    let (mut relay, mut stream) = draining(dir.path(), &log);
    std::fs::rename(&path, &moved).unwrap();
    relay.signal(Signal::HUP);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !path.exists() {
        assert!(Instant::now() < deadline, "it is not opened anew");
        std::thread::sleep(Duration::from_millis(5));
    }
    exchange(&mut stream);
    drop(stream);
    assert_eq!(relay.wait(), 0);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert!(read(&path).contains("up=10 "), "{}", read(&path));
    assert!(!read(&moved).contains("up=10 "), "{}", read(&moved));
}

/// Fills a pipe, given by the end that is read, up to its last byte.
fn fill(pipe: &impl std::os::fd::AsRawFd) {
    use std::os::unix::fs::OpenOptionsExt as _;
    // An open file of its own: the other writer's stays as it is.
    let mut writer = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(format!("/proc/self/fd/{}", pipe.as_raw_fd()))
        .unwrap();
    for piece in [4096, 1] {
        while writer.write(&vec![b'.'; piece]).is_ok() {}
    }
}

#[test]
fn a_stderr_that_nobody_reads_stops_no_worker_and_no_end() {
    let dir = runtime_dir();
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&socket, &any).unwrap();
    let to = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let mut child = cachelane(dir.path())
        .args(["relay", "-vv", "--listen", "127.0.0.1:0", "--retry-after", "50ms"])
        .args(["--to", &to.to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("relaying ") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended");
    }
    let addr = line.split("relaying ").nth(1).unwrap().split(' ').next().unwrap();
    let mut relay = Relay { addr: addr.parse().unwrap(), child };
    fill(log.get_ref());
    // Each is refused, which the relay has something to say about.
    for _ in 0..3000 {
        if let Ok(mut client) = TcpStream::connect(relay.addr) {
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(
                client.read(&mut [0]).unwrap_err().kind(),
                std::io::ErrorKind::ConnectionReset
            );
        }
    }
    rustix::net::listen(&socket, 100).unwrap();
    let backend = TcpListener::from(socket);
    for _ in 0..20 {
        let mut client = TcpStream::connect(relay.addr).unwrap();
        let (mut server, _) = backend.accept().unwrap();
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
    }
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait(), 0);
}

#[test]
fn what_was_logged_is_out_when_a_command_has_ended() {
    let dir = runtime_dir();
    let mut relay = cachelane(dir.path())
        .args(["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(relay.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    for _ in 0..500 {
        kill_process(Pid::from_child(&relay), Signal::USR1).unwrap();
    }
    kill_process(Pid::from_child(&relay), Signal::TERM).unwrap();
    let lines: Vec<String> = log.lines().map(Result::unwrap).collect();
    assert_eq!(relay.wait().unwrap().code(), Some(0));
    // The last request for statistics may be answered after the drain has begun.
    let last = lines.iter().rfind(|line| !line.contains("INFO Stats {"));
    assert!(last.is_some_and(|line| line.contains("draining 0 connections")), "{lines:?}");
}

#[test]
fn an_access_log_is_opened_anew_on_sighup_and_statistics_are_shown() {
    let dir = runtime_dir();
    let path = dir.path().join("access.log");
    let log = path.to_str().unwrap();
    let mut relay = Relay::start(dir.path(), echo(), &["--access-log", log]);
    let once = || exchange(&mut TcpStream::connect(relay.addr).unwrap());
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let await_that = |holds: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "in vain");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    once();
    await_that(&|| read(&path).lines().count() == 1);
    let line = read(&path);
    assert!(line.starts_with("127.0.0.1:") && line.contains(" relay/127.0.0.1:"), "{line}");
    assert!(line.contains(" 5 -- 1/1/0/0/0 0/0 up=5 first="), "{line}");
    let moved = dir.path().join("access.log.1");
    std::fs::rename(&path, &moved).unwrap();
    relay.signal(Signal::HUP);
    await_that(&|| path.exists());
    once();
    await_that(&|| read(&path).lines().count() == 1);
    assert_eq!(read(&moved), line);

    let shown = run(dir.path(), &["relay", "--stats"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let row = format!("{}  OPEN", relay.addr);
    assert!(stdout(&shown).contains(&row), "{}", stdout(&shown));
    let shown = run(dir.path(), &["relay", "--stats", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let backend = &shown["relays"][0]["statistics"]["backends"][0];
    assert_eq!((&backend["connections"], &backend["bytes_up"]), (&2.into(), &10.into()), "{shown}");
    assert_eq!((&backend["ended"]["normal"], &backend["up"]), (&2.into(), &true.into()), "{shown}");
    // All lines are out when it has ended.
    once();
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait(), 0);
    assert_eq!(read(&path).lines().count(), 2);
}
