//! Trials of a knob that adds 3 % to the work of every request: how often is that found in a minute?

use trial::bench::Bar;

use super::echo::{Echo, Load, WORK};
use super::{Ground, process};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// How many of the bench's windows a trial lasts: of windows of a second, a minute.
const WINDOWS: u32 = 60;

const ALL: &str = "trials of 3 %";
const FOUND: &str = "trials of 3 %, found";

pub(super) fn part() -> Part<Ground> {
    let claim = Claim::share("3 % effects found in a minute", FOUND, ALL);
    let time = Time { once: 0.1, steps: 1, windows: f64::from(WINDOWS), more: 2.0 };
    Part::new("effect", "Trials of a knob that adds 3 % to the work of every request", time)
        .claims([claim.bar(Bar::AtLeast(0.9))])
        // A trial is long.
        .rounds(|rounds| rounds - rounds / 6)
        .stage(|ground: &Ground, _| {
            // So much work that what the sockets cost does not count beside it.
            let load = Load { connections: 1, units: 5000, life: None };
            let echo = Echo::start(ground, load)?;
            let gives = [(ALL.to_owned(), "trials"), (FOUND.to_owned(), "trials")];
            let step = |(): &()| Step { name: ALL.into(), gives: gives.clone().into() };
            Ok(Measure::new([()], step, move |(), now| {
                let time = now.window * WINDOWS;
                let args = format!(
                    "{WORK} --for {}ms --no-guards --measure {}",
                    time.as_millis(),
                    Echo::cpu_of_request(),
                );
                let tried = echo.during(|| process::run(ground, now, &args, time))?;
                Ok(vec![1.0, f64::from(u8::from(tried.verdict == "worse"))])
            }))
        })
}
