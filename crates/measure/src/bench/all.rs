//! `cachelane bench all`: every experiment, one after the other, into one [`Bundle`].
//!
//! Each runs on a thread of its own, so that what it pins, or where it panics, is no matter of the
//! next one's. What fails or is not there costs its own ratios and nothing else.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::bridge::Bridge;
use super::bundle::{Bundle, Entry};
use super::doctor::Doctor;
use super::driver::{Outcome, in_words, run_shown, seconds};
use super::experiment::{Experiment, Plan};
use super::frames::Frames;
use super::lend::Lend;
use super::list::{Listed, list};
use super::relay::Relay;
use super::steer::Steer;
use super::trial::Trial;
use super::{Progress, Stop};

/// The stack of an experiment's thread, in bytes: as large as a main thread's mostly is.
const STACK: usize = 8 << 20;

/// What is run.
#[derive(Clone, Debug)]
pub struct All {
    /// Names of the experiments; none: all.
    pub only: Vec<String>,
    /// Times that each case is measured; none: as each experiment has it.
    pub rounds: Option<usize>,
    /// Length of one measurement; none: as each experiment has it.
    pub window: Option<Duration>,
    /// Seed of the order of the cases.
    pub seed: u64,
    /// Nothing but errors on stderr.
    pub quiet: bool,
}

/// An experiment of any kind.
pub(super) trait AnyExperiment: Sync {
    /// As it runs if nobody says otherwise.
    fn listed(&self) -> Listed;
    /// Seconds that it takes, about.
    fn seconds(&self, plan: &Plan) -> f64;
    /// Runs it.
    fn run(&self, plan: &Plan, stop: &Stop, progress: &Progress) -> anyhow::Result<Outcome>;
}

impl<X: Experiment + Sync> AnyExperiment for X {
    fn listed(&self) -> Listed {
        list(self)
    }

    fn seconds(&self, plan: &Plan) -> f64 {
        seconds(self, plan)
    }

    fn run(&self, plan: &Plan, stop: &Stop, progress: &Progress) -> anyhow::Result<Outcome> {
        run_shown(self, plan, stop, progress)
    }
}

/// All that there are, in the order in which they are listed and run.
pub(super) fn experiments() -> Vec<Box<dyn AnyExperiment>> {
    vec![
        Box::new(Relay::default()),
        Box::new(Bridge::default()),
        Box::new(Frames),
        Box::new(Lend),
        Box::new(Steer),
        Box::new(Doctor),
        Box::new(Trial),
    ]
}

/// Runs experiments until their end or until somebody asks to stop; `command` is what started this.
/// How long all of it takes is said on stderr. `keep` gets the bundle after every experiment; if it
/// fails, that is said and the rest runs on.
///
/// # Errors
/// What went wrong before anything was measured. What went wrong after that comes beside the bundle.
pub fn run(
    all: &All,
    command: String,
    stop: &Stop,
    keep: impl FnMut(&Bundle) -> anyhow::Result<()>,
) -> anyhow::Result<(Bundle, Option<anyhow::Error>)> {
    run_each(&experiments(), all, Bundle::new(command)?, stop, keep)
}

fn run_each(
    experiments: &[Box<dyn AnyExperiment>],
    all: &All,
    mut bundle: Bundle,
    stop: &Stop,
    mut keep: impl FnMut(&Bundle) -> anyhow::Result<()>,
) -> anyhow::Result<(Bundle, Option<anyhow::Error>)> {
    let with_plans = experiments.iter().map(|one| (one, one.listed()));
    let chosen = with_plans.filter(|(_, listed)| all.has(listed.name));
    let chosen: Vec<_> = chosen.map(|(one, listed)| (one, all.plan(&listed), listed)).collect();
    bundle.experiments =
        chosen.iter().map(|(_, plan, listed)| Entry::new(listed.clone(), plan)).collect();
    let total = chosen.iter().map(|(one, plan, _)| one.seconds(plan)).sum();
    let progress = Progress::new(total, all.quiet);
    let tell = |text: &str| {
        if !all.quiet {
            progress.say(text)
        }
    };
    tell(&format!("bench all: takes about {}", in_words(total)));
    let (begun, mut before, mut errors) = (Instant::now(), 0.0, Vec::new());
    for (number, (experiment, plan, listed)) in chosen.iter().enumerate() {
        progress.chapter(listed.name, before);
        before += experiment.seconds(plan);
        let this = Instant::now();
        let outcome = on_its_own(listed.name, || experiment.run(plan, stop, &progress));
        if stop.is_asked() && outcome.is_err() {
            break;
        }
        let error = bundle.add(number, outcome, this.elapsed(), begun.elapsed());
        if let Some(error) = error.filter(|_| !stop.is_asked()) {
            progress.say(&format!("bench all: {}: {error:#}", listed.name));
            errors.push(error.context(listed.name));
        }
        if let Err(error) = keep(&bundle) {
            progress.say(&format!("bench all: {error:#}"));
        }
        if stop.is_asked() {
            break;
        }
    }
    drop(progress);
    if let Err(error) = stop.check()
        && bundle.incomplete
    {
        return if bundle.is_empty() { Err(error) } else { Ok((bundle, Some(error))) };
    }
    let failed = errors.len();
    let error = errors.into_iter().next().map(|error| match failed {
        1 => error,
        _ => error.context(format!("{failed} of {} experiments failed", chosen.len())),
    });
    Ok((bundle, error))
}

/// Runs this on a thread; a panic is an error.
fn on_its_own(
    name: &str,
    run: impl FnOnce() -> anyhow::Result<Outcome> + Send,
) -> anyhow::Result<Outcome> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, run)?;
        // What a thread says as it panics is on stderr.
        thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked")))
    })
}

impl All {
    fn has(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|asked| asked == name)
    }

    fn plan(&self, listed: &Listed) -> Plan {
        Plan {
            parts: Vec::new(),
            rounds: self.rounds.unwrap_or(listed.rounds),
            window: self.window.unwrap_or(listed.window),
            seed: self.seed,
            quiet: self.quiet,
        }
    }
}

#[cfg(test)]
mod tests;
