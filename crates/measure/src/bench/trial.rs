//! `cachelane bench trial`: trials of knobs whose effect is known, by `cachelane trial` as a user runs
//! it, and how often it says the truth.
//!
//! The traffic is real: requests over TCP between two test hosts, to a server that does a counted
//! amount of work for each (`echo.rs`). What a knob of this server does is therefore known without a
//! clock: nothing, or so many per cent more work. Only what would take days, trials of connections
//! that last a minute, is simulated (`connections.rs`).

mod alike;
mod carry_over;
mod connections;
mod echo;
mod effect;
mod load;
mod process;

use std::time::Duration;

use lab::{Lab, Link, LinkOptions};

use super::experiment::{Experiment, Part, Plan, in_random_order};
use super::found::Found;

/// The experiment.
#[derive(Clone, Debug, Default)]
pub struct Trial;

/// Two hosts: clients on the first, the server and the trials on the second.
pub struct Ground {
    link: Link,
    lab: Lab,
}

impl Experiment for Trial {
    type Ground = Ground;
    const NAME: &'static str = "trial";
    const EXTENT: (usize, Duration) = (6, Duration::from_secs(1));

    fn parts(&self) -> Vec<Part<Ground>> {
        vec![
            alike::part(),
            effect::part(),
            carry_over::simulated(),
            carry_over::real(),
            load::part(),
        ]
    }

    fn ground(&self, _found: &mut Found) -> anyhow::Result<Ground> {
        let lab = Lab::new("bench-trial")?;
        let [clients, server] = [lab.host("clients")?, lab.host("server")?];
        let link = lab.link(&clients, &server, LinkOptions::default())?;
        Ok(Ground { link, lab })
    }

    fn notes(&self, _ground: &Ground, plan: &Plan) -> Vec<String> {
        let Plan { window, .. } = plan;
        vec![
            in_random_order(plan),
            "A share's interval is the exact one (Clopper and Pearson). A share that is claimed to be \
             at most so large is met unless the whole interval lies above that."
                .into(),
            format!(
                "Windows of trials were {window:?} long, in the part alike {:?}.",
                alike::window(*window)
            ),
        ]
    }
}
