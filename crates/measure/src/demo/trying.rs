//! One mechanism's trial: from its entry to its row of the table.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use trial::report::Row;
use trial::{BoxError, Measure, Plan, Sample, Step, Subject};

use super::{Entry, Extent, Mechanism};
use crate::bench::{Progress, Stop};

/// The arms; the second is the mechanism.
const ARMS: [&str; 2] = ["off", "on"];

/// The plan of each mechanism's trial.
pub(super) fn plan(extent: Extent, seed: u64) -> Plan {
    let Extent { blocks, window, settle, .. } = extent;
    Plan { blocks, window, settle, seed, ..Plan::new(ARMS) }
}

/// Runs the plan, for `limit` but at least for one block, and until somebody asks to stop.
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
        let is_late = step.slot.block > 0 && Instant::now() > until;
        if stop.is_asked() || is_late {
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
        self.mechanism.measure(window).map(Sample::from).map_err(whole)
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

    /// Carries 100 when it is off and `on` when it is on, until it fails.
    struct Made {
        is_on: bool,
        on: f64,
        windows_left: usize,
    }

    impl Mechanism for Made {
        fn set(&mut self, on: bool) -> anyhow::Result<()> {
            self.is_on = on;
            Ok(())
        }
        fn measure(&mut self, _: Duration) -> anyhow::Result<f64> {
            self.windows_left =
                self.windows_left.checked_sub(1).context("ended").context("made")?;
            Ok(if self.is_on { self.on } else { 100.0 })
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn try_made(
        better: Better,
        on: f64,
        windows_left: usize,
        limit: Duration,
    ) -> anyhow::Result<Row> {
        let set_up = |_: &super::super::Stage| anyhow::bail!("nothing to set up");
        let entry = Entry { mechanism: "made", measure: "rate", unit: "B/s", better, set_up };
        let plan = Plan { blocks: 6, settle: Duration::ZERO, seed: 1, ..Plan::new(ARMS) };
        let mechanism = Box::new(Made { is_on: false, on, windows_left });
        let (progress, stop) = (Progress::new(1.0, true), Stop::on_signals()?);
        run(&entry, mechanism, &plan, limit, &progress, &stop)
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
            let row = try_made(better, on, 24, LONG).unwrap();
            assert_eq!(row.comparison.verdict, expected, "{better:?} {on}");
            assert_eq!((row.comparison.base, row.comparison.other), (100.0, on));
            assert_eq!(row.arms, ARMS);
        }
    }

    #[test]
    fn a_machine_that_takes_too_long_still_gets_one_block() {
        let row = try_made(Better::Higher, 150.0, 4, Duration::ZERO).unwrap();
        assert_eq!(row.comparison.blocks, 1);
        assert_eq!(row.comparison.verdict, Verdict::Inconclusive);
    }

    #[test]
    fn a_failure_is_told_with_all_its_causes() {
        let error = format!("{:#}", try_made(Better::Higher, 1.0, 5, LONG).unwrap_err());
        assert!(error.contains("window 6 of 24") && error.contains("made: ended"), "{error}");
    }
}
