//! `cachelane bench relay`: the relay against direct connections, HAProxy, nginx and sockmap as
//! it comes. Everything runs in one test host, over its loopback, as a sidecar would.

pub(crate) mod bulk;
mod busy;
pub(crate) mod exchange;
mod flood;
mod growth;
mod idle;
pub(crate) mod jiffy;
mod memory;
mod place;
mod sweep;
pub(crate) mod targets;

use std::time::Duration;

use anyhow::Context as _;
use lab::Lab;

use super::experiment::{Experiment, Part, Plan, in_random_order};
use super::found::Found;
use targets::Targets;

/// The experiment.
#[derive(Clone, Debug)]
pub struct Relay {
    /// How long the slow receiver of the memory part is watched.
    pub memory_time: Duration,
    /// Idle connections of the idle part.
    pub idle: usize,
    /// Congestion control of the test host.
    pub congestion_control: String,
}

impl Relay {
    /// The same on every host, unless somebody says otherwise: it decides more than anything else
    /// what a byte costs.
    pub const CONGESTION_CONTROL: &str = "reno";
}

impl Default for Relay {
    fn default() -> Relay {
        let congestion_control = Relay::CONGESTION_CONTROL.to_owned();
        Relay { memory_time: Duration::from_secs(30), idle: 9_800, congestion_control }
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
            busy::part(),
            sweep::part(),
            memory::part(self.memory_time),
            idle::part(self.idle),
            growth::part(self.idle),
        ]
    }

    fn ground(&self, found: &mut Found) -> anyhow::Result<Targets> {
        let lab = Lab::new("bench-relay")?;
        let host = lab.host("host")?;
        let (sysctl, name) = ("net.ipv4.tcp_congestion_control", &self.congestion_control);
        host.set_sysctl(sysctl, name).with_context(|| {
            let known =
                std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            format!(
                "--congestion-control {name}: this host does not have it (expected one of: {})",
                known.unwrap_or_default().trim()
            )
        })?;
        Targets::start(lab, host, found)
    }

    fn notes(&self, _: &Targets, plan: &Plan) -> Vec<String> {
        let congestion = format!(
            "Congestion control of the test host, for all programs: {}.",
            self.congestion_control
        );
        vec![in_random_order(plan), congestion]
    }
}
