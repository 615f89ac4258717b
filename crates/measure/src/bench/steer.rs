//! `cachelane bench steer`: receive flow steering against the kernel's own, against none, and with
//! its knob on and off; and, of machines that are not there, a simulation.

mod arms;
mod busy;
mod flow_entries;
mod growth;
pub(crate) mod hosts;
mod lane;
mod least;
mod records;
mod rpc;
mod runtime;
pub mod simulate;

use std::time::Duration;

use super::experiment::{Experiment, Part};
use super::found::Found;

/// The experiment.
#[derive(Clone, Debug, Default)]
pub struct Steer;

impl Experiment for Steer {
    type Ground = ();
    const NAME: &'static str = "steer";
    const EXTENT: (usize, Duration) = (6, Duration::from_secs(1));

    fn parts(&self) -> Vec<Part<()>> {
        vec![
            records::part(),
            rpc::part(),
            runtime::part(),
            lane::part(),
            busy::part(),
            growth::part(),
        ]
    }

    fn ground(&self, _found: &mut Found) -> anyhow::Result<()> {
        Ok(())
    }
}
