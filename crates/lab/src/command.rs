//! Programs run inside a host.
//!
//! Each program is started from its host's own thread through `setpriv --pdeathsig KILL`, so
//! the kernel kills it when that thread ends: when the host is dropped, and when the process
//! that owns the lab dies, by SIGKILL too. Children that the program itself starts are not
//! covered; [`Command::contained`] covers them as well.

use std::{
    ffi::{OsStr, OsString},
    io::{Read, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Access, access},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use crate::{Error, ErrorKind, Host, Result};

/// How long [`Command::run`] and [`Command::output`] wait for the program.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// A program to run inside a [`Host`], much like [`std::process::Command`].
#[derive(Debug)]
pub struct Command {
    host: Host,
    program: OsString,
    args: Vec<OsString>,
    contained: bool,
    input: Option<Vec<u8>>,
    stdin: Option<Stdio>,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
}

impl Command {
    pub(crate) fn new(host: Host, program: &OsStr) -> Self {
        Self {
            host,
            program: program.into(),
            args: Vec::new(),
            contained: false,
            input: None,
            stdin: None,
            stdout: None,
            stderr: None,
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().into());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// Runs the program in a PID namespace of its own, so that its children die with it.
    ///
    /// Needs root. [`Process::pid`] is then the program's own PID as seen from here.
    pub fn contained(mut self) -> Self {
        self.contained = true;
        self
    }

    /// Gives the program these bytes as its standard input, where the default is none.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Where the program's standard input comes from; the default is `/dev/null`.
    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.stdin = Some(stdin.into());
        self
    }

    /// Where the program's standard output goes; the default of [`spawn`](Self::spawn) is
    /// `/dev/null`.
    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Where the program's standard error goes; the default is to inherit it.
    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }

    /// Starts the program.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if it is not installed, [`ErrorKind::Io`] if it cannot be started.
    pub fn spawn(self) -> Result<Process> {
        let line = self.line();
        let program = installed(&self.program)?;
        let mut command = std::process::Command::new(installed("setpriv".as_ref())?);
        command.args(["--pdeathsig", "KILL", "--"]);
        if self.contained {
            command.arg(installed("unshare".as_ref())?);
            command.args(["--pid", "--fork", "--kill-child=KILL", "--"]);
        }
        command.arg(program).args(self.args);
        // Ctrl-C is for the owner, who ends its programs in its own order.
        command.process_group(0);
        let stdin = if self.input.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(self.stdin.unwrap_or(stdin));
        command.stdout(self.stdout.unwrap_or_else(Stdio::null));
        command.stderr(self.stderr.unwrap_or_else(Stdio::inherit));
        let mut child = self
            .host
            .on_executor(move || command.spawn())
            .map_err(|error| Error::io(format!("cannot start `{line}`"), error))?;
        if let Some(bytes) = self.input
            && let Some(mut pipe) = child.stdin.take()
        {
            // A program that does not read its input says what is wrong by its status.
            thread::spawn(move || pipe.write_all(&bytes));
        }
        Ok(Process { child, line, contained: self.contained, _host: self.host })
    }

    /// Runs the program to its end and returns status and output, whatever the status is.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn), and [`ErrorKind::TimedOut`] after a minute.
    pub fn output(self) -> Result<Output> {
        self.output_within(RUN_LIMIT)
    }

    /// [`output`](Self::output) with another limit.
    ///
    /// # Errors
    /// As [`output`](Self::output). The program is killed when the limit has passed.
    pub fn output_within(self, limit: Duration) -> Result<Output> {
        let mut process = self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = collect(process.child.stdout.take());
        let stderr = collect(process.child.stderr.take());
        let status = process.wait_within(limit)?;
        let join = |reader: thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
        Ok(Output { status, stdout: join(stdout), stderr: join(stderr) })
    }

    /// Runs the program to its end and returns its standard output.
    ///
    /// # Errors
    /// As [`output`](Self::output), and [`ErrorKind::Command`] with the command line and its
    /// stderr if it did not end well.
    pub fn run(self) -> Result<String> {
        let (line, host) = (self.line(), self.host.name().to_owned());
        let output = self.output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = format!("`{line}` on {host}: {}: {}", output.status, stderr.trim());
        let denied = stderr.contains("Operation not permitted");
        let kind = if denied { ErrorKind::NotPermitted } else { ErrorKind::Command };
        Err(Error::new(kind, message))
    }

    fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

/// A running program of a [`Host`]; dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
    line: String,
    contained: bool,
    /// The host's thread must live as long: its end would kill the program.
    _host: Host,
}

impl Process {
    /// The PID of the program.
    ///
    /// For a [contained](Command::contained) program this is zero until it has been forked and
    /// after it has ended.
    pub fn pid(&self) -> u32 {
        if !self.contained {
            return self.child.id();
        }
        crate::usage::descendants(self.child.id()).first().copied().unwrap_or(0)
    }

    /// The program's standard input, output and error, where they were asked for as pipes.
    pub fn pipes(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The exit status, if the program has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the status cannot be read.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .map_err(|error| Error::io(format!("waiting for `{}`", self.line), error))
    }

    /// Waits for the end of the program, at most `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if it goes on; it is left running.
    pub fn wait_within(&mut self, limit: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        let context = || format!("waiting for `{}`", self.line);
        let pidfd = pidfd(self.child.id()).map_err(|error| Error::io(context(), error))?;
        let until = Instant::now() + limit;
        let ready = loop {
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            let left = until.saturating_duration_since(Instant::now());
            match poll(&mut fds, Some(&crate::timespec(left))) {
                // A signal that the caller has a handler for, such as that of Ctrl-C.
                Err(Errno::INTR) => (),
                ready => break ready.map_err(|error| Error::io(context(), error))?,
            }
        };
        if ready == 0 {
            return Err(Error::timed_out(format!("`{}` did not end in {limit:?}", self.line)));
        }
        self.child.wait().map_err(|error| Error::io(context(), error))
    }

    /// Asks the program to end with SIGTERM and kills it if it has not ended after `grace`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the status cannot be read.
    pub fn stop(&mut self, grace: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        self.signal(Signal::TERM);
        match self.wait_within(grace) {
            Err(error) if error.kind() == ErrorKind::TimedOut => self.kill(),
            result => result,
        }
    }

    /// Kills the program and, if it is contained, all that it started, and waits for the end.
    fn kill(&mut self) -> Result<ExitStatus> {
        if self.signal(Signal::KILL) && self.contained {
            // The `unshare` around it ends when all of the PID namespace has ended. If it does
            // not, killing it is what is left to do.
            let _ = self.wait_within(Duration::from_secs(2));
        }
        // Fails only where the program has ended already.
        let _ = self.child.kill();
        self.child.wait().map_err(|error| Error::io(format!("killing `{}`", self.line), error))
    }

    /// Whether there was a program to send it to.
    fn signal(&self, signal: Signal) -> bool {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Nobody is left to tell.
            let _ = self.kill();
        }
    }
}

/// Where a program is: on `PATH`, or in the folders of system programs that a user's `PATH`
/// may lack.
pub(crate) fn installed(program: &OsStr) -> Result<PathBuf> {
    let as_path = Path::new(program);
    if as_path.components().count() > 1 {
        return Ok(as_path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
        .ok_or_else(|| Error::missing(&program.to_string_lossy()))
}

fn pidfd(pid: u32) -> rustix::io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What arrived before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}
