//! How often guards end simulated trials whose arm does no harm, and how soon those whose arm does.
//!
//! All seeds are fixed. A bound on false alarms is what a binomial count of 1 % exceeds once in 40
//! times: 1000 trials may raise 10 + 1.96 * 3.1 = 16, 4000 trials 40 + 1.96 * 6.3 = 52.

use std::ops::ControlFlow;
use std::time::Duration;

use cachelane_trial::{
    Better, BoxError, Ended, Guard, Measure, Part, Pilot, Plan, Reach, Rules, Sample, Step,
    Subject, compare, pilot, run,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// What a window of the baseline gives.
#[derive(Clone, Copy, Debug)]
enum Windows {
    /// 1, give or take this share.
    Noisy(f64),
    /// So many events on average, each by chance.
    Events(f64),
}

/// The arm makes everything `harm` times what it is.
struct Traffic {
    rng: Xoshiro256PlusPlus,
    windows: Windows,
    harm: f64,
    arm: usize,
}

impl Subject for Traffic {
    fn measures(&self) -> Vec<Measure> {
        vec![Measure::new("retransmits", "segments", Better::Lower)]
    }
    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        self.arm = arm;
        Ok(())
    }
    fn settle(&mut self, _: Duration) {}
    fn measure(&mut self, _: Duration) -> Result<Sample, BoxError> {
        let harm = if self.arm == 1 { self.harm } else { 1.0 };
        Ok(match self.windows {
            Windows::Noisy(noise) => (harm * (1.0 + noise * self.normal()).max(0.0)).into(),
            Windows::Events(mean) => f64::from(self.events(mean * harm)).into(),
        })
    }
}

impl Traffic {
    fn new(windows: Windows, seed: u64) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { rng, windows, harm: 1.0, arm: 0 }
    }

    fn normal(&mut self) -> f64 {
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// A draw from Poisson's distribution.
    fn events(&mut self, mean: f64) -> u32 {
        let (least, mut left, mut events) = ((-mean).exp(), self.rng.random::<f64>(), 0);
        while left > least {
            left *= self.rng.random::<f64>();
            events += 1;
        }
        events
    }
}

/// A trial with a guard; after how many blocks that ended it, if it did. And whether a guard would have
/// that looks after every block, with 99 % confidence each time.
fn trial(windows: Windows, harm: f64, limit: f64, seed: u64) -> (Option<u32>, bool) {
    let mut traffic = Traffic { harm, ..Traffic::new(windows, seed) };
    let guards = vec![Guard { measure: 0, limit }];
    let plan = Plan { guards, seed, settle: Duration::ZERO, ..Plan::new(["off", "on"]) };
    let mut seen: Vec<[Part; 2]> = Vec::new();
    let mut impatient = false;
    let outcome = run(&plan, &mut traffic, |step| {
        let done = step.seen.blocks() as usize;
        if seed < IMPATIENT && done > seen.len() {
            seen.push([0, 1].map(|arm| sum(&step.seen.windows[4 * seen.len()..], arm)));
            impatient |= is_beyond(&seen, limit, seed);
        }
        ControlFlow::Continue(())
    });
    let outcome = outcome.unwrap();
    let ended = matches!(outcome.ended, Ended::Guard { .. }).then(|| outcome.blocks());
    (ended, impatient)
}

/// A pilot that holds the arm for twice so many windows, and its plan.
fn held(traffic: &mut Traffic, limit: f64, hold: u64, seed: u64) -> (Plan, Pilot) {
    let guards = vec![Guard { measure: 0, limit }];
    let plan = Plan { guards, seed, reach: Reach::Unknown, ..Plan::new(["off", "on"]) };
    let found = pilot(&plan, traffic, 10, Duration::from_secs(hold), on).unwrap();
    (plan, found)
}

