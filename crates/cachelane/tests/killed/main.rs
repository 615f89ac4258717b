//! Nothing is left behind by a command that is killed, at whatever moment: links and programs are gone
//! with it, traffic goes on, and `cachelane undo` restores the rest.
//!
//! Each command runs on test hosts under a little traffic, and is killed while it starts, while it runs
//! and while it ends. The moments are drawn from a seed that is printed; `CACHELANE_KILL_SEED` gives it.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod objects;
mod snapshot;
mod stage;
mod traffic;

use std::fs;
use std::time::{Duration, Instant};

use cases::{Begun, CASES, Case, LONG_ONES, Restored, Started, is};
use common::daemon::Daemon;
use common::steer::two_cpus;
use common::text;
use lab::testing::root;
use objects::Objects;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::fs::{AtFlags, CWD, utimensat};
use rustix::process::Signal;
use serde_json::Value;
use snapshot::Snapshot;
use stage::Stage;
use traffic::Traffic;

/// The runtime directory of root, which stays once it is there.
const RUNTIME: &str = "/run/cachelane";

/// A command on its stage, and the host as it was before.
struct Scene<'a> {
    case: &'a Case,
    begun: Begun,
    kernels: Vec<Traffic>,
    before: Snapshot,
    beside: Vec<u32>,
    stage: Stage,
}

/// When a process is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// So long after its start, before or soon after it has started.
    Starting(Duration),
    /// So long after it has started.
    Running(Duration),
    /// So long after it was told to end.
    Ending(Duration),
}

