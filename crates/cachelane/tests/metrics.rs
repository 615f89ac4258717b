//! `cachelane metrics` with real processes: what it shows, and how it ends.

mod common;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::metrics::{
    Response, Running, SOON, Scene, echo, exchange, families, get, scrape, series, value,
};
use common::{PROGRAM, ends_within, text};
use lab::testing::{comes_true, root};
use rustix::process::Signal;
use serde_json::Value;

/// What a counter is called, by the rule that docs/metrics.md gives.
fn by_rule(name: &str, unit: &str, kind: &str) -> String {
    let mut words: Vec<&str> = name.split(['.', '_']).collect();
    if unit == "bytes" {
        words.retain(|word| *word != "bytes");
        words.push("bytes");
    }
    let total = if kind == "counter" { "_total" } else { "" };
    format!("cachelane_{}{total}", words.join("_"))
}

#[test]
fn a_scrape_has_every_counter_that_knob_list_has_with_the_same_value_and_no_other() {
    let scene = Scene::new();
    let relay = scene.relay(echo(), &["--name", "the web"]);
    exchange(relay.addr(), 100_000);
    let metrics = scene.metrics();
    let labels = [("process", "relay"), ("name", "the web")];
    let mut before = scrape(metrics.addr());
    // Nothing is still counted once the connection has ended.
    assert!(comes_true(|| {
        let now = scrape(metrics.addr());
        let closed = value(&now, "cachelane_relay_closed_total", &labels);
        let of_relay = |series: &&String| series.starts_with("cachelane_relay_");
        let same =
            before.iter().filter(|(s, _)| of_relay(s)).eq(now.iter().filter(|(s, _)| of_relay(s)));
        before = now;
        closed == 1.0 && same
    }));
    let listed = scene.listed();
    let listed = listed.iter().find(|one| one["process"] == "relay").expect("the relay");
    let mut known = BTreeSet::new();
    for counter in listed["counters"].as_array().expect("counters") {
        let field = |name: &str| counter[name].as_str().expect("text").to_owned();
        let family = by_rule(&field("name"), &field("unit"), &field("kind"));
        let expected = counter["value"].as_f64().expect("a number");
        assert_eq!(value(&before, &family, &labels), expected, "{family}");
        known.insert(family);
    }
    assert_eq!(value(&before, "cachelane_relay_bytes_total", &labels), 200_000.0);
    let of_processes = |family: &String| {
        let rest = family.strip_prefix("cachelane_relay_");
        rest.is_some_and(|rest| !rest.starts_with("backend_") && !rest.starts_with("listener_"))
            || family == "cachelane_relay_backends_up"
    };
    let shown: BTreeSet<_> = families(&before).into_iter().filter(of_processes).collect();
    assert_eq!(shown, known);
    assert_eq!(value(&before, "cachelane_process_left_out", &labels), 0.0);
    for knob in listed["knobs"].as_array().expect("knobs") {
        let [name, value] = ["name", "value"].map(|field| knob[field].as_str().expect("text"));
        let labels = [labels[0], labels[1], ("knob", name), ("value", value)];
        assert_eq!(self::value(&before, "cachelane_knob_info", &labels), 1.0);
    }
}

#[test]
fn each_backend_and_listener_of_a_relay_has_its_own() {
    let scene = Scene::new();
    // Nobody serves the discard port.
    let (up, dead) = (echo(), "127.0.0.1:9");
    let relay = scene.relay(up, &["--to", dead, "--name", "two", "--retry-after", "1h"]);
    let listener = relay.addr();
    for _ in 0..2 {
        exchange(listener, 1000);
    }
    let metrics = scene.metrics();
    let of = |side: &str, addr: &str, field: &str, more: &[(&str, &str)]| {
        let labels = [&[("name", "two"), (side, addr)][..], more].concat();
        value(&scrape(metrics.addr()), &format!("cachelane_relay_{side}_{field}"), &labels)
    };
    let (up, listener) = (up.to_string(), listener.to_string());
    assert!(comes_true(|| of("backend", &up, "ended_total", &[("cause", "normal")]) == 2.0));
    assert_eq!(of("backend", &up, "up", &[]), 1.0);
    assert_eq!(of("backend", dead, "up", &[]), 0.0);
    assert_eq!(of("backend", dead, "connect_failed_total", &[]), 1.0);
    assert_eq!(of("backend", &up, "bytes_total", &[("direction", "up")]), 2000.0);
    assert_eq!(of("listener", &listener, "connections_total", &[]), 2.0);
    assert!(of("backend", &up, "connect_seconds", &[("share", "0.5")]) > 0.0);
}

