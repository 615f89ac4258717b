//! A line for each connection that has ended, which says how; and traffic that goes on whatever becomes
//! of the log.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cachelane_relay::{AccessLog, Config, Engine, LogFormat, LogSample, LogTarget, Relay};
use common::*;
use serde_json::Value;
use tempfile::TempDir;

on_every_engine! {
    a_connection_that_ends_well_is_logged_with_its_bytes_and_times,
    a_reset_is_logged_with_who_made_it,
    a_client_that_dies_after_its_backend_has_finished_is_logged_so,
    a_stopped_relay_logs_what_it_resets,
}

/// A directory for a log.
fn directory() -> TempDir {
    tempfile::Builder::new().prefix("cachelane-access-log-").tempdir().unwrap()
}

fn to(target: LogTarget) -> Option<AccessLog> {
    Some(AccessLog { target, format: LogFormat::Json, sample: LogSample::default() })
}

/// The whole lines of a log so far; panics at one that is torn.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is torn: {text}");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// A relay that logs to a file.
struct Logged {
    rig: Rig,
    path: PathBuf,
    _directory: TempDir,
}

impl Logged {
    fn new(engine: Engine, adjust: impl FnOnce(&mut Config)) -> Logged {
        let directory = directory();
        let path = directory.path().join("access.log");
        let rig = Rig::with(engine, |config| {
            config.access_log = to(LogTarget::File(path.clone()));
            adjust(config);
        });
        Logged { rig, path, _directory: directory }
    }

    /// The one line that there is, once it is there.
    #[track_caller]
    fn line(&self) -> Value {
        await_that("a line", || fs::metadata(&self.path).is_ok_and(|meta| meta.len() > 0));
        let mut lines = lines(&self.path);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }

    fn addr(&self) -> SocketAddr {
        self.rig.relay.addrs()[0]
    }
}

#[track_caller]
fn check(line: &Value, state: &str, bytes: [u64; 2]) {
    assert_eq!(line["state"], state, "{line}");
    assert_eq!(
        [&line["bytes_up"], &line["bytes_down"]],
        bytes.map(Value::from).each_ref(),
        "{line}"
    );
}

fn a_connection_that_ends_well_is_logged_with_its_bytes_and_times(engine: Engine) {
    const PAUSE: Duration = Duration::from_millis(60);
    let logged = Logged::new(engine, |_| {});
    let pair = logged.rig.warm_pair(Warmth::Down);
    let client = pair.client.local_addr().unwrap();
    std::thread::sleep(PAUSE);
    converse(&pair);
    part(pair);
    let line = logged.line();
    let bulk = BULK as u64;
    check(&line, "--", [b"question?".len() as u64, bulk + b"answer!".len() as u64]);
    assert_eq!(line["client"], client.to_string());
    assert_eq!(line["listener"], logged.addr().to_string());
    assert_eq!(line["backend"], logged.rig.listener.local_addr().unwrap().to_string());
    let [connect, first, total] =
        ["connect_ms", "first_byte_ms", "total_ms"].map(|name| line[name].as_f64().expect(name));
    assert!(connect >= 0.0 && first >= 0.0, "{line}");
    assert!(total >= PAUSE.as_millis() as f64 && total >= connect + first, "{line}");
    let counts = ["connections", "listener_connections", "other_connections_of_backend", "retries"];
    assert_eq!(counts.map(|name| &line[name]), [1, 1, 0, 0].map(Value::from).each_ref(), "{line}");
}

fn a_reset_is_logged_with_who_made_it(engine: Engine) {
    for (by_client, state) in [(true, "CD"), (false, "SD")] {
        let logged = Logged::new(engine, |_| {});
        let pair = logged.rig.warm_pair(Warmth::Up);
        converse(&pair);
        let Pair { client, backend } = pair;
        let (dies, lives) = if by_client { (client, backend) } else { (backend, client) };
        abort(dies);
        expect_reset(&lives);
        check(&logged.line(), state, [BULK as u64 + 9, 7]);
    }
}

