//! Comparisons that share an error budget.

use super::subsets::Found;
use super::{Comparison, Estimate, Rules};

/// A comparison that has its p-value. Its interval waits until it is known what share of the error
/// budget the comparison gets among others.
pub(crate) struct Tested {
    /// Before the budget is shared out.
    p: f64,
    rules: Rules,
    conclude: Box<dyn FnOnce(&Rules) -> Comparison>,
}

impl Tested {
    /// A comparison with this p-value under rules that it shares with no other, and what follows from
    /// it under the rules of its share.
    pub(crate) fn new(
        p: f64,
        rules: &Rules,
        conclude: impl FnOnce(&Rules) -> Comparison + 'static,
    ) -> Self {
        Self { p, rules: *rules, conclude: Box::new(conclude) }
    }

    /// What follows where the comparison is one of `among` that share the error budget.
    pub(crate) fn conclude(self, among: usize) -> Comparison {
        (self.conclude)(&self.rules.among(among))
    }
}

/// Judges the comparisons of a family by Holm's procedure, in the order in which they came.
pub(crate) fn holm(family: Vec<Tested>) -> Vec<Comparison> {
    let mut among = family.len();
    let mut order: Vec<(usize, Tested)> = family.into_iter().enumerate().collect();
    order.sort_by(|(_, one), (_, other)| one.p.total_cmp(&other.p));
    let judge = |(place, tested): (usize, Tested)| {
        let budget = 1.0 - tested.rules.confidence;
        let found = tested.conclude(among);
        // Past the first that is not certain nothing is.
        if found.p < budget {
            among = among.saturating_sub(1).max(1);
        }
        (place, found)
    };
    let mut judged: Vec<(usize, Comparison)> = order.into_iter().map(judge).collect();
    judged.sort_by_key(|(place, _)| *place);
    judged.into_iter().map(|(_, found)| found).collect()
}

/// Tests whether the logarithm of a ratio differs from 0, by Student's t; none differs from nothing.
/// `base` is the baseline's value, `blocks` how many there are.
pub(crate) fn test_log_ratio(
    log: Option<Estimate>,
    base: f64,
    blocks: usize,
    rules: &Rules,
) -> Tested {
    let p = log.map_or(1.0, |log| log.p());
    Tested::new(p, rules, move |rules| {
        let unbounded = [f64::NEG_INFINITY, f64::INFINITY];
        let logs = log.map_or(unbounded, |log| log.interval(1.0 - rules.alpha()));
        let [low, high] = logs.map(f64::exp);
        let centre = log.map_or(f64::NAN, |log| log.value.exp());
        let values = if log.is_some() { [base, base * centre] } else { [0.0; 2] };
        let found = Found { centre, low, high, bounded: log.is_some(), p };
        rules.conclude(&found, values, blocks)
    })
}
