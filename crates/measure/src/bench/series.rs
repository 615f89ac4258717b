//! What a bench has measured so far, and the line that shows how far it is.

use std::collections::HashMap;
use std::io::IsTerminal as _;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trial::bench::{Bar, BenchOutput, Case, RatioOut};
use trial::{paired_difference, paired_ratio};

/// Runs by case, in the order in which the cases came up.
#[derive(Debug, Default)]
pub(crate) struct Series {
    order: Vec<(String, &'static str)>,
    runs: HashMap<String, Vec<f64>>,
}

impl Series {
    /// Has a case come before those that come up later, whatever is measured first.
    pub(crate) fn expect(&mut self, case: &str, unit: &'static str) {
        self.case(case, unit);
    }

    /// Adds one run of a case.
    pub(crate) fn add(&mut self, case: &str, unit: &'static str, value: f64) {
        self.case(case, unit).push(value);
    }

    /// The runs of a case, which is the last in the order if it is new.
    fn case(&mut self, case: &str, unit: &'static str) -> &mut Vec<f64> {
        self.runs.entry(case.to_owned()).or_insert_with(|| {
            self.order.push((case.to_owned(), unit));
            Vec::new()
        })
    }

    /// Adds the ratio `of / to` to `output`, paired by run, if both cases were measured.
    ///
    /// Where a run of `to` is 0 there is no ratio: `output` then says which, and keeps everything
    /// else that was measured. A 0 of `of` makes a ratio of 0.
    pub(crate) fn ratio(
        &self,
        output: &mut BenchOutput,
        name: &str,
        (of, to): (&str, &str),
        bar: Option<Bar>,
    ) -> anyhow::Result<()> {
        let (Some(of_runs), Some(to_runs)) = (self.runs.get(of), self.runs.get(to)) else {
            return Ok(());
        };
        if let Some(run) = to_runs.iter().position(|run| *run == 0.0) {
            output.absent.push(format!("{name}: run {} of '{to}' is 0", run + 1));
            return Ok(());
        }
        let ratio = paired_ratio(to_runs, of_runs).with_context(|| format!("ratio {name}"))?;
        push(output, RatioOut::new(name, &ratio), bar);
        Ok(())
    }

    /// Adds the difference `of - less` to `output`, paired by run, if both cases were measured.
    pub(crate) fn difference(
        &self,
        output: &mut BenchOutput,
        name: &str,
        (of, less): (&str, &str),
        bar: Option<Bar>,
    ) -> anyhow::Result<()> {
        let (Some(of_runs), Some(less_runs)) = (self.runs.get(of), self.runs.get(less)) else {
            return Ok(());
        };
        let found = paired_difference(less_runs, of_runs);
        let found = found.with_context(|| format!("difference {name}"))?;
        push(output, RatioOut::new(name, &found), bar);
        Ok(())
    }

    /// The runs of one case.
    pub(crate) fn runs(&self, case: &str) -> &[f64] {
        self.runs.get(case).map_or(&[], Vec::as_slice)
    }

    /// The median of one case; 0 without runs.
    pub(crate) fn median(&self, case: &str) -> f64 {
        Case::new(case, "", self.runs(case).to_vec()).median
    }

    /// Every case with its runs.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let case = |(name, unit): &(String, &'static str)| {
            Case::new(name.clone(), *unit, self.runs(name).to_vec())
        };
        self.order.iter().map(case).collect()
    }
}

fn push(output: &mut BenchOutput, ratio: RatioOut, bar: Option<Bar>) {
    output.ratios.push(match bar {
        Some(bar) => ratio.with_bar(bar),
        None => ratio,
    });
}

/// A progress line on a terminal; nothing in a pipe.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A line for so many steps.
    pub(crate) fn new(steps: usize, quiet: bool) -> Progress {
        let bar = ProgressBar::new(steps as u64);
        let shown = std::io::stderr().is_terminal() && !quiet;
        bar.set_draw_target(match shown {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        });
        // The template is fixed and parses.
        if let Ok(style) =
            ProgressStyle::with_template("{bar:24} {pos}/{len} {eta} left  {wide_msg}")
        {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// The next step begins.
    pub(crate) fn step(&self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_the_runs_and_skip_absent_peers() {
        let mut series = Series::default();
        for run in 1..=8 {
            series.add("a", "B/s", 2.0 * f64::from(run));
            series.add("b", "B/s", f64::from(run));
        }
        let mut output = BenchOutput::new("test", trial::bench::Host::detect());
        series.ratio(&mut output, "a / b", ("a", "b"), Some(Bar::AtLeast(2.0))).unwrap();
        series.ratio(&mut output, "a / absent", ("a", "absent"), None).unwrap();
        assert_eq!(output.ratios.len(), 1);
        assert_eq!((output.ratios[0].median, output.ratios[0].met), (2.0, Some(true)));
        assert_eq!(series.cases()[1].runs.len(), 8);
    }

    #[test]
    fn a_run_of_zero_that_is_divided_by_costs_its_ratio_and_nothing_else() {
        let mut series = Series::default();
        for (of, to) in [(2.0, 1.0), (0.0, 1.0)] {
            series.add("a", "B/s", of);
            series.add("b", "B/s", to);
        }
        let mut output = BenchOutput::new("test", trial::bench::Host::detect());
        series.ratio(&mut output, "a / b", ("a", "b"), None).unwrap();
        series.ratio(&mut output, "b / a", ("b", "a"), None).unwrap();
        let there: Vec<_> = output.ratios.iter().map(|ratio| (&*ratio.name, ratio.low)).collect();
        assert_eq!(there, [("a / b", 0.0)]);
        assert_eq!(output.absent, ["b / a: run 2 of 'a' is 0"]);
        assert_eq!(series.cases()[0].runs, [2.0, 0.0]);
    }
}