fn a_client_that_dies_after_its_backend_has_finished_is_logged_so(engine: Engine) {
    let logged = Logged::new(engine, |_| {});
    let pair = logged.rig.pair();
    send_all(&pair.backend, b"answer!");
    pair.backend.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive_to_end(&pair.client), b"answer!");
    abort(pair.client);
    expect_reset(&pair.backend);
    check(&logged.line(), "CL", [0, 7]);
}

fn a_stopped_relay_logs_what_it_resets(engine: Engine) {
    let Logged { rig, path, _directory } = Logged::new(engine, |_| {});
    let pair = rig.pair();
    converse(&pair);
    drop(rig);
    // It has all been written when the relay is gone.
    let lines = lines(&path);
    assert_eq!(lines.len(), 1);
    check(&lines[0], "KD", [9, 7]);
}

#[test]
fn a_client_that_never_gets_past_its_header_is_logged_without_a_backend() {
    let send = |bytes: &'static [u8]| move |client: &TcpStream| send_all(client, bytes);
    let leave = |client: &TcpStream| client.shutdown(Shutdown::Both).unwrap();
    let wait = |_: &TcpStream| {};
    let bad = send(b"GET / HTTP/1.0\r\n\r\n");
    let acts: [&dyn Fn(&TcpStream); 3] = [&leave, &bad, &wait];
    for (state, act) in ["CR", "PR", "cR"].into_iter().zip(acts) {
        let logged = Logged::new(Engine::Auto, |config| {
            config.accept_proxy = true;
            config.connect_timeout = Duration::from_millis(300);
        });
        let client = connect(logged.addr());
        act(&client);
        let line = logged.line();
        check(&line, state, [0, 0]);
        assert!(line["backend"].is_null() && line["connect_ms"].is_null(), "{line}");
    }
}

#[test]
fn a_client_named_by_a_proxy_header_is_logged_by_that_name() {
    let logged = Logged::new(Engine::Auto, |config| config.accept_proxy = true);
    let [from, to] = ["192.0.2.7:1234", "192.0.2.8:80"].map(|addr| addr.parse().unwrap());
    let client = connect(logged.addr());
    send_all(&client, &cachelane_relay::proxy::write(Some((from, to))));
    let pair = Pair { client, backend: accept(&logged.rig.listener) };
    converse(&pair);
    part(pair);
    let line = logged.line();
    check(&line, "--", [9, 7]);
    assert_eq!(line["client"], "192.0.2.7:1234");
}

#[test]
fn a_backend_that_refuses_and_one_that_does_not_answer_are_logged_apart() {
    let (_socket, refuses) = bound();
    let (silent, _kept) = black_hole();
    for (backend, state) in [(refuses, "SC"), (silent, "sC")] {
        let logged = Logged::new(Engine::Auto, |config| {
            config.backends = vec![backend.into()];
            config.connect_timeout = Duration::from_millis(300);
        });
        expect_refusal(logged.addr());
        let line = logged.line();
        check(&line, state, [0, 0]);
        assert_eq!(line["backend"], backend.to_string());
        assert!(line["connect_ms"].is_null(), "{line}");
    }
}

#[test]
fn a_second_try_is_counted_and_the_backend_that_served_is_logged() {
    let (_socket, dead) = bound();
    let mut backend = None;
    let logged = Logged::new(Engine::Auto, |config| {
        backend = config.backends.first().map(|backend| backend.target.to_string());
        config.backends.insert(0, dead.into());
        config.cpus = own_cpus().into_iter().take(1).collect();
    });
    // One of two connections comes to the dead backend first.
    for _ in 0..2 {
        let pair = logged.rig.pair();
        part(pair);
        logged.rig.await_empty();
    }
    await_that("two lines", || lines(&logged.path).len() == 2);
    let lines = lines(&logged.path);
    assert!(lines.iter().all(|line| line["backend"] == *backend.as_deref().unwrap()), "{lines:?}");
    let retries: u64 = lines.iter().map(|line| line["retries"].as_u64().unwrap()).sum();
    assert_eq!(retries, 1, "{lines:?}");
}

