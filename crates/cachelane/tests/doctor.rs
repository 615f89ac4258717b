//! `cachelane doctor` as a user meets it: what it prints, how it ends, and what it leaves alone.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use common::xsk::Scene;
use common::{Place, ends_within, text};
use lab::testing::{comes_true, root};
use lanes::LaneMap;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn run(place: &Place, args: &[&str]) -> Output {
    place.command(&[&["doctor"], args].concat()).output().expect("it runs")
}

/// Lanes that this machine does not have: its first CPU, and the others. None, and why, where it has
/// one CPU.
fn two_lanes(test: &str) -> Option<String> {
    let found = LaneMap::detect().expect("this machine");
    let first = found.online().first()?;
    let others = found.online().difference(&[first].into_iter().collect());
    if others.is_empty() {
        eprintln!("skipped: {test}: needs two CPUs");
        return None;
    }
    Some(format!("{first}|{others}"))
}

/// The numbers of the BPF programs that a process has.
fn programs(of: &Child) -> Vec<u32> {
    let files = fs::read_dir(format!("/proc/{}/fdinfo", of.id())).expect("it runs");
    let number = |file: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(file.ok()?.path()).ok()?;
        text.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
    };
    files.filter_map(number).collect()
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn ids(object: &Value) -> BTreeSet<String> {
    let findings = object["findings"].as_array().expect("a list");
    findings.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn a_record_of_this_host_says_what_this_host_says() {
    let place = Place::new();
    let before = object(&run(&place, &["--json"]));
    let recorded = run(&place, &["--record", "host"]);
    assert_eq!(recorded.status.code(), Some(0), "{recorded:?}");
    assert!(recorded.stdout.is_empty(), "{recorded:?}");
    let after = object(&run(&place, &["--json"]));
    let again = object(&run(&place, &["--root", "host", "--json"]));
    // Counters go on counting between two looks.
    let always: BTreeSet<String> = ids(&before).intersection(&ids(&after)).cloned().collect();
    let ever: BTreeSet<String> = ids(&before).union(&ids(&after)).cloned().collect();
    let found = ids(&again);
    assert!(found.is_superset(&always) && found.is_subset(&ever), "{found:?} {always:?} {ever:?}");
    assert_eq!(again["schema"], 1);
    for key in ["cpus", "devices", "kernel", "process", "device_answers"] {
        assert!(!again["host"][key].is_null(), "no {key} in {again}");
    }
    let into_it = run(&place, &["--record", "host"]);
    assert_eq!(into_it.status.code(), Some(2), "{into_it:?}");
    assert!(text(&into_it.stderr).contains("expected an empty folder"), "{into_it:?}");
}

#[test]
fn a_problem_ends_it_with_1_and_nothing_with_0() {
    let place = Place::new();
    assert!(run(&place, &["--record", "host"]).status.success());
    let release = place.path().join("host/proc/sys/kernel/osrelease");
    for (version, only, severity, code, says) in [
        ("5.10.0", "CL037", "info", 1, "problem CL037: The kernel is older than cachelane needs"),
        ("5.10.0", "cl037", "problem", 1, "this is Linux 5.10; expected 6.6 or newer"),
        ("6.6.1", "CL037", "info", 0, "nothing was found"),
        // Good to know, and no reason to fail.
        ("6.6.1", "CL038", "info", 0, "info CL038: A newer kernel would bring more"),
        ("6.6.1", "CL038", "warning", 0, "nothing was found"),
    ] {
        fs::write(&release, version).expect("a file");
        let args = ["--root", "host", "--only", only, "--severity", severity];
        let output = run(&place, &args);
        assert_eq!(output.status.code(), Some(code), "{version} {args:?}: {output:?}");
        assert!(text(&output.stdout).contains(says), "{version} {args:?}: {output:?}");
    }
}

#[test]
fn a_finding_is_explained_and_a_wrong_value_is_named() {
    let place = Place::new();
    let page = run(&place, &["CL012"]);
    assert_eq!(page.status.code(), Some(0), "{page:?}");
    assert!(text(&page.stdout).starts_with("# CL012: RPS is on"), "{page:?}");
    for (args, says) in [
        (&["CL999"][..], "expected an id from CL001 to CL"),
        (&["--only", "CL001,x"], "expected an id from CL001 to CL"),
        (&["--severity", "bad"], "expected info, warning or problem"),
        (&["--root", "nowhere"], "nowhere is not a recorded host"),
        (&["--pid", "4294967295"], "there is no process 4294967295"),
        (&["--pid", "0"], "0 is not in 1.."),
        (&["--root", "a", "--record", "b"], "--record"),
        (&["--root", "a", "--watch", "1s"], "--watch"),
        (&["--watch", "1s", "--no-watch"], "--no-watch"),
        (&["--watch", "soon"], "expected a time such as"),
        (&["--lanes", "0|0"], "cpu 0 is named twice"),
        (&["CL012", "--json"], "--json"),
    ] {
        let output = run(&place, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn what_cannot_be_printed_or_written_is_an_error() {
    let place = Place::new();
    for args in [&["doctor"][..], &["doctor", "--json"], &["doctor", "CL001"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let output = place.command(args).stdout(Stdio::from(full)).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains("cannot print to stdout"), "{args:?}: {output:?}");
    }
    fs::write(place.path().join("file"), "").expect("a file");
    let output = run(&place, &["--record", "file/below"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("cannot write file/below"), "{output:?}");
}

#[test]
fn without_privileges_it_says_what_it_could_not_see() {
    let place = Place::new();
    let output = place.unprivileged(&["doctor", "--json"]).output().expect("it runs");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let object = object(&output);
    let not_seen = object["not_seen"].to_string();
    assert!(not_seen.contains("AF_XDP"), "{not_seen}");
    // Where /sys is the network namespace's own, that is enough.
    assert!(!not_seen.contains("steering"), "{not_seen}");
    assert!(object["host"]["devices"].as_array().is_some_and(|devices| !devices.is_empty()));
    let Some(lanes) = two_lanes("without_privileges_it_says_what_it_could_not_see") else { return };
    let args = ["doctor", "--json", "--lanes", &lanes];
    let output = Place::new().unprivileged(&args).output().expect("it runs");
    let not_seen = self::object(&output)["not_seen"].to_string();
    assert!(not_seen.contains("what traffic does: "), "{not_seen}");
    assert!(not_seen.contains("needs CAP_BPF and CAP_PERFMON"), "{not_seen}");
}

#[test]
fn root_what_watches_ends_with_the_command_however_that_ends() {
    let test = "root_what_watches_ends_with_the_command_however_that_ends";
    let Some(lanes) = two_lanes(test).filter(|_| root(test)) else { return };
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let place = Place::new();
        let child = place.command(&["doctor", "--lanes", &lanes, "--watch", "1h"]).spawn();
        let child = child.expect("it starts");
        assert!(comes_true(|| programs(&child).len() >= 3), "it watches");
        let watching = programs(&child);
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let output = ends_within(child, Duration::from_secs(30));
        assert!(!output.status.success(), "{output:?}");
        let gone = || watching.iter().all(|program| bpf::program_name(*program).is_none());
        assert!(comes_true(gone), "after {signal:?}: {watching:?}");
    }
}

#[test]
fn root_what_was_seen_of_traffic_is_said() {
    let test = "root_what_was_seen_of_traffic_is_said";
    let Some(lanes) = two_lanes(test).filter(|_| root(test)) else { return };
    let place = Place::new();
    let args = ["--lanes", &lanes, "--watch", "200ms"];
    let output = run(&place, &args);
    let line = text(&output.stdout).lines().find(|line| line.starts_with("traffic of "));
    assert!(line.is_some_and(|line| line.contains("receives: ")), "{output:?}");
    let object = object(&run(&place, &[&args[..], &["--json"]].concat()));
    assert!(object["host"]["watch"]["receives"].is_u64(), "{object}");
}

#[test]
fn it_does_not_wait_for_what_nobody_asked_for() {
    let Some(lanes) = two_lanes("it_does_not_wait_for_what_nobody_asked_for") else { return };
    let place = Place::new();
    for args in [
        &["--watch", "10h", "--only", "CL001"][..],
        &["--watch", "10h", "--severity", "problem"],
        &["--no-watch"],
        &["--watch", "0"],
    ] {
        let all = [&["doctor", "--json", "--lanes", &lanes], args].concat();
        let child = place.command(&all).spawn().expect("it starts");
        let output = ends_within(child, Duration::from_secs(60));
        assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {output:?}");
        assert_eq!(object(&output)["host"]["watch"], Value::Null, "{args:?}");
    }
}

#[test]
fn root_a_bridge_is_spoken_of_in_the_words_of_its_own_check() {
    if !root("root_a_bridge_is_spoken_of_in_the_words_of_its_own_check") {
        return;
    }
    let scene = Scene::new("docbr");
    let host = scene.host("a");
    let hostile = "x;$(reboot)";
    for line in [
        "link add br0 type bridge".to_owned(),
        "link set br0 up promisc on".to_owned(),
        format!("link add {hostile} type bridge"),
    ] {
        host.ip(line.split(' ').collect::<Vec<_>>()).expect("root may");
    }
    // Without `-d`, which shows timers that run.
    let links = || {
        let output = host.command("ip").args(["link"]).output().expect("ip runs");
        text(&output.stdout).to_owned()
    };
    let before = links();
    let check = scene.run(&host, &["bridge", "br0", "--check", "--json"]);
    let check: Value = serde_json::from_slice(&check.stdout).expect("an object");
    let words = check["obstacles"][0]["text"].as_str().expect("an obstacle");
    let found = scene.run(&host, &["doctor", "--only", "CL028", "--json"]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let found = object(&found);
    let evidence = found["findings"][0]["evidence"].to_string();
    assert!(evidence.contains(&format!("br0: {words}")), "{words}: {evidence}");
    let devices = found["host"]["devices"].to_string();
    assert!(devices.contains("br0") && devices.contains(hostile), "{devices}");
    // What people paste has no name that a shell would run.
    let all = scene.run(&host, &["doctor", "--json"]);
    for finding in object(&all)["findings"].as_array().expect("a list") {
        let pasted = format!("{} {}", finding["command"], finding["check"]);
        assert!(!pasted.contains("reboot"), "{pasted}");
    }
    assert_eq!(links(), before, "nothing is changed");
}
