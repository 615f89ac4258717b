//! How `cachelane relay` starts and ends beside others, on CPUs that come and go, and under load.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use common::PROGRAM;
use lab::testing::comes_true;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

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
        let mut child = command.spawn().expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let line = line_with(&mut log, "relaying ");
        let addr = line.split("relaying ").nth(1).and_then(|rest| rest.split(' ').next());
        let addr = addr.expect("an address").parse().expect("an address");
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

/// A server that sends back what it reads.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut back = stream.try_clone().expect("a file");
                // Ends when the client does, by whatever.
                let _ = std::io::copy(&mut stream, &mut back);
            });
        }
    });
    addr
}

/// Sends a client's question and reads its answer to the end.
fn ask(mut client: &TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(b"question")?;
    client.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    assert_eq!(answer, "question");
    Ok(())
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
