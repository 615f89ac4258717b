//! `cachelane trial` from the outside: what it sets, measures, says, and leaves behind.

mod common;

use std::convert::Infallible;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{Place, ends_within, says, text};
use knobs::{Client, Knob, MeterKind, Registry, Server};
use lab::testing::{comes_true, root};
use lab::{Host, Lab};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TTL: &str = "net.ipv4.ip_default_ttl";

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process with a knob: this one. With the knob on, one of its counters counts twice as fast.
struct Scene {
    place: Place,
    on: Arc<AtomicBool>,
    server: Server,
}

impl Scene {
    fn new() -> Scene {
        let place = Place::new();
        let on = Arc::new(AtomicBool::new(false));
        let (shown, set, counted) = (Arc::clone(&on), Arc::clone(&on), Arc::clone(&on));
        let registry = Registry::new("made");
        let knob = Knob::off_on(
            "made.twice",
            "counts twice as fast",
            false,
            move || Ok::<_, Infallible>(shown.load(Relaxed)),
            move |new| {
                set.store(new, Relaxed);
                Ok::<_, Infallible>(())
            },
        );
        registry.register(knob).unwrap();
        // Each reading counts, so what a window gives depends on no clock.
        let (count, readings) = (AtomicU64::new(0), AtomicU64::new(0));
        let read = move || {
            let step = if counted.load(Relaxed) { 2000 } else { 1000 };
            let count = count.fetch_add(step, Relaxed) + step;
            Ok::<_, Infallible>([count, readings.fetch_add(1, Relaxed) + 1, 0])
        };
        let counts = [
            ("count", "things", "Things counted."),
            ("readings", "times", "Times that somebody asked."),
            ("idle", "things", "Things that never come."),
        ];
        registry.meters(MeterKind::Counter, "made", counts, read).unwrap();
        let server = Server::bind_in(registry, &place.path().join("run")).unwrap();
        Scene { place, on, server }
    }

    fn command(&self, args: &[&str]) -> Command {
        command(&self.place, args)
    }

    fn run(&self, args: &[&str]) -> Output {
        ends_within(self.command(args).spawn().unwrap(), PATIENCE)
    }

    fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    fn client(&self) -> Client {
        Client::connect(self.server.path()).unwrap()
    }

    /// Who holds the knob.
    fn holder(&self) -> Option<String> {
        self.client().list().unwrap().remove(0).held.map(|held| held.holder)
    }

    /// A trial that goes on until somebody ends it, once it has set an arm.
    fn long(&self, more: &[&str]) -> Child {
        let args =
            [&["trial", "made.twice", "--for", "1h", "--window", "50ms"][..], &MEASURE, more];
        let child = self.command(&args.concat()).spawn().unwrap();
        assert!(comes_true(|| self.is_on()), "no arm was set");
        child
    }
}

/// What the process counts by reading: exactly twice as much where the knob is on.
const COUNT: &str = "counter:made.count/counter:made.readings";
const MEASURE: [&str; 3] =
    ["--no-guards", "--measure", "counter:made.count/counter:made.readings,higher"];

/// Six blocks, the fewest, as short as can be.
const SHORT: [&str; 6] = ["--blocks", "6", "--window", "20ms", "--settle", "0s"];

fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command.env("CACHELANE_RUNTIME_DIR", place.path().join("run")).env("NO_COLOR", "1");
    command
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The windows of a result's complete blocks.
fn windows(result: &Value) -> usize {
    result["windows"].as_array().map_or(0, Vec::len)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A command that prints what a file holds.
fn cat(path: &str) -> Vec<&str> {
    vec!["--", "cat", path]
}

#[test]
fn bad_values_are_named_with_what_was_expected_and_change_nothing() {
    let scene = Scene::new();
    for (args, expected) in [
        (&["trial"][..], "SUBJECT"),
        (&["trial", "made.thrice"], "(knobs: made.twice)"),
        (&["trial", "made.twice", "--pid", "1"], "no cachelane process with process id 1 runs"),
        (&["trial", "made.twice", "--arms", "on"], "Give at least two of off, on with --arms"),
        (
            &["trial", "made.twice", "--arms", "off,warp"],
            "does not take \"warp\" (expected off or on)",
        ),
        (&["trial", "made.twice", "--arms", "off,off"], "'off' is named twice"),
        (&["trial", "made.twice", "--measure", "cpu.bussy"], "did you mean cpu.busy?"),
        (
            &["trial", "made.twice", "--measure", "made.count"],
            "made.count,lower or made.count,higher",
        ),
        (&["trial", "made.twice", "--for", "1s"], "--for 1s: too short"),
        (&["trial", "made.twice", "--for", "soon"], "expected a time such as"),
        (&["trial", "made.twice", "--window", "0s"], "window: 0ns; expected at least 10ms"),
        (&["trial", "made.twice", "--window", "1ns"], "expected at least 10ms"),
        (
            &["trial", "--a", "true", "--b", "true", "--window", "10ms", "--hold", "24h"],
            "at most 100000",
        ),
        (
            &["trial", "made.twice", "--hold", "1m"],
            "--hold: what made.twice is set to shows at once",
        ),
        (&["trial", "made.twice", "--window", "500000000years"], "at most 30days"),
        (&["trial", "made.twice", "--for", "1year"], "at most 30days"),
        (&["trial", "made.twice", "--find", "3"], "such as 3%"),
        (&["trial", "made.twice", "--margin", "0%"], "such as 3%"),
        (&["trial", "made.twice", "--confidence", "1"], "confidence: 1; expected 0.5 to 0.999"),
        (&["trial", "made.twice", "--blocks", "5"], "blocks: 5; expected 6 to 10000"),
        (&["trial", "made.twice", "--guard", "net.drops < 2"], "expected a measure, <="),
        (&["trial", "made.twice", "--", "true"], "--better"),
        (&["trial", "made.twice", "--a", "true", "--b", "true"], "cannot be used with"),
        (&["trial", "--a", "true"], "--b"),
        (&["trial", "file:/etc/passwd", "--arms", "a,b"], "is no setting to try"),
        (&["trial", "sysctl:net.core.somaxconn"], "Give at least two with --arms a,b"),
        (&["trial", "combine"], "FILE"),
    ] {
        let output = scene.run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: '{said}' lacks '{expected}'");
        assert!(!scene.is_on() && scene.holder().is_none());
    }
}

#[test]
fn a_difference_is_found_and_the_knob_is_as_it_was() {
    let scene = Scene::new();
    let args = ["trial", "made.twice", "--seed", "7", "--json", "--html", "page.html"];
    let output = scene.run(&[&args[..], &MEASURE, &SHORT].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!scene.is_on() && scene.holder().is_none());
    let got = json(&output);
    assert_eq!((&got["schema"], &got["subject"]), (&1.into(), &"made.twice".into()));
    assert_eq!(got["plan"]["arms"], serde_json::json!(["off", "on"]));
    assert_eq!(got["judged"][0]["verdict"], "better", "{}", got["judged"]);
    assert_eq!(got["host"]["cpus"].as_u64().map(|cpus| cpus > 0), Some(true));
    let windows = got["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 24);
    let mut last = 0.0;
    for window in windows {
        let arm = if window["arm"] == 0 { "off" } else { "on" };
        assert_eq!(window["setting"], arm, "{window}");
        let [started, ended] = ["started", "ended"].map(|key| window[key].as_f64().unwrap());
        assert!(last < started && started + 0.02 <= ended, "{window}");
        last = ended;
    }
    let page = fs::read_to_string(scene.place.path().join("page.html")).unwrap();
    assert!(page.contains("made.twice") && page.contains(COUNT), "{page}");
    assert!(text(&output.stderr).contains("varies by"), "{output:?}");
}

#[test]
fn the_table_says_what_was_found_and_that_it_is_restored() {
    let scene = Scene::new();
    let output = scene.run(&[&["trial", "made.twice"][..], &MEASURE, &SHORT].concat());
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for expected in [COUNT, "better", "off", "on", "restored"] {
        assert!(said.contains(expected), "'{said}' lacks '{expected}'");
    }
}

#[test]
fn a_winner_is_kept_if_asked_for_and_a_loser_is_not() {
    for (better, kept) in [("higher", true), ("lower", false)] {
        let scene = Scene::new();
        let measure = format!("{COUNT},{better}");
        let args = ["trial", "made.twice", "--keep-winner", "--no-guards", "--measure", &measure];
        let output = scene.run(&[&args[..], &SHORT, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!((scene.is_on(), scene.holder()), (kept, None));
        let got = json(&output);
        assert_eq!(got["kept"].as_str(), kept.then_some("on"), "{got}");
        let verdict = if kept { "better" } else { "worse" };
        assert_eq!(got["judged"][0]["verdict"], verdict);
    }
}

#[test]
fn nobody_else_sets_the_knob_unless_by_force_which_ends_the_trial() {
    let scene = Scene::new();
    let child = scene.long(&["--json"]);
    assert_eq!(scene.holder(), Some(format!("trial, pid {}", child.id())));
    let refused = scene.run(&["knob", "set", "made.twice", "off"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("is held by trial, pid"), "{refused:?}");
    let second = scene.run(&[&["trial", "made.twice"][..], &MEASURE, &SHORT].concat());
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(text(&second.stderr).contains("is held by trial, pid"), "{second:?}");

    let forced = scene.run(&["knob", "set", "--force", "made.twice", "on"]);
    assert_eq!(forced.status.code(), Some(0), "{forced:?}");
    let output = ends_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("made.twice") && said.contains("force"), "{said}");
    assert_eq!((scene.is_on(), scene.holder()), (true, None), "what was set by force stays");
    // What had been measured is not lost.
    let got = json(&output);
    assert_eq!(got["ended"], "stopped");
    let notes = got["notes"].to_string();
    assert!(notes.contains("left alone: ") && !notes.contains("restored"), "{notes}");
}

#[test]
fn a_signal_ends_it_and_what_was_measured_is_printed() {
    for end in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let scene = Scene::new();
        let child = scene.long(&["--json"]);
        signal(&child, end);
        let output = ends_within(child, PATIENCE);
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        assert_eq!((scene.is_on(), scene.holder()), (false, None));
        assert_eq!(json(&output)["ended"], "stopped");
    }
}

#[test]
fn a_knob_whose_trial_is_killed_or_stopped_is_restored_by_its_process() {
    let scene = Scene::new();
    let mut killed = scene.long(&[]);
    signal(&killed, Signal::KILL);
    killed.wait().unwrap();
    assert!(comes_true(|| !scene.is_on() && scene.holder().is_none()), "it is restored");

    let stopped = scene.long(&[]);
    signal(&stopped, Signal::STOP);
    assert!(comes_true(|| !scene.is_on() && scene.holder().is_none()), "it is restored");
    scene.client().set("made.twice", "on").unwrap();
    signal(&stopped, Signal::CONT);
    let output = ends_within(stopped, PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!((scene.is_on(), scene.holder()), (true, None), "what was set meanwhile stays");
}

#[test]
fn a_signal_while_the_pilot_holds_an_arm_ends_it_and_restores() {
    let scene = Scene::new();
    let held = ["--json", "--reach", "unknown", "--hold", "2s"];
    let child = scene.long(&held);
    signal(&child, Signal::INT);
    let output = ends_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!((scene.is_on(), scene.holder()), (false, None));
    let got = json(&output);
    assert_eq!((&got["ended"], windows(&got)), (&"stopped".into(), 0), "{got}");
}

#[test]
fn a_process_that_is_stopped_ends_the_trial_and_restores_when_it_goes_on() {
    let place = Place::new();
    let run = |args: &[&str]| ends_within(command(&place, args).spawn().unwrap(), PATIENCE);
    let relay = ["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--engine", "copy"];
    let (mut relay, _log) = says(&mut command(&place, &relay), "relaying");
    let is = |engine| text(&run(&["knob", "get", "relay.engine"]).stdout).contains(engine);
    assert!(comes_true(|| is("copy")));
    let plan = ["--reach", "at-once", "--for", "1h", "--window", "50ms", "--no-guards"];
    let number = ["--better", "higher", "--", "echo", "1"];
    let trial = [&["trial", "relay.engine", "--arms", "copy,splice"][..], &plan, &number].concat();
    let trial = command(&place, &trial).spawn().unwrap();
    assert!(comes_true(|| is("splice")));
    signal(&relay, Signal::STOP);
    let output = ends_within(trial, PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("relay"), "{output:?}");
    signal(&relay, Signal::CONT);
    assert!(comes_true(|| is("copy")), "its own process has restored it");
    signal(&relay, Signal::TERM);
    assert!(relay.wait().unwrap().success());
}

#[test]
fn a_process_that_goes_ends_the_trial_with_its_name() {
    let Scene { place, on, server } = Scene::new();
    let args = ["trial", "made.twice", "--for", "1h", "--window", "50ms"];
    let child = command(&place, &[&args[..], &MEASURE].concat()).spawn().unwrap();
    assert!(comes_true(|| on.load(Relaxed)));
    drop(server);
    let output = ends_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("made"), "{output:?}");
}

#[test]
fn commands_are_arms_as_well() {
    let scene = Scene::new();
    for (more, at_end) in [(&[][..], "1"), (&["--keep-winner"], "2")] {
        let args = ["trial", "--a", "echo 1 > arm", "--b", "echo 2 > arm", "--reach", "at-once"];
        let number = ["--no-guards", "--better", "higher", "--unit", "things", "--", "cat", "arm"];
        let output = scene.run(&[&args[..], &SHORT, more, &number].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stdout).contains("2.0000 [2.0000, 2.0000]  better"), "{output:?}");
        let arm = fs::read_to_string(scene.place.path().join("arm")).unwrap();
        assert_eq!(arm.trim(), at_end);
    }
    let args = ["trial", "--a", "echo no >&2; exit 3", "--b", "true", "--reach", "at-once"];
    let output = scene.run(&[&args[..], &SHORT, &["--better", "lower", "--", "true"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("ended with exit status: 3: no"), "{output:?}");
}

#[test]
fn a_signal_in_the_middle_of_a_command_leaves_the_baseline_in_force() {
    let scene = Scene::new();
    let arm = scene.place.path().join("arm");
    let now = || fs::read_to_string(&arm).unwrap_or_default().trim().to_owned();
    let args = ["trial", "--a", "echo 1 > arm", "--b", "echo 2 > arm; sleep 1; echo 3 > arm"];
    let plan = ["--reach", "at-once", "--for", "1h", "--window", "50ms", "--better", "higher"];
    let child = scene.command(&[&args[..], &plan, &cat("arm")].concat()).spawn().unwrap();
    assert!(comes_true(|| now() == "2"));
    signal(&child, Signal::INT);
    let output = ends_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(now(), "1", "{output:?}");
    assert!(text(&output.stdout).contains("restored"), "{output:?}");
}

#[test]
fn numbers_that_make_no_sense_lose_nothing_and_restore() {
    let scene = Scene::new();
    let args = ["trial", "--a", "echo 1 > arm", "--b", "echo -1 > arm", "--reach", "at-once"];
    let number = ["--no-guards", "--json", "--better", "higher", "--", "cat", "arm"];
    let output = scene.run(&[&args[..], &SHORT, &number].concat());
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(fs::read_to_string(scene.place.path().join("arm")).unwrap().trim(), "1");
    assert!(json(&output)["windows"].to_string().contains("-1"), "{output:?}");
}

#[test]
fn what_cannot_be_told_has_an_exit_code_of_its_own() {
    let scene = Scene::new();
    // It differs from window to window, whatever the arm; with the seed, always in the same way.
    let script = "n=$(($(cat n || echo 0) + 1)); echo $n > n; echo $((n * n * 7919 % 1009))";
    let number = ["--no-guards", "--better", "lower", "--", "sh", "-c", script];
    let args = ["trial", "made.twice", "--seed", "1"];
    let output = scene.run(&[&args[..], &SHORT, &number].concat());
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(text(&output.stdout).contains("inconclusive"), "{output:?}");
    // Constant, but nobody knows when an effect would show.
    let number = ["--no-guards", "--better", "lower", "--", "echo", "1"];
    let args = ["trial", "made.twice", "--reach", "unknown", "--hold", "20ms"];
    let output = scene.run(&[&args[..], &SHORT, &number].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn traffic_that_is_not_there_is_said_before_the_trial() {
    let scene = Scene::new();
    let args = ["trial", "made.twice", "--measure", "cpu.busy/counter:made.idle"];
    let output = scene.run(&[&args[..], &SHORT].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("counter:made.idle gave nothing in the whole pilot"), "{said}");
    let number = ["--no-guards", "--better", "lower", "--", "false"];
    let output = scene.run(&[&["trial", "made.twice"][..], &SHORT, &number].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("`false` ended with"), "{output:?}");
    assert!(!scene.is_on() && scene.holder().is_none());
}

#[test]
fn nothing_is_lost_to_a_full_disk_and_no_time_to_a_folder_that_is_not_there() {
    let scene = Scene::new();
    let args = [&["trial", "made.twice"][..], &MEASURE, &SHORT].concat();
    let html = scene.run(&[&args[..], &["--html", "no/page.html"]].concat());
    assert_eq!(html.status.code(), Some(1), "{html:?}");
    assert!(text(&html.stderr).contains("no/page.html"), "{html:?}");
    assert!(!text(&html.stderr).contains("varies"), "found out before anything is measured");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = ends_within(scene.command(&args).stdout(full).spawn().unwrap(), PATIENCE);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot print to stdout: No space left"), "{output:?}");
    assert_eq!((scene.is_on(), scene.holder()), (false, None));
}

#[test]
fn results_are_combined_and_other_files_are_refused() {
    let scene = Scene::new();
    for file in ["one.json", "two.json"] {
        let output =
            scene.run(&[&["trial", "made.twice", "--json"][..], &MEASURE, &SHORT].concat());
        fs::write(scene.place.path().join(file), &output.stdout).unwrap();
    }
    let combine = ["trial", "combine", "one.json", "two.json"];
    let output = scene.run(&combine);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    for expected in [COUNT, "better", "of one host: nothing is said of others"] {
        assert!(said.contains(expected), "'{said}' lacks '{expected}'");
    }
    let object = json(&scene.run(&[&combine[..], &["--json", "--html", "page.html"]].concat()));
    assert_eq!(object["sources"][1]["name"], "two.json");
    assert!(fs::read_to_string(scene.place.path().join("page.html")).unwrap().contains("two.json"));

    fs::write(scene.place.path().join("bench.json"), r#"{"schema":1,"experiment":"relay"}"#)
        .unwrap();
    for (file, expected) in [("bench.json", "the result of a bench"), ("none.json", "none.json")] {
        let output = scene.run(&["trial", "combine", "one.json", file]);
        assert!([Some(1), Some(2)].contains(&output.status.code()), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
}

#[test]
fn a_record_names_no_pid_of_the_process_under_trial_which_is_another_on_each_host() {
    let scene = Scene::new();
    let pid = std::process::id();
    let measure = format!("counter:made.count@{pid}/counter:made.readings@{pid},higher");
    let args = ["trial", "made.twice", "--json", "--no-guards", "--measure", &measure];
    let output = scene.run(&[&args[..], &SHORT].concat());
    assert_eq!(json(&output)["measures"][0]["name"], COUNT, "{output:?}");
}

#[test]
fn logs_with_a_record_in_a_line_are_combined_and_other_lines_are_passed_over() {
    let scene = Scene::new();
    let args = [&["trial", "made.twice", "--json"][..], &MEASURE, &SHORT].concat();
    let [one, two] = [0, 1].map(|_| text(&scene.run(&args).stdout).to_owned());
    let write = |name: &str, log: &str| fs::write(scene.place.path().join(name), log).unwrap();
    write("log", &format!("2026-11-27 WARN something\n{one}\n{two}"));
    let output = scene.run(&["trial", "combine", "log", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let sources = json(&output)["sources"].clone();
    assert_eq!((&sources[0]["name"], &sources[1]["name"]), (&"log:2".into(), &"log:4".into()));
    let said = text(&output.stderr);
    assert!(said.contains("log:1 is not the record of a trial, and is passed over"), "{said}");

    // A record is never passed over.
    let half = &two[..two.len() / 2];
    for (log, expected) in [
        (format!("{one}{half}\n"), "log:2: not the record of a trial"),
        (
            format!("{one}{{\"schema\":1,\"experiment\":\"relay\"}}\n"),
            "log:2: the result of a bench",
        ),
        ("a\nb\n".to_owned(), "log: not the record of a trial"),
    ] {
        write("log", &log);
        let output = scene.run(&["trial", "combine", "log"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{expected}: {output:?}");
    }
}

#[test]
fn a_dry_run_says_what_it_would_do_and_holds_nothing() {
    let scene = Scene::new();
    let output =
        scene.run(&[&["trial", "made.twice", "--dry-run", "--for", "2m"][..], &MEASURE].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    for expected in ["of made.twice: off, on", COUNT, "would take", "change nothing"] {
        assert!(said.contains(expected), "'{said}' lacks '{expected}'");
    }
    assert_eq!((scene.is_on(), scene.holder()), (false, None));
    let list = scene.run(&["trial", "--list"]);
    assert_eq!(list.status.code(), Some(0), "{list:?}");
    assert!(text(&list.stdout).contains("counter:made.count"), "{list:?}");
}

/// A host in a namespace whose TTL is tried, and what a trial of it measures.
struct Namespace {
    place: Place,
    host: Host,
    _lab: Lab,
}

impl Namespace {
    fn new(name: &str) -> Namespace {
        let lab = Lab::new(name).unwrap();
        Namespace { place: Place::new(), host: lab.host("host").unwrap(), _lab: lab }
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = command(&self.place, args);
        self.host.run(move || command.spawn().unwrap()).unwrap()
    }

    fn run(&self, args: &[&str]) -> Output {
        ends_within(self.spawn(args), PATIENCE)
    }

    fn ttl(&self) -> String {
        self.host.sysctl(TTL).unwrap()
    }
}

const OF_TTL: [&str; 6] =
    ["trial", "sysctl:net.ipv4.ip_default_ttl", "--arms", "64,96", "--reach", "at-once"];

#[test]
fn root_a_sysctl_is_tried_and_restored() {
    if !root("root_a_sysctl_is_tried_and_restored") {
        return;
    }
    let namespace = Namespace::new("trialttl");
    let number = ["--no-guards", "--json", "--better", "higher", "--"];
    let number = [&number[..], &cat("/proc/sys/net/ipv4/ip_default_ttl")[1..]].concat();
    let output = namespace.run(&[&OF_TTL[..], &SHORT, &number].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let got = json(&output);
    assert_eq!(
        (got["judged"][0]["ratio"].as_f64(), &got["judged"][0]["verdict"]),
        (Some(1.5), &"better".into())
    );
    assert_eq!(namespace.ttl(), "64");

    // What is killed is restored by the next command.
    let mut child =
        namespace.spawn(&[&OF_TTL[..], &["--for", "1h", "--window", "50ms"], &number].concat());
    assert!(comes_true(|| namespace.ttl() == "96"));
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    // It may have been killed under either arm.
    let list = namespace.run(&["knob", "list"]);
    assert_eq!((list.status.code(), namespace.ttl().as_str()), (Some(0), "64"), "{list:?}");

    // Somebody else's value stays.
    let child =
        namespace.spawn(&[&OF_TTL[..], &["--for", "1h", "--window", "50ms"], &number].concat());
    assert!(comes_true(|| namespace.ttl() == "96"));
    namespace.host.set_sysctl(TTL, "33").unwrap();
    let output = ends_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("somebody else has changed it"), "{output:?}");
    assert_eq!(namespace.ttl(), "33");
}

#[test]
fn root_a_guard_ends_a_trial_that_harms() {
    if !root("root_a_guard_ends_a_trial_that_harms") {
        return;
    }
    let namespace = Namespace::new("trialguard");
    let listener = namespace.host.run(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = namespace.host.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Ends with the test.
            let (Ok(mut stream), Ok(ttl)) = (stream, host.sysctl(TTL)) else { return };
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let body = format!("# TYPE ttl gauge\nttl {ttl}\n");
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.read(&mut [0]);
        }
    });
    let guard = format!("prom:http://127.0.0.1:{port}/metrics:ttl,lower <= 1.2");
    let subject = ["trial", "sysctl:net.ipv4.ip_default_ttl", "--arms", "64,96"];
    let plan = ["--for", "1h", "--window", "20ms", "--settle", "0s", "--no-guards", "--json"];
    let number = ["--guard", &guard, "--better", "higher", "--", "echo", "1"];
    // In the trial, and while its pilot holds an arm.
    for (reach, has_windows) in [(["--reach", "at-once"], true), (["--hold", "1s"], false)] {
        let start = Instant::now();
        let output = namespace.run(&[&subject[..], &reach, &plan, &number].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(start.elapsed() < PATIENCE);
        let got = json(&output);
        assert_eq!(got["ended"], serde_json::json!({"guard": {"measure": 1, "arm": 1}}));
        assert_eq!(windows(&got) > 0, has_windows, "{got}");
        assert_eq!(namespace.ttl(), "64");
    }
}
