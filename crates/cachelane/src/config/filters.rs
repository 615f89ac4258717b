//! Filter expressions of a configuration, which libpcap compiles.
//!
//! It does so in processes of their own, which have some seconds together: the daemon is not to be held up for
//! longer, nor to keep a thread that never ends, nor to die of it.

use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::tree::{Origin, Trouble};
use crate::exit::Exit;

/// What all filters together may take.
const MOST: Duration = Duration::from_secs(5);

/// What was found out.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) wrong: Vec<Trouble>,
    pub(super) unchecked: Vec<Trouble>,
}

/// An expression, and where it was set.
#[derive(Debug)]
pub(super) struct Filter {
    /// Such as `lend.x.filter`.
    name: String,
    text: String,
    origin: Origin,
}

impl Filter {
    /// What a key was set to by this `argument`, if it takes an expression.
    pub(super) fn new(name: &str, argument: &str, origin: &Origin) -> Option<Filter> {
        let text = argument.strip_prefix("--filter=")?.to_owned();
        Some(Filter { name: name.to_owned(), text, origin: origin.clone() })
    }

    /// Starts to compile it.
    fn start(&self) -> io::Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        // Ctrl-C is for the process that reads the configuration.
        command.process_group(0).args(["config", "filter", "--", &self.text]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    }

    fn trouble(&self, how: &str) -> Trouble {
        let message = format!("{}{how}", self.name);
        Trouble { origin: Some(self.origin.clone()), message }
    }
}

/// Compiles all of them, some at a time.
pub(super) fn compile(filters: Vec<Filter>) -> Findings {
    const AT_A_TIME: usize = 16;
    let (mut findings, until) = (Findings::default(), Instant::now() + MOST);
    let started = filters.chunks(AT_A_TIME).flat_map(|some| {
        let start = |filter: &Filter| match Instant::now() < until {
            true => filter.start(),
            false => Err(too_long()),
        };
        some.iter().map(start).collect::<Vec<_>>()
    });
    for (filter, child) in filters.iter().zip(started) {
        let unchecked = |why: &str| filter.trouble(&format!(" is not checked: {why}"));
        match child.and_then(|child| ended(child, until)) {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                match output.status.code() {
                    Some(code) if code == Exit::Ok as i32 => {}
                    Some(code) if code == Exit::Usage as i32 => {
                        findings.wrong.push(filter.trouble(&format!(" {}", said.trim_end())));
                    }
                    Some(code) if code == Exit::HostCannot as i32 => {
                        findings.unchecked.push(unchecked(said.trim_end()));
                    }
                    _ => findings.unchecked.push(unchecked(&output.status.to_string())),
                }
            }
            // Nor could it be given to the subcommand.
            Err(error) if error.kind() == ErrorKind::ArgumentListTooLong => {
                let len = filter.text.len();
                let how = format!(" has {len} bytes (expected less than 131072)");
                findings.wrong.push(filter.trouble(&how));
            }
            Err(error) => findings.unchecked.push(unchecked(&error.to_string())),
        }
    }
    findings
}

/// What it has printed, if it ends in time.
fn ended(mut child: Child, until: Instant) -> io::Result<Output> {
    const LOOK: Duration = Duration::from_millis(2);
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Err(too_long());
        }
        sleep(LOOK);
    }
    child.wait_with_output()
}

fn too_long() -> io::Error {
    io::Error::other(format!(
        "it and the filters before it took libpcap more than {MOST:?}: it takes long for hundreds of \
         alternatives (expected fewer, or ranges and networks)"
    ))
}
