//! What an experiment is made of, for the [driver](super::driver) that runs it.
//!
//! An [`Experiment`] has parts that share its ground. A part says what it claims and how long it
//! takes before anything is set up; each of its stages is then set up and measured, in rounds of all
//! the stage's steps, before the next one is.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use trial::bench::Curve;

use super::Stop;
use super::claim::Claim;
use super::found::Found;
use super::growth::Growth;

/// Something to repeat on this host, with peers beside it.
pub trait Experiment {
    /// What its parts share.
    type Ground;

    /// As it is called.
    const NAME: &'static str;

    /// Times that each case is measured, and for how long, if nobody says otherwise.
    const EXTENT: (usize, Duration);

    /// Seconds that [`ground`](Self::ground) takes.
    const GROUND_TIME: f64 = 0.5;

    /// Its parts, in the order in which they run.
    fn parts(&self) -> Vec<Part<Self::Ground>>;

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
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    pub(super) claims: Vec<Claim>,
    /// Of how its cases grow.
    pub(super) curves: Vec<Curve>,
    pub(super) time: Time,
    /// How many rounds of so many it takes.
    pub(super) rounds: fn(usize) -> usize,
    pub(super) stages: Vec<Stage<G>>,
}

/// Sets up what is measured in rounds.
pub(super) type Stage<G> = Box<dyn for<'a> Fn(&'a G, &mut Found) -> anyhow::Result<Measure<'a>>>;

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

impl Time {
    /// Seconds of a measurement.
    pub(super) fn of_step(&self, plan: &Plan) -> f64 {
        self.windows * plan.window.as_secs_f64() + self.more
    }
}

impl<G> Part<G> {
    pub(super) fn new(name: &'static str, about: &'static str, time: Time) -> Part<G> {
        let (claims, curves, stages) = (Vec::new(), Vec::new(), Vec::new());
        Part { name, about, claims, curves, time, rounds: |rounds| rounds, stages }
    }

    pub(super) fn claims(mut self, claims: impl IntoIterator<Item = Claim>) -> Part<G> {
        self.claims.extend(claims);
        self
    }

    /// What is claimed of how a figure grows, and its curve.
    pub(super) fn growth(mut self, growth: &Growth) -> Part<G> {
        self.curves.push(growth.curve());
        self.claims(growth.claims())
    }

    /// One more stage, after the others.
    pub(super) fn stage<F>(mut self, stage: F) -> Part<G>
    where
        F: for<'a> Fn(&'a G, &mut Found) -> anyhow::Result<Measure<'a>> + 'static,
    {
        self.stages.push(Box::new(stage));
        self
    }

    /// As many rounds, of so many, as this says.
    pub(super) fn rounds(mut self, rounds: fn(usize) -> usize) -> Part<G> {
        self.rounds = rounds;
        self
    }

    /// Seconds that it takes.
    pub(super) fn seconds(&self, plan: &Plan) -> f64 {
        let steps = (self.rounds)(plan.rounds) * self.time.steps;
        self.time.once + steps as f64 * self.time.of_step(plan)
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

/// What is measured in rounds.
pub(super) struct Measure<'a> {
    /// The steps of a round.
    pub(super) steps: Vec<Step>,
    /// Whether a round takes its steps in random order and then backwards, so that a stretch of time
    /// in which the machine is slow falls on all of them; else each once, in random order.
    pub(super) there_and_back: bool,
    /// What a round begins with, if anything: gives cases of no step.
    pub(super) begin: Option<Begin<'a>>,
    pub(super) take: Take<'a>,
    /// What a reader should know.
    pub(super) notes: Vec<String>,
}

pub(super) type Begin<'a> =
    Box<dyn FnMut(&mut Now<'_>) -> anyhow::Result<Vec<(String, &'static str, f64)>> + 'a>;

/// Takes a step: a value for each case that it gives; none where its last turn of the round is still
/// to come.
///
/// An error that is [`Absent`] costs what the step gives, another one ends the run.
pub(super) type Take<'a> = Box<dyn FnMut(usize, &mut Now<'_>) -> anyhow::Result<Vec<f64>> + 'a>;

impl<'a> Measure<'a> {
    /// A step for each case.
    pub(super) fn new<C: 'a>(
        cases: impl IntoIterator<Item = C>,
        step: impl FnMut(&C) -> Step,
        mut measure: impl FnMut(&C, &mut Now<'_>) -> anyhow::Result<Vec<f64>> + 'a,
    ) -> Measure<'a> {
        let cases: Vec<C> = cases.into_iter().collect();
        let steps = cases.iter().map(step).collect();
        let take = Box::new(move |number: usize, now: &mut Now<'_>| measure(&cases[number], now));
        Measure { steps, there_and_back: false, begin: None, take, notes: Vec::new() }
    }

    /// A step for each case, there and back: `slice` adds to what the case has in this round, and
    /// `figures` makes the values of it.
    pub(super) fn there_and_back<C: 'a, S: Default + 'a>(
        cases: impl IntoIterator<Item = C>,
        step: impl Fn(&C) -> Step,
        mut slice: impl FnMut(&C, &mut S, &mut Now<'_>) -> anyhow::Result<()> + 'a,
        figures: impl Fn(&C, S) -> anyhow::Result<Vec<f64>> + 'a,
    ) -> Measure<'a> {
        let cases = cases.into_iter().map(|case| (case, RefCell::<S>::default()));
        let step = |(case, _): &(C, RefCell<S>)| step(case);
        let measure = move |(case, sum): &(C, RefCell<S>), now: &mut Now<'_>| {
            slice(case, &mut sum.borrow_mut(), now)?;
            match now.is_last_turn {
                true => figures(case, sum.take()),
                false => Ok(Vec::new()),
            }
        };
        Measure { there_and_back: true, ..Measure::new(cases, step, measure) }
    }

    /// One more thing that a reader should know.
    pub(super) fn note(mut self, note: impl Into<String>) -> Measure<'a> {
        self.notes.push(note.into());
        self
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
pub(crate) struct Absent(pub(crate) String);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Absent {}

/// That this user may have AF_XDP sockets and hosts of their own.
pub(super) fn ensure_root() -> anyhow::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    anyhow::ensure!(is_root, Absent("AF_XDP on test hosts needs root".into()));
    Ok(())
}
