//! One process of a member: started, told to end, and looked after.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::inbox::Word;
use crate::config::Member;
use crate::{log, member};

/// How the daemon starts processes.
#[derive(Clone, Debug)]
pub(super) struct Starter {
    /// Where this program was when this process started; a newer one may be there by now.
    path: PathBuf,
    /// Where processes say how they are.
    pub(super) inbox: PathBuf,
    /// How long one may say nothing.
    pub(super) silent_after: Option<Duration>,
    /// What it logs by the configuration.
    pub(super) filter: String,
    /// `-q` or `-v`, as this process was given it.
    pub(super) loudness: Vec<&'static str>,
}

impl Starter {
    pub(super) fn new(inbox: PathBuf, loudness: Vec<&'static str>) -> Starter {
        let path = program();
        Starter { path, inbox, silent_after: None, filter: log::DEFAULT.into(), loudness }
    }

    /// Starts a process for a member, which takes over from its predecessor if it `replaces` one.
    pub(super) fn start(&self, of: &Member, replaces: bool) -> std::io::Result<Process> {
        let mut command = Command::new(program());
        command.arg0("cachelane").args(&self.loudness).arg(of.kind.name);
        command.args(["--name", &of.name]);
        command.args(replaces.then_some("--replace"));
        command.args(&of.args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // A terminal's signals are for the daemon.
        command.process_group(0);
        command.env("NOTIFY_SOCKET", &self.inbox);
        command.env(member::NAME, &of.name).env(member::OF, std::process::id().to_string());
        match self.silent_after {
            // Often enough that one that is late now and then is not taken for silent.
            Some(silent) => command.env("WATCHDOG_USEC", (silent / 4).as_micros().to_string()),
            None => command.env_remove("WATCHDOG_USEC"),
        };
        for variable in PER_PROCESS {
            command.env_remove(variable);
        }
        command.env(member::FILTER, &self.filter);
        let child = command.spawn()?;
        let now = Instant::now();
        Ok(Process {
            child,
            of: of.clone(),
            filter: self.filter.clone(),
            deaf_since: None,
            state: State::Starting,
            since: now,
            heard: now,
            said: None,
            status: None,
        })
    }

    /// Starts a daemon that is to take the place of this one: the program that is now where this one was.
    pub(super) fn start_successor(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.path);
        command.args(std::env::args_os().skip(1).filter(|arg| arg != "--replace")).arg("--replace");
        // Those of the process that they name.
        for variable in PER_PROCESS {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).spawn()
    }
}

/// What a service manager says to one process alone.
const PER_PROCESS: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// Leads to the program of whoever reads it, also after it was removed.
const SELF: &str = "/proc/self/exe";

/// This very program, which members are to be of, too: by its path, which gives processes their name, if
/// that still leads to it.
pub(super) fn program() -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;

    let id = |path: &std::path::Path| path.metadata().map(|meta| (meta.dev(), meta.ino()));
    let path = std::fs::read_link(SELF).unwrap_or_default();
    match (id(&path), id(SELF.as_ref())) {
        (Ok(one), Ok(other)) if one == other => path,
        _ => SELF.into(),
    }
}

/// How far a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starting,
    Running,
    /// It was told to end.
    Ending,
    /// Another process has taken over from it, so it ends by itself. Told to end, it would end at once, as
    /// on a second signal.
    Replaced,
}

/// A process of a member. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// What it was started for.
    pub(super) of: Member,
    /// What it logs by the configuration, as far as it has been told.
    pub(super) filter: String,
    /// When it was told another one and did not answer.
    pub(super) deaf_since: Option<Instant>,
    pub(super) state: State,
    /// When it came to be in its state.
    pub(super) since: Instant,
    /// When it last said anything.
    pub(super) heard: Instant,
    /// Why it is about to fail.
    said: Option<String>,
    /// How it has ended.
    status: Option<ExitStatus>,
}

impl Process {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn hear(&mut self, words: &[Word]) {
        self.heard = Instant::now();
        for word in words {
            match word {
                Word::Ready if self.state == State::Starting => self.enter(State::Running),
                Word::Status(why) => self.said = Some(why.clone()),
                Word::Stuck => {
                    let why = self.said.take().unwrap_or_else(|| "it is stuck".into());
                    self.kill(why);
                }
                Word::MainPid(pid) if *pid != self.pid() => self.enter(State::Replaced),
                _ => {}
            }
        }
    }

    pub(super) fn enter(&mut self, state: State) {
        if self.state != state {
            (self.state, self.since) = (state, Instant::now());
        }
    }

    /// It was told this filter.
    pub(super) fn logs(&mut self, filter: &str) {
        (self.filter, self.deaf_since) = (filter.into(), None);
    }

    /// Tells it to end.
    pub(super) fn end(&mut self, signal: Signal) {
        self.signal(signal);
        self.enter(State::Ending);
    }

    pub(super) fn signal(&self, signal: Signal) {
        // The number is its own for as long as nobody has waited for it.
        if self.status.is_some() {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Ends it for a reason that it does not know itself.
    pub(super) fn kill(&mut self, why: String) {
        self.said = Some(why);
        self.signal(Signal::KILL);
    }

    /// Sees whether it has ended.
    pub(super) fn look(&mut self) {
        match self.child.try_wait() {
            Ok(status) => self.status = status,
            Err(error) => tracing::error!("process {} cannot be waited for: {error}", self.pid()),
        }
    }

    /// How it ended, once that was seen.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.status?;
        Some(why(status, self.said.take()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Waited for, or so at least now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn why(status: ExitStatus, said: Option<String>) -> String {
    match (status.signal(), status.code(), said) {
        (Some(signal), _, Some(said)) => format!("{said}: killed by signal {signal}"),
        (Some(signal), ..) => format!("killed by signal {signal}"),
        (_, Some(0), _) => "ended by itself".into(),
        (_, _, Some(said)) => said,
        (_, code, None) => format!("ended with exit code {}", code.unwrap_or_default()),
    }
}
