//! `cachelane bench doctor`: what it costs to watch traffic as `cachelane doctor` does.

mod events;
mod load;
mod programs;
mod runtime;

use std::time::Duration;

use super::experiment::{Experiment, Part};
use super::found::Found;

/// Events a second for which the load is said.
const RATE: f64 = 200_000.0;

/// The experiment.
#[derive(Clone, Debug, Default)]
pub struct Doctor;

impl Experiment for Doctor {
    type Ground = ();
    const NAME: &'static str = "doctor";
    const EXTENT: (usize, Duration) = (10, Duration::from_secs(1));

    fn parts(&self) -> Vec<Part<()>> {
        vec![load::part(), runtime::part()]
    }

    fn ground(&self, _found: &mut Found) -> anyhow::Result<()> {
        Ok(())
    }
}
