use serde::{Deserialize, Serialize};

/// One quantity that is measured in every window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What it is, e.g. `throughput`.
    pub name: String,
    /// Its unit, e.g. `B/s`, `%` or `pps`; empty for a plain number.
    pub unit: String,
    /// Which direction is the good one.
    pub better: Better,
    /// Which quantile, in (0, 1), where windows give histograms.
    #[serde(default = "median")]
    pub quantile: f64,
    /// Whether it is there for its guard alone: such measures are judged among themselves, so that they
    /// do not make the rules for the others stricter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_guarded: bool,
}

fn median() -> f64 {
    0.5
}

impl Measure {
    /// A measure of this name and unit; of a histogram, its median.
    pub fn new(name: impl Into<String>, unit: impl Into<String>, better: Better) -> Self {
        let (name, unit) = (name.into(), unit.into());
        Self { name, unit, better, quantile: median(), only_guarded: false }
    }

    /// Whether the two measure one thing, for whatever purpose.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let what = |of: &Self| (of.better, of.quantile);
        self.name == other.name && self.unit == other.unit && what(self) == what(other)
    }
}

/// Which direction of a [`Measure`] is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// More is better: throughput, idle time.
    Higher,
    /// Less is better: latency, busy CPU.
    Lower,
}