#[test]
fn a_connection_that_idles_too_long_is_logged_as_timed_out() {
    let logged = Logged::new(Engine::Auto, |config| {
        config.idle_timeout = Some(Duration::from_millis(300));
    });
    let pair = logged.rig.pair();
    send_all(&pair.client, b"question?");
    expect_reset(&pair.client);
    check(&logged.line(), "cD", [9, 0]);
}

#[test]
fn a_client_that_waits_too_long_in_the_queue_is_logged_so() {
    const PATIENT: Duration = Duration::from_millis(300);
    let logged = Logged::new(Engine::Auto, |config| {
        config.backends[0].max_connections = Some(1);
        config.queue_timeout = PATIENT;
    });
    let _served = logged.rig.pair();
    expect_refusal(logged.addr());
    let line = logged.line();
    check(&line, "sQ", [0, 0]);
    assert!(line["backend"].is_null() && line["connect_ms"].is_null(), "{line}");
    assert!(line["wait_ms"].as_f64() >= Some(PATIENT.as_millis() as f64), "{line}");
}

#[test]
fn a_sample_leaves_out_connections_that_ended_well_and_no_others() {
    let logged = Logged::new(Engine::Auto, |config| {
        config.cpus = own_cpus().into_iter().take(1).collect();
        if let Some(log) = &mut config.access_log {
            log.sample = "1/10".parse().unwrap();
        }
    });
    for n in 0..30 {
        let pair = logged.rig.pair();
        if n % 10 == 5 {
            abort(pair.client);
            expect_reset(&pair.backend);
        } else {
            part(pair);
        }
    }
    logged.rig.await_empty();
    await_that("lines", || lines(&logged.path).len() == 6);
    let well = lines(&logged.path).iter().filter(|line| line["state"] == "--").count();
    assert_eq!(well, 3);
    assert_eq!(logged.rig.relay.stats().access_log_lost, 0);
}

/// One connection after the other, each served, until `ended`; how many.
fn traffic(rig: &Rig, ended: impl Fn(u64) -> bool) -> u64 {
    let mut count = 0;
    while !ended(count) {
        let pair = rig.pair();
        converse(&pair);
        part(pair);
        count += 1;
    }
    rig.await_empty();
    count
}

#[test]
fn a_file_that_is_opened_anew_under_traffic_loses_no_line() {
    let logged = Logged::new(Engine::Auto, |_| {});
    let moved = |n: u32| logged.path.with_extension(n.to_string());
    let done = AtomicBool::new(false);
    let served = std::thread::scope(|scope| {
        let served = scope.spawn(|| traffic(&logged.rig, |_| done.load(Relaxed)));
        for n in 0..20 {
            await_that("a line", || fs::metadata(&logged.path).is_ok_and(|meta| meta.len() > 0));
            fs::rename(&logged.path, moved(n)).unwrap();
            logged.rig.relay.reopen_access_log();
        }
        done.store(true, Relaxed);
        served.join().unwrap()
    });
    assert_eq!(logged.rig.relay.stats().access_log_lost, 0);
    let Logged { rig, path, _directory } = logged;
    drop(rig);
    let files = (0..20).map(|n| path.with_extension(n.to_string())).chain([path.clone()]);
    let all: Vec<_> = files.map(|path| lines(&path).len() as u64).collect();
    assert_eq!(all.iter().sum::<u64>(), served, "{all:?}");
}

#[test]
fn a_full_disk_loses_lines_counts_them_and_stops_nobody() {
    let rig = Rig::with(Engine::Auto, |config| {
        config.access_log = to(LogTarget::File("/dev/full".into()));
    });
    traffic(&rig, |n| n == 200);
    await_that("all are lost", || rig.relay.stats().access_log_lost == 200);
}

#[test]
fn a_removed_directory_loses_lines_until_it_is_back() {
    let directory = directory();
    let inner = directory.path().join("logs");
    let path = inner.join("access.log");
    fs::create_dir(&inner).unwrap();
    let rig = Rig::with(Engine::Auto, |config| {
        config.access_log = to(LogTarget::File(path.clone()));
    });
    traffic(&rig, |n| n == 1);
    await_that("a line", || lines(&path).len() == 1);
    fs::remove_dir_all(&inner).unwrap();
    traffic(&rig, |n| n == 10);
    await_that("they are lost", || rig.relay.stats().access_log_lost == 10);
    fs::create_dir(&inner).unwrap();
    let lost = || rig.relay.stats().access_log_lost;
    await_that("a line again", || {
        traffic(&rig, |n| n == 1);
        path.exists()
    });
    let more = traffic(&rig, |n| n == 5);
    await_that("the rest is there", || lines(&path).len() as u64 > more);
    assert!(lost() >= 10);
}

