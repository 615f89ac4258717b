//! What an experiment is made of, for the [driver](super::driver) that runs it.
//!
//! An [`Experiment`] has parts that share its ground. A part says what it claims and how long it
//! takes before anything is set up; each of its stages is then set up and measured, in rounds of all
//! the stage's steps, before the next one is.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;

use super::Stop;
use super::claim::Claim;
use super::found::Found;

/// Something to repeat on this host, with peers beside it.
pub trait Experiment {
    /// What its parts share.
    type Ground;

    /// As it is called.
    fn name(&self) -> &'static str;

    /// Its parts, in the order in which they run.
    fn parts(&self) -> Vec<Part<Self::Ground>>;

    /// Times that each case is measured, and for how long, if nobody says otherwise.
    fn default_extent(&self) -> (usize, Duration);

    /// Seconds that [`ground`](Self::ground) takes.
    fn ground_time(&self) -> f64 {
        0.5
    }

    /// Sets up what its parts share.
    ///
    /// # Errors
    /// What the host or the system reports.
    fn ground(&self, found: &mut Found) -> anyhow::Result<Self::Ground>;

    /// What a reader should know of all parts.
    fn notes(&self, _ground: &Self::Ground, plan: &Plan) -> Vec<String> {
        vec![in_random_order(plan)]
    }
}

/// The note of what the driver does.
pub(super) fn in_random_order(plan: &Plan) -> String {
    format!("The cases ran in random order in every round, seed {}.", plan.seed)
}

/// How much of an experiment is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of the parts to run; none: all.
    pub parts: Vec<String>,
    /// Times that each case is measured.
    pub rounds: usize,
    /// Length of one measurement.
    pub window: Duration,
    /// Seed of the order of the cases.
    pub seed: u64,
    /// Nothing but errors on stderr.
    pub quiet: bool,
}

/// A part of an experiment whose ground is a `G`.
pub struct Part<G> {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) claims: Vec<Claim>,
    pub(super) time: Time,
    /// How many rounds of so many it takes.
    pub(super) rounds: fn(usize) -> usize,
    pub(super) stages: Vec<Stage<G>>,
}

/// Sets up what is measured in rounds.
pub(super) type Stage<G> =
    Box<dyn for<'a> Fn(&'a G, &mut Found) -> anyhow::Result<Box<dyn Measure + 'a>>>;

/// How long a part takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    /// Seconds of its set-up.
    pub(super) once: f64,
    /// Measurements of a round.
    pub(super) steps: usize,
    /// Windows of a measurement.
    pub(super) windows: f64,
    /// Seconds of a measurement besides.
    pub(super) more: f64,
}

impl<G> Part<G> {
    pub(super) fn new(name: &'static str, about: &'static str, time: Time) -> Part<G> {
        let (claims, stages) = (Vec::new(), Vec::new());
        Part { name, about, claims, time, rounds: |rounds| rounds, stages }
    }

    pub(super) fn claims(mut self, claims: impl IntoIterator<Item = Claim>) -> Part<G> {
        self.claims.extend(claims);
        self
    }

    /// One more stage, after the others.
    pub(super) fn stage<F>(mut self, stage: F) -> Part<G>
    where
        F: for<'a> Fn(&'a G, &mut Found) -> anyhow::Result<Box<dyn Measure + 'a>> + 'static,
    {
        self.stages.push(Box::new(stage));
        self
    }

    /// As many rounds, of so many, as this says.
    pub(super) fn rounds(mut self, rounds: fn(usize) -> usize) -> Part<G> {
        self.rounds = rounds;
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it is, in a line.
    pub fn about(&self) -> &'static str {
        self.about
    }

    /// Seconds that it takes.
    pub(super) fn seconds(&self, plan: &Plan) -> f64 {
        let step = self.time.windows * plan.window.as_secs_f64() + self.time.more;
        self.time.once + ((self.rounds)(plan.rounds) * self.time.steps) as f64 * step
    }
}

/// One measurement of a round.
pub(super) struct Step {
    pub(super) name: String,
    /// The cases that it gives a run of, and their units.
    pub(super) gives: Vec<(String, &'static str)>,
}

impl Step {
    /// One that gives one case, of its own name.
    pub(super) fn of(name: impl Into<String>, unit: &'static str) -> Step {
        let name = name.into();
        Step { gives: vec![(name.clone(), unit)], name }
    }
}

/// In which order a round takes its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turns {
    /// Each once, in random order.
    Once,
    /// In random order and then backwards, so that a stretch of time in which the machine is slow
    /// falls on all of them.
    ThereAndBack,
}

/// What is measured in rounds.
pub(super) trait Measure {
    /// The steps of a round. They stay the same.
    fn steps(&self) -> Vec<Step>;

    /// In which order they are taken.
    fn turns(&self) -> Turns {
        Turns::Once
    }

    /// A round begins. Gives cases of no step.
    fn begin(&mut self, _now: &mut Now<'_>) -> anyhow::Result<Vec<(String, &'static str, f64)>> {
        Ok(Vec::new())
    }

    /// Takes a step: a value for each case that it gives; none where its last turn of the round is
    /// still to come.
    ///
    /// An error that is [`Absent`] costs what the step gives, another one ends the run.
    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>>;

    /// What a reader should know, at the end.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a measurement is told.
pub(super) struct Now<'a> {
    /// How long it measures.
    pub(super) window: Duration,
    /// From 0.
    pub(super) round: usize,
    /// The plan's.
    pub(super) seed: u64,
    /// Whether it is the last turn of this step in this round.
    pub(super) is_last_turn: bool,
    pub(super) rng: &'a mut StdRng,
    pub(super) stop: &'a Stop,
}

/// Why something was not measured, though nothing is broken: this host lacks something, or nothing
/// happened in a window.
#[derive(Debug)]
pub(super) struct Absent(pub(super) String);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Absent {}
