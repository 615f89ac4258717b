//! What a bench has measured so far, and the line that shows how far it is.

use std::collections::HashMap;
use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trial::bench::{Case, RatioOut};
use trial::{Better, paired_difference, paired_ratio};

use super::claim::{Claim, How};
use super::share;
use crate::say;

/// Runs by case, in the order in which the cases came up.
#[derive(Debug, Default)]
pub(crate) struct Series {
    order: Vec<(String, &'static str)>,
    runs: HashMap<String, Vec<f64>>,
}

impl Series {
    /// Adds one run of a case.
    pub(crate) fn add(&mut self, case: &str, unit: &'static str, value: f64) {
        self.case(case, unit).push(value);
    }

    /// The runs of a case, which is the last in the order if it is new.
    pub(crate) fn case(&mut self, case: &str, unit: &'static str) -> &mut Vec<f64> {
        self.runs.entry(case.to_owned()).or_insert_with(|| {
            self.order.push((case.to_owned(), unit));
            Vec::new()
        })
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.values().all(Vec::is_empty)
    }

    /// What a claim comes to, paired by run, or why there is no such thing. In a run that has ended
    /// early, cases have as many runs as rounds were completed, or one more.
    pub(super) fn compare(&self, claim: &Claim, is_incomplete: bool) -> Result<RatioOut, String> {
        let median = |case: &&String| Case::new("", "", self.runs(case).to_vec()).median;
        let sides = claim.sides(self.unit(&claim.of));
        let more_is_better = sides.is_some_and(|(better, _)| better == Better::Higher);
        let to = claim.to.iter().min_by(|a, b| match more_is_better {
            true => median(b).total_cmp(&median(a)),
            false => median(a).total_cmp(&median(b)),
        });
        let to = to.map_or("", String::as_str);
        let (mut of_runs, mut to_runs) = (self.runs(&claim.of), self.runs(to));
        let grown;
        if let Some([of_few, to_few]) = &claim.from {
            grown = [self.growth(of_few, &claim.of)?, self.growth(to_few, to)?];
            (of_runs, to_runs) = (&grown[0], &grown[1]);
        }
        if is_incomplete {
            let both = of_runs.len().min(to_runs.len());
            (of_runs, to_runs) = (&of_runs[..both], &to_runs[..both]);
        }
        let compare = match claim.how {
            How::Ratio | How::Part | How::Growth => paired_ratio,
            How::Difference => paired_difference,
            How::Share => return share::compare(claim, of_runs, to_runs),
        };
        if claim.how != How::Difference {
            no_zero(to, to_runs)?;
        }
        let found = compare(to_runs, of_runs).map_err(|error| error.to_string())?;
        let ratio = RatioOut::new(&claim.name, &found);
        let ratio = match sides {
            Some((better, even)) => ratio.judged(better, even),
            None => ratio,
        };
        Ok(match claim.bar {
            Some(bar) => ratio.with_bar(bar),
            None => ratio,
        })
    }

    /// By what a case grew from another one, run by run.
    fn growth(&self, few: &str, many: &str) -> Result<Vec<f64>, String> {
        let (few_runs, many_runs) = (self.runs(few), self.runs(many));
        no_zero(few, few_runs)?;
        Ok(many_runs.iter().zip(few_runs).map(|(many, few)| many / few).collect())
    }

    /// The runs of one case.
    pub(crate) fn runs(&self, case: &str) -> &[f64] {
        self.runs.get(case).map_or(&[], Vec::as_slice)
    }

    /// The unit of a case; empty of one that there is not.
    fn unit(&self, case: &str) -> &'static str {
        self.order.iter().find(|(name, _)| name == case).map_or("", |(_, unit)| unit)
    }

    /// Every case with its runs.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let case = |(name, unit): &(String, &'static str)| {
            Case::new(name.clone(), *unit, self.runs(name).to_vec())
        };
        self.order.iter().map(case).collect()
    }
}

/// That a case can be divided by.
fn no_zero(case: &str, runs: &[f64]) -> Result<(), String> {
    match runs.iter().position(|run| *run == 0.0) {
        Some(run) => Err(format!("run {} of '{case}' is 0", run + 1)),
        None => Ok(()),
    }
}

