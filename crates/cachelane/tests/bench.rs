//! The benches run to their end and give what was asked for; what they measure here is nothing
//! to go by. On a machine that has much else to do a window may be empty: then it has to be said.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{PROGRAM, Place, ends_within, says, text};
use lab::testing::{comes_true, root};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// One bench at a time: side by side they take each other's CPUs, for longer than their windows.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Runs an experiment, with programs looked for in this folder only.
fn bench(name: &str, args: &[&str], path: Option<&Path>) -> Value {
    let _turn = turn();
    let mut command = Command::new(PROGRAM);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.args(["bench", name, "--json"]).args(args).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains(&format!("bench {name}: takes about ")), "{stderr}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["schema"], &json["experiment"]), (&1.into(), &name.into()));
    assert_eq!(json["incomplete"], Value::Null);
    json
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts(value: &Value) -> Vec<&str> {
    list(value).iter().filter_map(Value::as_str).collect()
}

/// What `bench --list` says of an experiment's parts.
fn listed(experiment: &str) -> Vec<Value> {
    let output = Command::new(PROGRAM).args(["bench", "--list", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], 1);
    let found = list(&json["experiments"]).iter().find(|one| one["name"] == experiment);
    list(&found.unwrap_or_else(|| panic!("no {experiment} in {json}"))["parts"]).to_vec()
}

/// Asserts that each ratio that the parts claim to give is there, with its bar, or has a reason.
fn assert_complete(json: &Value, parts: &[Value]) {
    let absent = texts(&json["absent"]);
    let ratios = parts.iter().flat_map(|part| list(&part["ratios"]));
    for claimed in ratios {
        // Of fewer stations and connections than by default.
        let name = claimed["name"].as_str().unwrap();
        let name = name.replace("100000", "1000").replace("9800", "200");
        let there = list(&json["ratios"]).iter().filter(|ratio| {
            let bar = ratio["bar"] == claimed["bar"];
            ratio["name"] == *name && ratio["median"].is_number() && bar
        });
        let reason = |said: &&&str| {
            let reason = said.strip_prefix(&*name).and_then(|said| said.strip_prefix(": "));
            reason.is_some_and(|reason| !reason.is_empty())
        };
        let said = absent.iter().filter(reason);
        assert_eq!(there.count() + said.count(), 1, "'{name}' once in {json:#}");
    }
    // What is installed and cannot be built is a defect.
    assert!(!absent.iter().any(|text| text.contains("cannot be built")), "{absent:?}");
}

#[test]
fn root_every_experiment_gives_each_ratio_or_the_reason_why_not() {
    if root("root_every_experiment_gives_each_ratio_or_the_reason_why_not") {
        every_ratio_is_there(|part| part != GROWTH);
    }
}

/// Each of its cases sets up hosts of its own.
#[test]
#[ignore = "takes minutes"]
fn root_every_growth_is_given_or_the_reason_why_not() {
    if root("root_every_growth_is_given_or_the_reason_why_not") {
        every_ratio_is_there(|part| part == GROWTH);
    }
}

const GROWTH: &str = "growth";

/// Of these parts of all experiments.
fn every_ratio_is_there(of: impl Fn(&str) -> bool) {
    let entries = "/proc/sys/net/core/rps_sock_flow_entries";
    let found = std::fs::read_to_string(entries).unwrap();
    let mut ran = 0;
    for (experiment, args) in [
        ("bridge", &["--window", "200ms", "--entries", "1000"][..]),
        ("doctor", &["--window", "50ms"]),
        ("frames", &["--window", "10ms"]),
        ("lend", &["--window", "100ms"]),
        ("relay", &["--window", "100ms", "--memory-time", "1s", "--idle", "200"]),
        ("steer", &["--window", "200ms"]),
        ("trial", &["--window", "100ms"]),
    ] {
        let parts = listed(experiment).into_iter();
        let parts: Vec<_> = parts.filter(|part| of(part["name"].as_str().unwrap())).collect();
        let names: Vec<_> = parts.iter().filter_map(|part| part["name"].as_str()).collect();
        if names.is_empty() {
            continue;
        }
        let only = names.join(",");
        let json = bench(experiment, &[args, &["--rounds", "1", "--only", &only]].concat(), None);
        assert_complete(&json, &parts);
        ran += 1;
    }
    // The doctor and the trial have nothing that grows.
    assert!(ran >= 5, "{ran} experiments");
    assert_eq!(std::fs::read_to_string(entries).unwrap(), found, "the machine's own setting");
}

#[test]
fn without_root_what_needs_it_is_absent_with_the_reason() {
    let _turn = turn();
    let place = Place::new();
    let args = ["bench", "frames", "--only", "xsk", "--rounds", "1", "--json"];
    let output = place.unprivileged(&args).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let xsk: Vec<_> = listed("frames").into_iter().filter(|part| part["name"] == "xsk").collect();
    assert_complete(&json, &xsk);
    assert!(texts(&json["absent"]).iter().any(|text| text.contains("needs root")), "{json}");
}

#[test]
fn the_list_says_how_long_each_takes_and_what_is_claimed() {
    let output = Command::new(PROGRAM).args(["bench", "--list"]).output().unwrap();
    let said = text(&output.stdout);
    for line in [
        "frames: about ",
        "  memory: The pool against other pools and an allocator, memory only",
        "    get+put single: frames / dpdk (at most 0.5)",
        "    pps: cachelane / linux bridge (at least 1.7)",
    ] {
        assert!(said.lines().any(|found| found.starts_with(line)), "'{line}' in {said}");
    }
}

#[test]
fn a_page_is_written_with_plots() {
    let place = Place::new();
    let page = place.path().join("page.html");
    let args = ["--only", "homes", "--rounds", "2", "--window", "1ms", "--html"];
    bench("frames", &[&args[..], &[page.to_str().unwrap()]].concat(), None);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("many homes: 256 / 2, get in vain"));
}

