//! `cachelane demo` from the outside: what it prints, and that it leaves nothing behind, however
//! it ends.

mod common;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Child;
use std::time::Duration;

use common::{Place, all_namespaces, ends_within, machine_network, text};
use lab::testing::{comes_true, root};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Every row that there can be.
const ROWS: [&str; 10] = [
    "sockmap buffer, rate",
    "relay, per CPU-second",
    "relay, p99 latency",
    "relay.cpus, rate",
    "bridge, exchanges",
    "frames, frames passed",
    "xsk send, packets",
    "lend, frames accounted",
    "steer, in lane",
    "steer, records",
];
/// Longer than an end takes on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const VERDICTS: [&str; 4] = ["better", "worse", "no difference", "inconclusive"];

#[test]
fn root_a_demo_reports_every_mechanism_and_leaves_the_host_as_it_was() {
    if !root("root_a_demo_reports_every_mechanism_and_leaves_the_host_as_it_was") {
        return;
    }
    let (place, before) = (Place::new(), machine_network());
    let output = place.command(&["demo", "--quick"]).output().expect("it runs");
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{output:?}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    // On a busy machine a bridge is left to the kernel for a while, and that is logged.
    let expected = |line: &str| line.starts_with("left out: ") || line.contains("bridge");
    assert!(said.lines().all(expected), "quiet in a pipe: {said}");
    for row in ROWS {
        if said.contains(&format!("left out: {row}: ")) {
            continue;
        }
        let line = table.lines().find(|line| line.starts_with(row));
        let line = line.unwrap_or_else(|| panic!("no row {row} in {table}"));
        assert!(VERDICTS.iter().any(|verdict| line.ends_with(verdict)), "{line}");
    }
    assert!(table.contains("The page with plots is cachelane-demo.html"), "{table}");
    let page = fs::read_to_string(place.path().join("cachelane-demo.html")).expect("the page");
    assert!(page.contains("<svg") && page.contains("relay, p99 latency"));
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(outside), "the page holds {outside}");
    }
    assert_nothing_left(&place, &before);
}

#[test]
fn without_privileges_it_runs_what_needs_none_and_says_what_it_left_out() {
    let place = Place::new();
    let args = ["demo", "--quick", "--json", "--no-html", "--seed", "7"];
    let output = place.unprivileged(&args).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("left out: sockmap buffer, rate: ") && said.contains("root"), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&found["schema"], &found["seed"]), (&1.into(), &7.into()));
    assert_eq!(found["html"], serde_json::Value::Null);
    assert_eq!(found["failed"], serde_json::json!([]));
    let left_out = found["left_out"].as_array().expect("a list");
    assert_eq!(left_out[0]["name"], ROWS[0]);
    let rows = found["rows"].as_array().expect("a list");
    assert_eq!(rows.len() + left_out.len(), ROWS.len(), "{found:#}");
    for row in rows {
        let positive = |figure: &serde_json::Value| figure.as_f64().is_some_and(|v| v > 0.0);
        assert!(["off", "on", "ratio"].iter().all(|&figure| positive(&row[figure])), "{row:#}");
        let verdict = row["verdict"].as_str().expect("a word").replace('_', " ");
        assert!(VERDICTS.contains(&verdict.as_str()), "{row:#}");
        // On a busy machine a block may have nothing under one arm: then there are no bounds.
        match ["low", "high"].map(|bound| row["interval"][bound].as_f64()) {
            [Some(low), Some(high)] => {
                assert!((low..=high).contains(&row["ratio"].as_f64().unwrap()), "{row:#}");
            }
            bounds => assert_eq!(bounds, [None, None], "{row:#}"),
        }
        let windows = row["windows"].as_array().expect("a list");
        assert_eq!(windows.len() as u64, 4 * row["blocks"].as_u64().expect("a number"));
        // A busy machine may let nothing happen in one of them.
        let measured =
            |window: &serde_json::Value| window["value"].as_f64().is_some_and(|value| value >= 0.0);
        assert!(windows.iter().all(measured), "{row:#}");
    }
    assert!(!place.path().join("cachelane-demo.html").exists());
    assert_eq!((place.left_behind(), place.processes()), (vec![], vec![]));
}

