//! `cachelane knob` with several processes: stopped ones, other users', and what is set in all or none.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long a busy machine may take.
const SOON: Duration = Duration::from_secs(60);

fn cachelane(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachelane"));
    command.env("CACHELANE_RUNTIME_DIR", dir).env("NO_COLOR", "1");
    command
}

fn knob(dir: &Path, args: &[&str]) -> Output {
    cachelane(dir).arg("knob").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command printed, having ended like this.
fn printed(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    text(&output.stdout)
}

fn said(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    text(&output.stderr)
}

/// A relay, and its log.
struct Relay {
    child: Child,
    log: std::path::PathBuf,
    _folder: TempDir,
}

impl Relay {
    fn start(dir: &Path) -> Relay {
        Relay::spawn(cachelane(dir), &[])
    }

    fn named(dir: &Path, name: &str) -> Relay {
        Relay::spawn(cachelane(dir), &["--name", name])
    }

    fn spawn(mut command: Command, more: &[&str]) -> Relay {
        let folder = TempDir::new().unwrap();
        let log = folder.path().join("log");
        let child = command
            .args(["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--engine", "copy"])
            .args(more)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let relay = Relay { child, log, _folder: folder };
        relay.await_log("relaying ");
        relay
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns once every thread of it is stopped, which takes a moment on a busy machine.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + SOON;
        loop {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
            if stat.rsplit_once(") ").unwrap().1.starts_with('T') {
                return;
            }
            assert!(Instant::now() < deadline, "it is not stopped: {stat}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn await_log(&self, what: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            let log = BufReader::new(File::open(&self.log).unwrap());
            if let Some(line) = log.lines().map_while(Result::ok).find(|line| line.contains(what)) {
                return line;
            }
            let all = fs::read_to_string(&self.log).unwrap();
            assert!(Instant::now() < deadline, "no {what:?} in {all}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The engine of each process, by name.
fn engines(dir: &Path) -> BTreeMap<String, String> {
    let listed = knob(dir, &["get", "relay.engine", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let one = |one: &Value| {
        let field = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        (field("name"), field("value"))
    };
    listed["values"].as_array().unwrap().iter().map(one).collect()
}

fn expected(values: &[(&str, &str)]) -> BTreeMap<String, String> {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_process_has_a_name_by_which_it_is_found() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let (web, plain) = (Relay::named(dir, "the web"), Relay::start(dir));
    let line = plain.await_log("relaying ");
    let addr = line.split("relaying ").nth(1).unwrap().split(' ').next().unwrap();
    let default = format!("relay {addr}");
    let listed = printed(&knob(dir, &["list"]), 0);
    for row in ["the web  ".to_owned(), web.pid(), default.clone(), plain.pid()] {
        assert!(listed.contains(&row), "{row} is not in {listed}");
    }
    let set = knob(dir, &["set", "relay.engine", "splice", "--name", &default]);
    assert_eq!(printed(&set, 0), "splice\n");
    assert_eq!(engines(dir), expected(&[("the web", "copy"), (&default, "splice")]));
    assert_eq!(printed(&knob(dir, &["get", "relay.engine", "--pid", &web.pid()]), 0), "copy\n");
    let none = said(&knob(dir, &["list", "--name", "no such"]), 1);
    let place = dir.display();
    let expected = format!("no cachelane process named 'no such' runs (searched: {place})");
    assert!(none.contains(&expected), "{none}");
    let bad = ["relay", "--listen", ":0", "--to", "[::1]:1", "--name", " x"];
    let bad = cachelane(dir).args(bad).output().unwrap();
    assert!(said(&bad, 2).contains("printable characters"), "{bad:?}");
}

#[test]
fn a_knob_that_several_have_is_set_only_in_the_one_that_is_meant_or_in_all() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let (a, b) = (Relay::named(dir, "a"), Relay::named(dir, "b"));
    let refused = said(&knob(dir, &["set", "relay.engine", "auto"]), 2);
    let which = [format!("'a' (pid {})", a.pid()), format!("'b' (pid {})", b.pid())];
    for part in [&which[0], &which[1], "--name", "--pid", "--all"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(engines(dir), expected(&[("a", "copy"), ("b", "copy")]));
    let all = printed(&knob(dir, &["set", "relay.engine", "auto", "--all"]), 0);
    let changed = [&a, &b].map(Relay::pid);
    let [a_line, b_line] = [("a", &changed[0]), ("b", &changed[1])]
        .map(|(n, p)| format!("{n} (pid {p}): copy -> auto"));
    assert!(all.contains(&a_line) && all.contains(&b_line), "{all}");
    assert_eq!(engines(dir), expected(&[("a", "auto"), ("b", "auto")]));
}

#[test]
fn a_set_in_all_is_a_set_in_none_if_one_refuses() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let (_a, b) = (Relay::named(dir, "a"), Relay::named(dir, "b"));
    // All see at once that it is none of the values.
    let refused = said(&knob(dir, &["set", "relay.engine", "warp", "--all"]), 2);
    assert!(refused.contains("does not take \"warp\"") && refused.contains("nothing is changed"));
    // Of a CPU set only the setter knows: it is refused in the middle.
    let refused = said(&knob(dir, &["set", "relay.cpus", "999", "--all"]), 2);
    assert!(refused.contains("all are as they were"), "{refused}");
    // One of them is held, which is found out before anything is set.
    let b_pid = b.child.id();
    let held = knobs::Subject::find_in("relay.engine", Some(b_pid), dir).unwrap();
    let held = held.hold("a test", knobs::MAX_HOLD).unwrap();
    let refused = said(&knob(dir, &["set", "relay.engine", "splice", "--all"]), 1);
    assert!(refused.contains("held by a test") && refused.contains("nothing is changed"));
    assert_eq!(engines(dir), expected(&[("a", "copy"), ("b", "copy")]));
    let forced = knob(dir, &["set", "relay.engine", "splice", "--all", "--force"]);
    assert!(printed(&forced, 0).contains("copy -> splice"));
    assert!(held.restore().is_err(), "the hold was ended by force");
    assert_eq!(engines(dir), expected(&[("a", "splice"), ("b", "splice")]));
    // What one of them is keeps all as they are.
    let one = knob(dir, &["set", "relay.engine", "copy", "--name", "a"]);
    printed(&one, 0);
    let refused = said(&knob(dir, &["set", "relay.engine", "auto", "--all", "--if", "copy"]), 1);
    assert!(refused.contains("is \"splice\", not \"copy\""), "{refused}");
    assert_eq!(engines(dir), expected(&[("a", "copy"), ("b", "splice")]));
}

#[test]
fn a_stopped_process_keeps_nobody_from_the_others() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let (_live, stopped) = (Relay::named(dir, "live"), Relay::named(dir, "stopped"));
    stopped.stop();
    let listed = knob(dir, &["list", "--json"]);
    let pid = stopped.pid();
    let why = format!("relay-{pid}: it is stopped and does not answer (kill -CONT {pid}");
    assert!(said(&listed, 1).contains(&why), "{listed:?}");
    let json: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let processes = json["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2);
    let silent = processes.iter().find(|one| one["pid"] == stopped.child.id()).unwrap();
    assert_eq!(silent["error"]["kind"], "timeout");
    let live = processes.iter().find(|one| one["name"] == "live").unwrap();
    assert!(live["knobs"].as_array().unwrap().len() > 1);
    assert!(printed(&knob(dir, &["list"]), 1).contains("relay.engine"));
    // It may have the knob, so it has to be said which is meant.
    let refused = said(&knob(dir, &["set", "relay.engine", "auto"]), 2);
    assert!(refused.contains(&format!("relay-{pid} (does not answer)")), "{refused}");
    let set = knob(dir, &["set", "relay.engine", "auto", "--name", "live"]);
    assert_eq!(printed(&set, 0), "auto\n");
    // With --all it was asked for, and is missing.
    let all = knob(dir, &["set", "relay.engine", "splice", "--all"]);
    assert!(said(&all, 1).contains(&why), "{all:?}");
    assert_eq!(engines(dir).get("live").map(String::as_str), Some("splice"));
    let its = knob(dir, &["get", "relay.engine", "--pid", &pid]);
    assert!(said(&its, 1).contains(&why), "{its:?}");
    stopped.signal(Signal::CONT);
    assert_eq!(engines(dir), expected(&[("live", "splice"), ("stopped", "copy")]));
}

#[test]
fn a_value_is_set_only_if_the_knob_is_what_it_was_thought_to_be() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let _relay = Relay::named(dir, "a");
    let set = |value, old| knob(dir, &["set", "relay.engine", value, "--if", old]);
    assert_eq!(printed(&set("splice", "copy"), 0), "splice\n");
    let refused = said(&set("auto", "copy"), 1);
    assert!(refused.contains("relay.engine is \"splice\", not \"copy\""), "{refused}");
    assert_eq!(engines(dir), expected(&[("a", "splice")]));
}

#[test]
fn a_value_that_is_set_for_a_time_goes_back_however_that_ends() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let (a, _b) = (Relay::named(dir, "a"), Relay::named(dir, "b"));
    let both = |value| expected(&[("a", value), ("b", value)]);
    // By its time.
    let set = knob(dir, &["set", "relay.engine", "splice", "--all", "--for", "300ms"]);
    assert!(printed(&set, 0).contains("copy -> splice"));
    assert_eq!(engines(dir), both("copy"));
    // By a signal.
    let start = || {
        let set = ["knob", "set", "relay.engine", "auto", "--all", "--for", "1h"];
        let child = cachelane(dir).args(set).stdout(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + SOON;
        while engines(dir) != both("auto") {
            assert!(Instant::now() < deadline, "it is not set");
        }
        child
    };
    let mut child = start();
    let refused = said(&knob(dir, &["set", "relay.engine", "copy", "--name", "a"]), 1);
    assert!(refused.contains(&format!("held by knob set, pid {}", child.id())), "{refused}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(engines(dir), both("copy"));
    // One of the processes has gone: the others go back at once, and it is an error.
    let mut child = start();
    drop(a);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(engines(dir), expected(&[("b", "copy")]));
}

#[test]
fn the_process_that_is_set_logs_who_did_it() {
    let dir = TempDir::new().unwrap();
    let relay = Relay::named(dir.path(), "a");
    let child = cachelane(dir.path())
        .args(["knob", "set", "relay.engine", "splice"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    assert!(child.wait_with_output().unwrap().status.success());
    let line = relay.await_log("knob set");
    let (uid, knob) = (geteuid().as_raw(), "relay.engine");
    for part in [format!("uid={uid}"), format!("pid={pid}"), knob.into(), "splice".into()] {
        assert!(line.contains(&part), "{part}: {line}");
    }
}

#[test]
fn without_a_process_all_searched_directories_are_named() {
    let dir = TempDir::new().unwrap();
    let place = format!("(searched: {})", dir.path().display());
    assert!(printed(&knob(dir.path(), &["list"]), 0).contains(&place));
    for args in [&["get", "x.y"][..], &["set", "x.y", "1"], &["list", "--pid", "1"]] {
        let output = knob(dir.path(), args);
        assert!(said(&output, 1).contains(&place), "{output:?}");
    }
    let json: Value =
        serde_json::from_slice(&knob(dir.path(), &["list", "--json"]).stdout).unwrap();
    assert_eq!(json["processes"], Value::Array(Vec::new()));
}

/// Another user, who need not exist, with a place for control sockets and a program that the user can run.
struct OtherUser {
    uid: u32,
    program: std::path::PathBuf,
    _sockets: Folder,
    _place: TempDir,
}

impl OtherUser {
    fn new(uid: u32) -> OtherUser {
        let dir = Path::new("/tmp").join(format!("cachelane-{uid}"));
        let _ = fs::remove_dir_all(&dir);
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        chown(&dir, Some(uid), Some(uid)).unwrap();
        let sockets = Folder(dir);
        // The program may be where only root may read.
        let place = TempDir::new_in("/tmp").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(place.path(), mode).unwrap();
        let program = place.path().join("cachelane");
        // A program of its own writes the copy: a child that another test's thread forks meanwhile
        // would keep it open, and busy, until its exec.
        let original = Path::new(env!("CARGO_BIN_EXE_cachelane"));
        let copied = Command::new("cp").args([original, program.as_path()]).status().unwrap();
        assert!(copied.success());
        OtherUser { uid, program, _sockets: sockets, _place: place }
    }

    /// The program, or what runs it, as a user who has no directory of his own choice.
    fn command(&self, program: &Path, uid: u32) -> Command {
        let mut command = Command::new(program);
        command.env_remove("CACHELANE_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR");
        command.env("NO_COLOR", "1").current_dir("/");
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        command
    }

    fn relay(&self) -> Relay {
        Relay::spawn(self.command(&self.program, self.uid), &[])
    }
}

#[test]
fn root_leaves_other_users_processes_alone_unless_they_are_chosen() {
    if !geteuid().is_root() {
        eprintln!(
            "skipped: root_leaves_other_users_processes_alone_unless_they_are_chosen: needs root"
        );
        return;
    }
    let user = OtherUser::new(54_322);
    let theirs = user.relay();
    // Root has no process in this mount namespace, or one of its own.
    const NONE: &str = "mount -t tmpfs none /run && exec \"$0\" knob set relay.engine splice --all";
    const ONE: &str = "mount -t tmpfs none /run || exit
        \"$0\" relay --listen 127.0.0.1:0 --to 127.0.0.1:9 --engine copy 2>/run/log & relay=$!
        until grep -q relaying /run/log; do sleep 0.01; done
        \"$0\" knob set relay.engine splice --all; code=$?
        kill $relay; wait $relay; exit $code";
    let alone = |script: &str| {
        let mut command = user.command(Path::new("unshare"), 0);
        command.args(["--mount", "sh", "-c", script]).arg(&user.program).output().unwrap()
    };
    let refused = said(&alone(NONE), 2);
    assert!(refused.contains("only in processes of other users"), "{refused}");
    let one = alone(ONE);
    assert_eq!(printed(&one, 0), "splice\n");
    assert!(said(&one, 0).contains("which --all leaves alone"), "{one:?}");
    let theirs_is = |args: &[&str]| {
        let mut command = user.command(&user.program, 0);
        let command = command.arg("knob").args(args).args(["--pid", &theirs.pid()]);
        printed(&command.output().unwrap(), 0)
    };
    assert_eq!(theirs_is(&["get", "relay.engine"]), "copy\n");
    assert_eq!(theirs_is(&["set", "relay.engine", "splice", "--all"]), "splice\n");
}

#[test]
fn root_finds_and_sets_what_users_run_and_users_find_their_own() {
    const UID: u32 = 54_321;
    if !geteuid().is_root() {
        eprintln!(
            "skipped: root_finds_and_sets_what_users_run_and_users_find_their_own: needs root"
        );
        return;
    }
    let user = OtherUser::new(UID);
    let command = |uid| user.command(&user.program, uid);
    let relay = user.relay();
    let pid = relay.pid();
    let list = |uid, args: &[&str]| {
        command(uid).args(["knob", "list", "--pid", &pid]).args(args).output().unwrap()
    };
    assert!(printed(&list(UID, &[]), 0).contains("relay.engine"));
    assert!(printed(&list(0, &[]), 0).contains(&format!("(uid {UID})")));
    let set = ["knob", "set", "relay.engine", "splice", "--pid", &pid];
    assert_eq!(printed(&command(0).args(set).output().unwrap(), 0), "splice\n");
    assert!(relay.await_log("knob set").contains("uid=0"));
    // Another user has nothing to do with it, and is told where it looked.
    let other = said(&list(UID + 1, &[]), 1);
    assert!(other.contains(&format!("/tmp/cachelane-{}", UID + 1)), "{other}");
    // A session of the user's that has another idea of where sockets are finds it too.
    let session = command(UID)
        .env("XDG_RUNTIME_DIR", "/run/user/no-such")
        .args(["knob", "get", "relay.engine", "--pid", &pid])
        .output()
        .unwrap();
    assert_eq!(printed(&session, 0), "splice\n");
}

#[test]
fn root_containers_with_pid_1_share_a_directory() {
    if !geteuid().is_root() {
        eprintln!("skipped: root_containers_with_pid_1_share_a_directory: needs root");
        return;
    }
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let container = |name: &str| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_cachelane")]);
        command.env("CACHELANE_RUNTIME_DIR", dir).env("NO_COLOR", "1");
        Relay::spawn(command, &["--name", name])
    };
    let (_one, _two) = (container("one"), container("two"));
    let mut files: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["relay-1.2.sock", "relay-1.sock"]);
    let set = knob(dir, &["set", "relay.engine", "splice", "--name", "two"]);
    assert_eq!(printed(&set, 0), "splice\n");
    assert_eq!(engines(dir), expected(&[("one", "copy"), ("two", "splice")]));
    // From here they have other process ids, by which they are told apart too.
    let listed: Value = serde_json::from_slice(&knob(dir, &["list", "--json"]).stdout).unwrap();
    let pids = [0, 1].map(|at| listed["processes"][at]["pid"].as_u64().unwrap());
    assert!(pids[0] != pids[1] && !pids.contains(&1), "{pids:?}");
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
