//! How a figure grows with a number: a case for each number and for each of those that are compared.

use trial::Better;
use trial::bench::{Bar, Curve, Line, Point};

use super::claim::Claim;

/// A figure, by how many of something there are.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    /// What is measured: `pps`.
    pub(super) figure: &'static str,
    /// What there is more and more of: `ports`.
    pub(super) along: &'static str,
    /// Who is measured: first cachelane, then each that it is compared with.
    pub(super) arms: Vec<&'static str>,
    /// How many there are, ascending.
    pub(super) counts: Vec<usize>,
    /// Which values are the good ones.
    pub(super) better: Better,
}

impl Growth {
    /// The name of a case.
    pub(super) fn case(&self, arm: &str, count: usize) -> String {
        format!("{}, {count} {}, {arm}", self.figure, self.along)
    }

    /// Every arm with every number.
    pub(super) fn cases(&self) -> Vec<(&'static str, usize)> {
        let of_arm = |arm: &&'static str| self.counts.iter().map(|count| (*arm, *count)).collect();
        self.arms.iter().flat_map::<Vec<_>, _>(of_arm).collect()
    }

    /// Of each that cachelane is compared with: that cachelane's figure gets no worse by more than
    /// theirs does, from the least number to the largest; and how the two compare there.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let [Some(&few), Some(&many)] = [self.counts.first(), self.counts.last()] else {
            return Vec::new();
        };
        let Some((ours, peers)) = self.arms.split_first() else { return Vec::new() };
        let (figure, along) = (self.figure, self.along);
        let bar = match self.better {
            Better::Higher => Bar::AtLeast(1.0),
            Better::Lower => Bar::AtMost(1.0),
        };
        let compare = |peer: &&str| {
            let cases = [*ours, *peer].map(|arm| [few, many].map(|count| self.case(arm, count)));
            let [of, to] = cases.clone().map(|[_, many]| many);
            let name = format!("growth of {figure}, {few} to {many} {along}: {ours} / {peer}");
            let [our_cases, their_cases] = cases;
            let grown = Claim::growth(name, our_cases, their_cases).bar(bar);
            let there = format!("{figure}, {many} {along}: {ours} / {peer}");
            [grown, Claim::ratio(there, of, to).better(self.better)]
        };
        peers.iter().flat_map(compare).collect()
    }

    /// Its curve.
    pub(super) fn curve(&self) -> Curve {
        let line = |arm: &&str| Line {
            name: (*arm).into(),
            points: (self.counts.iter())
                .map(|count| Point { at: *count as f64, case: self.case(arm, *count) })
                .collect(),
        };
        let lines = self.arms.iter().map(line).collect();
        Curve { name: self.figure.into(), along: self.along.into(), lines }
    }
}
