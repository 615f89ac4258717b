//! What a trial itself costs: CPU time of its process, as it measures and guards if nobody says
//! otherwise.

use trial::bench::Bar;

use super::echo::{Echo, Load};
use super::{Ground, process};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// How many of the bench's windows a trial lasts.
const WINDOWS: u32 = 45;
/// A setting that does nothing to this traffic: of what is not a knob of ours, a trial knows by itself
/// what to measure.
const SUBJECT: &str = "sysctl:net.ipv4.icmp_ratelimit --arms 1000,2000 --reach at-once";

const CPU: &str = "cpu time of a trial";
const WALL: &str = "time of a trial";

pub(super) fn part() -> Part<Ground> {
    let claim = Claim::part("load of the trial itself, cpu share", CPU, WALL);
    let time = Time { once: 0.1, steps: 1, windows: f64::from(WINDOWS), more: 2.0 };
    Part::new("load", "CPU time of a trial with its default measures and guards", time)
        .claims([claim.bar(Bar::AtMost(0.01))])
        .rounds(|rounds| rounds.div_ceil(3))
        .stage(|ground: &Ground, _| {
            let load = Load { connections: 2, units: 200, life: None };
            let echo = Echo::start(ground, load)?;
            let gives = [(CPU.to_owned(), "s"), (WALL.to_owned(), "s")];
            let step = |(): &()| Step { name: WALL.into(), gives: gives.clone().into() };
            Ok(Measure::new([()], step, move |(), now| {
                let window = now.window;
                let args = format!(
                    "{SUBJECT} --for {}ms --window {}us --settle {}us",
                    (window * WINDOWS).as_millis(),
                    window.as_micros(),
                    (window / 4).as_micros(),
                );
                let tried = echo.during(|| process::run(ground, now, &args, window * WINDOWS))?;
                Ok([tried.cpu, tried.wall].map(|time| time.as_secs_f64()).into())
            }))
        })
}