#[test]
fn peers_that_are_not_installed_are_absent_with_the_reason() {
    let nothing = Place::new();
    let args = ["--only", "memory,threads", "--rounds", "1", "--window", "5ms"];
    let json = bench("frames", &args, Some(nothing.path()));
    let absent = texts(&json["absent"]);
    for (said, reason) in [
        ("dpdk", "pkg-config cannot be run"),
        ("dpdk, stack handler", "pkg-config cannot be run"),
        ("get+put single: frames / dpdk", "pkg-config cannot be run"),
        ("mimalloc", "the C compiler, cc, cannot be run"),
    ] {
        let said = format!("{said}: {reason}");
        assert!(absent.iter().any(|text| text.starts_with(&said)), "'{said}' in {absent:?}");
    }
    let names: Vec<_> = list(&json["ratios"]).iter().map(|ratio| &ratio["name"]).collect();
    assert!(names.contains(&&"get+put single: frames / crossbeam".into()), "{names:?}");
}

#[test]
fn root_borrowers_whose_language_is_not_there_are_absent_with_the_reason() {
    if !root("root_borrowers_whose_language_is_not_there_are_absent_with_the_reason") {
        return;
    }
    let nothing = Place::new();
    // Without a compiler and without Python in its path.
    for program in ["env", "ethtool", "ip", "setpriv"] {
        let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(Path::new);
        let found = folders.iter().map(|dir| dir.join(program)).find(|path| path.exists());
        let found = found.unwrap_or_else(|| panic!("no {program}"));
        std::os::unix::fs::symlink(found, nothing.path().join(program)).unwrap();
    }
    let args = ["--only", "delivered", "--rounds", "1", "--window", "50ms"];
    let json = bench("lend", &args, Some(nothing.path()));
    let absent = texts(&json["absent"]);
    for said in [
        "af_packet: the C compiler, cc, cannot be run",
        "borrower in c: the C compiler, cc, cannot be run",
        "delivered pps: c / rust: the C compiler, cc, cannot be run",
    ] {
        assert!(absent.iter().any(|text| text.starts_with(said)), "'{said}' in {absent:?}");
    }
}

#[test]
fn an_interrupted_bench_prints_what_it_has_and_says_that_it_is_incomplete() {
    let _turn = turn();
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let bench = ["-v", "bench", "frames", "--only", "homes", "--rounds", "1000"];
        let args = ["--window", "1ms", "--json", "--html", "page.html"];
        let mut bench = place.command(&[&bench[..], &args].concat());
        let (child, _stderr) = says(&mut bench, "round 2 of 1000");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = ends_within(child, Duration::from_secs(30));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["incomplete"], true);
        let runs = list(&json["cases"]).iter().map(|case| list(&case["runs"]).len());
        assert!(runs.min() > Some(0), "{json:#}");
        let parts: Vec<_> = listed("frames").into_iter().filter(|p| p["name"] == "homes").collect();
        assert_complete(&json, &parts);
        let page = std::fs::read_to_string(place.path().join("page.html")).unwrap();
        assert!(page.contains("incomplete: "), "{page}");
    }
}

#[test]
fn a_second_signal_ends_a_bench_at_once() {
    let _turn = turn();
    let place = Place::new();
    // In the first window there is nothing yet that could be printed.
    let args = ["bench", "frames", "--only", "homes", "--window", "10m"];
    let child = place.command(&args).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        u64::from_str_radix(caught, 16).unwrap() & (1 << (Signal::INT.as_raw() - 1)) != 0
    };
    assert!(comes_true(catches), "it catches the signal");
    kill_process(pid, Signal::INT).unwrap();
    // Else the two could be one.
    std::thread::sleep(Duration::from_millis(300));
    kill_process(pid, Signal::INT).unwrap();
    let output = ends_within(child, Duration::from_secs(30));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
}