#[test]
fn a_stopped_process_is_shown_as_silent_by_its_name_and_costs_the_others_little() {
    let scene = Scene::new();
    let (stopped, other) =
        (scene.relay(echo(), &["--name", "a"]), scene.relay(echo(), &["--name", "b"]));
    let metrics = scene.metrics();
    let up = |name: &str| value(&scrape(metrics.addr()), "cachelane_process_up", &[("name", name)]);
    assert_eq!((up("a"), up("b")), (1.0, 1.0));
    stopped.signal(Signal::STOP);
    assert!(comes_true(|| up("a") == 0.0));
    let all = scrape(metrics.addr());
    assert_eq!(value(&all, "cachelane_process_up", &[("name", "b")]), 1.0);
    value(&all, "cachelane_relay_accepted_total", &[("name", "b")]);
    // Far more than it takes: the time of one that is asked in vain is 0.1 s.
    assert!(value(&all, "cachelane_exporter_scrape_duration_seconds", &[]) < 3.0);
    stopped.signal(Signal::CONT);
    assert!(comes_true(|| up("a") == 1.0));
    drop(other);
    assert!(comes_true(|| !scrape(metrics.addr())
        .keys()
        .any(|series| series.contains("name=\"b\""))));
}

#[test]
fn one_that_takes_requests_and_never_answers_costs_a_second_and_holds_up_no_other_page() {
    let scene = Scene::new();
    let metrics = scene.metrics();
    let path = scene.0.path().join(format!("run/relay-{}.sock", std::process::id()));
    let _stuck = UnixListener::bind(path).expect("a socket");
    let addr = metrics.addr();
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let scraping = scope.spawn(move || scrape(addr));
        // While the scrape waits, which shows in no other way.
        while !scraping.is_finished() {
            assert_eq!(get(addr, "/-/healthy").text(), "ok\n");
        }
        let all = scraping.join().expect("no panic");
        assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
        let pid = std::process::id().to_string();
        let labels = [("process", "relay"), ("name", ""), ("pid", pid.as_str())];
        assert_eq!(value(&all, "cachelane_process_up", &labels), 0.0);
        assert!(value(&all, "cachelane_exporter_scrape_duration_seconds", &[]) < 5.0);
    });
}

#[test]
fn two_processes_of_one_name_are_told_apart_by_their_ids() {
    let scene = Scene::new();
    let first = scene.relay(echo(), &["--name", "same"]);
    // Which started first is told in hundredths of a second.
    std::thread::sleep(Duration::from_millis(30));
    let second = scene.relay(echo(), &["--name", "same"]);
    exchange(second.addr(), 10);
    let metrics = scene.metrics();
    let pid = second.pid().to_string();
    let all = scrape(metrics.addr());
    let accepted: Vec<_> =
        all.keys().filter(|s| s.starts_with("cachelane_relay_accepted_total")).collect();
    assert_eq!(accepted.len(), 2, "{accepted:?}");
    let labels = [("name", "same"), ("pid", pid.as_str())];
    assert_eq!(value(&all, "cachelane_relay_accepted_total", &labels), 1.0);
    let plain = "cachelane_relay_accepted_total{process=\"relay\",name=\"same\"}";
    assert_eq!(all[plain], 0.0);
    // What was the first goes; the other takes its place.
    drop(first);
    assert!(comes_true(|| scrape(metrics.addr()).get(plain) == Some(&1.0)));
}

#[test]
fn what_a_process_says_breaks_no_line() {
    let scene = Scene::new();
    let name = "a\"b\\c {d=\"e\"} 1";
    let _relay = scene.relay(echo(), &["--name", name]);
    let metrics = scene.metrics();
    let all = scrape(metrics.addr());
    let escaped = "a\\\"b\\\\c {d=\\\"e\\\"} 1";
    assert_eq!(value(&all, "cachelane_relay_accepted_total", &[("name", escaped)]), 0.0);
}

#[test]
fn once_prints_all_but_what_is_of_itself() {
    let scene = Scene::new();
    let _relay = scene.relay(echo(), &[]);
    let output = scene.output(&["metrics", "--once"]);
    assert!(output.status.success(), "{output:?}");
    let printed = families(&series(text(&output.stdout)));
    assert!(printed.contains("cachelane_relay_bytes_total"));
    assert!(printed.iter().all(|family| family.starts_with("cachelane_")), "{printed:?}");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    let child = scene.command(&["metrics", "--once"]).stdout(full).spawn().expect("it starts");
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot print to stdout"), "{output:?}");
}

#[test]
fn a_signal_ends_it_at_once_and_its_unix_socket_goes_with_it() {
    let scene = Scene::new();
    for signal in [Signal::TERM, Signal::INT] {
        let mut metrics =
            scene.start(&["metrics", "--listen", "unix:m.sock"], "serving http://unix:");
        let path = scene.0.path().join("m.sock");
        let mut stream = UnixStream::connect(&path).expect("it listens");
        std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let response = Response::read(&mut std::io::BufReader::new(stream), false);
        assert!(response.text().contains("cachelane_build_info"));
        let _idle = UnixStream::connect(&path).expect("it listens");
        metrics.signal(signal);
        assert!(comes_true(|| metrics.child.try_wait().expect("its status").is_some()));
        assert!(metrics.child.wait().expect("its status").success());
        assert!(!path.exists());
        assert!(scene.listed().is_empty(), "its control socket is gone");
    }
}

