//! `cachelane top` with real processes: what it prints, records and replays, and that the terminal is
//! as it was before, however it ends.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use common::Ended;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use tempfile::TempDir;

/// How long a busy machine may take.
const SOON: Duration = Duration::from_secs(60);

fn cachelane(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachelane"));
    command.args(args).env("CACHELANE_RUNTIME_DIR", dir).env("NO_COLOR", "1").env("LC_ALL", "C");
    command
}

fn top(dir: &Path, args: &[&str]) -> Output {
    cachelane(dir, &["top"]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    text(&output.stdout)
}

fn object(output: &Output) -> Value {
    serde_json::from_str(&printed(output)).unwrap()
}

/// A relay to a backend that discards, and a client that sends until this is dropped.
struct Relay {
    child: Child,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    fn start(dir: &Path, name: &str) -> Relay {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = backend.local_addr().unwrap().to_string();
        let args = ["relay", "--listen", "127.0.0.1:0", "--to", &to, "--name", name];
        let mut child = cachelane(dir, &args).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = log.by_ref().map(Result::unwrap).find(|l| l.contains("relaying ")).unwrap();
        let addr = line.split("relaying ").nth(1).unwrap().split(' ').next().unwrap();
        let addr: SocketAddr = addr.parse().unwrap();
        // Read on, so that the relay never blocks on its log.
        thread::spawn(move || log.for_each(drop));
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            let mut client = TcpStream::connect(addr).unwrap();
            let (mut served, _) = backend.accept().unwrap();
            thread::spawn(move || std::io::copy(&mut served, &mut std::io::sink()));
            // It ends with the relay, too.
            while !over.load(Relaxed) && client.write_all(&[b'x'; 1000]).is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        Relay { child, is_over }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns once every thread of it is stopped, which takes a moment on a busy machine.
    fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        wait(|| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "it has not come");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A counter of the one process, as `cachelane knob` has it.
fn counter(dir: &Path, name: &str) -> u64 {
    let listed = cachelane(dir, &["knob", "list", "--counters", "--json"]).output().unwrap();
    let listed = object(&listed);
    value(&listed["processes"][0], name)
}

fn field<'a>(process: &'a Value, name: &str) -> &'a Value {
    let counters = process["counters"].as_array().unwrap();
    counters.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name}: {process}"))
}

fn value(process: &Value, name: &str) -> u64 {
    field(process, name)["value"].as_u64().unwrap()
}

