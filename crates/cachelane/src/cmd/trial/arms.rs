//! What is tried, and how an arm is put in force.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use knobs::{Held, Reach, Select, Subject, Values};
use sources::Command;

use super::args::Args;
use crate::exit::usage;
use crate::run;

/// How long a knob stays held without a sign of life.
const LEASE: Duration = Duration::from_secs(20);

/// How often to give one.
const RENEWAL: Duration = Duration::from_secs(2);

/// How long a command that puts an arm in force may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How long it may go on after a signal.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be tried; nothing of it is held or changed yet.
pub(super) struct Candidate {
    what: What,
    /// The arms' names, the baseline first.
    pub(super) arms: Vec<String>,
}

enum What {
    Setting(Subject),
    /// And the lines as they were given.
    Commands(Vec<Command>, [String; 2]),
}

impl Candidate {
    /// Finds what the command line names.
    pub(super) fn of(args: &Args) -> anyhow::Result<Self> {
        if let (Some(a), Some(b)) = (&args.a, &args.b) {
            let shell = |line: &String| {
                let words = ["sh", "-c", line].map(OsString::from);
                Command::new(words, LIMIT)
            };
            let commands = vec![shell(a)?, shell(b)?];
            let what = What::Commands(commands, [a.clone(), b.clone()]);
            return Ok(Self { what, arms: vec!["a".into(), "b".into()] });
        }
        let select = Select { pid: args.pid, name: args.name.clone() };
        let subject = Subject::find(args.subject.as_deref().unwrap_or_default(), select)?;
        let given = if args.arm.is_empty() { &args.arms } else { &args.arm };
        let arms = arms(&subject, given)?;
        Ok(Self { what: What::Setting(subject), arms })
    }

    pub(super) fn name(&self) -> String {
        match &self.what {
            What::Setting(subject) => subject.name().to_owned(),
            What::Commands(_, [a, b]) => format!("--a {a:?} --b {b:?}"),
        }
    }

    /// The process whose knob it is.
    pub(super) fn process(&self) -> Option<&knobs::Process> {
        match &self.what {
            What::Setting(subject) => subject.process(),
            What::Commands(..) => None,
        }
    }

    /// What a new value reaches. New connections only is unknown, unless the process counts how much of
    /// its work ran under the value.
    pub(super) fn reach(&self) -> trial::Reach {
        match &self.what {
            What::Setting(subject) if subject.reach() == Reach::AtOnce => trial::Reach::AtOnce,
            What::Setting(subject) if subject.exposure().is_some() => trial::Reach::AtOnce,
            _ => trial::Reach::Unknown,
        }
    }

    /// The measure of which share of the work ran under the value in force, where the process counts
    /// that.
    pub(super) fn exposure(&self) -> Option<String> {
        let What::Setting(subject) = &self.what else { return None };
        let (exposure, process) = (subject.exposure()?, subject.process()?);
        let pid = process.pid;
        let knobs::Exposure { under, of } = exposure;
        Some(format!("counter:{under}@{pid}/counter:{of}@{pid},higher"))
    }

    /// Whether it is a knob of a process in another network namespace, whose traffic and errors this one
    /// does not show.
    pub(super) fn is_elsewhere(&self) -> bool {
        let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net"));
        let its = self.process().map(|process| namespace(&process.pid.to_string()));
        its.is_some_and(
            |its| matches!((its, namespace("self")), (Ok(its), Ok(ours)) if its != ours),
        )
    }

    /// What is measured if nobody says: CPU time by the work that the subject is about.
    ///
    /// # Errors
    /// If no count of that work is the same under all arms and good for every host.
    pub(super) fn default_measure(&self) -> anyhow::Result<String> {
        const BYTES: &str = "cpu.busy/net.bytes";
        match self.process() {
            Some(relay) if relay.kind == "relay" => {
                Ok(format!("cpu.busy/counter:relay.bytes@{}", relay.pid))
            }
            Some(steer) if steer.kind == "steer" && !self.is_elsewhere() => Ok(BYTES.into()),
            Some(_) => Err(usage(format!(
                "{}: what is measured? Say it with --measure, such as cpu.busy/net.bytes@DEVICE \
                 (cachelane trial --list), or give a command that prints a number after --",
                self.name()
            ))),
            None => Ok(BYTES.into()),
        }
    }

    /// Takes it for this process alone, and tries each arm once.
    pub(super) fn hold(&self) -> anyhow::Result<InForce> {
        let subject = match &self.what {
            What::Commands(commands, _) => {
                let how = How::Commands { commands: commands.clone(), now: None };
                return Ok(InForce { how, is_over: false });
            }
            What::Setting(subject) => subject,
        };
        let mut held = subject.hold(&format!("trial, pid {}", std::process::id()), LEASE)?;
        let mut in_force: Vec<String> = Vec::new();
        for arm in &self.arms {
            let value = held.set(arm)?;
            if let Some(same) = in_force.iter().position(|other| *other == value) {
                return Err(usage(format!(
                    "arms {} and {arm} of {subject} are the same: both are {value:?} in force",
                    self.arms[same]
                )));
            }
            in_force.push(value);
        }
        let now = held.set(&self.arms[0])?;
        let (held, arms, renewed) = (Some(held), self.arms.clone(), Instant::now());
        Ok(InForce { how: How::Held { held, arms, now, renewed }, is_over: false })
    }
}

