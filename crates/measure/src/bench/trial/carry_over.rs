//! Trials of a knob that reaches new connections only, where connections last much longer than
//! windows: is "no difference" said of what makes one?

use std::ops::ControlFlow;
use std::time::Duration;

use trial::bench::Bar;
use trial::{Outcome, Plan, Reach, Step as Place, Verdict, pilot};

use super::connections::Connections;
use super::echo::{Echo, Load, WORK_OF_NEW};
use super::{Ground, process};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// How long simulated connections last, in seconds.
const LIVES: [u64; 2] = [10, 60];
/// Effects that are simulated, and how often "no difference" may be said of them.
const EFFECTS: [(f64, Option<Bar>); 2] = [(1.1, Some(Bar::AtMost(0.05))), (1.03, None)];
/// How a trial knows what its arms reached.
const WAYS: [(Way, &str); 3] = [
    (Way::Exposure, "exposure known"),
    (Way::Held(Duration::from_secs(15)), "held as by default"),
    (Way::Held(Duration::from_secs(60)), "held for longer"),
];
/// Simulated trials of a step in a round.
const TRIALS: usize = 28;
/// Blocks of a trial, and windows of its pilot: as in a trial of three minutes, the default.
const BLOCKS: u32 = 24;
const PILOT: u32 = 10;
/// How long settling takes at most.
const SETTLED: Duration = Duration::from_secs(10);

/// How many of the bench's windows a real connection lasts.
const LIFE: u32 = 10;
/// How many of them a real trial lasts, its pilot included.
const WINDOWS: u32 = 80;

const REAL: [&str; 2] = ["trials, real connections", "no difference called, real connections"];

/// How a trial knows what its arms reached.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The process counts it.
    Exposure,
    /// Nobody says, so the baseline is held for this time, and the other arm for twice as long.
    Held(Duration),
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct Case {
    way: Way,
    name: &'static str,
    /// In seconds.
    life: u64,
    effect: f64,
    bar: Option<Bar>,
}

impl Case {
    /// What it is, in words.
    fn text(&self) -> String {
        let Case { name, life, effect, .. } = self;
        format!("{life} s, effect of {:.0} %, {name}", 100.0 * (effect - 1.0))
    }

    /// Trials, and of them those that are wrong.
    fn counts(&self) -> [String; 2] {
        ["trials", "no difference called"].map(|of| format!("{of}, {}", self.text()))
    }

    fn verdict(&self, seed: u64) -> anyhow::Result<Verdict> {
        let mut it = Connections::new(Duration::from_secs(self.life), self.effect, seed);
        let plan = Plan { seed, blocks: BLOCKS, ..Plan::new(["off", "on"]) };
        match self.way {
            Way::Exposure => {
                it.tells_exposure = true;
                Ok(trial::run(&plan, &mut it, goes_on)?.compare(1)?.verdict)
            }
            Way::Held(hold) => held(it, Plan { reach: Reach::Unknown, ..plan }, hold),
        }
    }
}

/// Each way with each effect and each length.
fn simulations() -> Vec<Case> {
    let all = EFFECTS.iter().flat_map(|&(effect, bar)| {
        let of_way = move |(way, name)| LIVES.map(|life| Case { way, name, life, effect, bar });
        WAYS.into_iter().flat_map(of_way)
    });
    all.collect()
}

pub(super) fn simulated() -> Part<Ground> {
    let claim = |case: &Case| {
        let ([all, wrong], bar) = (case.counts(), case.bar);
        let name = format!("long carry-over called no difference: {}", case.text());
        Claim::share(name, wrong, all).bar(bar)
    };
    let cases = simulations();
    let time = Time { once: 0.0, steps: cases.len(), windows: 0.0, more: 0.2 };
    Part::new("carry-over", "Simulated trials under connections that last long", time)
        .claims(cases.iter().map(claim))
        .stage(|_: &Ground, _| {
            let step = |case: &Case| {
                let counts = case.counts();
                Step { name: counts[0].clone(), gives: counts.map(|of| (of, "trials")).into() }
            };
            let measure = Measure::new(simulations(), step, |case, now| {
                let mut wrong = 0;
                for _ in 0..TRIALS {
                    now.stop.check()?;
                    let verdict = case.verdict(rand::RngExt::random(now.rng))?;
                    // More is better, and there is more.
                    wrong += usize::from(matches!(verdict, Verdict::NoDifference | Verdict::Worse));
                }
                Ok(vec![TRIALS as f64, wrong as f64])
            });
            Ok(measure.note(format!(
                "Simulated trials are as by default, of {BLOCKS} blocks, under 1 % of noise. \
                 'Exposure known': the process counts how much work ran under its arm. 'Held': nobody \
                 does, and the other arm is held for 30 s or, for longer, 120 s before."
            )))
        })
}

/// A trial that holds its arms before.
fn held(mut it: Connections, plan: Plan, hold: Duration) -> anyhow::Result<Verdict> {
    let seen = pilot(&plan, &mut it, PILOT, hold, goes_on)?;
    let settle = seen.settle().map_or(plan.settle, Duration::from_secs_f64);
    let plan = Plan { settle: settle.clamp(plan.settle, SETTLED), ..plan };
    let outcome = trial::run(&plan, &mut it, goes_on)?;
    Ok(Outcome { pilot: Some(seen), ..outcome }.compare(1)?.verdict)
}

fn goes_on(_: &Place<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(super) fn real() -> Part<Ground> {
    let [all, wrong] = REAL;
    let claim = Claim::share("long carry-over called no difference: real connections", wrong, all);
    let time = Time { once: 0.1, steps: 1, windows: f64::from(WINDOWS), more: 2.0 };
    Part::new("connections", "Trials under real connections that last ten windows", time)
        .claims([claim.bar(Bar::AtMost(0.05))])
        // A trial is long, and its pilot with it.
        .rounds(|rounds| rounds.div_ceil(6))
        .stage(|ground: &Ground, found| {
            let step = |(): &()| Step {
                name: REAL[0].into(),
                gives: REAL.map(|case| (case.to_owned(), "trials")).into(),
            };
            found.output.notes.push(format!(
                "Real connections lasted {LIFE} windows; a trial held each arm for twice as long."
            ));
            Ok(Measure::new([()], step, |(), now| {
                let window = now.window;
                let load = Load { connections: 8, units: 1000, life: Some(LIFE * window) };
                let echo = Echo::start(ground, load)?;
                let args = format!(
                    "{WORK_OF_NEW} --reach unknown --hold {}ms --for {}ms --window {}us --settle \
                     {}us --no-guards --measure {}",
                    (window * LIFE).as_millis(),
                    (window * WINDOWS).as_millis(),
                    window.as_micros(),
                    (window / 4).as_micros(),
                    Echo::cpu_of_request(),
                );
                let tried = echo.during(|| process::run(ground, now, &args, window * WINDOWS))?;
                // Less is better, and there is more.
                let wrong = matches!(&*tried.verdict, "no_difference" | "better");
                Ok(vec![1.0, f64::from(u8::from(wrong))])
            }))
        })
}