fn on(_: &Step<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// How many of so many pilots a guard ends.
fn pilots_ended(windows: Windows, harm: f64, limit: f64, hold: u64, trials: u64) -> usize {
    let is_ended = |seed: &u64| {
        let mut traffic = Traffic { harm, ..Traffic::new(windows, *seed) };
        held(&mut traffic, limit, hold, *seed).1.harmed.is_some()
    };
    let ended = (0..trials).filter(is_ended).count();
    println!("{windows:?}, {harm} times, limit {limit}, hold {hold} s: {ended} of {trials} pilots");
    ended
}

/// How many trials are also looked at after every block.
const IMPATIENT: u64 = 300;

fn sum(windows: &[cachelane_trial::Window], arm: usize) -> Part {
    let mut sum = Part::default();
    for window in windows.iter().filter(|window| window.arm == arm) {
        let cachelane_trial::Value::Part(part) = window.values[0] else { panic!("{window:?}") };
        sum += part;
    }
    sum
}

fn is_beyond(blocks: &[[Part; 2]], limit: f64, seed: u64) -> bool {
    let of = |arm: usize| blocks.iter().map(|block| block[arm]).collect::<Vec<Part>>();
    let rules = Rules { better: Better::Lower, margin: 0.01, confidence: 0.98, share: 1.0, seed };
    let found = compare(&of(0), &of(1), &rules).unwrap();
    found.interval.is_some_and(|interval| interval.low > limit)
}

/// How many of so many trials a guard ends, and what a guard that looks after every block would.
fn ended(windows: Windows, harm: f64, limit: f64, trials: u64) -> usize {
    let found: Vec<(Option<u32>, bool)> =
        (0..trials).map(|seed| trial(windows, harm, limit, seed)).collect();
    let ended = found.iter().filter(|(blocks, _)| blocks.is_some()).count();
    let impatient = found.iter().filter(|(_, impatient)| *impatient).count();
    println!(
        "{windows:?}, {harm} times, limit {limit}: {ended} of {trials} ended; by looking after every \
         block {impatient} of {IMPATIENT}"
    );
    ended
}

const QUIET: [Windows; 4] =
    [Windows::Noisy(0.05), Windows::Noisy(0.5), Windows::Events(0.5), Windows::Events(5.0)];

#[test]
fn guards_end_at_most_a_hundredth_of_trials_without_harm() {
    for windows in QUIET {
        for limit in [1.05, 1.5] {
            let found = ended(windows, 1.0, limit, 1000);
            assert!(found <= 16, "{windows:?}, limit {limit}: {found} of 1000");
        }
    }
}

/// The arm is as bad as the limit allows: the hardest case that is still no harm.
#[test]
#[ignore = "takes minutes"]
fn guards_end_at_most_a_hundredth_of_trials_at_the_limit() {
    for windows in QUIET {
        for limit in [1.05, 1.5] {
            for harm in [1.0, limit] {
                let found = ended(windows, harm, limit, 4000);
                assert!(found <= 52, "{windows:?}, {harm} times, limit {limit}: {found} of 4000");
            }
        }
    }
}

#[test]
fn guards_end_trials_with_harm_soon() {
    const TRIALS: u64 = 300;
    for (windows, harm, limit, most) in [
        (Windows::Events(5.0), 2.0, 1.05, 11),
        (Windows::Events(5.0), 2.0, 1.5, 44),
        (Windows::Events(0.5), 4.0, 1.5, 26),
        (Windows::Noisy(0.05), 1.2, 1.05, 8),
        (Windows::Noisy(0.5), 2.0, 1.05, 15),
    ] {
        let mut blocks: Vec<u32> =
            (0..TRIALS).map(|seed| trial(windows, harm, limit, seed).0.unwrap_or(44)).collect();
        blocks.sort_unstable();
        let at = |share: usize| blocks[blocks.len() * share / 100];
        println!(
            "{windows:?}, {harm} times, limit {limit}: half after {}, nine of ten after {}",
            at(50),
            at(90)
        );
        assert!(at(50) <= most, "{windows:?}, {harm} times, limit {limit}: {}", at(50));
    }
}

#[test]
fn a_pilot_and_its_trial_end_without_harm_at_most_once_in_a_hundred() {
    const TRIALS: u64 = 1000;
    for windows in QUIET {
        let (mut pilots, mut trials) = (0, 0);
        for seed in 0..TRIALS {
            let mut traffic = Traffic::new(windows, seed);
            let (plan, found) = held(&mut traffic, 1.05, 15, seed);
            match found.harmed {
                Some(_) => pilots += 1,
                None => {
                    let outcome = run(&plan, &mut traffic, on).unwrap();
                    trials += usize::from(matches!(outcome.ended, Ended::Guard { .. }));
                }
            }
        }
        println!("{windows:?}: {pilots} pilots and {trials} trials of {TRIALS} ended");
        // A pilot has a fifth of the hundredth; 2 of 1000 are exceeded by more than 3 once in 60 times.
        assert!(pilots <= 5 && pilots + trials <= 16, "{windows:?}: {pilots} and {trials}");
    }
}

/// The shortest hold there is, longer ones, and an arm as bad as the limit allows.
#[test]
#[ignore = "takes minutes"]
fn pilots_end_without_harm_at_most_once_in_five_hundred() {
    for windows in QUIET {
        for hold in [1, 15, 100] {
            for (harm, limit) in [(1.0, 1.05), (1.0, 1.5), (1.5, 1.5)] {
                let found = pilots_ended(windows, harm, limit, hold, 4000);
                // 8, and 1.96 times 2.8.
                assert!(found <= 13, "{windows:?}, {harm}, {limit}, {hold} s: {found} of 4000");
            }
        }
    }
}

#[test]
fn pilots_with_harm_end() {
    const TRIALS: u64 = 200;
    for (windows, harm, limit, hold) in [
        (Windows::Events(5.0), 2.0, 1.05, 30),
        (Windows::Events(5.0), 4.0, 1.5, 15),
        (Windows::Events(0.5), 8.0, 1.5, 30),
        (Windows::Noisy(0.05), 1.2, 1.05, 15),
        (Windows::Noisy(0.5), 3.0, 1.05, 30),
    ] {
        let found = pilots_ended(windows, harm, limit, hold, TRIALS);
        assert!(found as u64 * 10 >= TRIALS * 9, "{windows:?}, {harm}, {limit}: {found}");
    }
}
