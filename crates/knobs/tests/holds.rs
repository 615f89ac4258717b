//! A knob that somebody holds, and all the ways in which a hold ends.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cachelane_knobs::{
    Client, Error, ErrorKind, Exposure, Knob, KnobInfo, MAX_HOLD, Reach, Registry, Request, Server,
    Subject,
};
use common::{child, work_of_child};
use lab::testing::comes_true;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// So long that no test sees its end.
const LONG: Duration = MAX_HOLD;
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn a_held_knob_is_its_holders_alone() {
    let host = Host::new();
    let mut held = host.hold("trial, pid 7", LONG).unwrap();
    assert_eq!(held.set("b").unwrap(), "b");
    assert_eq!(held.before(), "a");
    let said = "knob t.mode is held by trial, pid 7, for ";
    let refused = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
        assert!(error.to_string().starts_with(said), "{error}");
        assert!(error.to_string().contains("cachelane knob set --force"), "{error}");
    };
    refused(host.client().set("t.mode", "c").unwrap_err());
    refused(host.registry.set("t.mode", "c").unwrap_err());
    refused(host.hold("another", LONG).unwrap_err());
    assert_eq!(held.value().unwrap(), "b");
    let listed = host.client().list().unwrap().remove(0);
    let who = listed.held.expect("it is held");
    assert_eq!((who.holder.as_str(), who.before.as_str()), ("trial, pid 7", "a"));
    assert!(who.left_ms <= LONG.as_millis() as u64);
    held.restore().unwrap();
    assert_eq!(host.client().list().unwrap(), host.registry.list());
    assert_eq!(host.value(), "a");
    assert_eq!(host.client().set("t.mode", "c").unwrap(), "c");
}

#[test]
fn a_hold_ends_with_the_value_that_its_holder_wants() {
    let host = Host::new();
    let mut held = host.hold("test", LONG).unwrap();
    held.set("b").unwrap();
    held.keep().unwrap();
    assert_eq!(host.value(), "b");
    let mut held = host.hold("test", LONG).unwrap();
    assert_eq!(held.before(), "b");
    held.set("c").unwrap();
    drop(held);
    assert_eq!(host.value(), "b");
    // One that was never set is not set either.
    let sets = host.sets.load(Relaxed);
    host.hold("test", LONG).unwrap().restore().unwrap();
    assert_eq!(host.sets.load(Relaxed), sets);
}