#[test]
fn root_ctrl_c_ends_it_soon_and_leaves_nothing() {
    if !root("root_ctrl_c_ends_it_soon_and_leaves_nothing") {
        return;
    }
    let before = machine_network();
    // While it sets up, and when everything runs.
    for relays in [1, 3] {
        let place = Place::new();
        let (demo, namespaces) = start(&place, relays);
        // As a terminal does it: to the whole process group.
        kill_process_group(pid(&demo), Signal::INT).expect("it runs");
        let output = ends_within(demo, SOON);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(text(&output.stderr), "cachelane: interrupted\n");
        assert_eq!(text(&output.stdout), "");
        assert!(!place.path().join("cachelane-demo.html").exists());
        assert!(comes_true(|| namespaces.is_disjoint(&all_namespaces())));
        assert_nothing_left(&place, &before);
    }
}

#[test]
fn root_after_sigkill_nothing_runs_on_and_the_next_run_cleans_up() {
    if !root("root_after_sigkill_nothing_runs_on_and_the_next_run_cleans_up") {
        return;
    }
    let (place, before) = (Place::new(), machine_network());
    let (demo, namespaces) = start(&place, 3);
    kill_process(pid(&demo), Signal::KILL).expect("it runs");
    ends_within(demo, SOON);
    assert!(comes_true(|| place.processes().is_empty()), "{:?}", place.processes());
    assert!(comes_true(|| namespaces.is_disjoint(&all_namespaces())));
    assert_eq!(machine_network(), before);
    assert_eq!(place.left_behind().len(), 1, "nobody was left to remove the folder");

    let next = place.command(&["demo", "--quick", "--no-html"]).output().expect("it runs");
    assert!(next.status.success(), "{next:?}");
    assert_nothing_left(&place, &before);
}

#[test]
fn a_page_that_cannot_be_written_is_found_out_before_anything_runs() {
    let place = Place::new();
    fs::write(place.path().join("file"), "").expect("a file");
    for html in ["no/such/folder.html", "file/page.html", "."] {
        let output = place.command(&["demo", "--html", html]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{html}: {output:?}");
        let expected = format!("cachelane: cannot write {html} (choose another place with --html");
        assert!(text(&output.stderr).starts_with(&expected), "{output:?}");
        assert_eq!(place.left_behind(), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let place = Place::new();
    for args in [
        &["demo", "--no-such"][..],
        &["demo", "relay"],
        &["demo", "--seed", "x"],
        &["demo", "--html", "page.html", "--no-html"],
    ] {
        let output = place.command(args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    }
}

/// Starts a demo and waits until it has started so many relays. Returns the namespaces that it
/// then has.
fn start(place: &Place, relays: usize) -> (Child, std::collections::HashSet<std::path::PathBuf>) {
    let demo = place.command(&["demo"]).process_group(0).spawn().expect("it starts");
    let is_relay = |line: &str| line.contains(" relay --listen ") && !line.contains("setpriv");
    let count = || place.processes().iter().filter(|(_, line)| is_relay(line)).count();
    assert!(comes_true(|| count() >= relays), "{:?}", place.processes());
    let namespaces = place.namespaces();
    assert!(!namespaces.is_empty(), "it has a test host");
    for (pid, line) in place.processes() {
        let socket = format!("/run/cachelane/relay-{pid}.sock");
        assert!(!fs::exists(&socket).expect("/run is readable"), "{socket} of {line}");
    }
    (demo, namespaces)
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn assert_nothing_left(place: &Place, before: &str) {
    assert_eq!(place.processes(), vec![], "processes");
    assert_eq!(place.left_behind(), Vec::<std::path::PathBuf>::new(), "temporary files");
    assert_eq!(machine_network(), before, "the machine's network");
}