impl<'a> Scene<'a> {
    fn new(case: &'a Case) -> Scene<'a> {
        let stage = Stage::new("killed");
        let kernels = Traffic::of(&stage);
        let begun = (case.begin)(&stage);
        let beside = begun.beside.iter().map(|process| process.child.id()).collect();
        assert!(comes_true(|| stage.has_its_addresses()), "{}: addresses", case.name);
        let mut before = Snapshot::of(&stage);
        let settled = || {
            let now = Snapshot::of(&stage);
            std::mem::replace(&mut before, now) == before
        };
        assert!(comes_true(settled), "{}: the host never rests", case.name);
        let scene = Scene { case, begun, kernels, before, beside, stage };
        scene.traffic_goes_on("before");
        scene
    }

    fn spawn(&self) -> Daemon {
        self.stage.spawn(&self.begun.args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Waits until it has started.
    fn started(&self, process: &Daemon) {
        let has_started = match self.case.started {
            Started::Says(words, times) => {
                comes_true(|| process.log().matches(words).count() >= times)
            }
            Started::Holds(holds) => seldom(|| holds(&self.stage)),
            Started::Ends(_) => true,
        };
        assert!(has_started, "{}: it does not start: {}", self.case.name, process.log());
    }

    fn join(&self) -> Option<Daemon> {
        let line = self.begun.joins?;
        let joined = self.stage.spawn(&line.split(' ').collect::<Vec<_>>());
        assert!(joined.says(" lends: "), "{}", joined.log());
        Some(joined)
    }

    /// Runs it from start to end. Returns how long it took to start.
    fn run(&self) -> Duration {
        let begin = Instant::now();
        let mut process = self.spawn();
        self.started(&process);
        let took = begin.elapsed();
        let _joined = self.join();
        process.signal(Signal::INT);
        let ends = comes_true(|| process.child.try_wait().expect("a child").is_some());
        assert!(ends, "{}: it does not end: {}", self.case.name, process.log());
        self.rests(self.case.name);
        took
    }

    /// The processes that belong to the command, its children too.
    fn processes(&self) -> Vec<u32> {
        let all = self.stage.place.processes().into_iter().map(|(pid, _)| pid);
        all.filter(|pid| !self.beside.contains(pid)).collect()
    }

    /// What is not as it was, but for what `may` be so. Waits for what the kernel clears away.
    fn changes(&self, may: impl Fn(&str) -> bool) -> Vec<String> {
        let mut changes = Vec::new();
        comes_true(|| {
            changes = self.before.changes(&Snapshot::of(&self.stage));
            changes.retain(|change| !may(change));
            changes.is_empty()
        });
        changes
    }

    fn traffic_goes_on(&self, when: &str) {
        self.kernels.iter().for_each(|traffic| traffic.goes_on(when));
    }

    /// Starts it, kills it, and looks at what is left. Returns a line about that.
    fn kill(&self, moment: Moment, somebody_else: bool) -> String {
        let what = format!("{} {moment:?}", self.case.name);
        let mut process = self.spawn();
        let mut joined = None;
        match moment {
            Moment::Starting(after) => std::thread::sleep(after),
            Moment::Running(after) | Moment::Ending(after) => {
                self.started(&process);
                joined = self.join();
                if matches!(moment, Moment::Ending(_)) {
                    process.signal(Signal::INT);
                }
                std::thread::sleep(after);
            }
        }
        // What is looked at then is what it is killed with.
        let pid = process.child.id();
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rests = || state().rsplit_once(") ").is_some_and(|(_, it)| it.starts_with(['T', 'Z']));
        process.signal(Signal::STOP);
        assert!(comes_true(rests), "{what}: {}", state());
        let objects = Objects::of(self.processes());
        process.signal(Signal::KILL);
        process.child.wait().expect("its status");

        // Without any command.
        let gone = comes_true(|| self.processes().is_empty());
        assert!(gone, "{what}: {:?} live on", self.stage.place.processes());
        let gone = comes_true(|| objects.alive().is_empty() && objects.threads().is_empty());
        let threads = objects.threads();
        assert!(gone, "{what}: {:?} and {threads:?} live on", objects.alive());
        self.traffic_goes_on(&what);
        let setting = match self.case.restored {
            Restored::Undo { file, .. } => file,
            _ => "no file",
        };
        let changes = self.changes(|change| change.contains(setting) || may_stay(change, true));
        assert!(changes.is_empty(), "{what}: before undo: {changes:#?}");
        drop(joined);

        if self.case.has_programs && matches!(moment, Moment::Running(_)) {
            assert!(!objects.is_empty(), "{what}: it had no programs: {}", process.log());
        }
        let restored = self.restored(&what, somebody_else);
        // It removes what is left of control sockets.
        self.stage.run(&["knob", "list"]);
        let changes = self.changes(|change| may_stay(change, false));
        assert!(changes.is_empty(), "{what}: after undo ({restored}): {changes:#?}");
        let Objects { programs, maps, links } = objects;
        let [programs, maps, links] = [programs, maps, links].map(|ids| ids.len());
        format!("{what}: {programs} programs, {maps} maps, {links} links; {restored}")
    }

    /// Has that restored which it had set. Returns what `cachelane undo` says.
    fn restored(&self, what: &str, somebody_else: bool) -> String {
        self.rests(what);
        if let Restored::Undo { file, before, other } = self.case.restored
            && somebody_else
            && self.is_known()
        {
            let write = |value| self.stage.within(|| fs::write(file, value)).expect("root may");
            write(other);
            let undo = self.stage.run(&["undo"]);
            assert_eq!(undo.status.code(), Some(1), "{what}: {undo:?}");
            let said = text(&undo.stdout).trim().to_owned();
            assert!(said.contains(&format!("left at {other}")), "{what}: {said}");
            assert!(is(&self.stage, file, other), "{what}");
            write(before);
            return said;
        }
        let said = self.stage.says(&["undo"]);
        assert_eq!(self.stage.says(&["undo"]), "nothing to restore", "{what}");
        said
    }

    /// Waits until other processes have taken back what it had of them.
    fn rests(&self, what: &str) {
        if let Restored::Process(is_back) = self.case.restored {
            assert!(seldom(|| is_back(&self.stage)), "{what}: it is not taken back");
        }
    }

    /// Whether there is a journal, and it knows all values that the killed process gave the setting.
    fn is_known(&self) -> bool {
        let journals = self.stage.within(|| {
            let all = fs::read_dir(RUNTIME).into_iter().flatten().flatten();
            let all = all.filter(|it| it.path().extension().is_some_and(|end| end == "undo"));
            all.map(|it| fs::read_to_string(it.path()).expect("a journal")).collect::<Vec<_>>()
        });
        let record = |text: &String| serde_json::from_str::<Value>(text).expect("JSON");
        journals.iter().map(record).any(|it| !it["before"].is_null() && it["writing"].is_null())
    }

    /// Has the files that are left in the runtime directory looked at as if they were old.
    fn age(&self) {
        let old = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
        self.stage.within(|| {
            for entry in fs::read_dir(RUNTIME).into_iter().flatten().flatten() {
                // Of a socket as well.
                utimensat(CWD, entry.path(), &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
            }
        });
    }
}

/// Whether it comes true within two minutes: there are several hosts at a time, and other programs.
fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    (0..4).any(|_| lab::testing::comes_true(&mut condition))
}

/// [`comes_true`] of what takes a process to find out.
fn seldom(condition: impl Fn() -> bool) -> bool {
    comes_true(|| {
        let holds = condition();
        if !holds {
            std::thread::sleep(Duration::from_millis(200));
        }
        holds
    })
}

/// Whether a killed process may leave this, which a later one removes: docs/SECURITY.md says who.
fn may_stay(change: &str, with_journals: bool) -> bool {
    let name = change.rsplit('/').next().unwrap_or(change);
    let in_runtime =
        |ends: &[&str]| change.starts_with(RUNTIME) && ends.iter().any(|end| name.ends_with(end));
    change == RUNTIME
        || in_runtime(&[".new", ".notify"])
        || with_journals && in_runtime(&[".undo", ".sock"])
        // The sockets that users name, and the locks beside them.
        || ["eth0.lend", "eth0.lend.lock", "relay.sock", ".relay.sock.lock"].contains(&name)
        // The folder of a lab.
        || change.contains("/tmp/cachelane-lab-")
}

/// The numbers are drawn from this seed.
fn dice(case: &Case) -> StdRng {
    let given = std::env::var("CACHELANE_KILL_SEED").ok();
    let seed = given.map_or_else(rand::random, |text| text.parse().expect("a number"));
    println!("{}: CACHELANE_KILL_SEED={seed}", case.name);
    StdRng::seed_from_u64(seed)
}

/// Kills a command that goes on until it is told to end.
fn kill_often(case: &Case, times: u32) {
    let (scene, mut dice) = (Scene::new(case), dice(case));
    let takes = scene.run();
    let nothing = |change: &str| change == RUNTIME;
    assert_eq!(scene.changes(nothing), Vec::<String>::new(), "{}: after a good end", case.name);
    for time in 0..times {
        let mut up_to = |longest: Duration| dice.random_range(Duration::ZERO..longest);
        let moment = match time % 3 {
            0 => Moment::Running(up_to(Duration::from_millis(200))),
            1 => Moment::Starting(up_to(takes * 5 / 4)),
            _ => Moment::Ending(up_to(Duration::from_millis(60))),
        };
        println!("{}", scene.kill(moment, time % 2 == 0));
    }
    scene.age();
    scene.run();
    scene.stage.run(&["knob", "list"]);
    let left = scene.changes(nothing);
    assert_eq!(left, Vec::<String>::new(), "{}: after the next one", case.name);
}

/// Kills a command that ends by itself.
fn kill_ones_that_end(case: &Case, times: u32) {
    let Started::Ends(takes) = case.started else { panic!("{} does not", case.name) };
    let (scene, mut dice) = (Scene::new(case), dice(case));
    for _ in 0..times {
        let after = dice.random_range(Duration::ZERO..takes);
        println!("{}", scene.kill(Moment::Starting(after), false));
    }
    let left = scene.stage.place.left_behind();
    if !left.is_empty() {
        let next = scene.spawn();
        let gone = comes_true(|| !left.iter().any(|path| path.exists()));
        assert!(gone, "{}: {left:?} are there: {}", case.name, next.log());
    }
}

/// Kills these commands, each on a stage of its own. They are together since most of the time is waiting.
fn kill(test: &str, names: &[&str], times: u32) {
    if !root(test) || !two_cpus(test) {
        return;
    }
    std::thread::scope(|scope| {
        for name in names {
            let find = |cases: &'static [Case]| cases.iter().find(|case| case.name == *name);
            scope.spawn(move || match (find(&CASES), find(&LONG_ONES)) {
                (Some(case), _) => kill_often(case, times),
                (None, Some(case)) => kill_ones_that_end(case, times),
                (None, None) => panic!("no command is called {name}"),
            });
        }
    });
}

#[test]
fn root_a_held_knob_is_put_back_when_its_holder_is_killed() {
    let names = ["knob set for a while", "trial of a knob"];
    kill("root_a_held_knob_is_put_back_when_its_holder_is_killed", &names, 1);
}

#[test]
fn root_a_killed_bridge_or_steer_leaves_nothing() {
    kill("root_a_killed_bridge_or_steer_leaves_nothing", &["bridge", "steer"], 3);
}

#[test]
fn root_a_killed_daemon_takes_its_members_with_it() {
    kill("root_a_killed_daemon_takes_its_members_with_it", &["up"], 3);
}

#[test]
fn root_a_killed_doctor_demo_or_bench_leaves_a_folder_at_most() {
    let names = ["doctor", "demo", "bench bridge", "bench frames"];
    kill("root_a_killed_doctor_demo_or_bench_leaves_a_folder_at_most", &names, 1);
}

#[test]
fn root_a_killed_lender_or_borrower_leaves_a_socket_that_the_next_one_replaces() {
    let test = "root_a_killed_lender_or_borrower_leaves_a_socket_that_the_next_one_replaces";
    kill(test, &["lend", "borrow"], 3);
}

#[test]
fn root_a_killed_relay_leaves_a_socket_that_the_next_one_replaces() {
    let names = ["relay, copy", "relay, splice", "relay, sockmap", "relay, unix"];
    kill("root_a_killed_relay_leaves_a_socket_that_the_next_one_replaces", &names, 3);
}

#[test]
fn root_a_killed_trial_of_a_setting_is_undone_unless_somebody_else_has_set_it() {
    let test = "root_a_killed_trial_of_a_setting_is_undone_unless_somebody_else_has_set_it";
    kill(test, &["trial of a sysctl", "trial of a file"], 6);
}

#[test]
fn root_a_killed_xsk_leaves_nothing() {
    let names = ["xsk send", "xsk drop", "xsk forward"];
    kill("root_a_killed_xsk_leaves_nothing", &names, 3);
}

/// A quarter of an hour.
#[test]
#[ignore = "long: several hundred kills"]
fn root_of_hundreds_of_killed_commands_none_leaves_anything() {
    let test = "root_of_hundreds_of_killed_commands_none_leaves_anything";
    if !root(test) || !two_cpus(test) {
        return;
    }
    for case in &CASES {
        let is_slow = matches!(case.restored, Restored::Process(_));
        let times = if is_slow { 6 } else { 24 };
        kill_often(case, times);
    }
    for case in &LONG_ONES {
        kill_ones_that_end(case, 12);
    }
}
