//! What there is to measure: said without measuring anything.

use std::time::Duration;

use serde_json::{Value, json};
use trial::bench::Bar;

use super::bridge::Bridge;
use super::driver::seconds;
use super::experiment::{Experiment, Plan};
use super::frames::Frames;
use super::lend::Lend;
use super::relay::Relay;
use super::steer::Steer;

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
#[derive(Clone, Debug)]
pub struct ListedPart {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What it compares, and what is claimed of it.
    pub ratios: Vec<(String, Option<Bar>)>,
}

/// All experiments.
pub fn all() -> Vec<Listed> {
    vec![
        list(&Relay::default()),
        list(&Bridge::default()),
        list(&Frames),
        list(&Lend),
        list(&Steer),
    ]
}

fn list<X: Experiment>(experiment: &X) -> Listed {
    let (rounds, window) = X::EXTENT;
    let plan = Plan { parts: Vec::new(), rounds, window, seed: 1, quiet: true };
    let seconds = seconds(experiment, &plan);
    let parts = experiment.parts().into_iter().map(|part| ListedPart {
        name: part.name,
        about: part.about,
        ratios: part.claims.into_iter().map(|claim| (claim.name, claim.bar)).collect(),
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
            "parts": self.parts.iter().map(ListedPart::to_json).collect::<Vec<_>>(),
        })
    }
}

impl ListedPart {
    fn to_json(&self) -> Value {
        let ratio = |(name, bar): &(String, Option<Bar>)| match bar {
            Some(bar) => json!({"name": name, "bar": bar}),
            None => json!({"name": name}),
        };
        let ratios: Vec<_> = self.ratios.iter().map(ratio).collect();
        json!({"name": self.name, "about": self.about, "ratios": ratios})
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_takes_less_than_ten_minutes_and_six_rounds_at_least() {
        for one in all() {
            assert!(one.seconds < 600.0, "{}: {}", one.name, one.seconds);
            assert!(one.rounds >= 6, "{}", one.name);
        }
    }

    #[test]
    fn ratios_have_names_of_their_own() {
        for one in all() {
            let ratios: Vec<_> = one.parts.iter().flat_map(|part| &part.ratios).collect();
            let names: BTreeSet<_> = ratios.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), ratios.len(), "{}", one.name);
        }
    }
}
