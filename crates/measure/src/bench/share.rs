//! How often something happened, of so many times, with its exact interval.

use statrs::distribution::{Beta, ContinuousCDF};
use trial::bench::{Bar, RatioOut};

use super::claim::Claim;

/// The error budget of the interval.
const ALPHA: f64 = 0.05;

/// What a claim of a share comes to: counts of all runs are added up.
pub(super) fn compare(claim: &Claim, of: &[f64], among: &[f64]) -> Result<RatioOut, String> {
    // From 0, as an empty sum is -0.
    let sum = |counts: &[f64]| counts.iter().fold(0.0, |sum, count| sum + count);
    let (count, all) = (sum(of), sum(among));
    if !(all >= 1.0 && (0.0..=all).contains(&count)) {
        return Err(format!("{count} of {all} '{}' is no share", claim.to.join(", ")));
    }
    let (low, high) = interval(count, all);
    let median = count / all;
    let met = claim.bar.map(|bar| match bar {
        Bar::AtMost(most) => low <= most,
        bar => bar.is_met_by(median),
    });
    let name = claim.name.clone();
    Ok(RatioOut { name, median, low, high, runs: all as usize, bar: claim.bar, met, verdict: None })
}

/// The 95 % interval of Clopper and Pearson: the shares of which so few, or so many, would not be a
/// surprise.
fn interval(count: f64, all: f64) -> (f64, f64) {
    let rest = all - count;
    let at = |p, a, b| Beta::new(a, b).expect("both are 1 at least").inverse_cdf(p);
    let low = if count == 0.0 { 0.0 } else { at(ALPHA / 2.0, count, rest + 1.0) };
    let high = if rest == 0.0 { 1.0 } else { at(1.0 - ALPHA / 2.0, count + 1.0, rest) };
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables() {
        for (count, all, low, high) in [
            (0.0, 40.0, 0.0, 0.0881),
            (2.0, 40.0, 0.0061, 0.1692),
            (10.0, 200.0, 0.0242, 0.0900),
            (1.0, 2.0, 0.0126, 0.9874),
            (6.0, 6.0, 0.5407, 1.0),
        ] {
            let found = interval(count, all);
            assert!((found.0 - low).abs() < 1e-4, "{count} of {all}: {found:?}");
            assert!((found.1 - high).abs() < 1e-4, "{count} of {all}: {found:?}");
        }
    }

    #[test]
    fn a_bar_at_most_is_missed_only_where_chance_is_ruled_out() {
        let claim = Claim::share("", "", "").bar(Bar::AtMost(0.05));
        let met = |count: f64, all| compare(&claim, &[0.0, count], &[all, 0.0]).unwrap().met;
        assert_eq!(met(4.0, 30.0), Some(true), "0.13 [0.04, 0.31]");
        assert_eq!(met(5.0, 30.0), Some(false), "0.17 [0.06, 0.35]");
        let claim = Claim::share("", "", "").bar(Bar::AtLeast(0.9));
        let found = compare(&claim, &[5.0], &[6.0]).unwrap();
        assert_eq!((found.runs, found.met), (6, Some(false)));
    }

    #[test]
    fn what_is_no_share_is_refused() {
        let claim = Claim::share("", "found", "trials");
        assert!(compare(&claim, &[], &[]).unwrap_err().contains("0 of 0 'trials'"));
        assert!(compare(&claim, &[3.0], &[2.0]).is_err());
    }
}
