//! What the tests of the command share.

// Each test program uses a part of it.
#![allow(dead_code)]

pub(crate) mod cards;
pub(crate) mod clients;
pub(crate) mod daemon;
pub(crate) mod frames;
pub(crate) mod kubelet;
pub(crate) mod metrics;
pub(crate) mod pages;
pub(crate) mod stage;
pub(crate) mod steer;
pub(crate) mod tcpdump;
pub(crate) mod xsk;

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The command under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_cachelane");

/// A folder to run in, with a folder for temporary files that no other process knows: whoever
/// has it in its environment was started by this test.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let dir = TempDir::new().expect("a folder");
        fs::create_dir(dir.path().join("tmp")).expect("a folder");
        Place { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    /// What the folder for temporary files holds.
    pub(crate) fn left_behind(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.tmp()).expect("it is readable");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.wrapped(PROGRAM.as_ref(), args)
    }

    /// The command as a user without privileges: this one or, for root, another.
    pub(crate) fn unprivileged(&self, args: &[&str]) -> Command {
        const NOBODY: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return self.command(args);
        }
        // Where the build is may be closed to others. A program of its own writes the copy: a child
        // that another test's thread forks meanwhile would keep it open, and busy, until its exec.
        let program = self.path().join("cachelane");
        let copied = Command::new("cp").arg(PROGRAM).arg(&program).status().expect("cp runs");
        assert!(copied.success(), "a copy");
        for path in [self.path().to_owned(), self.tmp(), program.clone()] {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        let ids = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
        let mut command = self.wrapped("setpriv".as_ref(), &ids);
        command.arg(program).args(args);
        command
    }

    pub(crate) fn wrapped(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.path()).env("TMPDIR", self.tmp());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The living processes that were started from here: PID and command line.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let mark = format!("TMPDIR={}", self.tmp().display());
        let is_ours = |pid: u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let line = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        };
        let pids = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid| is_ours(pid)).map(|pid| (pid, line(pid))).collect()
    }

    /// The network namespaces that its processes and their threads are in, but for this one's.
    pub(crate) fn namespaces(&self) -> HashSet<PathBuf> {
        let pids = self.processes().into_iter().map(|(pid, _)| pid.to_string());
        let mut found = namespaces_of(pids);
        found.remove(&fs::read_link("/proc/self/ns/net").expect("our own"));
        found
    }
}

/// Every network namespace that a process is in.
pub(crate) fn all_namespaces() -> HashSet<PathBuf> {
    let pids = fs::read_dir("/proc").expect("/proc").flatten();
    namespaces_of(pids.filter_map(|entry| entry.file_name().into_string().ok()))
}

fn namespaces_of(pids: impl Iterator<Item = String>) -> HashSet<PathBuf> {
    let tasks =
        pids.flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten());
    tasks.flatten().filter_map(|task| fs::read_link(task.path().join("ns/net")).ok()).collect()
}

/// The network of the machine as its user sees it.
pub(crate) fn machine_network() -> String {
    let print = |args: &[&str]| {
        let output = Command::new("ip").args(args).output().expect("ip runs");
        assert!(output.status.success(), "ip {args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("ip prints text")
    };
    [["-br", "link"], ["-br", "addr"], ["netns", "list"]].map(|args| print(&args)).concat()
}

/// Waits for a child's end and asserts that it comes within `limit`.
pub(crate) fn ends_within(child: Child, limit: Duration) -> Output {
    let pid = Pid::from_child(&child);
    let (ended, over) = mpsc::channel::<()>();
    let in_time = thread::spawn(move || {
        let in_time = over.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
        if !in_time {
            let _ = kill_process(pid, Signal::KILL);
        }
        in_time
    });
    let output = child.wait_with_output().expect("its status");
    drop(ended);
    assert!(in_time.join().expect("no panic"), "it did not end within {limit:?}: {output:?}");
    output
}

/// A process that is killed when it is dropped.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command, and waits until its stderr says this. The rest of that is to be kept open.
pub(crate) fn says(command: &mut Command, words: &str) -> (Child, impl io::Read + use<>) {
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(lines.read_line(&mut line).expect("text") > 0, "it has ended");
    }
    (child, lines)
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}
