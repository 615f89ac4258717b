//! A command of the user's that measures a window by itself.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::error::Context as _;
use crate::{Error, ErrorKind, Result};

/// How much of what a command prints is kept, from the end.
const KEPT: usize = 64 << 10;

/// How much of its stderr is shown.
const SHOWN: usize = 2 << 10;

/// How often to ask whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// A command that is run once a window and prints a number, which is the window's value.
///
/// The number is the last word on its stdout that is one, so that what a load generator prints can
/// be used as it is. The environment has `CACHELANE_WINDOW`, the window's length in seconds.
#[derive(Clone, Debug)]
pub struct Command {
    program: OsString,
    arguments: Vec<OsString>,
    limit: Duration,
}

/// A command that runs, in a process group of its own. Dropping it kills the group.
///
/// A child that leaves the group is not killed, nor is the group where this process is killed.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    group: Pid,
    pidfd: rustix::fd::OwnedFd,
    until: Instant,
    limit: Duration,
    stdout: Tail<std::process::ChildStdout>,
    stderr: Tail<std::process::ChildStderr>,
    reaped: bool,
}

impl Command {
    /// A command with its arguments; no shell comes between. Beyond the window it may run for
    /// `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] if there is no word.
    pub fn new(words: impl IntoIterator<Item = OsString>, limit: Duration) -> Result<Self> {
        let mut words = words.into_iter();
        let program = words.next().ok_or_else(|| {
            Error::syntax("expected a command that prints a number, such as -- sh -c 'echo 1'")
        })?;
        Ok(Self { program, arguments: words.collect(), limit })
    }

    /// Starts it for a window of this length.
    ///
    /// # Errors
    /// [`ErrorKind::Command`] if it cannot be started.
    pub fn start(&self, window: Duration) -> Result<Running> {
        let line = self.to_string();
        let failed =
            |error| Error::caused(ErrorKind::Command, format!("cannot start `{line}`"), error);
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.arguments).env("CACHELANE_WINDOW", window.as_secs_f64().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the trial, which ends its commands itself.
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let prepared = Pid::from_raw(child.id().cast_signed())
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .and_then(|pid| Ok((pid, pidfd_open(pid, PidfdFlags::empty())?)))
            .and_then(|(pid, pidfd)| {
                Ok((pid, pidfd, Tail::new(child.stdout.take())?, Tail::new(child.stderr.take())?))
            });
        match prepared {
            Ok((group, pidfd, stdout, stderr)) => {
                let until = Instant::now() + window + self.limit;
                let limit = window + self.limit;
                let reaped = false;
                Ok(Running { line, child, group, pidfd, until, limit, stdout, stderr, reaped })
            }
            Err(error) => {
                // It must not stay behind; that it has ended already is as good.
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error))
            }
        }
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.program.to_string_lossy())?;
        self.arguments.iter().try_for_each(|word| write!(f, " {}", word.to_string_lossy()))
    }
}

impl Running {
    /// Waits for its end and returns the number that it printed. What it left running in its group is
    /// killed.
    ///
    /// # Errors
    /// As [`succeed`](Self::succeed), and [`ErrorKind::Command`] if it printed no number.
    pub fn finish(mut self, stopped: impl FnMut() -> bool) -> Result<f64> {
        self.complete(stopped)?;
        let text = String::from_utf8_lossy(&self.stdout.text).into_owned();
        last_number(&text).ok_or_else(|| {
            let end = text.lines().rev().find(|line| !line.trim().is_empty());
            self.failed(&match end {
                Some(end) => format!("printed no number; its last line is {end:?}"),
                None => "printed nothing".into(),
            })
        })
    }

    /// Waits for its end, whatever it prints. What it left running in its group is killed.
    ///
    /// `stopped` is asked several times a second whether to give up.
    ///
    /// # Errors
    /// [`ErrorKind::Command`]: it took longer than the window and its limit, `stopped` came to say
    /// yes, or it did not end well; with what it wrote to stderr.
    pub fn succeed(mut self, stopped: impl FnMut() -> bool) -> Result<()> {
        self.complete(stopped)
    }

    fn complete(&mut self, mut stopped: impl FnMut() -> bool) -> Result<()> {
        while !self.wait().context(format_args!("waiting for `{}`", self.line))? {
            if stopped() {
                return Err(self.failed("was stopped"));
            }
            if Instant::now() >= self.until {
                return Err(self.failed(&format!("did not end within {:?}", self.limit)));
            }
        }
        let status = self.end().context(format_args!("waiting for `{}`", self.line))?;
        self.stdout.read();
        self.stderr.read();
        if status.success() { Ok(()) } else { Err(self.failed(&format!("ended with {status}"))) }
    }

    /// Waits a while and takes what it prints; true once it has ended.
    fn wait(&mut self) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
        fds.extend(self.stdout.poll());
        fds.extend(self.stderr.poll());
        let left = self.until.saturating_duration_since(Instant::now()).min(LOOK);
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&left)) {
            // A signal that the process has a handler for, such as that of Ctrl-C.
            Err(rustix::io::Errno::INTR) => return Ok(false),
            polled => polled?,
        };
        let ended = !fds[0].revents().is_empty();
        drop(fds);
        self.stdout.read();
        self.stderr.read();
        Ok(ended)
    }

    /// Kills what is left of the group, and then asks for the status, after which the group's number
    /// may be another's.
    fn end(&mut self) -> io::Result<ExitStatus> {
        // It fails only where nothing of the group is left.
        let _ = kill_process_group(self.group, Signal::KILL);
        let status = self.child.wait();
        self.reaped = true;
        status
    }

    fn failed(&self, how: &str) -> Error {
        let text = &self.stderr.text;
        let shown = String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN)..]);
        let said = match shown.trim() {
            "" => String::new(),
            shown => format!(": {shown}"),
        };
        Error::new(ErrorKind::Command, format!("`{}` {how}{said}", self.line))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            // Nobody is left to tell.
            let _ = self.end();
        }
    }
}