/// The values to compare.
fn arms(subject: &Subject, given: &[String]) -> anyhow::Result<Vec<String>> {
    let values = match subject.values() {
        Some(Values::OneOf(values)) => values,
        _ if given.len() > 1 => return Ok(given.to_vec()),
        other => {
            let takes = other.map(|values| format!(" (it takes {values})")).unwrap_or_default();
            return Err(usage(format!(
                "{subject}: which values are to be compared? Give at least two with --arms a,b or \
                 --arm a --arm b{takes}"
            )));
        }
    };
    if let Some(bad) = given.iter().find(|arm| !values.contains(arm)) {
        let takes = subject.values().map(ToString::to_string).unwrap_or_default();
        return Err(usage(format!("--arms: {subject} does not take {bad:?} (expected {takes})")));
    }
    match (given.len(), values.len()) {
        (0, 2) => Ok(values.clone()),
        (0 | 1, _) => Err(usage(format!(
            "{subject}: which values are to be compared? Give at least two of {} with --arms",
            values.join(", ")
        ))),
        _ => Ok(given.to_vec()),
    }
}

/// An arm in force, until it is ended. Dropping it restores what was there before.
pub(super) struct InForce {
    how: How,
    is_over: bool,
}

enum How {
    Held {
        held: Option<Held>,
        arms: Vec<String>,
        /// The value in force since the last arm was set.
        now: String,
        renewed: Instant,
    },
    Commands {
        commands: Vec<Command>,
        /// The arm in force; none while its command runs, and where that failed.
        now: Option<usize>,
    },
}

/// What became of what was tried.
#[derive(Debug)]
pub(super) enum Left {
    /// It is as it was before; of commands, the baseline is in force.
    Restored,
    /// The arm that was asked for is in force.
    Kept,
    /// Somebody else has set it, or its process is gone; why.
    Taken(String),
}

impl InForce {
    /// Puts an arm in force, also if it is already.
    pub(super) fn set(&mut self, arm: usize) -> anyhow::Result<()> {
        match &mut self.how {
            How::Held { held, arms, now, .. } => {
                if let Some(held) = held {
                    *now = held.set(&arms[arm])?;
                }
                self.renew()
            }
            How::Commands { commands, now } => {
                *now = None;
                let running = commands[arm].start(Duration::ZERO)?;
                // It may be in the middle of something: after a signal it has a while to end.
                let mut asked = None;
                let given_up = || {
                    let asked =
                        run::is_asked_to_end().then(|| *asked.get_or_insert(Instant::now()));
                    asked.is_some_and(|since| since.elapsed() > PATIENCE)
                };
                running.succeed(given_up).context("cannot put the arm in force")?;
                *now = Some(arm);
                Ok(())
            }
        }
    }

    /// Keeps it, as often as is needed.
    ///
    /// # Errors
    /// If it is not this process's any more.
    pub(super) fn keep_alive(&mut self) -> anyhow::Result<()> {
        match &self.how {
            How::Held { renewed, .. } if renewed.elapsed() >= RENEWAL => self.renew(),
            _ => Ok(()),
        }
    }

    /// The value in force, read back, and whether it is what was set; none of commands.
    ///
    /// # Errors
    /// If it is not this process's any more.
    pub(super) fn read_back(&mut self) -> anyhow::Result<Option<(String, bool)>> {
        self.renew()?;
        match &mut self.how {
            How::Held { held: Some(held), now, .. } => {
                let value = held.value()?;
                let is_set = value == *now;
                Ok(Some((value, is_set)))
            }
            _ => Ok(None),
        }
    }

    fn renew(&mut self) -> anyhow::Result<()> {
        if let How::Held { held: Some(held), renewed, .. } = &mut self.how {
            held.renew()?;
            *renewed = Instant::now();
        }
        Ok(())
    }

    /// Leaves an arm in force, or restores what was there before. Of commands, what was before is the
    /// baseline.
    ///
    /// # Errors
    /// What keeps it from being set or restored.
    pub(super) fn end(&mut self, keep: Option<usize>) -> anyhow::Result<Left> {
        self.is_over = true;
        let ended = self.try_end(keep);
        match ended {
            Err(error) if is_taken(&error) => Ok(Left::Taken(format!("{error:#}"))),
            ended => ended,
        }
    }

    fn try_end(&mut self, keep: Option<usize>) -> anyhow::Result<Left> {
        if let Some(arm) = keep {
            self.set(arm)?;
        }
        match &mut self.how {
            How::Held { held, .. } => match (held.take(), keep) {
                (Some(held), Some(_)) => held.keep()?,
                (Some(held), None) => held.restore()?,
                (None, _) => {}
            },
            How::Commands { now, .. } if keep.is_none() && *now != Some(0) => self.set(0)?,
            How::Commands { .. } => {}
        }
        Ok(if keep.is_some() { Left::Kept } else { Left::Restored })
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        if !self.is_over
            && let Err(error) = self.end(None)
        {
            tracing::error!("not restored: {error:#}");
        }
    }
}

/// Whether somebody else has taken the setting.
fn is_taken(error: &anyhow::Error) -> bool {
    use knobs::ErrorKind::{Changed, Gone, NotHeld};
    let kinds =
        error.chain().filter_map(|cause| Some(cause.downcast_ref::<knobs::Error>()?.kind()));
    kinds.into_iter().any(|kind| matches!(kind, Changed | Gone | NotHeld))
}
