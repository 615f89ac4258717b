use serde::{Deserialize, Serialize};

use super::check;
use crate::error::{Error, ErrorKind};

/// The error budget of the interval and of the p-value.
const ALPHA: f64 = 0.05;

/// The ratio of paired runs, or their difference: see [`paired_ratio`] and [`paired_difference`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median of the pairs' ratios or differences.
    pub median: f64,
    /// The lower bound of the median's 95 % interval.
    pub low: f64,
    /// The upper bound of the median's 95 % interval.
    pub high: f64,
    /// How many pairs there are.
    pub runs: usize,
    /// How likely so one-sided a sample is by chance (sign test, two-sided).
    pub p: f64,
}

/// The ratio of case `b` to case `a`, where run i of the one was made next to run i of the other.
///
/// The interval is between two of the sorted ratios, those that the sign test picks: it holds the
/// median with at least 95 % confidence whatever the distribution, and it excludes 1 exactly where
/// p < 0.05. With fewer than 6 runs nothing can reach 95 %: the interval is then the whole range,
/// which holds the median with confidence 1 - 2^(1 - runs): 75 % for 3 runs, 94 % for 5.
///
/// # Errors
/// [`ErrorKind::TooFewBlocks`] without a pair; [`ErrorKind::InvalidData`] if the slices differ in
/// length, hold a value that is negative or not finite, or `a` holds a 0: nothing is a multiple of
/// it, while a 0 of `b` is 0 times what `a` is.
pub fn paired_ratio(a: &[f64], b: &[f64]) -> Result<Ratio, Error> {
    check(a, b)?;
    if let Some(run) = a.iter().position(|a| *a == 0.0) {
        let what = format!("run {} of what is divided by is 0", run + 1);
        return Err(Error::new(ErrorKind::InvalidData, what));
    }
    Ok(judge(a.iter().zip(b).map(|(a, b)| b / a).collect(), 1.0))
}

/// How much larger case `b` is than case `a`, in their own unit, where run i of the one was made
/// next to run i of the other. For shares, whose ratios say little. The interval is that of
/// [`paired_ratio`], and excludes 0 exactly where p < 0.05.
///
/// # Errors
/// [`ErrorKind::TooFewBlocks`] without a pair; [`ErrorKind::InvalidData`] if the slices differ in
/// length, or hold a value that is negative or not finite.
pub fn paired_difference(a: &[f64], b: &[f64]) -> Result<Ratio, Error> {
    check(a, b)?;
    Ok(judge(a.iter().zip(b).map(|(a, b)| b - a).collect(), 0.0))
}

/// The median, and how sure it is; `null` is where neither case is the larger.
fn judge(mut pairs: Vec<f64>, null: f64) -> Ratio {
    pairs.sort_unstable_by(f64::total_cmp);
    let runs = pairs.len();
    let tails = binomial_tails(runs);
    // The bounds leave `outside` pairs out at each end.
    let outside = tails.iter().take_while(|tail| 2.0 * **tail <= ALPHA).count().saturating_sub(1);
    let above = pairs.iter().filter(|pair| **pair > null).count();
    let below = pairs.iter().filter(|pair| **pair < null).count();
    let against = runs - above.max(below);
    Ratio {
        median: median(&pairs),
        low: pairs[outside],
        high: pairs[runs - 1 - outside],
        runs,
        p: (2.0 * tails[against]).min(1.0),
    }
}

/// The middle of sorted values.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// P(X <= k) for k = 0..=n, X the heads of n tosses.
fn binomial_tails(n: usize) -> Vec<f64> {
    // In logarithms: 2^-n is 0 in an f64 past n = 1074.
    let mut log = -(n as f64) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    let mut tails = Vec::with_capacity(n + 1);
    for k in 0..=n {
        sum += log.exp();
        tails.push(sum);
        log += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    tails
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_the_sign_tests() {
        // (runs, left out at each end), from published tables of the median's interval.
        for (runs, outside) in [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (10, 1), (15, 3), (20, 5)] {
            let a = vec![1.0; runs];
            let b: Vec<f64> = (1..=runs).map(|i| i as f64).collect();
            let found = paired_ratio(&a, &b).unwrap();
            let expected = ((outside + 1) as f64, (runs - outside) as f64);
            assert_eq!((found.low, found.high), expected, "{runs} runs");
        }
    }

    #[test]
    fn median_is_of_the_ratios_not_of_the_runs() {
        // Both cases drift together; the ratio does not.
        let a = [10.0, 20.0, 40.0, 80.0, 160.0, 320.0];
        let b = a.map(|a| 1.5 * a);
        let found = paired_ratio(&a, &b).unwrap();
        assert_eq!((found.median, found.low, found.high, found.runs), (1.5, 1.5, 1.5, 6));
        assert!((found.p - 2.0 / 64.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn a_difference_is_in_the_unit_of_the_runs_and_may_be_negative() {
        let a = [10.0, 20.0, 40.0, 0.0, 50.0, 30.0];
        for by in [13.0, 0.0] {
            let found = paired_difference(&a, &a.map(|a| a + by)).unwrap();
            assert_eq!((found.median, found.low, found.high, found.runs), (by, by, by, 6));
            assert_eq!(found.p < 0.05, by > 0.0, "{found:?}");
        }
        assert_eq!(paired_difference(&[5.0], &[2.0]).unwrap().median, -3.0);
        assert!(paired_difference(&[1.0], &[]).is_err());
    }

    #[test]
    fn p_is_below_a_twentieth_exactly_where_the_interval_excludes_one() {
        for above in 0..=12 {
            let a = [1.0; 12];
            let b: Vec<f64> = (0..12).map(|i| if i < above { 1.2 } else { 0.9 }).collect();
            let found = paired_ratio(&a, &b).unwrap();
            let excludes = found.low > 1.0 || found.high < 1.0;
            assert_eq!(found.p < 0.05, excludes, "{above} of 12 above: {found:?}");
        }
    }

    #[test]
    fn many_runs_do_not_underflow() {
        let a = vec![1.0; 3000];
        let b: Vec<f64> = (0..3000).map(|i| if i % 2 == 0 { 1.1 } else { 0.9 }).collect();
        let found = paired_ratio(&a, &b).unwrap();
        assert!(found.p > 0.9 && found.low == 0.9 && found.high == 1.1, "{found:?}");
    }

    #[test]
    fn nothing_is_no_times_something() {
        let found = paired_ratio(&[4.0; 6], &[0.0; 6]).unwrap();
        assert_eq!((found.median, found.low, found.high), (0.0, 0.0, 0.0));
        assert!(found.p < 0.05, "{found:?}");
        let found = paired_ratio(&[4.0; 3], &[0.0, 1.0, 2.0]).unwrap();
        assert_eq!((found.median, found.low, found.high), (0.25, 0.0, 0.5));
    }

    #[test]
    fn runs_that_have_no_ratio_are_refused() {
        let message = |a: &[f64], b: &[f64]| paired_ratio(a, b).unwrap_err().to_string();
        assert!(message(&[1.0, 0.0], &[1.0, 1.0]).contains("run 2 of what is divided by is 0"));
        assert!(message(&[1.0], &[-1.0]).contains("-1"));
        assert!(message(&[1.0], &[]).contains("got 1 and 0"));
        assert!(message(&[], &[]).contains("not one pair"));
        assert!(message(&[f64::NAN], &[1.0]).contains("NaN"));
    }
}
