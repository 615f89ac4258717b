//! One mechanism's trial: from its entry to its row of the table.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use trial::report::Row;
use trial::{BoxError, Measure, Plan, Sample, Step, Subject};

use super::{Entry, Extent, Mechanism};
use crate::bench::{Absent, Progress, Stop};

/// How often a window is measured in which nothing could be, as on a machine whose CPUs others use.
const TRIES: u32 = 4;

/// The arms; the second is the mechanism.
const ARMS: [&str; 2] = ["off", "on"];

/// The plan of each mechanism's trial.
pub(super) fn plan(extent: Extent, seed: u64) -> Plan {
    let Extent { blocks, window, settle, .. } = extent;
    Plan { blocks, window, settle, seed, ..Plan::new(ARMS) }
}

/// Runs the plan, at most for `limit` and until somebody asks to stop.
pub(super) fn run(
    entry: &Entry,
    mechanism: Box<dyn Mechanism + '_>,
    plan: &Plan,
    limit: Duration,
    progress: &Progress,
    stop: &Stop,
) -> anyhow::Result<Row> {
    let measure = Measure::new(entry.measure, entry.unit, entry.better);
    let mut tried = Tried { mechanism, measure };
    let until = Instant::now() + limit;
    let seconds = (plan.settle + plan.window).as_secs_f64();
    let before = |step: &Step<'_>| {
        if stop.is_asked() || Instant::now() > until {
            return ControlFlow::Break(());
        }
        progress.step(&format!("{} ({})", entry.name(), step.arm), seconds);
        ControlFlow::Continue(())
    };
    // The text alone, which holds the cause already.
    let outcome = trial::run(plan, &mut tried, before).map_err(|e| anyhow::anyhow!("{e}"))?;
    Ok(Row::from_outcome(entry.mechanism, &outcome, 1)?)
}

/// A mechanism as the subject of a trial.
struct Tried<'a> {
    mechanism: Box<dyn Mechanism + 'a>,
    measure: Measure,
}

impl Subject for Tried<'_> {
    fn measures(&self) -> Vec<Measure> {
        vec![self.measure.clone()]
    }

    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        self.mechanism.set(arm == 1).map_err(whole)
    }

    fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
        let mut tries = 1..TRIES;
        loop {
            match self.mechanism.measure(window) {
                Err(error) if error.is::<Absent>() && tries.next().is_some() => {}
                measured => return measured.map(Sample::from).map_err(whole),
            }
        }
    }
}

/// The error with all its causes in one text: the trial's message shows no more than that.
fn whole(error: anyhow::Error) -> BoxError {
    format!("{error:#}").into()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use trial::{Better, Verdict};

    use super::*;

    /// Carries 100 when it is off and `on` when it is on, until it fails. `idle` windows in a row
    /// have nothing to measure, before each that has.
    struct Made {
        is_on: bool,
        on: f64,
        windows_left: usize,
        idle: u32,
        been_idle: u32,
    }

    impl Mechanism for Made {
        fn set(&mut self, on: bool) -> anyhow::Result<()> {
            self.is_on = on;
            Ok(())
        }
        fn measure(&mut self, _: Duration) -> anyhow::Result<f64> {
            if self.been_idle < self.idle {
                self.been_idle += 1;
                return Err(Absent("nothing was carried".into()).into());
            }
            self.been_idle = 0;
            self.windows_left =
                self.windows_left.checked_sub(1).context("ended").context("made")?;
            Ok(if self.is_on { self.on } else { 100.0 })
        }
    }

    fn try_made(better: Better, on: f64, windows_left: usize, idle: u32) -> anyhow::Result<Row> {
        let set_up = |_: &super::super::Stage| anyhow::bail!("nothing to set up");
        let entry = Entry { mechanism: "made", measure: "rate", unit: "B/s", better, set_up };
        let plan = Plan { blocks: 6, settle: Duration::ZERO, seed: 1, ..Plan::new(ARMS) };
        let mechanism = Box::new(Made { is_on: false, on, windows_left, idle, been_idle: 0 });
        let (progress, stop) = (Progress::new(1.0, true), Stop::on_signals()?);
        run(&entry, mechanism, &plan, Duration::from_secs(60), &progress, &stop)
    }

    #[test]
    fn a_mechanism_that_loses_is_called_worse() {
        for (better, on, expected) in [
            (Better::Higher, 150.0, Verdict::Better),
            (Better::Higher, 50.0, Verdict::Worse),
            (Better::Lower, 150.0, Verdict::Worse),
            (Better::Lower, 50.0, Verdict::Better),
            (Better::Lower, 100.0, Verdict::NoDifference),
        ] {
            let row = try_made(better, on, 24, 0).unwrap();
            assert_eq!(row.comparison.verdict, expected, "{better:?} {on}");
            assert_eq!((row.comparison.base, row.comparison.other), (100.0, on));
            assert_eq!(row.arms, ARMS);
        }
    }

    #[test]
    fn a_failure_is_told_with_all_its_causes() {
        let error = format!("{:#}", try_made(Better::Higher, 1.0, 5, 0).unwrap_err());
        assert!(error.contains("window 6 of 24") && error.contains("made: ended"), "{error}");
    }

    #[test]
    fn a_window_in_which_nothing_happened_is_measured_again_and_not_for_ever() {
        let row = try_made(Better::Higher, 150.0, 24, TRIES - 1).unwrap();
        assert_eq!((row.comparison.base, row.comparison.other), (100.0, 150.0));
        let error = format!("{:#}", try_made(Better::Higher, 150.0, 24, TRIES).unwrap_err());
        assert!(error.contains("nothing was carried"), "{error}");
    }
}
