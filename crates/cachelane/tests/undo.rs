//! `cachelane undo`, and what every other command restores before it begins.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{Place, text};
use knobs::Subject;
use lab::testing::root;
use lab::{Host, Lab};
use serde_json::{Value, json};
use tempfile::TempDir;

const NAME: &str = "sysctl:net.ipv4.ip_default_ttl";
const TTL: &str = "net.ipv4.ip_default_ttl";
const BEFORE: &str = "64";
const AFTER: &str = "70";

#[test]
fn root_what_a_killed_process_left_is_restored() {
    if !root("root_what_a_killed_process_left_is_restored") {
        return;
    }
    let scene = Scene::new("undo");
    let nothing = scene.run(&["undo"]);
    assert_eq!((nothing.status.code(), text(&nothing.stdout)), (Some(0), "nothing to restore\n"));

    let holder = scene.hold();
    let in_use = scene.run(&["undo"]);
    assert_eq!(in_use.status.code(), Some(0), "{in_use:?}");
    assert!(text(&in_use.stdout).starts_with(&format!("{NAME}: in use: process {}", holder.id())));
    assert_eq!(scene.ttl(), AFTER);

    kill(holder);
    let dry = scene.run(&["undo", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{dry:?}");
    let line = format!("{NAME}: restored to {BEFORE} (it was {AFTER})\n");
    assert_eq!(text(&dry.stdout), format!("would change {line}"));
    assert_eq!(scene.ttl(), AFTER);

    let undo = scene.run(&["undo"]);
    assert_eq!((undo.status.code(), text(&undo.stdout)), (Some(0), line.as_str()), "{undo:?}");
    assert_eq!((scene.ttl().as_str(), scene.files()), (BEFORE, 0));
}

#[test]
fn root_undo_says_in_json_what_it_left_alone() {
    if !root("root_undo_says_in_json_what_it_left_alone") {
        return;
    }
    let scene = Scene::new("json");
    kill(scene.hold());
    scene.host.set_sysctl(TTL, "99").unwrap();
    let undo = scene.run(&["undo", "--json"]);
    assert_eq!(undo.status.code(), Some(1), "{undo:?}");
    let said: Value = serde_json::from_slice(&undo.stdout).unwrap();
    let reason = "somebody else has changed it since, so it is left alone";
    let setting = json!({
        "setting": NAME, "outcome": "changed", "value": "99", "before": BEFORE, "reason": reason,
    });
    assert_eq!(said, json!({"schema": 1, "dry_run": false, "settings": [setting]}));
    assert_eq!((scene.ttl().as_str(), scene.files()), ("99", 0));
}

#[test]
fn root_the_next_command_restores_by_itself() {
    if !root("root_the_next_command_restores_by_itself") {
        return;
    }
    let scene = Scene::new("next");
    kill(scene.hold());
    let pages = scene.place.path().join("man");
    for args in [&["completions", "bash"][..], &["man", pages.to_str().unwrap()]] {
        assert_eq!(scene.run(args).status.code(), Some(0));
        assert_eq!(scene.ttl(), AFTER, "{args:?} changes nothing");
    }
    let list = scene.run(&["knob", "list"]);
    assert_eq!(list.status.code(), Some(0), "{list:?}");
    let said = text(&list.stderr);
    assert!(said.contains(&format!("{NAME}: restored to {BEFORE} (it was {AFTER})")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!((scene.ttl().as_str(), scene.files()), (BEFORE, 0));
    assert_eq!(text(&scene.run(&["knob", "list"]).stderr), "");
}

#[test]
fn a_directory_that_others_can_write_is_not_believed() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("CACHELANE_RUNTIME_DIR", place.path()).output().unwrap()
    };
    let undo = run(&["undo"]);
    assert_eq!(undo.status.code(), Some(4), "{undo:?}");
    assert!(text(&undo.stderr).contains("can be written by others (mode 0777"), "{undo:?}");
    // Others go on.
    let dry = run(&["relay", "--dry-run", "--listen", ":0", "--to", "127.0.0.1:1"]);
    assert_eq!(dry.status.code(), Some(0), "{dry:?}");
}

/// What a child is told by.
const CHILD: &str = "CACHELANE_TEST_HOLDER";

#[test]
fn holder() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let subject = Subject::find(NAME, None).unwrap();
    let mut held = subject.hold("a child", Duration::from_secs(10)).unwrap();
    held.set(AFTER).unwrap();
    println!("set");
    std::thread::sleep(Duration::from_secs(1_000));
}

/// A test host and a runtime directory.
struct Scene {
    place: Place,
    runtime: TempDir,
    host: Host,
    _lab: Lab,
}

impl Scene {
    fn new(name: &str) -> Scene {
        let lab = Lab::new(name).unwrap();
        let (place, runtime) = (Place::new(), TempDir::new().unwrap());
        Scene { place, runtime, host: lab.host("host").unwrap(), _lab: lab }
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.place.command(args);
        command.env("CACHELANE_RUNTIME_DIR", self.runtime.path()).env("NO_COLOR", "1");
        self.host.run(move || command.output().unwrap()).unwrap()
    }

    /// A process that has changed the TTL and rests.
    fn hold(&self) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["holder", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(CHILD, "1").env("CACHELANE_RUNTIME_DIR", self.runtime.path());
        command.stdout(Stdio::piped());
        let mut child = self.host.run(move || command.spawn().unwrap()).unwrap();
        let out = BufReader::new(child.stdout.as_mut().unwrap());
        let is_set = out.lines().map(Result::unwrap).any(|line| line.ends_with("set"));
        assert!(is_set, "the holder ended: {:?}", child.wait());
        child
    }

    fn ttl(&self) -> String {
        self.host.sysctl(TTL).unwrap()
    }

    /// How many files the runtime directory holds.
    fn files(&self) -> usize {
        fs::read_dir(self.runtime.path()).unwrap().count()
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}