#[test]
fn it_serves_the_sockets_of_a_service_manager_and_tells_when_it_does() {
    let scene = Scene::new();
    let path = scene.0.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(SOON)).expect("a timeout");
    let told = || {
        let mut bytes = [0; 512];
        let length = manager.recv(&mut bytes).expect("it says something");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let passed = |more: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", PROGRAM, "metrics"]).args(more);
        command.env("CACHELANE_RUNTIME_DIR", scene.0.path().join("run"));
        command.env("LISTEN_FDNAMES", "scrape").env("NOTIFY_SOCKET", &path);
        command.stdin(OwnedFd::from(listener.try_clone().expect("a file")));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    for more in [&[][..], &["--listen", "fd:scrape"]] {
        let metrics = Running::start(&mut passed(more), "serving http://");
        assert_eq!(told(), "READY=1\n");
        assert_eq!(metrics.addr(), listener.local_addr().expect("an address"));
        assert!(!scrape(metrics.addr()).is_empty());
        metrics.signal(Signal::TERM);
        assert_eq!(told(), "STOPPING=1\n");
    }
    let output = passed(&["--listen", "fd:other"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("passed: scrape"), "{output:?}");
}

#[test]
fn what_cannot_be_is_refused_by_name_and_a_dry_run_listens_to_nobody() {
    let scene = Scene::new();
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("an address").to_string();
    for (args, code, named) in [
        (&["--listen", "localhost:80"][..], 2, "'localhost:80'"),
        (&["--listen", "x"], 2, "expected IP:PORT"),
        (&["--listen", &taken], 1, "cannot listen on"),
        (&["--listen", "192.0.2.1:0"], 1, "192.0.2.1:0 (--listen)"),
        (&["--once", "--listen", "127.0.0.1:0"], 2, "--once"),
    ] {
        let output = scene.output(&[&["metrics"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(named), "{args:?}: {output:?}");
    }
    drop(holder);
    let output = scene.output(&["metrics", "--listen", &taken, "--dry-run"]);
    assert!(output.status.success(), "{output:?}");
    let expected =
        format!("would serve http://{taken}/metrics\nwould change nothing else on this host\n");
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn it_is_a_process_as_the_others_are() {
    let scene = Scene::new();
    let metrics = scene
        .start(&["metrics", "--listen", "127.0.0.1:0", "--name", "for tests"], "serving http://");
    scrape(metrics.addr());
    let listed = scene.listed();
    assert_eq!(
        (&listed[0]["process"], &listed[0]["name"]),
        (&Value::from("metrics"), &Value::from("for tests"))
    );
    let counters = listed[0]["counters"].as_array().expect("counters");
    let rounds = counters.iter().find(|one| one["name"] == "metrics.rounds").expect("it is there");
    assert_eq!(rounds["value"], 1);
    let all = scrape(metrics.addr());
    for family in ["process_resident_memory_bytes", "process_start_time_seconds"] {
        let own = value(&all, &format!("cachelane_{family}"), &[("process", "metrics")]);
        assert!(own > 0.0 && value(&all, family, &[]) > 0.0, "{family}");
    }
}

#[test]
fn root_another_users_process_is_shown_as_that_users() {
    const UID: u32 = 54_323;
    if !root("root_another_users_process_is_shown_as_that_users") {
        return;
    }
    let (scene, id) = (Scene::new(), UID.to_string());
    // The program may be where only root may read; a program of its own writes the copy, since a child
    // that another test forks meanwhile would keep it busy.
    let program = scene.0.path().join("cachelane");
    let copied = Command::new("cp").arg(PROGRAM).arg(&program).status().expect("cp runs");
    assert!(copied.success(), "a copy");
    for path in [scene.0.path(), &program] {
        std::os::unix::fs::chown(path, Some(UID), Some(UID)).expect("root may");
    }
    let as_user = ["--reuid", &id, "--regid", &id, "--clear-groups", "--"];
    let mut relay = scene.0.wrapped("setpriv".as_ref(), &as_user);
    relay.arg(&program).args(["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    relay
        .args(["--name", "theirs"])
        .env_remove("CACHELANE_RUNTIME_DIR")
        .env_remove("XDG_RUNTIME_DIR");
    let relay = Running::start(&mut relay, "relaying ");
    let sockets = std::path::PathBuf::from(format!("/tmp/cachelane-{UID}"));
    let printed = || {
        let mut once = scene.0.command(&["metrics", "--once"]);
        once.env_remove("CACHELANE_RUNTIME_DIR");
        let output = ends_within(once.spawn().expect("it starts"), SOON);
        assert!(output.status.success(), "{output:?}");
        series(text(&output.stdout))
    };
    let labels = [("process", "relay"), ("name", "theirs"), ("uid", id.as_str())];
    let all = printed();
    assert_eq!(value(&all, "cachelane_relay_accepted_total", &labels), 0.0);
    assert!(value(&all, "cachelane_process_resident_memory_bytes", &labels) > 0.0);
    drop(relay);
    std::fs::remove_dir_all(sockets).expect("it is there");
    assert!(!printed().keys().any(|series| series.contains(&format!("uid=\"{id}\""))));
}
