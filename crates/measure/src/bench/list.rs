//! What there is to measure: said without measuring anything.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trial::bench::Bar;

use super::all::experiments;
use super::driver::seconds;
use super::experiment::{Experiment, Plan};

/// An experiment, as it runs if nobody says otherwise.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: &'static str,
    /// Times that each case is measured.
    pub rounds: usize,
    /// Length of one measurement.
    pub window: Duration,
    /// Seconds that it takes, about.
    pub seconds: f64,
    /// Its parts.
    pub parts: Vec<ListedPart>,
}

/// A part of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListedPart {
    /// Its name.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// What it compares.
    pub ratios: Vec<ListedRatio>,
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListedRatio {
    /// Its name.
    pub name: String,
    /// What is claimed of it, if anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
}

/// All experiments.
pub fn all() -> Vec<Listed> {
    experiments().iter().map(|experiment| experiment.listed()).collect()
}

pub(super) fn list<X: Experiment>(experiment: &X) -> Listed {
    let (rounds, window) = X::EXTENT;
    let plan = Plan { parts: Vec::new(), rounds, window, seed: 1, quiet: true };
    let seconds = seconds(experiment, &plan);
    let parts = experiment.parts().into_iter().map(|part| ListedPart {
        name: part.name.into(),
        about: part.about.into(),
        ratios: part
            .claims
            .into_iter()
            .map(|claim| ListedRatio { name: claim.name, bar: claim.bar })
            .collect(),
    });
    Listed { name: X::NAME, rounds, window, seconds, parts: parts.collect() }
}

impl Listed {
    /// For programs.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "rounds": self.rounds,
            "window_s": self.window.as_secs_f64(),
            "seconds": self.seconds.round(),
            "parts": self.parts,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_takes_less_than_a_quarter_of_an_hour_and_six_rounds_at_least() {
        for one in all() {
            assert!(one.seconds < 900.0, "{}: {}", one.name, one.seconds);
            assert!(one.rounds >= 6, "{}", one.name);
        }
    }

    #[test]
    fn ratios_have_names_of_their_own() {
        for one in all() {
            let ratios: Vec<_> = one.parts.iter().flat_map(|part| &part.ratios).collect();
            let names: BTreeSet<_> = ratios.iter().map(|ratio| &ratio.name).collect();
            assert_eq!(names.len(), ratios.len(), "{}", one.name);
        }
    }
}