#[test]
fn one_view_shows_a_relay_and_what_it_moves() {
    let dir = TempDir::new().unwrap();
    let relay = Relay::start(dir.path(), "the web");
    wait(|| counter(dir.path(), "relay.bytes") > 0);
    let shown = printed(&top(dir.path(), &["--once", "--interval", "500ms"]));
    assert!(shown.contains("1 process "), "{shown}");
    assert!(shown.contains("lane 0 ") || shown.contains("all "), "{shown}");
    let row = shown.lines().find(|line| line.starts_with("the web ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[2..4], ["relay", &relay.pid().to_string()], "{row}");
    let rate = cells.iter().find(|cell| cell.ends_with("B/s")).unwrap();
    assert!(!["-B/s", "0B/s"].contains(rate), "{row}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.contains('\u{1b}') && shown.is_ascii(), "{shown:?}");
}

#[test]
fn the_object_says_what_the_relays_own_counters_say() {
    let dir = TempDir::new().unwrap();
    let relay = Relay::start(dir.path(), "the web");
    wait(|| counter(dir.path(), "relay.bytes") > 0);
    let before = counter(dir.path(), "relay.bytes");
    let started = Instant::now();
    let object = object(&top(dir.path(), &["--once", "--json", "--interval", "300ms"]));
    let (after, took) = (counter(dir.path(), "relay.bytes"), started.elapsed());
    assert_eq!((&object["schema"], &object["interval_seconds"]), (&1.into(), &0.3.into()));
    let [process] = &object["processes"].as_array().unwrap()[..] else { panic!("{object}") };
    assert_eq!(process["process"], "relay");
    assert_eq!((&process["name"], &process["pid"]), (&"the web".into(), &relay.pid().into()));
    assert!(process["rss_bytes"].as_u64().unwrap() > 1 << 20, "{process}");
    assert!(process["cpu"].as_f64().unwrap() >= 0.0, "{process}");
    let bytes = value(process, "relay.bytes");
    assert!(before <= bytes && bytes <= after, "{before} {bytes} {after}");
    let rate = field(process, "relay.bytes")["rate"].as_f64().unwrap();
    // All that there was, in the shortest time that it may have been counted over.
    let most = (after - before) as f64 / 0.25;
    assert!(rate > 0.0 && rate <= most, "{rate} by second, {before} to {after} in {took:?}");
    assert_eq!(field(process, "relay.connections")["rate"], Value::Null);
    assert_eq!(field(process, "relay.connections")["value"], 1);
    assert_eq!(process["backends"][0]["up"], true);
    assert!(process["listeners"][0]["bytes_up_rate"].as_f64().unwrap() > 0.0, "{process}");
    let knobs: Vec<_> = process["knobs"].as_array().unwrap().iter().map(|k| &k["name"]).collect();
    assert_eq!(knobs, ["relay.backends", "relay.cpus", "relay.engine"]);
    let cpus = object["cpus"].as_array().unwrap();
    assert!(!cpus.is_empty() && cpus.iter().all(|cpu| cpu["lane"].is_u64()), "{object}");
}

#[test]
fn a_stopped_relay_is_silent_and_delays_nobody() {
    let dir = TempDir::new().unwrap();
    let (stopped, runs) = (Relay::start(dir.path(), "stopped"), Relay::start(dir.path(), "runs"));
    stopped.stop();
    let started = Instant::now();
    let shown = object(&top(dir.path(), &["--once", "--json", "--interval", "100ms"]));
    // One that is waited for costs five seconds for each of two samples.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let processes = shown["processes"].as_array().unwrap();
    let of = |pid: u32| processes.iter().find(|one| one["pid"] == pid).unwrap();
    let why = of(stopped.pid())["silent"]["why"].as_str().unwrap();
    assert!(why.contains(&format!("kill -CONT {}", stopped.pid())), "{why}");
    assert_eq!(of(runs.pid())["silent"], Value::Null);
    assert!(value(of(runs.pid()), "relay.accepted") <= 1);
    let shown = printed(&top(dir.path(), &["--once", "--interval", "100ms"]));
    assert!(shown.contains("silent since "), "{shown}");
}

#[test]
fn a_relay_that_is_stopped_for_a_while_keeps_its_figures_and_comes_back() {
    let dir = TempDir::new().unwrap();
    let relay = Relay::start(dir.path(), "the web");
    wait(|| counter(dir.path(), "relay.bytes") > 0);
    let mut watching = cachelane(dir.path(), &["top", "--json", "--interval", "100ms"]);
    let mut watching = Ended(watching.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(watching.0.stdout.take().unwrap()).lines();
    let mut objects = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut process = || objects.next().unwrap()["processes"][0].clone();
    let moves = |process: &Value| field(process, "relay.bytes")["rate"].as_f64() > Some(0.0);
    let mut await_that = |is_so: &dyn Fn(&Value) -> bool| {
        let deadline = Instant::now() + SOON;
        loop {
            let process = process();
            if is_so(&process) {
                return process;
            }
            assert!(Instant::now() < deadline, "{process}");
        }
    };
    let before = value(&await_that(&moves), "relay.bytes");
    relay.stop();
    let silent = await_that(&|process| process["silent"]["seconds"].as_f64() > Some(0.2));
    assert!(value(&silent, "relay.bytes") >= before && moves(&silent), "{silent}");
    kill_process(Pid::from_child(&relay.child), Signal::CONT).unwrap();
    await_that(&|process| process["silent"].is_null() && moves(process));
}

#[test]
fn a_process_that_takes_connections_and_never_answers_delays_a_sample_once() {
    let dir = TempDir::new().unwrap();
    let _relay = Relay::start(dir.path(), "the web");
    // Of this process, which runs and is not stopped.
    let socket = dir.path().join(format!("lend-{}.sock", std::process::id()));
    let _stuck = UnixListener::bind(socket).unwrap();
    let args = ["top", "--json", "--interval", "100ms"];
    let mut watching = Ended(cachelane(dir.path(), &args).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(watching.0.stdout.take().unwrap()).lines();
    let mut objects = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let first = objects.next().unwrap();
    let [stuck, relay] = &first["processes"].as_array().unwrap()[..] else { panic!("{first}") };
    assert_eq!(stuck["silent"]["why"], "it does not answer");
    assert_eq!((&stuck["process"], &relay["silent"]), (&"lend".into(), &Value::Null));
    // If it were waited for each time, these would take half a second each.
    let started = Instant::now();
    let last = objects.nth(39).unwrap();
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    let silent = last["processes"][0]["silent"]["seconds"].as_f64().unwrap();
    assert!(silent > 3.0, "{silent}");
    assert!(value(&last["processes"][1], "relay.bytes") > value(relay, "relay.bytes"));
}

#[test]
fn a_replay_shows_what_was_printed_live() {
    let dir = TempDir::new().unwrap();
    let _relay = Relay::start(dir.path(), "the web");
    wait(|| counter(dir.path(), "relay.bytes") > 0);
    let file = dir.path().join("recording");
    let file = file.to_str().unwrap();
    let args = ["--json", "--interval", "100ms", "--for", "1s", "--record", file];
    let live = printed(&top(dir.path(), &args));
    assert!(live.lines().count() >= 2, "{live}");
    // The process is still there; nobody asks it.
    let elsewhere = TempDir::new().unwrap();
    assert_eq!(printed(&top(elsewhere.path(), &["--replay", file, "--json"])), live);
    let last = live.lines().last().unwrap();
    let shown = printed(&top(elsewhere.path(), &["--replay", file, "--json", "--once"]));
    assert_eq!(shown.trim_end(), last);
    let shown = printed(&top(elsewhere.path(), &["--replay", file, "--once"]));
    assert!(shown.lines().any(|line| line.starts_with("the web ")), "{shown}");
    // Its recorder was killed.
    let recorded = fs::read(file).unwrap();
    fs::write(file, &recorded[..recorded.len() - 9]).unwrap();
    let cut = top(elsewhere.path(), &["--replay", file, "--json"]);
    assert_eq!(printed(&cut).lines().count(), live.lines().count() - 1);
    assert!(text(&cut.stderr).contains("the last line is cut off"), "{cut:?}");
    // It is broken in the middle.
    let broken = text(&recorded).replacen("\"sample\"", "\"simple\"", 2);
    fs::write(file, broken).unwrap();
    let refused = top(elsewhere.path(), &["--replay", file, "--once"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains(&format!("{file}:3: unknown variant")), "{refused:?}");
}

#[test]
fn what_cannot_be_done_is_refused_with_what_would_help() {
    let dir = TempDir::new().unwrap();
    for (args, code, words) in [
        (&[][..], 2, "(--once prints one view as text"),
        (&["--interval", "10ms", "--once"], 2, "at least 100ms"),
        (&["--replay", "x", "--speed", "0"], 2, "a number from 0.01 to 1000"),
        (&["--replay", "x", "--record", "y"], 2, "cannot be used with"),
        (&["--speed", "2"], 2, "--replay"),
        (&["--once", "--for", "1s"], 2, "cannot be used with"),
        (&["--once", "--pid", "1"], 1, "no cachelane process with process id 1 runs (searched: "),
        (&["--once", "--name", "nobody"], 1, "named 'nobody' runs"),
        (&["--once", "--replay", "/no/such/file"], 1, "cannot read /no/such/file"),
        (&["--once", "--record", "/no/such/file"], 1, "choose another file with --record"),
        (&["--once", "--lanes", "0-9999999"], 2, "9999999"),
    ] {
        let refused = top(dir.path(), args);
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {refused:?}");
        assert!(text(&refused.stderr).contains(words), "{args:?}: {refused:?}");
        assert!(refused.stdout.is_empty(), "{args:?}: {refused:?}");
    }
    let shown = printed(&top(dir.path(), &["--once", "--interval", "100ms"]));
    assert!(shown.contains("no cachelane process runs"), "{shown}");
}

#[test]
fn a_process_is_chosen_by_its_name() {
    let dir = TempDir::new().unwrap();
    let _relays = ["the web", "the mail"].map(|name| Relay::start(dir.path(), name));
    let args = ["--once", "--json", "--interval", "100ms", "--name", "the mail"];
    let shown = object(&top(dir.path(), &args));
    let names: Vec<_> =
        shown["processes"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["the mail"]);
}

#[test]
fn a_reader_that_goes_is_a_quiet_end_and_a_full_disk_is_an_error() {
    let dir = TempDir::new().unwrap();
    let mut watching = cachelane(dir.path(), &["top", "--json", "--interval", "100ms"]);
    let mut watching = watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    drop(lines);
    let output = watching.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let args = ["top", "--once", "--interval", "100ms"];
    let output = cachelane(dir.path(), &args).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("cannot print to stdout"), "{output:?}");
    let output = top(dir.path(), &["--once", "--interval", "100ms", "--record", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("cannot write the recording /dev/full"), "{output:?}");
}

/// The view on a terminal of its own.
struct Terminal {
    child: Ended,
    master: OwnedFd,
    slave: OwnedFd,
    /// How the terminal was before.
    mode: Termios,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Terminal {
    fn start(dir: &Path, columns: u16, rows: u16, args: &[&str]) -> Terminal {
        let mut command = cachelane(dir, &["top"]);
        command.args(args);
        Terminal::start_by(command, columns, rows)
    }

    /// Takes the command, which has the terminal open for as long as it is there.
    fn start_by(mut command: Command, columns: u16, rows: u16) -> Terminal {
        let (master, slave) = pty();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines(rows), lines(columns), 0)));
        let mode = tcgetattr(&slave).unwrap();
        let end = || slave.try_clone().unwrap();
        set_size(&master, columns, rows);
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let child = Ended(child);
        let (mut from, to) = (File::from(master.try_clone().unwrap()), Arc::clone(&screen));
        let reader = thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(got @ 1..) = from.read(&mut chunk) {
                to.lock().process(&chunk[..got]);
            }
        });
        Terminal { child, master, slave, mode, screen, reader: Some(reader) }
    }

    fn await_that(&self, is_so: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + SOON;
        loop {
            let shown = self.screen.lock().screen().contents();
            if is_so(&shown) {
                return;
            }
            assert!(Instant::now() < deadline, "it is not on the screen:\n{shown}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn await_words(&self, words: &str) {
        self.await_that(|shown| shown.contains(words));
    }

    fn press(&self, keys: &[u8]) {
        rustix::io::write(&self.master, keys).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().screen_mut().set_size(lines(rows), lines(columns));
        set_size(&self.master, columns, rows);
    }

    /// Waits for its end, and asserts that the terminal is as it was; its code, and what is seen then.
    fn end(mut self) -> (Option<i32>, String) {
        wait(|| self.child.0.try_wait().unwrap().is_some());
        let status = self.child.0.wait().unwrap();
        let now = tcgetattr(&self.slave).unwrap();
        assert_eq!(now.local_modes, self.mode.local_modes);
        assert_eq!(now.input_modes, self.mode.input_modes);
        assert_eq!(now.output_modes, self.mode.output_modes);
        // With the last slave the reader ends.
        let reader = self.reader.take().unwrap();
        let Terminal { slave, screen, .. } = self;
        drop(slave);
        reader.join().unwrap();
        let screen = screen.lock();
        let screen = screen.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{}", screen.contents());
        (status.code(), screen.contents())
    }
}

/// The two ends of a terminal, which no other process has.
fn pty() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(name).unwrap();
    (master, slave.into())
}

fn lines(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

fn set_size(master: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).unwrap();
}

const FAST: [&str; 2] = ["--interval", "100ms"];

/// How it is ended.
#[derive(Clone, Copy, Debug)]
enum Way {
    Signal(Signal),
    Keys(&'static [u8]),
}

#[test]
fn the_terminal_is_given_back_on_every_way_out() {
    let dir = TempDir::new().unwrap();
    let _relay = Relay::start(dir.path(), "the web");
    let signals = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].map(Way::Signal);
    let keys = [b"q", b"\x1b", b"\x03"].map(|key| Way::Keys(key));
    for way in signals.into_iter().chain(keys) {
        let terminal = Terminal::start(dir.path(), 80, 24, &FAST);
        terminal.await_words("the web");
        assert!(terminal.screen.lock().screen().alternate_screen());
        assert!(terminal.screen.lock().screen().hide_cursor());
        assert!(!tcgetattr(&terminal.slave).unwrap().local_modes.contains(LocalModes::ICANON));
        match way {
            Way::Keys(keys) => terminal.press(keys),
            Way::Signal(signal) => {
                kill_process(Pid::from_child(&terminal.child.0), signal).unwrap();
            }
        }
        assert_eq!(terminal.end(), (Some(0), String::new()), "{way:?}");
    }
}

#[test]
fn a_terminal_that_nobody_reads_does_not_hold_up_the_end() {
    let dir = TempDir::new().unwrap();
    let _relay = Relay::start(dir.path(), "the web");
    let (master, slave) = pty();
    set_size(&master, 200, 60);
    let end = || slave.try_clone().unwrap();
    let mut command = cachelane(dir.path(), &["top", "--interval", "100ms"]);
    let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    let mut child = Ended(child);
    drop(command);
    // Until no more fits: it draws all of a screen of another size, and has written nothing for long.
    let task = format!("/proc/{0}/task/{0}/io", child.0.id());
    let written = || {
        let io = fs::read_to_string(&task).unwrap();
        io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse::<u64>().unwrap()
    };
    let (mut before, mut rounds) = (0, 0);
    wait(|| {
        rounds += 1;
        set_size(&master, 200 - rounds % 2, 60);
        thread::sleep(Duration::from_millis(150));
        let now = written();
        if now != before {
            (before, rounds) = (now, rounds % 2);
        }
        before > 4096 && rounds > 20
    });
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    wait(|| child.0.try_wait().unwrap().is_some());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    assert!(tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ICANON));
}

#[test]
fn an_error_is_said_behind_the_view() {
    let dir = TempDir::new().unwrap();
    for (args, words) in [
        (["--record", "/dev/full"], "cannot write the recording /dev/full"),
        (["--replay", "/no/such/file"], "cannot read /no/such/file"),
    ] {
        let (code, shown) = Terminal::start(dir.path(), 120, 24, &args).end();
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains(words), "{shown}");
    }
    // The recording fails while the view is there: the file may not grow.
    let file = dir.path().join("recording");
    let script = "ulimit -f 8; trap '' XFSZ; exec \"$0\" top --interval 100ms --record \"$1\"";
    let _relay = Relay::start(dir.path(), "the web");
    let command = cachelane(dir.path(), &[]);
    let program = command.get_program().to_owned();
    let mut limited = Command::new("bash");
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.args(["-c", script]).arg(program).arg(file);
    let (code, shown) = Terminal::start_by(limited, 120, 24).end();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("cannot write the recording "), "{shown}");
}

