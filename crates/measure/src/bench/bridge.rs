//! `cachelane bench bridge`: the fast path of a bridge against the bridge itself.
//!
//! Every comparison is made on one running bridge whose knobs are flipped, so that all else stays
//! as it is. Small frames are made inside the kernel and dropped by a filter where they arrive,
//! so that most of what is measured is the way between; what that costs by itself is in both arms.

mod bare;
mod changes;
mod entries;
mod growth;
pub(crate) mod net;
mod pps;
mod rules;
mod scaling;
pub(crate) mod tcp;
mod vlans;

use std::time::Duration;

use lab::Lab;
use sources::pmu::Pmu;

use super::experiment::{Experiment, Part, Plan, Step, in_random_order};
use super::found::Found;

/// The experiment.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// Stations that the big bridge of the entries part knows.
    pub entries: u32,
}

/// What the parts share.
pub struct Ground {
    lab: Lab,
    /// The CPUs' counters, where they can be read.
    pmu: Option<Pmu>,
}

impl Default for Bridge {
    fn default() -> Bridge {
        Bridge { entries: 100_000 }
    }
}

impl Experiment for Bridge {
    type Ground = Ground;
    const NAME: &'static str = "bridge";
    const EXTENT: (usize, Duration) = (6, Duration::from_secs(1));

    fn parts(&self) -> Vec<Part<Ground>> {
        vec![
            pps::part(),
            scaling::part(),
            tcp::part(),
            entries::part(self.entries),
            changes::part(),
            rules::part(),
            vlans::part(),
            growth::part(self.entries),
        ]
    }

    fn ground(&self, found: &mut Found) -> anyhow::Result<Ground> {
        let pmu = Pmu::detect().map_err(|reason| found.lacks(scaling::FILLS, reason)).ok();
        Ok(Ground { lab: Lab::new("bench-bridge")?, pmu })
    }

    fn notes(&self, _ground: &Ground, plan: &Plan) -> Vec<String> {
        vec![
            in_random_order(plan),
            "br_netfilter's calls were off in the bridge's namespace, for both sides.".into(),
            "All packet rates include making and dropping the frames: the case 'frames alone'."
                .into(),
        ]
    }
}

impl Ground {
    /// A step of small frames whose case of their rate is called so.
    fn step_called(&self, rate: String) -> Step {
        let case = rate.strip_prefix("pps, ").unwrap_or(&rate).to_owned();
        let mut step = self.step(&rate, &case);
        step.gives[0].0 = rate;
        step
    }

    /// A step of small frames: their rate, and what the CPUs counted for each.
    fn step(&self, name: impl Into<String>, case: &str) -> Step {
        let counted = ["fills/packet", "cycles/packet", "instructions/packet"];
        let counted = counted.into_iter().filter(|_| self.pmu.is_some());
        let counted = counted.map(|what| (format!("{what} {case}"), ""));
        let gives = [(format!("pps {case}"), "pps")].into_iter().chain(counted).collect();
        Step { name: name.into(), gives }
    }
}
