//! `cachelane bench lend`: frames lent to other processes, against what programs do without: an
//! allocator of ids under a lock to keep account, as kernels do, and an AF_PACKET ring with a copy
//! of every packet.

mod accounting;
mod books;
mod clients;
mod crossover;
mod delays;
mod delivered;
mod growth;
mod idle;
mod lending;
mod libpcap;
mod times;
mod wire;

use std::time::Duration;

use super::experiment::{Experiment, Part, Plan};
use super::found::Found;
use super::peer::Builder;
use super::places::Places;
pub(crate) use accounting::keeping;

/// The experiment.
#[derive(Clone, Debug, Default)]
pub struct Lend;

/// What the parts share.
pub struct Ground {
    places: Places,
    builder: Builder,
}

impl Experiment for Lend {
    type Ground = Ground;
    const NAME: &'static str = "lend";
    const EXTENT: (usize, Duration) = (6, Duration::from_millis(300));

    fn parts(&self) -> Vec<Part<Ground>> {
        vec![
            accounting::part(),
            idle::part(),
            delivered::part(),
            crossover::part(),
            delays::part(),
            times::part(),
            growth::part(),
            libpcap::part(),
        ]
    }

    fn ground(&self, _found: &mut Found) -> anyhow::Result<Ground> {
        Ok(Ground { places: Places::detect()?, builder: Builder::new()? })
    }

    fn notes(&self, ground: &Ground, plan: &Plan) -> Vec<String> {
        ground.places.notes(plan)
    }
}
