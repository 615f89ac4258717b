//! Runs an experiment: its parts one after another, their steps in rounds.
//!
//! The steps of a round run in random order, so that what drifts on the machine drifts over all of
//! them, and two cases are compared round by round. What could not be measured costs what was to be
//! compared with it, and nothing else. A run that ends early keeps what it has.

#[cfg(test)]
mod tests;

use std::time::Instant;

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use trial::bench::{BenchOutput, Host};

use super::experiment::{Absent, Experiment, Measure, Now, Part, Plan, Stage};
use super::found::Found;
use super::{Progress, Stop};
use crate::say;

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was measured.
    pub output: BenchOutput,
    /// Why it is incomplete, if it is.
    pub error: Option<anyhow::Error>,
}

/// Seconds that the parts of the plan will take, about.
pub(super) fn seconds<X: Experiment>(experiment: &X, plan: &Plan) -> f64 {
    let parts = experiment.parts();
    let chosen = parts.iter().filter(|part| plan.has(part.name));
    X::GROUND_TIME + chosen.map(|part| part.seconds(plan)).sum::<f64>()
}

/// A time for people, who need not know it exactly.
pub fn in_words(seconds: f64) -> String {
    match seconds {
        ..=90.0 => format!("{:.0} seconds", seconds.ceil()),
        _ => format!("{:.0} minutes", (seconds / 60.0).round()),
    }
}

/// Runs an experiment, until its end or until somebody asks to stop. How long it will take is said on
/// stderr.
///
/// # Errors
/// What went wrong before anything was measured.
pub fn run<X: Experiment>(experiment: &X, plan: &Plan, stop: &Stop) -> anyhow::Result<Outcome> {
    let seconds = seconds(experiment, plan);
    if !plan.quiet {
        say(&format!("bench {}: takes about {}", X::NAME, in_words(seconds)));
    }
    run_shown(experiment, plan, stop, &Progress::new(seconds, plan.quiet))
}

/// The same, with a progress line that others may share.
pub(super) fn run_shown<X: Experiment>(
    experiment: &X,
    plan: &Plan,
    stop: &Stop,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let mut found = Found::new(BenchOutput::new(X::NAME, Host::detect()));
    let begun = Instant::now();
    progress.step("set-up", X::GROUND_TIME);
    let ground = experiment.ground(&mut found)?;
    tracing::debug!("ground: {:.2?}", begun.elapsed());
    let parts: Vec<_> = experiment.parts().into_iter().filter(|part| plan.has(part.name)).collect();
    let mut run = Run { plan, stop, progress, rng: StdRng::seed_from_u64(plan.seed) };
    let mut error = None;
    for part in &parts {
        let begun = Instant::now();
        error = run.part(&ground, part, &mut found).err();
        found.compare(&part.claims, error.is_some());
        found.output.curves.extend(part.curves.iter().cloned());
        tracing::debug!("{}: {:.2?}", part.name, begun.elapsed());
        if error.is_some() {
            break;
        }
    }
    let error = match error {
        Some(error) if found.series.is_empty() => return Err(error),
        error => error,
    };
    found.output.notes.extend(experiment.notes(&ground, plan));
    found.output.cases = found.series.cases();
    found.output.incomplete = error.is_some();
    Ok(Outcome { output: found.output, error })
}

/// A run under way.
struct Run<'a> {
    plan: &'a Plan,
    stop: &'a Stop,
    progress: &'a Progress,
    rng: StdRng,
}

impl Run<'_> {
    fn part<G>(&mut self, ground: &G, part: &Part<G>, found: &mut Found) -> anyhow::Result<()> {
        self.progress.step(part.name, part.time.once);
        for stage in &part.stages {
            self.stop.check()?;
            let staged = self.stage(ground, part, stage, found);
            let Err(error) = staged else { continue };
            // Ctrl-C ends what was started here as well.
            self.stop.check()?;
            match error.downcast::<Absent>() {
                // Of all that the part compares and that is not there.
                Ok(Absent(reason)) => found.reasons.push((String::new(), reason)),
                Err(error) => return Err(error.context(format!("part {}", part.name))),
            }
        }
        Ok(())
    }

    fn stage<G>(
        &mut self,
        ground: &G,
        part: &Part<G>,
        stage: &Stage<G>,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        let (rounds, step) = ((part.rounds)(self.plan.rounds), part.time.of_step(self.plan));
        let begun = Instant::now();
        let mut measure = stage(ground, found)?;
        tracing::debug!("set-up: {:.2?}", begun.elapsed());
        for (case, unit) in measure.steps.iter().flat_map(|step| &step.gives) {
            // So that cases come in this order, whatever is measured first.
            found.series.case(case, unit);
        }
        let begun = Instant::now();
        let measured = (0..rounds).try_for_each(|round| {
            tracing::debug!("round {} of {rounds}", round + 1);
            self.round(&mut measure, round, step, found)
        });
        tracing::debug!("rounds: {:.2?}", begun.elapsed());
        found.output.notes.extend(measure.notes);
        measured
    }

    fn round(
        &mut self,
        measure: &mut Measure<'_>,
        round: usize,
        seconds: f64,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        let steps = &measure.steps;
        let mut order: Vec<_> = (0..steps.len()).collect();
        order.shuffle(&mut self.rng);
        let last = if measure.there_and_back { order.len() } else { 0 };
        order.extend_from_within(..last);
        order[last..].reverse();
        let (&Plan { window, seed, .. }, stop) = (self.plan, self.stop);
        let rng = &mut self.rng;
        let mut now = Now { window, round, seed, is_last_turn: false, rng, stop };
        match measure.begin.as_mut().map_or(Ok(Vec::new()), |begin| begin(&mut now)) {
            Ok(values) => {
                values.iter().for_each(|(case, unit, value)| found.series.add(case, unit, *value));
            }
            Err(error) => {
                stop.check()?;
                let reason = error.downcast::<Absent>()?.0;
                for (case, _) in steps.iter().flat_map(|step| &step.gives) {
                    found.lacks(case, &*reason);
                }
                return Ok(());
            }
        }
        for (turn, number) in order.into_iter().enumerate() {
            let step = &steps[number];
            self.progress.step(&step.name, seconds);
            stop.check()?;
            now.is_last_turn = turn >= last;
            match (measure.take)(number, &mut now) {
                Ok(values) => {
                    for ((case, unit), value) in step.gives.iter().zip(values) {
                        found.series.add(case, unit, value);
                    }
                }
                Err(error) => {
                    stop.check()?;
                    let reason = error.downcast::<Absent>().with_context(|| step.name.clone())?.0;
                    for (case, _) in &step.gives {
                        found.lacks(case, format!("{}: {reason}", step.name));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Plan {
    /// Whether this part was asked for.
    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|asked| asked == part)
    }
}
