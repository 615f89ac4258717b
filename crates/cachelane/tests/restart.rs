//! How `cachelane relay` starts and ends beside others, on CPUs that come and go, and under load.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::PROGRAM;
use common::clients::{PATIENCE, Storm, ask, echo};
use lab::testing::comes_true;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A relay that is killed when it is dropped.
struct Relay {
    child: Child,
    log: BufReader<ChildStderr>,
    addr: SocketAddr,
}

/// A relay on loopback, not yet started. Its control socket is in `dir`.
fn command(dir: &Path, listen: &str, to: SocketAddr, more: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env("CACHELANE_RUNTIME_DIR", dir).env_remove("NOTIFY_SOCKET");
    command.args(["relay", "--listen", listen, "--to", &to.to_string()]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Relay {
    fn start(command: &mut Command) -> Relay {
        Relay::announced(command.spawn().expect("it starts"))
    }

    /// A relay that has started, once it says where it listens.
    fn announced(mut child: Child) -> Relay {
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let line = line_with(&mut log, "relaying ");
        let addr = line.split("relaying ").nth(1).and_then(|rest| rest.split(' ').next());
        let addr = addr.expect("an address").trim_end_matches(',').parse().expect("an address");
        Relay { child, log, addr }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// Waits for its end: whether it ended well, and the rest of its log.
    fn end(mut self) -> (bool, String) {
        let mut ended = None;
        assert!(comes_true(|| {
            ended = self.child.try_wait().expect("it is a child");
            ended.is_some()
        }));
        let mut log = String::new();
        self.log.read_to_string(&mut log).expect("text");
        (ended.is_some_and(|status| status.success()), log)
    }

    fn threads(&self) -> Vec<PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("tasks");
        let named = tasks.map(|task| task.expect("a task").path()).filter(|task| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("relay-"))
        });
        named.collect()
    }

    /// Where each of its workers may run.
    fn cpus(&self) -> Vec<String> {
        let list = |task: PathBuf| {
            let status = fs::read_to_string(task.join("status")).expect("a status");
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.expect("a list").trim().to_string()
        };
        let mut cpus: Vec<_> = self.threads().into_iter().map(list).collect();
        cpus.sort();
        cpus
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next line of a log with these words.
fn line_with(log: &mut impl BufRead, words: &str) -> String {
    let mut all = String::new();
    loop {
        let from = all.len();
        let read = log.read_line(&mut all).expect("text");
        assert!(read > 0, "no line with {words:?}: {all}");
        if all[from..].contains(words) {
            return all.split_off(from);
        }
    }
}

fn runtime_dir() -> TempDir {
    tempfile::Builder::new().prefix("cachelane-restart-").tempdir().expect("a folder")
}

#[test]
fn those_in_the_queue_of_a_stopped_relay_are_served_though_it_is_told_to_end() {
    let dir = runtime_dir();
    let relay = Relay::start(&mut command(dir.path(), "127.0.0.1:0", echo(), &[]));
    relay.signal(Signal::STOP);
    let clients: Vec<_> =
        (0..50).map(|_| TcpStream::connect(relay.addr).expect("the kernel accepts")).collect();
    relay.signal(Signal::TERM);
    relay.signal(Signal::CONT);
    let reset = clients.iter().filter(|client| ask(client).is_err()).count();
    assert_eq!(reset, 0, "of 50");
    drop(clients);
    let (well, log) = relay.end();
    assert!(well && log.contains("draining"), "{log}");
}

#[test]
fn those_who_wait_past_the_limit_when_time_is_up_are_counted() {
    let dir = runtime_dir();
    let more = ["--max-connections", "1", "--drain-timeout", "1s"];
    let relay = Relay::start(&mut command(dir.path(), "127.0.0.1:0", echo(), &more));
    let clients: Vec<_> =
        (0..8).map(|_| TcpStream::connect(relay.addr).expect("the kernel accepts")).collect();
    relay.signal(Signal::TERM);
    let (well, log) = relay.end();
    assert!(well, "{log}");
    assert!(log.contains("and 7 clients that wait to be accepted"), "{log}");
    let counts = log.lines().filter(|line| line.contains("were reset in the listen queue"));
    let count = |line: &str| line.split_whitespace().find_map(|word| word.parse::<usize>().ok());
    assert_eq!(
        counts.filter_map(|line| count(line.split("WARN").last()?)).sum::<usize>(),
        7,
        "{log}"
    );
    drop(clients);
}

#[test]
fn of_eight_processes_on_one_address_exactly_one_listens() {
    let (dir, to) = (runtime_dir(), echo());
    for _ in 0..3 {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
        let mut command = command(dir.path(), &free.to_string(), to, &[]);
        let mut all: Vec<_> = (0..8).map(|_| command.spawn().expect("it starts")).collect();
        let ended = |all: &mut Vec<Child>| {
            all.iter_mut()
                .filter_map(|child| child.try_wait().expect("a child"))
                .collect::<Vec<_>>()
        };
        assert!(comes_true(|| ended(&mut all).len() == 7), "{:?}", ended(&mut all));
        assert!(ended(&mut all).iter().all(|status| status.code() == Some(1)));
        for _ in 0..20 {
            ask(&TcpStream::connect(free).expect("one listens")).expect("it serves");
        }
        for mut child in all {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A cgroup of version 1, removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Of this controller, if the host has it so.
    fn new(controller: &str) -> Option<Cgroup> {
        let name = format!("cachelane-test-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup").join(controller).join(name);
        fs::create_dir(&path).ok().map(|()| Cgroup(path))
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).expect(value);
    }

    fn command(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.arg("-c").arg(r#"echo $$ > "$0"/cgroup.procs && exec "$@""#).arg(&self.0);
        within.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            value.map(|value| within.env(name, value));
        }
        within.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        within
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        comes_true(|| fs::remove_dir(&self.0).is_ok());
    }
}

/// A cgroup for `test`, or why it is skipped.
fn cgroup_of(test: &str, controller: &str) -> Option<Cgroup> {
    if !lab::testing::root(test) {
        return None;
    }
    let cgroup = Cgroup::new(controller);
    if cgroup.is_none() {
        eprintln!("skipped: {test}: the host has no cgroup of version 1 with {controller}");
    }
    cgroup
}

#[test]
fn root_a_quota_bounds_the_workers() {
    let Some(cgroup) = cgroup_of("root_a_quota_bounds_the_workers", "cpu") else { return };
    let dir = runtime_dir();
    cgroup.set("cpu.cfs_period_us", "100000");
    cgroup.set("cpu.cfs_quota_us", "70000");
    let within = |more: &[&str]| {
        let command = command(dir.path(), "127.0.0.1:0", echo(), more);
        Relay::start(&mut cgroup.command(&command))
    };
    let relay = within(&[]);
    assert_eq!(relay.threads().len(), 1);
    ask(&TcpStream::connect(relay.addr).expect("it listens")).expect("it serves");
    drop(relay);
    let asked = within(&["--cpus", "all"]);
    let all = std::thread::available_parallelism().expect("a number").get();
    assert_eq!(asked.threads().len(), all, "who asks for all gets them");
}

#[test]
fn root_workers_follow_the_cpuset() {
    let Some(cgroup) = cgroup_of("root_workers_follow_the_cpuset", "cpuset") else { return };
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        eprintln!("skipped: root_workers_follow_the_cpuset: needs two CPUs");
        return;
    }
    let dir = runtime_dir();
    cgroup.set("cpuset.mems", "0");
    cgroup.set("cpuset.cpus", "0-1");
    let command = command(dir.path(), "127.0.0.1:0", echo(), &[]);
    let mut relay = Relay::start(&mut cgroup.command(&command));
    assert_eq!(relay.cpus(), ["0", "1"]);
    for (cpus, on, says) in [
        ("1", ["1", "1"], "CPU 0 is gone: worker 0 runs on CPU 1"),
        ("0-1", ["0", "1"], "worker 0 is back on CPU 0"),
        ("0", ["0", "0"], "CPU 1 is gone: worker 1 runs on CPU 0"),
        ("0-1", ["0", "1"], "worker 1 is back on CPU 1"),
    ] {
        cgroup.set("cpuset.cpus", cpus);
        line_with(&mut relay.log, says);
        assert_eq!(relay.cpus(), on);
        ask(&TcpStream::connect(relay.addr).expect("it listens")).expect("it serves");
    }
}

/// Replaces a relay this often, with other CPUs each time.
fn replace(times: usize) {
    let (dir, to) = (runtime_dir(), echo());
    let mut relay = Relay::start(&mut command(dir.path(), "127.0.0.1:0", to, &[]));
    let addr = relay.addr;
    let storm = Storm::on(addr);
    for time in 0..times {
        // More workers than the one before it, or fewer.
        let cpus = ["0", "all"][time % 2];
        let more = ["--replace", "--cpus", cpus];
        let next = Relay::start(&mut command(dir.path(), &addr.to_string(), to, &more));
        let (well, log) = std::mem::replace(&mut relay, next).end();
        assert!(well && log.contains("replaced by process"), "{time}: {log}");
    }
    let tally = storm.end();
    assert!(tally.served > 0, "{tally:?}");
    assert_eq!((tally.refused, tally.reset), (0, 0), "{tally:?}");
}

#[test]
fn a_relay_is_replaced_20_times_and_no_client_notices() {
    replace(20);
}

#[test]
#[ignore = "takes minutes"]
fn a_relay_is_replaced_1000_times_and_no_client_notices() {
    replace(1000);
}

/// A client's exchange over a Unix socket: whether it was served, or why not.
fn ask_at(path: &Path) -> std::io::Result<()> {
    // Reads and writes are alike.
    ask(&TcpStream::from(OwnedFd::from(UnixStream::connect(path)?)))
}

/// A relay on a Unix socket, once it says that it is there.
struct UnixRelay {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl UnixRelay {
    fn start(command: &mut Command) -> UnixRelay {
        let mut child = command.spawn().expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        line_with(&mut log, "relaying unix:");
        UnixRelay { child, log }
    }

    /// Waits for its end: whether it ended well, and the rest of its log.
    fn end(mut self) -> (bool, String) {
        assert!(comes_true(|| self.child.try_wait().expect("a child").is_some()));
        let mut log = String::new();
        self.log.read_to_string(&mut log).expect("text");
        (self.child.wait().expect("a child").success(), log)
    }
}

impl Drop for UnixRelay {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_relay_on_a_unix_socket_is_replaced_10_times_and_no_client_notices() {
    let (dir, to) = (runtime_dir(), echo());
    let path = dir.path().join("x");
    let listen = format!("unix:{}", path.display());
    let mut relay = UnixRelay::start(&mut command(dir.path(), &listen, to, &[]));
    let over = Arc::new(AtomicBool::new(false));
    let storm: Vec<_> = (0..4)
        .map(|_| {
            let (over, path) = (Arc::clone(&over), path.clone());
            std::thread::spawn(move || {
                let (mut served, mut failed) = (0, Vec::new());
                while !over.load(Relaxed) {
                    match ask_at(&path) {
                        Ok(()) => served += 1,
                        Err(e) => failed.push(e.to_string()),
                    }
                }
                (served, failed)
            })
        })
        .collect();
    for time in 0..10 {
        let more = ["--replace", "--cpus", ["0", "all"][time % 2]];
        let next = UnixRelay::start(&mut command(dir.path(), &listen, to, &more));
        let (well, log) = std::mem::replace(&mut relay, next).end();
        assert!(well && log.contains("replaced by process"), "{time}: {log}");
    }
    over.store(true, Relaxed);
    for one in storm {
        let (served, failed) = one.join().expect("no client panicked");
        assert!(served > 0 && failed.is_empty(), "{served} served, {failed:?}");
    }
    // The last one knows the file of the first.
    kill_process(Pid::from_child(&relay.child), Signal::TERM).expect("it is there");
    let (well, log) = relay.end();
    assert!(well, "{log}");
    assert!(!path.exists(), "{log}");
}

#[test]
fn a_killed_relay_leaves_a_file_that_the_next_one_replaces() {
    let (dir, to) = (runtime_dir(), echo());
    let path = dir.path().join("x");
    let listen = format!("unix:{},mode=600", path.display());
    let start = || UnixRelay::start(&mut command(dir.path(), &listen, to, &[]));
    drop(start());
    assert!(path.exists());
    let _relay = start();
    ask_at(&path).expect("it serves");
    for (more, says) in [(&[][..], "another process listens there"), (&["--dry-run"], "another")] {
        let output = command(dir.path(), &listen, to, more).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(says), "{said}");
    }
    ask_at(&path).expect("it still serves");
}

#[test]
fn a_unix_socket_of_a_service_manager_is_served_and_kept() {
    let (dir, to) = (runtime_dir(), echo());
    let path = dir.path().join("x");
    let manager = UnixListener::bind(&path).expect("a path");
    // What is passed is a file, whatever it is called.
    let listener = TcpListener::from(OwnedFd::from(manager));
    for _ in 0..2 {
        let relay = UnixRelay::start(&mut activated(dir.path(), &listener, "db", to, &[]));
        ask_at(&path).expect("it serves");
        kill_process(Pid::from_child(&relay.child), Signal::TERM).expect("it is there");
        let (well, log) = relay.end();
        assert!(well && path.exists(), "{log}");
    }
}

/// A relay with these sockets of a service manager, by their names.
fn activated(
    dir: &Path,
    listener: &TcpListener,
    name: &str,
    to: SocketAddr,
    more: &[&str],
) -> Command {
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", PROGRAM, "relay", "--to", &to.to_string()]).args(more);
    command.env("CACHELANE_RUNTIME_DIR", dir).env("LISTEN_FDNAMES", name);
    command.stdin(OwnedFd::from(listener.try_clone().expect("a file")));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Restarts a relay on a service manager's socket this often.
fn restart(times: usize) {
    let (dir, to) = (runtime_dir(), echo());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let start = || Relay::start(&mut activated(dir.path(), &listener, "web", to, &[]));
    let mut relay = start();
    assert_eq!(relay.addr, listener.local_addr().expect("an address"));
    let storm = Storm::on(relay.addr);
    for time in 0..times {
        relay.signal(Signal::TERM);
        // As a manager does: the next one when that one has ended, or at once.
        let next = if time % 2 == 0 {
            let next = start();
            let (well, log) = std::mem::replace(&mut relay, next).end();
            assert!(well, "{time}: {log}");
            continue;
        } else {
            let (well, log) = relay.end();
            assert!(well, "{time}: {log}");
            start()
        };
        relay = next;
    }
    let tally = storm.end();
    assert!(tally.served > 0, "{tally:?}");
    assert_eq!((tally.refused, tally.reset), (0, 0), "{tally:?}");
}

#[test]
fn a_relay_on_a_managers_socket_restarts_20_times_and_no_client_notices() {
    restart(20);
}

#[test]
#[ignore = "takes minutes"]
fn a_relay_on_a_managers_socket_restarts_1000_times_and_no_client_notices() {
    restart(1000);
}

#[test]
fn a_relay_on_a_managers_socket_can_be_replaced_and_need_not_be() {
    let (dir, to) = (runtime_dir(), echo());
    let [web, admin] = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let start = |listener: &TcpListener, more: &[&str]| {
        Relay::start(&mut activated(dir.path(), listener, "web", to, more))
    };
    let serves = |listener: &TcpListener| {
        let addr = listener.local_addr().expect("an address");
        for _ in 0..20 {
            ask(&TcpStream::connect(addr).expect("it listens")).expect("it serves");
        }
    };
    // There is none to replace; one with the same socket; one that has another.
    let first = start(&web, &["--replace"]);
    serves(&web);
    let second = start(&web, &["--replace"]);
    assert!(first.end().0);
    serves(&web);
    let both = ["--replace", "--listen", "fd:web", "--listen", &second.addr.to_string()];
    let _third = start(&admin, &both);
    assert!(second.end().0);
    serves(&web);
    serves(&admin);
}

#[test]
fn sockets_that_a_manager_passes_are_chosen_by_name() {
    let (dir, to) = (runtime_dir(), echo());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let more = ["--listen", "fd:web", "--listen", "127.0.0.1:0"];
    let relay = Relay::start(&mut activated(dir.path(), &listener, "web", to, &more));
    ask(&TcpStream::connect(relay.addr).expect("it listens")).expect("it serves");
    assert_eq!(relay.addr, listener.local_addr().expect("an address"));

    let output = activated(dir.path(), &listener, "web", to, &["--listen", "fd:wen"]).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("fd:wen") && said.contains("passed: web"), "{said}");
}

#[test]
fn a_service_manager_is_told_how_things_stand() {
    let (dir, to) = (runtime_dir(), echo());
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let told = || {
        let mut bytes = [0; 512];
        let length = socket.recv(&mut bytes).expect("it says something");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let first =
        Relay::start(command(dir.path(), "127.0.0.1:0", to, &[]).env("NOTIFY_SOCKET", &path));
    assert_eq!(told(), "READY=1\n");
    let listen = first.addr.to_string();
    let mut next = command(dir.path(), &listen, to, &["--replace"]);
    let second = Relay::start(next.env("NOTIFY_SOCKET", &path));
    let pid = second.child.id();
    // Each says so: the manager may listen to its main process only.
    let mut all = [told(), told(), told()];
    all.sort();
    let main = format!("MAINPID={pid}\n");
    assert_eq!(all, [main.clone(), main, "READY=1\n".into()]);
    assert!(first.end().0);
    second.signal(Signal::TERM);
    assert_eq!(told(), "STOPPING=1\n");
    assert!(second.end().0);
}

#[test]
fn of_three_successors_at_once_one_is_left() {
    let (dir, to) = (runtime_dir(), echo());
    let first = Relay::start(&mut command(dir.path(), "127.0.0.1:0", to, &[]));
    let addr = first.addr;
    let storm = Storm::on(addr);
    let mut next = command(dir.path(), &addr.to_string(), to, &["--replace"]);
    next.stderr(Stdio::null());
    let mut all: Vec<_> = (0..3).map(|_| next.spawn().expect("it starts")).collect();
    all.push({
        let mut first = first;
        std::mem::replace(&mut first.child, Command::new("true").spawn().expect("it starts"))
    });
    let left = |all: &mut Vec<Child>| {
        let statuses = all.iter_mut().map(|child| child.try_wait().expect("a child"));
        statuses.filter(Option::is_none).count()
    };
    assert!(comes_true(|| left(&mut all) == 1), "{} are left", left(&mut all));
    let tally = storm.end();
    assert_eq!((tally.refused, tally.reset), (0, 0), "{tally:?}");
    for mut child in all {
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[test]
fn a_successor_that_wants_an_address_of_somebody_else_says_so_at_once() {
    let dir = TempDir::new().expect("a directory");
    let to = echo();
    let relay = Relay::start(&mut command(dir.path(), "127.0.0.1:0", to, &[]));
    let other = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let taken = other.local_addr().expect("an address").to_string();
    let own = relay.addr.to_string();
    let more = ["--replace", "--listen", &taken];
    let start = std::time::Instant::now();
    let output = command(dir.path(), &own, to, &more).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{taken}: Address already in use")), "{said}");
    assert!(start.elapsed() < Duration::from_secs(8), "after {:?}", start.elapsed());
    // The one that is there goes on, and the next one takes over from it.
    ask(&TcpStream::connect(relay.addr).expect("it listens")).expect("it serves");
    let next = Relay::start(&mut command(dir.path(), &own, to, &["--replace"]));
    assert_eq!(next.addr, relay.addr);
    assert!(relay.end().0);
}

#[test]
fn a_predecessor_that_is_stopped_stays_in_charge_and_the_successor_says_so() {
    let (dir, to) = (runtime_dir(), echo());
    let relay = Relay::start(&mut command(dir.path(), "127.0.0.1:0", to, &[]));
    relay.signal(Signal::STOP);
    let listen = relay.addr.to_string();
    let output = command(dir.path(), &listen, to, &["--replace"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    relay.signal(Signal::CONT);
    for _ in 0..20 {
        ask(&TcpStream::connect(relay.addr).expect("it listens")).expect("it serves");
    }
    // Now it can be replaced.
    let next = Relay::start(&mut command(dir.path(), &listen, to, &["--replace"]));
    assert!(relay.end().0);
    ask(&TcpStream::connect(next.addr).expect("it listens")).expect("it serves");
}

#[test]
fn a_successor_that_is_killed_or_stopped_at_any_moment_leaves_one_relay_in_charge() {
    let (dir, to) = (runtime_dir(), echo());
    let mut relay = Relay::start(&mut command(dir.path(), "127.0.0.1:0", to, &[]));
    let addr = relay.addr;
    for time in 0..12_u64 {
        let mut next = command(dir.path(), &addr.to_string(), to, &["--replace"]);
        let mut next = next.stderr(Stdio::null()).spawn().expect("it starts");
        // Somewhere from its first instruction to after it has taken over.
        std::thread::sleep(Duration::from_millis(time * 5));
        let _ = kill_process(Pid::from_child(&next), Signal::STOP);
        std::thread::sleep(Duration::from_millis(20));
        let _ = next.kill();
        let _ = next.wait();
        // It had taken over, and its end was that of the relay; or all is as it was.
        let mut ended = false;
        let decided = comes_true(|| {
            ended = relay.child.try_wait().is_ok_and(|status| status.is_some());
            ended || TcpStream::connect(addr).is_ok_and(|client| ask(&client).is_ok())
        });
        assert!(decided, "{time}: nobody serves, and nobody ends");
        if ended {
            relay = Relay::start(&mut command(dir.path(), &addr.to_string(), to, &[]));
        }
        for _ in 0..8 {
            ask(&TcpStream::connect(addr).expect("one listens")).expect("it serves");
        }
    }
}

#[test]
fn a_predecessor_that_ends_or_is_killed_at_any_moment_leaves_its_successor_in_charge() {
    let (dir, to) = (runtime_dir(), echo());
    let mut relay = Relay::start(&mut command(dir.path(), "127.0.0.1:0", to, &[]));
    let addr = relay.addr;
    for time in 0..12_u64 {
        let mut next = command(dir.path(), &addr.to_string(), to, &["--replace"]);
        let next = next.spawn().expect("it starts");
        // Somewhere from before it is asked for anything to after it has been replaced.
        std::thread::sleep(Duration::from_millis(time * 5));
        relay.signal([Signal::KILL, Signal::TERM][time as usize % 2]);
        relay = Relay::announced(next);
        for _ in 0..8 {
            ask(&TcpStream::connect(addr).expect("one listens")).expect("it serves");
        }
    }
}
