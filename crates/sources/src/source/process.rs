//! The CPU time of processes, to the nanosecond, by their CPU-time clocks.

use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use super::file::Kept;
use super::text::Text;
use crate::error::Context as _;
use crate::spec::Named;
use crate::{Error, ErrorKind, Result, Value};

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let mut files = Vec::new();
    for name in names {
        let pid = pid(name)?;
        files.push(Kept::open(format!("/proc/{pid}/stat"), "there is no such process").map_err(
            |error| match error.kind() {
                ErrorKind::Absent => {
                    Error::new(ErrorKind::Unknown, format!("{name}: there is no process {pid}"))
                }
                _ => error,
            },
        )?);
    }
    let mut index = 0..;
    // The file stays that of this process when another one gets its number, and cannot be read
    // once it has ended.
    Text::new(files, names, move |name| {
        let (pid, index) = (pid(name)?, index.next().unwrap_or_default());
        Ok(Box::new(move |files| match ended(files[index].text()?) {
            true => Err(Error::void(format!("process {pid} has ended"))),
            false => cpu_time(pid).map(|time| Value::total(time.as_secs_f64())),
        }))
    })
}

fn pid(name: &Named) -> Result<i32> {
    let text = name.of.as_deref().unwrap_or_default();
    let pid = text.parse::<i32>().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| {
        Error::syntax(format!("{name}: expected a process id after @, as in process.cpu@1234"))
    })
}

/// Whether it is a zombie, from the text of its `stat`. The name before the state can hold anything.
fn ended(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

fn cpu_time(pid: i32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid));
    let now = clock.and_then(ClockId::now).map_err(std::io::Error::from);
    now.map(Duration::from).context(format_args!("the CPU time of process {pid}"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::quantity::Known;
    use crate::source::Source as _;
    use crate::value::Amount;

    fn named(of: &str) -> Named {
        Named { known: Known::find("process.cpu").unwrap(), of: Some(of.into()) }
    }

    #[test]
    fn a_process_that_works_uses_time_and_one_that_ended_is_said() {
        let spin = ["-c", "while :; do :; done"];
        let mut child =
            Command::new("sh").args(spin).stdin(Stdio::null()).spawn().expect("a shell");
        let mut source = open(&[named(&child.id().to_string())]).unwrap();
        let first = source.read().unwrap();
        let grown = lab::testing::comes_true(|| {
            let now = source.read().unwrap();
            let amount = now[0].since(&first[0], Duration::from_secs(1)).unwrap();
            matches!(amount, Amount::Number(seconds) if seconds > 0.02)
        });
        assert!(grown, "a shell that spins uses CPU time");
        child.kill().unwrap();
        assert!(lab::testing::comes_true(|| source.read().is_err()), "a zombie is no process");
        child.wait().unwrap();
        let error = source.read().unwrap_err().to_string();
        assert!(error.contains(&format!("/proc/{}/stat", child.id())), "{error}");
    }

    #[test]
    fn what_is_no_process_is_refused() {
        for (of, word) in [
            ("x", "process id"),
            ("-1", "process id"),
            ("0", "process id"),
            ("2147483647", "no process"),
        ] {
            let error = open(&[named(of)]).err().unwrap().to_string();
            assert!(error.contains(word), "{of}: {error}");
        }
        assert!(ended("7 (a) S) Z 1 2"));
        assert!(!ended("7 (a) Z) S 1 2"));
    }
}
