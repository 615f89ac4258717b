//! What a part compares, and what is claimed of it.

use trial::Better;
use trial::bench::Bar;

/// How two cases are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Run by run, the one over the other.
    Ratio,
    /// Run by run, the one over the other, which it is a part of.
    Part,
    /// Run by run, the one less the other.
    Difference,
    /// All runs together: how many of so many.
    Share,
    /// Run by run, the one over the other, after each was divided by what it was where there was
    /// less of something.
    Growth,
}

/// Two cases that a part compares, and what is claimed of them, if anything is.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) of: String,
    /// What it is compared with: of several, the best, which is the case with the lowest median, or with
    /// the highest where more is better.
    pub(super) to: Vec<String>,
    pub(super) how: How,
    /// Of a growth: the case that `of` grew from, and the one that `to` did.
    pub(super) from: Option<[String; 2]>,
    pub(super) bar: Option<Bar>,
    /// Which direction is the good one, where neither the bar nor the unit says so.
    better: Option<Better>,
}

impl Claim {
    /// `of / to`, paired by run.
    pub(super) fn ratio(
        name: impl Into<String>,
        of: impl Into<String>,
        to: impl Into<String>,
    ) -> Claim {
        Claim {
            name: name.into(),
            of: of.into(),
            to: vec![to.into()],
            how: How::Ratio,
            from: None,
            bar: None,
            better: None,
        }
    }

    /// `of / whole`, which it is a part of, paired by run.
    pub(super) fn part(
        name: impl Into<String>,
        of: impl Into<String>,
        whole: impl Into<String>,
    ) -> Claim {
        Claim { how: How::Part, ..Claim::ratio(name, of, whole) }
    }

    /// `of - less`, paired by run.
    pub(super) fn difference(
        name: impl Into<String>,
        of: impl Into<String>,
        less: impl Into<String>,
    ) -> Claim {
        Claim { how: How::Difference, ..Claim::ratio(name, of, less) }
    }

    /// How many of `among` were `of`, over all runs, with the exact interval. What must not happen more
    /// often than a bar at most says may do so by chance: that one is missed only where the whole
    /// interval lies above it.
    pub(super) fn share(
        name: impl Into<String>,
        of: impl Into<String>,
        among: impl Into<String>,
    ) -> Claim {
        Claim { how: How::Share, ..Claim::ratio(name, of, among) }
    }

    /// How much more `of` grew from its first case to its second than `to` did, paired by run.
    pub(super) fn growth(
        name: impl Into<String>,
        [of_few, of_many]: [String; 2],
        [to_few, to_many]: [String; 2],
    ) -> Claim {
        let from = Some([of_few, to_few]);
        Claim { how: How::Growth, from, ..Claim::ratio(name, of_many, to_many) }
    }

    /// All cases that it compares.
    pub(super) fn cases(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.of).chain(&self.to).chain(self.from.iter().flatten())
    }

    /// Compared with this one, if its median is better.
    pub(super) fn or_to(mut self, to: impl Into<String>) -> Claim {
        self.to.push(to.into());
        self
    }

    pub(super) fn bar(mut self, bar: impl Into<Option<Bar>>) -> Claim {
        self.bar = bar.into();
        self
    }

    /// Where neither its bar nor the unit of its cases says which direction is the good one.
    pub(super) fn better(mut self, better: Better) -> Claim {
        self.better = Some(better);
        self
    }

    /// Which direction is the good one, of cases with this unit, and where the two are equal. None
    /// where there is no such direction, or nothing to be equal to.
    pub(super) fn sides(&self, unit: &str) -> Option<(Better, f64)> {
        let of_unit = match unit {
            "1/s" | "B/s" | "B/CPU-s" | "pps" => Some(Better::Higher),
            "s" | "ms" | "B" | "CPU" => Some(Better::Lower),
            _ => None,
        };
        let better = match self.bar {
            Some(Bar::AtLeast(_)) => Some(Better::Higher),
            Some(Bar::AtMost(_)) => Some(Better::Lower),
            Some(Bar::Between(..)) => None,
            None => self.better.or(of_unit),
        };
        let even = match self.how {
            How::Ratio | How::Growth => Some(1.0),
            How::Difference => Some(0.0),
            How::Part | How::Share => None,
        };
        better.zip(even)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_good_direction_is_the_bars_or_said_or_the_units() {
        let ratio = || Claim::ratio("a / b", "a", "b");
        for (claim, unit, expected) in [
            (ratio(), "pps", Some((Better::Higher, 1.0))),
            (ratio(), "s", Some((Better::Lower, 1.0))),
            (ratio(), "%", None),
            (ratio().better(Better::Higher), "%", Some((Better::Higher, 1.0))),
            (ratio().bar(Bar::AtMost(1.1)), "pps", Some((Better::Lower, 1.0))),
            (ratio().bar(Bar::Between(0.9, 1.1)), "pps", None),
            (Claim::difference("a - b", "a", "b"), "ms", Some((Better::Lower, 0.0))),
            (Claim::part("a of b", "a", "b"), "s", None),
            (Claim::share("a of b", "a", "b"), "s", None),
        ] {
            assert_eq!(claim.sides(unit), expected, "{claim:?}, {unit}");
        }
    }
}