#[test]
fn what_is_set_by_force_stays_and_the_holder_is_told() {
    let host = Host::new();
    let mut held = host.hold("test", LONG).unwrap();
    held.set("b").unwrap();
    let error = host.client().set_by_force("t.mode", "x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadValue);
    held.renew().expect("what was not set ends no hold");
    assert_eq!(host.client().set_by_force("t.mode", "c").unwrap(), "c");
    for error in
        [held.set("b").unwrap_err(), held.renew().unwrap_err(), held.restore().unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        let said = "the hold on knob t.mode has ended: somebody else set the knob by force, and it \
                    stays as it was set";
        assert_eq!(error.to_string(), said);
    }
    assert_eq!(host.value(), "c");
}

#[test]
fn a_hold_that_is_not_renewed_runs_out_and_the_value_goes_back() {
    let host = Host::new();
    let mut held = host.hold("test", SHORT).unwrap();
    // On a crowded machine it may have run out already.
    let _ = held.set("b");
    assert!(comes_true(|| host.registry.list()[0].held.is_none()), "the hold does not end");
    assert_eq!(host.value(), "a");
    for error in [held.set("b").unwrap_err(), held.renew().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        assert!(error.to_string().contains("was not renewed in time"), "{error}");
    }
    drop(held);
    assert_eq!(host.value(), "a");
    host.hold("the next one", LONG).unwrap();
}

#[test]
fn a_holder_that_dies_or_stops_leaves_the_knob_as_it_was() {
    for signal in [Signal::KILL, Signal::STOP] {
        let host = Host::new();
        let mut holder = host.start_holder();
        assert!(comes_true(|| host.value() == "b"), "the holder sets nothing");
        kill_process(Pid::from_child(&holder), signal).unwrap();
        assert!(comes_true(|| host.value() == "a"), "{signal:?}: the value stays");
        // An administrator may go on.
        host.client().set("t.mode", "c").unwrap();
        if signal == Signal::STOP {
            kill_process(Pid::from_child(&holder), Signal::CONT).unwrap();
            let status = holder.wait().unwrap();
            assert_eq!(status.code(), Some(NOT_HELD), "the holder is not told");
        }
        assert_eq!(host.value(), "c");
    }
}

/// The exit status of a holder that was told that its hold has ended.
const NOT_HELD: i32 = 77;

#[test]
fn holder() {
    let Some(dir) = work_of_child("holder") else { return };
    let subject = Subject::find_in("t.mode", None, Path::new(&dir)).unwrap();
    let mut held = subject.hold("a child", Duration::from_secs(2)).unwrap();
    let error = loop {
        if let Err(error) = held.set("b").and_then(|_| held.renew()) {
            break error;
        }
        thread::sleep(Duration::from_millis(20));
    };
    drop(held);
    std::process::exit(if error.kind() == ErrorKind::NotHeld { NOT_HELD } else { 1 });
}

#[test]
fn a_value_that_is_not_the_holders_is_left_alone() {
    let host = Host::new();
    let mut held = host.hold("test", LONG).unwrap();
    held.set("b").unwrap();
    // As a process changes its own setting, past the knob.
    *host.mode.lock().unwrap() = "c";
    let error = held.restore().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    assert_eq!(host.value(), "c");
    assert!(host.registry.list()[0].held.is_none());
}

#[test]
fn a_setter_that_outlasts_the_hold_does_not_end_it() {
    let host = Host::new();
    let mut holder = host.line();
    // In one go: between two requests, a crowded machine could let the hold run out.
    let lines = [hold(SHORT), set("t.mode", "b", Some(TOKEN)), renew(LONG)];
    host.slow.store(true, Relaxed);
    holder.get_mut().write_all(lines.map(|request| request.to_line()).concat().as_bytes()).unwrap();
    assert_eq!([(); 3].map(|()| answer(&mut holder)), ["a", "b", "b"]);
    assert_eq!(host.value(), "b");
    assert!(host.registry.list()[0].held.is_some());
}

#[test]
fn a_hold_that_is_renewed_outlasts_another_knobs_setter() {
    for reconnects in [false, true] {
        let host = Host::new();
        let (entered, go_on) = host.add_gate();
        // Once more where a crowded machine let the hold run out before the setter began.
        let mut holder = loop {
            let (begun, mut holder) = (Instant::now(), host.line());
            ask(&mut holder, &hold(SHORT * 5));
            ask(&mut holder, &set("t.mode", "b", Some(TOKEN)));
            let mut other = host.line();
            send(&mut other, &set("t.gate", "on", None));
            entered.recv().unwrap();
            let is_in_time = begun.elapsed() < SHORT * 5;
            if is_in_time {
                if reconnects {
                    holder = host.line();
                }
                send(&mut holder, &renew(LONG));
                thread::sleep((SHORT * 6).saturating_sub(begun.elapsed()));
            }
            go_on.send(()).unwrap();
            assert_eq!(answer(&mut other), "on");
            if is_in_time {
                break holder;
            }
            assert!(comes_true(|| host.value() == "a"), "the hold does not end");
        };
        assert_eq!(answer(&mut holder), "b", "the renewal was in time");
        assert_eq!(host.value(), "b");
        let mode = host.registry.list().into_iter().find(|knob| knob.name == "t.mode").unwrap();
        assert!(mode.held.unwrap().left_ms > SHORT.as_millis() as u64 * 10);
        assert_eq!(ask(&mut holder, &release()), "a");
    }
}

#[test]
fn a_hold_runs_out_while_others_ask_without_a_pause() {
    let host = Host::new();
    let mut held = host.hold("test", SHORT).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut line = host.line();
                while !over.load(Relaxed) {
                    let get = Request::Get { knob: "t.mode".into() }.to_line();
                    line.get_mut().write_all(get.repeat(100).as_bytes()).unwrap();
                    (0..100).for_each(|_| drop(answer(&mut line)));
                }
            });
        }
        // On a crowded machine it may have run out already.
        let _ = held.set("b");
        let ends = comes_true(|| host.registry.list()[0].held.is_none());
        over.store(true, Relaxed);
        assert!(ends, "the hold does not end");
    });
    assert_eq!(host.value(), "a");
}

