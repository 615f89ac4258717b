//! `cachelane bench relay`: the relay against direct connections, HAProxy, nginx and sockmap as
//! it comes. Everything runs in one test host, over its loopback, as a sidecar would.

pub(crate) mod bulk;
pub(crate) mod exchange;
mod flood;
mod idle;
pub(crate) mod jiffy;
mod memory;
mod place;
pub(crate) mod targets;

use std::time::Duration;

use lab::Lab;

use super::experiment::{Experiment, Part};
use super::found::Found;
use targets::Targets;

/// The experiment.
#[derive(Clone, Debug)]
pub struct Relay {
    /// How long the slow receiver of the memory part is watched.
    pub memory_time: Duration,
    /// Idle connections of the idle part.
    pub idle: usize,
}

impl Default for Relay {
    fn default() -> Relay {
        Relay { memory_time: Duration::from_secs(30), idle: 9_800 }
    }
}

impl Experiment for Relay {
    type Ground = Targets;
    const NAME: &'static str = "relay";
    const EXTENT: (usize, Duration) = (8, Duration::from_millis(500));
    const GROUND_TIME: f64 = 1.0;

    fn parts(&self) -> Vec<Part<Targets>> {
        vec![
            jiffy::part(),
            bulk::part(),
            exchange::rr_part(),
            exchange::connect_part(),
            place::part(),
            bulk::engines_part(),
            memory::part(self.memory_time),
            idle::part(self.idle),
        ]
    }

    fn ground(&self, found: &mut Found) -> anyhow::Result<Targets> {
        Targets::start(Lab::new("bench-relay")?, found)
    }
}