/// A disk of 64 KiB that fills up in the middle of a line, in a child with mounts of its own.
#[test]
fn a_line_that_a_full_disk_tore_is_made_whole_root() {
    const CHILD: &str = "RELAY_TEST_MOUNTS";
    let name = "a_line_that_a_full_disk_tore_is_made_whole_root";
    if !lab::testing::root(name) {
        return;
    }
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .arg(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[child.stdout, child.stderr].concat()).into_owned();
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let directory = directory();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(directory.path())
        .status()
        .unwrap();
    assert!(mounted.success());
    let path = directory.path().join("access.log");
    let filler = directory.path().join("filler");
    fs::write(&filler, vec![0; 40 * 1024]).unwrap();
    let rig = Rig::with(Engine::Auto, |config| {
        config.access_log = to(LogTarget::File(path.clone()));
    });
    let lost = || rig.relay.stats().access_log_lost;
    let mut served = 0;
    await_that("the disk is full", || {
        served += traffic(&rig, |n| n == 20);
        lost() > 0
    });
    fs::remove_file(&filler).unwrap();
    let before = lost();
    await_that("lines again", || {
        let losing = lost();
        served += traffic(&rig, |n| n == 5);
        std::thread::sleep(Duration::from_millis(100));
        lost() == losing && losing >= before
    });
    let lost = lost();
    drop(rig);
    // Whole lines, all of them, and none that is neither there nor counted.
    assert_eq!(lines(&path).len() as u64 + lost, served);
    Command::new("umount").arg(directory.path()).status().unwrap();
}

#[test]
fn a_syslog_daemon_may_go_and_come_back() {
    let directory = directory();
    let path = directory.path().join("log");
    // It is not there yet.
    let rig = Rig::with(Engine::Auto, |config| {
        config.access_log = to(LogTarget::Syslog(path.clone()));
    });
    let lost = || rig.relay.stats().access_log_lost;
    traffic(&rig, |n| n == 3);
    await_that("they are lost", || lost() == 3);
    for _ in 0..2 {
        let daemon = UnixDatagram::bind(&path).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let mut message = [0; 2048];
        await_that("a message", || {
            traffic(&rig, |n| n == 1);
            daemon.recv(&mut message).is_ok()
        });
        let text = String::from_utf8_lossy(&message);
        let (header, rest) = text.split_once("]: ").unwrap();
        assert!(header.starts_with("<134>") && header.contains(" cachelane["), "{text}");
        let object = rest.trim_end_matches('\0');
        assert_eq!(serde_json::from_str::<Value>(object).unwrap()["state"], "--", "{text}");
        // One that is there, and does not read.
        let before = lost();
        traffic(&rig, |n| n == 600);
        await_that("its queue is full", || {
            traffic(&rig, |n| n == 10);
            lost() > before
        });
        drop(daemon);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_fifo_that_nobody_reads_stops_nobody() {
    let directory = directory();
    let path = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let log = || to(LogTarget::File(path.clone()));
    let (_listener, addr) = backend();
    let unread = Config { access_log: log(), ..config(Engine::Auto, &[addr]) };
    let error = Relay::start(unread).unwrap_err().to_string();
    assert!(error.contains("cannot log to") && error.contains("fifo"), "{error}");
    // Somebody who reads one byte, and no more.
    let mut reader = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let rig = Rig::with(Engine::Auto, |config| config.access_log = log());
    traffic(&rig, |n| n == 1);
    reader.read_exact(&mut [0; 1]).unwrap();
    traffic(&rig, |n| n == 400);
    await_that("lines are lost", || {
        traffic(&rig, |n| n == 10);
        rig.relay.stats().access_log_lost > 0
    });
    reader.flush().unwrap();
}
