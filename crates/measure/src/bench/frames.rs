//! `cachelane bench frames`: the frame pool against DPDK's mempool, crossbeam's queue and
//! mimalloc, and its knob's values against each other: memory only, without privileges. And
//! `cachelane xsk`, which is built on it, against a plain AF_XDP loop.
//!
//! Every part but the growth uses two CPUs, whatever the host has: what a frame costs when it changes
//! hands is a matter between two of them.

mod growth;
mod homes;
mod memory;
mod passing;
mod patterns;
mod pools;
mod threads;
mod tradeoff;
mod xsk;

use std::time::Duration;

use anyhow::Context as _;
use sources::pmu::Pmu;

use super::experiment::{Experiment, Part, Plan, Step};
use super::found::Found;
use super::peer::Builder;
use super::places::Places;
pub(crate) use passing::passing;
pub(super) use pools::frame_pool;
pub(crate) use xsk::sending;

/// The experiment.
#[derive(Clone, Debug, Default)]
pub struct Frames;

/// What the parts share.
pub struct Ground {
    places: Places,
    builder: Builder,
    pmu: Option<Pmu>,
}

impl Experiment for Frames {
    type Ground = Ground;
    const NAME: &'static str = "frames";
    const EXTENT: (usize, Duration) = (8, Duration::from_millis(250));

    fn parts(&self) -> Vec<Part<Ground>> {
        vec![
            memory::part(),
            homes::part(),
            tradeoff::part(),
            threads::part(),
            xsk::part(),
            growth::part(),
        ]
    }

    fn ground(&self, found: &mut Found) -> anyhow::Result<Ground> {
        let pmu = Pmu::detect().map_err(|reason| found.absent("cache-to-cache fills", reason)).ok();
        Ok(Ground { places: Places::detect()?, builder: Builder::new()?, pmu })
    }

    fn notes(&self, ground: &Ground, plan: &Plan) -> Vec<String> {
        ground.places.notes(plan)
    }
}

impl Ground {
    /// A step that gives a case and, where the CPUs count it, what they fetched from each other's
    /// caches for each object or packet.
    fn step(&self, case: String, unit: &'static str) -> Step {
        let fills = self.pmu.is_some().then(|| (format!("{case}, fills from another cache"), "1"));
        Step { gives: [(case.clone(), unit)].into_iter().chain(fills).collect(), name: case }
    }

    /// What such a step gives, of a measurement whose result stands for `rate(result)` objects or
    /// packets a second. What starts and ends a measurement is counted as well.
    fn counting(
        &self,
        window: Duration,
        rate: impl Fn(f64) -> f64,
        measure: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Vec<f64>> {
        let counting = self.pmu.as_ref().map(Pmu::start);
        let counting = counting.transpose().context("the CPUs' counters")?;
        let measured = measure()?;
        let mut values = vec![measured];
        if let Some(counting) = counting {
            let fills = counting.stop().context("the CPUs' counters")?.fills;
            values.push(fills / (rate(measured) * window.as_secs_f64()));
        }
        Ok(values)
    }
}