/// A progress line on a terminal; nothing in a pipe. It counts milliseconds, as steps take about.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A line for steps that take about so many seconds.
    pub(crate) fn new(seconds: f64, quiet: bool) -> Progress {
        let bar = ProgressBar::new(milliseconds(seconds));
        let shown = std::io::stderr().is_terminal() && !quiet;
        bar.set_draw_target(match shown {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        });
        // The template is fixed and parses.
        if let Ok(style) =
            ProgressStyle::with_template("{bar:24} {percent} % {eta} left  {prefix}{wide_msg}")
        {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// The next step begins, which takes about so many seconds.
    pub(crate) fn step(&self, what: &str, seconds: f64) {
        self.0.set_message(what.to_owned());
        self.0.inc(milliseconds(seconds));
    }

    /// Steps of this name begin, so many seconds from the start of all.
    pub(super) fn chapter(&self, name: &str, seconds: f64) {
        self.0.set_prefix(format!("{name}: "));
        self.0.set_position(milliseconds(seconds));
    }

    /// Says something on stderr, above the line.
    pub(super) fn say(&self, text: &str) {
        self.0.suspend(|| say(text));
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1e3) as u64
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use trial::bench::Bar;

    use super::*;

    fn ratio(series: &Series, of: &str, to: &str) -> Result<RatioOut, String> {
        series.compare(&Claim::ratio(format!("{of} / {to}"), of, to).bar(Bar::AtLeast(2.0)), false)
    }

    #[test]
    fn ratios_pair_the_runs() {
        let mut series = Series::default();
        for run in 1..=8 {
            series.add("a", "B/s", 2.0 * f64::from(run));
            series.add("b", "B/s", f64::from(run));
        }
        let found = ratio(&series, "a", "b").unwrap();
        assert_eq!((found.median, found.met), (2.0, Some(true)));
        assert_eq!(series.cases()[1].runs.len(), 8);
        series.add("a", "B/s", 1.0);
        assert!(ratio(&series, "a", "b").is_err(), "a run has no partner");
        assert_eq!(series.compare(&Claim::ratio("", "a", "b"), true).unwrap().runs, 8);
    }

    #[test]
    fn of_several_the_best_case_is_compared_with() {
        for (unit, expected) in [("s", 2.0), ("B/CPU-s", 0.5)] {
            let mut series = Series::default();
            for (case, value) in [("a", 4.0), ("high", 8.0), ("low", 2.0)] {
                series.add(case, unit, value);
            }
            let claim = Claim::ratio("a / best", "a", "high").or_to("low");
            assert_eq!(series.compare(&claim, false).unwrap().median, expected, "{unit}");
        }
    }

    #[test]
    fn a_growth_is_one_growth_over_the_other() {
        let mut series = Series::default();
        for run in 1..=6 {
            let slow = f64::from(run);
            for (case, value) in
                [("few", 4.0), ("many", 2.0), ("their few", 3.0), ("their many", 1.0)]
            {
                series.add(case, "pps", value * slow);
            }
        }
        let cases = [["few", "many"], ["their few", "their many"]].map(|of| of.map(str::to_owned));
        let [ours, theirs] = cases;
        let claim = Claim::growth("growth: ours / theirs", ours, theirs);
        let found = series.compare(&claim, false).unwrap();
        assert!((found.median - 1.5).abs() < 1e-9, "{found:?}");
        assert_eq!(found.verdict, Some(trial::Verdict::Better));
        series.add("few", "pps", 0.0);
        series.add("many", "pps", 1.0);
        assert_eq!(series.compare(&claim, false).unwrap_err(), "run 7 of 'few' is 0");
    }

    #[test]
    fn a_run_of_zero_that_is_divided_by_costs_its_ratio_and_nothing_else() {
        let mut series = Series::default();
        for (of, to) in [(2.0, 1.0), (0.0, 1.0)] {
            series.add("a", "B/s", of);
            series.add("b", "B/s", to);
        }
        assert_eq!(ratio(&series, "a", "b").unwrap().low, 0.0);
        assert_eq!(ratio(&series, "b", "a").unwrap_err(), "run 2 of 'a' is 0");
        assert_eq!(series.cases()[0].runs, [2.0, 0.0]);
    }
}