#[test]
fn a_setter_that_fails_at_the_end_is_tried_again() {
    let host = Host::new();
    let mut held = host.hold("test", LONG).unwrap();
    held.set("b").unwrap();
    host.broken.store(true, Relaxed);
    let error = held.restore().unwrap_err();
    assert!(error.to_string().contains("it is out of order"), "{error}");
    let error = host.hold("another", LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(error.to_string().contains("is being put back to \"a\""), "{error}");
    host.broken.store(false, Relaxed);
    assert!(comes_true(|| host.registry.list()[0].held.is_none()), "it is not tried again");
    assert_eq!(host.value(), "a");
}

#[test]
fn a_knob_that_is_being_put_back_can_be_set() {
    let host = Host::new();
    let mut held = host.hold("test", LONG).unwrap();
    held.set("b").unwrap();
    host.broken.store(true, Relaxed);
    held.restore().unwrap_err();
    host.broken.store(false, Relaxed);
    assert_eq!(host.client().set("t.mode", "c").unwrap(), "c");
    assert!(host.registry.list()[0].held.is_none());
    assert_eq!(host.value(), "c");
}

#[test]
fn the_end_of_the_control_socket_ends_its_holds() {
    let host = Host::new();
    let mut held = host.hold("test", LONG).unwrap();
    held.set("b").unwrap();
    let (registry, mode) = (host.registry.clone(), Arc::clone(&host.mode));
    drop(host);
    assert_eq!(*mode.lock().unwrap(), "a");
    assert!(registry.list()[0].held.is_none());
    assert_eq!(held.set("b").unwrap_err().kind(), ErrorKind::Gone);
}

#[test]
fn what_makes_no_hold_is_refused() {
    let host = Host::new();
    for (holder, lasts, said) in [
        ("", LONG, "expected 1 to 80 printable"),
        ("two\nlines", LONG, "expected 1 to 80 printable"),
        (&"x".repeat(81), LONG, "expected 1 to 80 printable"),
        ("test", Duration::ZERO, "a hold cannot last 0 ms (expected 1 to 60000)"),
        ("test", MAX_HOLD + SHORT, "a hold cannot last 60100 ms"),
    ] {
        let error = host.hold(holder, lasts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadValue);
        assert!(error.to_string().contains(said), "{error}");
    }
    assert!(host.registry.list()[0].held.is_none());
    let mut held = host.hold("test", LONG).unwrap();
    assert_eq!(held.set("x").unwrap_err().kind(), ErrorKind::BadValue);
    held.renew().unwrap();
}

#[test]
fn of_many_holders_each_has_the_knob_alone() {
    let host = Host::new();
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for mine in ["b", "c", "d"] {
            let (host, taken) = (&host, &taken);
            scope.spawn(move || {
                for round in 0..60 {
                    let mut held = match host.hold(mine, LONG) {
                        Ok(held) => held,
                        Err(error) if error.kind() == ErrorKind::Held => continue,
                        Err(error) => panic!("{error}"),
                    };
                    taken.fetch_add(1, Relaxed);
                    assert_eq!(held.before(), "a", "another's value is not the one before");
                    held.set(mine).unwrap();
                    assert_eq!(held.value().unwrap(), mine);
                    match round % 2 {
                        0 => held.restore().unwrap(),
                        _ => drop(held),
                    }
                }
            });
        }
    });
    assert!(taken.load(Relaxed) > 0);
    assert_eq!(host.value(), "a");
}

#[test]
fn a_knob_of_several_processes_is_found_by_its_process() {
    let host = Host::new();
    let registry = Registry::new("other");
    for name in ["t.mode", "t.only"] {
        let knob = Knob::off_on(name, "a test", false, || Ok::<_, String>(false), |_| Ok(()));
        registry.register(knob).unwrap();
    }
    let _second = Server::bind_in(registry, host.dir.path()).unwrap();
    let find = |name: &str, pid| Subject::find_in(name, pid, host.dir.path());
    let pid = std::process::id();
    let error = find("t.mode", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSubject);
    let said = format!(
        "knob t.mode is in 'other' (pid {pid}), 'test' (pid {pid}): choose one with --name or --pid"
    );
    assert_eq!(error.to_string(), said);
    let found = find("t.only", Some(pid)).unwrap();
    assert_eq!(found.process().unwrap().kind, "other");
    assert_eq!(found.reach(), Reach::AtOnce);
    let error = find("t.none", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownKnob);
    assert!(error.to_string().ends_with("(knobs: t.mode, t.only)"), "{error}");
    assert!(find("t.mode", Some(1)).unwrap_err().to_string().contains("with process id 1 runs"));
}

#[test]
fn a_knob_of_another_version_has_an_unknown_reach() {
    let old = r#"{"name":"t.x","help":"","values":{"text":"any"},"default":"1","value":"1"}"#;
    let info: KnobInfo = serde_json::from_str(old).unwrap();
    assert_eq!((info.reach, info.exposure, info.held), (Reach::Unknown, None, None));
    let newer = old.replace("\"help\"", "\"reach\":\"next_week\",\"help\"");
    let info: KnobInfo = serde_json::from_str(&newer).unwrap();
    assert_eq!(info.reach, Reach::Unknown);
}