/// The end of what comes out of a pipe, which is read without waiting.
#[derive(Debug)]
struct Tail<P> {
    pipe: Option<P>,
    text: Vec<u8>,
}

impl<P: Read + AsFd> Tail<P> {
    fn new(pipe: Option<P>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { pipe, text: Vec::new() })
    }

    fn poll(&self) -> Option<PollFd<'_>> {
        self.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN))
    }

    /// Takes what is there, at most so much that an endless writer cannot hold us here.
    fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0; 16 << 10];
        for _ in 0..2 * KEPT / chunk.len() {
            match pipe.read(&mut chunk) {
                Ok(0) => {
                    self.pipe = None;
                    break;
                }
                Ok(got) => self.text.extend_from_slice(&chunk[..got]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.pipe = None;
                    break;
                }
            }
        }
        let surplus = self.text.len().saturating_sub(KEPT);
        self.text.drain(..surplus);
    }
}

/// The last word that is a number, also after `=` or `:` and in brackets.
fn last_number(text: &str) -> Option<f64> {
    let words = text.rsplit(|c: char| c.is_whitespace() || c == '=' || c == ':');
    words.filter_map(number).next()
}

fn number(word: &str) -> Option<f64> {
    let word = word.trim_matches(|c: char| c.is_ascii_punctuation() && !"+-.".contains(c));
    let word = word.strip_suffix('.').unwrap_or(word);
    let digits = word.trim_start_matches(['+', '-', '.']);
    let starts = digits.starts_with(|c: char| c.is_ascii_digit());
    word.parse().ok().filter(|number: &f64| starts && number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn sh(script: &str, limit: Duration) -> Command {
        Command::new(["sh", "-c", script].map(OsString::from), limit).unwrap()
    }

    fn run(script: &str) -> Result<f64, String> {
        let running = sh(script, MINUTE).start(Duration::ZERO).unwrap();
        running.finish(|| false).map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_number_is_the_value() {
        for (text, number) in [
            ("1234.5\n", Some(1234.5)),
            ("Requests/sec:  812.07\nTransfer/sec: none\n", Some(812.07)),
            ("a=1 b=-2.5e3", Some(-2500.0)),
            ("{\"rate\": 17}\n", Some(17.0)),
            ("took 5 ms.\nrate: 9.\n", Some(9.0)),
            ("12ms 1,234 1.2.3 NaN inf", None),
            ("", None),
        ] {
            assert_eq!(last_number(text), number, "{text:?}");
        }
    }

    #[test]
    fn a_command_gets_the_window_and_gives_its_number() {
        let command = sh("echo 1; echo $CACHELANE_WINDOW requests", MINUTE);
        assert_eq!(
            command.start(Duration::from_millis(1500)).unwrap().finish(|| false).unwrap(),
            1.5
        );
        // More than a pipe holds, on both outputs.
        let much = "head -c 300000 /dev/zero | tr '\\0' x";
        assert_eq!(run(&format!("{much}; {much} >&2; echo; echo 42")), Ok(42.0));
    }

    #[test]
    fn a_command_that_fails_says_why() {
        for (script, words) in [
            ("echo 5; echo broken >&2; exit 3", &["exit status: 3", "broken"][..]),
            ("echo no", &["printed no number", "\"no\""]),
            ("echo trouble >&2", &["printed nothing", "trouble"]),
            ("kill -9 $$", &["signal: 9"]),
        ] {
            let error = run(script).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{script}: {error}");
        }
        let error = Command::new(["/nowhere/x".into()], MINUTE).unwrap().start(MINUTE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Command);
        assert!(error.to_string().contains("/nowhere/x"), "{error}");
        assert_eq!(Command::new([], MINUTE).unwrap_err().kind(), ErrorKind::Syntax);
    }

    /// Whether a process has gone that wrote its number into a file.
    fn gone(file: &std::path::Path) -> bool {
        let pid = || std::fs::read_to_string(file).ok()?.trim().parse::<i32>().ok();
        let pid = pid().and_then(Pid::from_raw).expect("the command wrote its child's number");
        // The child's new parent has yet to ask for its status.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        lab::testing::comes_true(|| state().is_err() || state().is_ok_and(|s| s.contains(") Z ")))
    }

    #[test]
    fn nothing_of_a_command_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = |after: &str| format!("sleep 600 & echo $! > {}; {after}", file.display());
        let wait = || {
            let written = || std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'));
            assert!(lab::testing::comes_true(written));
        };

        // It ends, and what it started holds its pipes open.
        let running = sh(&script("echo 7"), MINUTE).start(Duration::ZERO).unwrap();
        assert_eq!(running.finish(|| false).unwrap(), 7.0);
        assert!(gone(&file));

        std::fs::remove_file(&file).unwrap();
        let running = sh(&script("wait"), Duration::from_millis(1)).start(Duration::ZERO).unwrap();
        wait();
        let error = running.finish(|| false).unwrap_err().to_string();
        assert!(error.contains("did not end within 1ms") && gone(&file), "{error}");

        std::fs::remove_file(&file).unwrap();
        let running = sh(&script("wait"), MINUTE).start(Duration::ZERO).unwrap();
        wait();
        let error = running.finish(|| true).unwrap_err().to_string();
        assert!(error.contains("was stopped") && gone(&file), "{error}");

        std::fs::remove_file(&file).unwrap();
        let running = sh(&script("yes"), MINUTE).start(Duration::ZERO).unwrap();
        wait();
        drop(running);
        assert!(gone(&file), "dropped while it prints without end");
    }
}