#[test]
fn the_view_follows_the_terminals_size_down_to_one_place() {
    let dir = TempDir::new().unwrap();
    let _relay = Relay::start(dir.path(), "the web");
    let mut terminal = Terminal::start(dir.path(), 80, 24, &FAST);
    terminal.await_words("HISTORY");
    // Who has no controlling terminal is not told, but looks each time.
    terminal.resize(40, 10);
    terminal.await_that(|shown| shown.contains("q:quit") && !shown.contains("HISTORY"));
    terminal.resize(1, 1);
    // Of it there is but the mark of what is cut.
    terminal.await_that(|shown| shown == "~");
    assert!(terminal.child.0.try_wait().unwrap().is_none(), "it has ended");
    terminal.resize(200, 60);
    terminal.await_that(|shown| {
        shown.lines().any(|line| line.starts_with("PROCESS") && line.len() == 200)
    });
    terminal.press(b"\r");
    terminal.await_words("Bytes forwarded, both ways. (bytes)");
    terminal.press(b"qq");
    assert_eq!(terminal.end(), (Some(0), String::new()));
}

#[test]
fn a_stopped_relay_does_not_stop_the_view() {
    let dir = TempDir::new().unwrap();
    let relays = ["the mail", "the web"].map(|name| Relay::start(dir.path(), name));
    let terminal = Terminal::start(dir.path(), 120, 24, &FAST);
    let row = |shown: &str, name: &str| {
        shown.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned()
    };
    terminal.await_that(|shown| row(shown, "the mail").contains("B/s"));
    relays[0].stop();
    terminal.await_that(|shown| row(shown, "the mail").contains("silent since 1s, was "));
    // The other is asked on: its figures change.
    let before = row(&terminal.screen.lock().screen().contents(), "the web");
    terminal.await_that(|shown| row(shown, "the web") != before);
    // The detail of the silent one, which is the first.
    terminal.press(b"\r");
    terminal.await_words("what follows is old");
    terminal.press(b"qq");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_recording_is_replayed_on_the_terminal_and_stepped_through() {
    let dir = TempDir::new().unwrap();
    let _relay = Relay::start(dir.path(), "the web");
    let file = dir.path().join("recording");
    let file = file.to_str().unwrap();
    let args = ["--json", "--interval", "100ms", "--for", "1s", "--record", file];
    let live = printed(&top(dir.path(), &args));
    let samples = live.lines().count() + 1;
    let terminal = Terminal::start(dir.path(), 120, 24, &["--replay", file, "--speed", "0.01"]);
    terminal.await_words(&format!("REPLAY 1 of {samples}, x0.01"));
    terminal.press(b" ");
    terminal.await_words(&format!("REPLAY, PAUSED 1 of {samples}"));
    terminal.press(b"\x1b[C");
    terminal.await_words(&format!("PAUSED 2 of {samples}"));
    terminal.press(b">");
    terminal.await_words(&format!("PAUSED {samples} of {samples}"));
    terminal.await_that(|shown| shown.lines().any(|line| line.starts_with("the web")));
    terminal.press(b"\x1b[D");
    terminal.await_words(&format!("PAUSED {} of {samples}", samples - 1));
    terminal.press(b"q");
    assert_eq!(terminal.end(), (Some(0), String::new()));
}