#[test]
fn a_knob_says_which_counters_tell_its_exposure() {
    let registry = Registry::new("test");
    let knob = |name| Knob::off_on(name, "a test", false, || Ok::<_, String>(false), |_| Ok(()));
    registry.register(knob("t.at_once")).unwrap();
    registry.register(knob("t.later").exposed("t.bytes_under", "t.bytes")).unwrap();
    let dir = TempDir::new().unwrap();
    let server = Server::bind_in(registry, dir.path()).unwrap();
    let find = |name: &str| Subject::find_in(name, None, dir.path()).unwrap();
    assert_eq!(find("t.at_once").exposure(), None);
    let (under, of) = ("t.bytes_under".to_owned(), "t.bytes".to_owned());
    assert_eq!(find("t.later").exposure(), Some(&Exposure { under, of }));
    // A reader that knows nothing of it sees what it always saw.
    let list = Client::connect(server.path()).unwrap().list().unwrap();
    let [at_once, later] = [0, 1].map(|place| serde_json::to_value(&list[place]).unwrap());
    assert_eq!(at_once.get("exposure"), None);
    assert_eq!(later["exposure"], serde_json::json!({"under": "t.bytes_under", "of": "t.bytes"}));
}

/// A process with one knob, whose code can be made slow or broken.
struct Host {
    registry: Registry,
    mode: Arc<Mutex<&'static str>>,
    sets: Arc<AtomicU32>,
    slow: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
    server: Server,
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let registry = Registry::new("test");
        let mode = Arc::new(Mutex::new("a"));
        let (sets, slow, broken) = <(Arc<AtomicU32>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (shown, stored) = (Arc::clone(&mode), Arc::clone(&mode));
        let (count, is_slow, is_broken) = (sets.clone(), slow.clone(), broken.clone());
        let set = move |new| {
            if is_broken.load(Relaxed) {
                return Err("it is out of order");
            }
            if is_slow.load(Relaxed) {
                thread::sleep(SHORT * 2);
            }
            count.fetch_add(1, Relaxed);
            *stored.lock().unwrap() = new;
            Ok(())
        };
        let get = move || Ok(*shown.lock().unwrap());
        let knob = Knob::choice("t.mode", "a test", &["a", "b", "c", "d"], "a", get, set);
        registry.register(knob).unwrap();
        let dir = TempDir::new().unwrap();
        let server = Server::bind_in(registry.clone(), dir.path()).unwrap();
        Self { registry, mode, sets, slow, broken, server, dir }
    }

    /// Adds a knob whose setter says that it was entered, and waits until it may go on.
    fn add_gate(&self) -> (Receiver<()>, Sender<()>) {
        let ((enter, entered), (go_on, may_go_on)) = (channel(), channel());
        // Channels' ends are for one thread at a time.
        let gate = Mutex::new((enter, may_go_on));
        let set = move |_| {
            let (enter, may_go_on) = &*gate.lock().unwrap();
            enter.send(()).map_err(|e| e.to_string())?;
            may_go_on.recv().map_err(|e| e.to_string())
        };
        let knob = Knob::off_on("t.gate", "a test", true, || Ok::<_, String>(true), set);
        self.registry.register(knob).unwrap();
        (entered, go_on)
    }

    /// A connection for requests that need not wait for each other.
    fn line(&self) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(self.server.path()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        BufReader::new(stream)
    }

    fn client(&self) -> Client {
        Client::connect(self.server.path()).unwrap()
    }

    fn hold(&self, holder: &str, lasts: Duration) -> Result<cachelane_knobs::Held, Error> {
        Subject::find_in("t.mode", None, self.dir.path())?.hold(holder, lasts)
    }

    fn value(&self) -> &'static str {
        *self.mode.lock().unwrap()
    }

    fn start_holder(&self) -> Killed {
        let mut command: Command = child("holder", self.dir.path().to_str().unwrap());
        Killed(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

const TOKEN: &str = "token";

fn hold(lasts: Duration) -> Request {
    let (knob, hold, holder) = ("t.mode".into(), TOKEN.into(), "test".into());
    Request::Hold { knob, hold, holder, ms: lasts.as_millis() as u64 }
}

fn renew(lasts: Duration) -> Request {
    let (knob, hold) = ("t.mode".into(), TOKEN.into());
    Request::Renew { knob, hold, ms: lasts.as_millis() as u64 }
}

fn release() -> Request {
    Request::Release { knob: "t.mode".into(), hold: TOKEN.into(), keep: false }
}

fn set(knob: &str, value: &str, hold: Option<&str>) -> Request {
    let (knob, value, hold) = (knob.into(), value.into(), hold.map(str::to_owned));
    Request::Set { knob, value, hold, force: false, only_if: None }
}

fn send(line: &mut BufReader<UnixStream>, request: &Request) {
    line.get_mut().write_all(request.to_line().as_bytes()).unwrap();
}

/// The value in the next answer, or the kind of the error.
fn answer(line: &mut BufReader<UnixStream>) -> String {
    let mut text = String::new();
    line.read_line(&mut text).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let said = answer["ok"]["value"].as_str().or(answer["error"]["kind"].as_str());
    said.expect(&text).to_owned()
}

fn ask(line: &mut BufReader<UnixStream>, request: &Request) -> String {
    send(line, request);
    answer(line)
}

/// A child that does not outlive its test.
struct Killed(Child);

impl std::ops::Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
