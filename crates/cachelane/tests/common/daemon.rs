//! `cachelane up` while it runs, and how its members fare.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use lab::Host;
use lab::testing::comes_true;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Place;
use super::clients::ask;

/// A folder with a configuration.
pub(crate) struct Scene {
    pub(crate) place: Place,
    /// Where it runs; none for here.
    pub(crate) host: Option<Host>,
}

/// How a member fares.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status {
    pub(crate) state: String,
    pub(crate) pid: Option<u32>,
    pub(crate) failures: u64,
    pub(crate) trouble: Option<String>,
}

/// A daemon that is killed when it is dropped, and what it and its members have logged.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    log: Arc<Mutex<String>>,
}

impl Scene {
    pub(crate) fn new(config: &str) -> Scene {
        let scene = Scene { place: Place::new(), host: None };
        scene.write(config);
        scene
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.host {
            Some(host) => host.run(work).expect("the host"),
            None => work(),
        }
    }

    pub(crate) fn write(&self, config: &str) {
        fs::write(self.place.path().join("up.toml"), config).expect("a file");
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("CACHELANE_RUNTIME_DIR", self.place.path().join("run"));
        command.env_remove("NOTIFY_SOCKET");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        self.within(move || command.output()).expect("it runs")
    }

    pub(crate) fn spawn(&self, more: &[&str]) -> Daemon {
        let mut command = self.command(&[&["up", "-c", "up.toml"], more].concat());
        Daemon::of(self.within(move || command.spawn()).expect("it starts"))
    }

    /// A daemon whose members all run.
    pub(crate) fn start(&self, more: &[&str]) -> Daemon {
        let daemon = self.spawn(more);
        assert!(comes_true(|| self.all_run()), "{:?}\n{}", self.status(), daemon.log());
        daemon
    }

    pub(crate) fn status(&self) -> HashMap<String, Status> {
        let output = self.run(&["up", "--status", "--json"]);
        let Ok(said) = serde_json::from_slice::<Value>(&output.stdout) else {
            return HashMap::new();
        };
        let one = |member: &Value| {
            let status = Status {
                state: member["state"].as_str().expect("a state").into(),
                pid: member["pid"].as_u64().and_then(|pid| pid.try_into().ok()),
                failures: member["failures"].as_u64().expect("a count"),
                trouble: member["trouble"].as_str().map(Into::into),
            };
            (member["name"].as_str().expect("a name").into(), status)
        };
        said["members"].as_array().expect("members").iter().map(one).collect()
    }

    pub(crate) fn all_run(&self) -> bool {
        let all = self.status();
        !all.is_empty() && all.values().all(|one| one.state == "running")
    }

    pub(crate) fn pid(&self, member: &str) -> Option<u32> {
        self.status().get(member)?.pid
    }
}

impl Daemon {
    pub(crate) fn of(mut child: Child) -> Daemon {
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe"));
        let log = Arc::new(Mutex::new(String::new()));
        let to = Arc::clone(&log);
        thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                to.lock().expect("a log").push_str(&line);
                line.clear();
            }
        });
        Daemon { child, log }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("a log").clone()
    }

    pub(crate) fn says(&self, words: &str) -> bool {
        comes_true(|| self.log().contains(words))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// Waits for its end; its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        assert!(
            comes_true(|| {
                status = self.child.try_wait().expect("a child");
                status.is_some()
            }),
            "{}",
            self.log()
        );
        status.and_then(|status| status.code())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that nobody has now.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
}

pub(crate) fn relay(name: &str, listen: SocketAddr, to: SocketAddr, more: &str) -> String {
    format!("[relay.{name}]\nlisten = \"{listen}\"\nto = \"{to}\"\n{more}\n")
}

/// A relay that waits for ever for somebody to write one of its files.
pub(crate) fn never_starts(scene: &Scene, to: SocketAddr) -> String {
    let fifo = scene.place.path().join("never");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("it runs").success());
    relay("never", free(), to, &format!("allow = \"@{}\"", fifo.display()))
}

pub(crate) fn serves(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_ok_and(|client| ask(&client).is_ok())
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a pid")).expect("a pid");
    kill_process(pid, signal).expect("it is there");
}

pub(crate) fn is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
