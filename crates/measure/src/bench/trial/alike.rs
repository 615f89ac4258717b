//! Trials of a knob that does nothing: how often do they call a difference?

use std::time::Duration;

use trial::bench::Bar;

use super::echo::{Echo, Load, NOTHING};
use super::{Ground, process};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// Trials of a round.
const TRIALS: usize = 5;
/// Blocks of a trial, each of four windows.
const BLOCKS: u32 = 8;
/// Windows of the pilot before it.
const PILOT: u32 = 10;
/// Windows of a trial in a window of the bench: a trial is about a second long.
const PER_WINDOW: u32 = 40;
/// The shortest window: less is more of the reading than of the traffic.
const SHORTEST: Duration = Duration::from_millis(10);

const ALL: &str = "a/a trials";
const CALLED: &str = "a/a trials, a difference called";

/// How long a trial's windows are, by the bench's.
pub(super) fn window(of_bench: Duration) -> Duration {
    (of_bench / PER_WINDOW).max(SHORTEST)
}

pub(super) fn part() -> Part<Ground> {
    let claim = Claim::share("a/a trials that call a difference", CALLED, ALL);
    let windows = TRIALS as f64 * f64::from(PILOT + BLOCKS * 5) / f64::from(PER_WINDOW);
    let time = Time { once: 0.1, steps: 1, windows, more: 0.3 * TRIALS as f64 };
    Part::new("alike", "Trials of a knob that does nothing, under real traffic", time)
        .claims([claim.bar(Bar::AtMost(0.05))])
        .stage(|ground: &Ground, _| {
            let load = Load { connections: 2, units: 200, life: None };
            let echo = Echo::start(ground, load)?;
            let gives = [(ALL.to_owned(), "trials"), (CALLED.to_owned(), "trials")];
            let step = |(): &()| Step { name: ALL.into(), gives: gives.clone().into() };
            Ok(Measure::new([()], step, move |(), now| {
                let mut called = 0;
                let window = window(now.window);
                for number in 0..TRIALS {
                    // By turns as it is asked, and as the CPU time allows: noise of two kinds.
                    let measure =
                        if number % 2 == 0 { Echo::rate() } else { Echo::cpu_of_request() };
                    let args = format!(
                        "{NOTHING} --blocks {BLOCKS} --window {}us --settle {}us --reach at-once \
                         --no-guards --measure {measure}",
                        window.as_micros(),
                        (window / 4).as_micros(),
                    );
                    let time = window * (PILOT + BLOCKS * 5);
                    let tried = echo.during(|| process::run(ground, now, &args, time))?;
                    called += usize::from(tried.is_difference());
                }
                Ok(vec![TRIALS as f64, called as f64])
            }))
        })
}
