//! Trials of simulated traffic whose truth is known: how often do the verdicts and intervals lie?
//!
//! All seeds are fixed. A bound on false alarms is what a binomial count of 5 % exceeds once in 40
//! times: 4000 trials may raise 200 + 1.96 * 13.8 = 227, 1000 trials 50 + 1.96 * 6.9 = 63.

use std::ops::ControlFlow;
use std::time::Duration;

use cachelane_trial::{
    Better, BoxError, Ended, Guard, Measure, Outcome, Part, Pilot, Plan, Reach, Rules, Sample,
    Step, Subject, Value, Verdict, compare, pilot, run,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const TRIALS: u64 = 4000;
const FALSE_ALARMS: usize = 227;
const FEWER_TRIALS: u64 = 1000;
const FEWER_FALSE_ALARMS: usize = 63;

/// What moves a measure besides the arm.
#[derive(Clone, Copy, Debug)]
enum Weather {
    /// Independent noise of 5 % per window.
    Calm,
    /// The same, under a level that doubles over 200 windows.
    Rising,
    /// The same, under a level that takes a random step of 3 % a window.
    Wandering,
    /// Student's t with 2 degrees of freedom: no variance, now and then a window far off.
    Stormy,
    /// The same noise, and one window in ten at half the level.
    Bursts,
    /// The same noise, and one window in a hundred in which nothing moves.
    Stalls,
    /// The same noise, and something else that runs every four windows, in step with the blocks.
    Pulses,
    /// The same noise, and now and then a spell of some ten windows at 0.6 of the level.
    Spells,
    /// The same noise, and a level that halves once and for good.
    Step,
}

const ALL_WEATHER: [Weather; 9] = [
    Weather::Calm,
    Weather::Rising,
    Weather::Wandering,
    Weather::Stormy,
    Weather::Bursts,
    Weather::Stalls,
    Weather::Pulses,
    Weather::Spells,
    Weather::Step,
];

struct Traffic {
    rng: Xoshiro256PlusPlus,
    weather: Weather,
    noise: f64,
    effect: f64,
    level: f64,
    /// Half windows so far.
    halves: u64,
    /// Whether a spell goes on.
    is_slow: bool,
    arm: usize,
    /// How soon the arm takes effect: the time constant, in seconds.
    slowness: f64,
    /// How much of it is there.
    present: f64,
}

impl Traffic {
    fn new(weather: Weather, effect: f64, seed: u64) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self {
            rng,
            weather,
            noise: 0.05,
            effect,
            level: 1000.0,
            halves: 0,
            is_slow: false,
            arm: 0,
            slowness: 0.0,
            present: 0.0,
        }
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle): (f64, f64) = (self.rng.random(), self.rng.random());
        (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    fn factor(&mut self) -> f64 {
        let calm = (1.0 + self.noise * self.normal()).max(0.01);
        let half = self.halves;
        self.halves += 1;
        match self.weather {
            Weather::Calm => calm,
            Weather::Rising => {
                self.level += 5.0;
                calm
            }
            Weather::Wandering => {
                self.level *= (0.03 * self.normal()).exp();
                calm
            }
            Weather::Stormy => {
                let scale = (self.normal().powi(2) + self.normal().powi(2)) / 2.0;
                (0.03 * self.normal() / scale.sqrt()).exp()
            }
            Weather::Bursts => calm * if self.rng.random_bool(0.1) { 0.5 } else { 1.0 },
            Weather::Stalls => calm * if self.rng.random_bool(0.01) { 0.0 } else { 1.0 },
            Weather::Pulses => calm * if half % 8 < 2 { 0.7 } else { 1.0 },
            Weather::Spells => {
                self.is_slow ^= self.rng.random_bool(if self.is_slow { 0.05 } else { 0.01 });
                calm * if self.is_slow { 0.6 } else { 1.0 }
            }
            Weather::Step => {
                if self.level == 1000.0 && self.rng.random_bool(0.005) {
                    self.level /= 2.0;
                }
                calm
            }
        }
    }

    /// Lets time pass; how much of the effect was there, on average.
    fn pass(&mut self, time: Duration) -> f64 {
        let full = if self.arm == 1 { 1.0 } else { 0.0 };
        if self.slowness == 0.0 {
            self.present = full;
            return full;
        }
        let passed = time.as_secs_f64() / self.slowness;
        let left = (-passed).exp();
        let missing = self.present - full;
        self.present = full + missing * left;
        full + missing * (1.0 - left) / passed.max(1e-9)
    }
}

impl Subject for Traffic {
    fn measures(&self) -> Vec<Measure> {
        vec![Measure::new("throughput", "pps", Better::Higher)]
    }
    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        self.arm = arm;
        Ok(())
    }
    fn settle(&mut self, duration: Duration) {
        self.pass(duration);
    }
    fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
        let halves = [(), ()].map(|()| {
            let effect = 1.0 + (self.effect - 1.0) * self.pass(window / 2);
            // So that a whole window has the noise that it should have.
            let factor = 1.0 + 2.0_f64.sqrt() * (self.factor() - 1.0);
            let den = window.as_secs_f64() / 2.0;
            Part { num: (self.level * effect * factor * den).max(0.0), den }
        });
        let mut whole = halves[0];
        whole += halves[1];
        let early = Some(vec![Value::Part(halves[0])]);
        Ok(Sample { early, ..Value::Part(whole).into() })
    }
}

fn stop_after(windows: usize) -> impl FnMut(&Step<'_>) -> ControlFlow<()> {
    move |step| if step.window == windows { ControlFlow::Break(()) } else { on(step) }
}

fn on(_: &Step<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn plan(blocks: Option<u32>, seed: u64) -> Plan {
    let default = Plan::new(["off", "on"]);
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Plan { blocks: blocks.unwrap_or(default.blocks), seed, ..default }
}

fn trial(weather: Weather, effect: f64, blocks: Option<u32>, seed: u64) -> Outcome {
    run(&plan(blocks, seed), &mut Traffic::new(weather, effect, seed), on).unwrap()
}

fn verdict(outcome: &Outcome) -> Verdict {
    outcome.compare(1).unwrap().verdict
}

fn is_difference(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}

fn false_alarms(weather: Weather, blocks: Option<u32>) -> usize {
    let trials = (0..TRIALS).map(|seed| trial(weather, 1.0, blocks, seed));
    trials.filter(|outcome| is_difference(verdict(outcome))).count()
}

#[test]
fn equal_arms_are_called_different_in_at_most_a_twentieth_of_trials() {
    for weather in ALL_WEATHER {
        let found = false_alarms(weather, None);
        println!("{weather:?}: {found} of {TRIALS}");
        assert!(found <= FALSE_ALARMS, "{weather:?}: {found} false alarms in {TRIALS}");
    }
}

#[test]
fn short_plans_raise_no_more_false_alarms() {
    for blocks in [6, 8, 12] {
        for weather in ALL_WEATHER {
            let found = false_alarms(weather, Some(blocks));
            println!("{blocks} blocks, {weather:?}: {found} of {TRIALS}");
            assert!(found <= FALSE_ALARMS, "{blocks} blocks, {weather:?}: {found} false alarms");
        }
    }
}

#[test]
fn default_plan_finds_three_percent_under_five_percent_noise() {
    for (effect, expected) in [(1.03, Verdict::Better), (1.0 / 1.03, Verdict::Worse)] {
        let trials = (0..FEWER_TRIALS).map(|seed| trial(Weather::Calm, effect, None, seed));
        let found = trials.filter(|outcome| verdict(outcome) == expected).count();
        println!("effect {effect:.3}: found in {found} of {FEWER_TRIALS}");
        assert!(
            found as u64 * 100 >= FEWER_TRIALS * 95,
            "effect {effect:.3}: {found} of {FEWER_TRIALS}"
        );
    }
}

#[test]
fn an_effect_as_small_as_a_pilot_says_is_found_about_nine_times_out_of_ten() {
    struct Arms(Traffic, f64);
    impl Subject for Arms {
        fn measures(&self) -> Vec<Measure> {
            self.0.measures()
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            // Only the second has an effect.
            self.0.effect = if arm == 1 { self.1 } else { 1.0 };
            self.0.set_arm(1)
        }
        fn settle(&mut self, _: Duration) {}
        fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
            self.0.measure(window)
        }
    }
    for arms in [2, 3, 6] {
        for blocks in [12, 44] {
            let names = (0..arms).map(|arm| arm.to_string());
            let plan = Plan { blocks, ..Plan::new(names) };
            let pilot = Pilot {
                noise: vec![0.05],
                autocorrelation: 0.0,
                holds: Vec::new(),
                windows: Vec::new(),
                stopped: false,
                harmed: None,
            };
            let effect = 1.0 + pilot.smallest_effect(&plan);
            let found = (0..FEWER_TRIALS).filter(|&seed| {
                let mut subject = Arms(Traffic::new(Weather::Calm, 1.0, seed), effect);
                let plan = Plan { seed, ..plan.clone() };
                let outcome = run(&plan, &mut subject, on).unwrap();
                outcome.judge().unwrap()[0].comparison.verdict == Verdict::Better
            });
            let share = found.count() as f64 / FEWER_TRIALS as f64;
            println!("{arms} arms, {blocks} blocks, effect {effect:.3}: found in {share:.3}");
            // With few blocks it is a little less often.
            let least = if blocks < 20 { 0.78 } else { 0.86 };
            assert!((least..0.96).contains(&share), "{arms} arms, {blocks} blocks: {share}");
        }
    }
}

#[test]
fn an_effect_is_found_or_left_open_in_any_weather() {
    for weather in ALL_WEATHER {
        for (effect, expected) in
            [(1.03, Verdict::Better), (1.0 / 1.03, Verdict::Worse), (1.1, Verdict::Better)]
        {
            let verdicts: Vec<Verdict> = (0..FEWER_TRIALS)
                .map(|seed| verdict(&trial(weather, effect, None, seed)))
                .collect();
            let found = verdicts.iter().filter(|verdict| **verdict == expected).count();
            let open = verdicts.iter().filter(|verdict| is_open(**verdict)).count();
            let wrong = verdicts.len() - found - open;
            println!("{weather:?}, effect {effect:.3}: {found} found, {open} open, {wrong} wrong");
            assert!(wrong as u64 * 100 <= FEWER_TRIALS * 5, "{weather:?}, {effect:.3}: {wrong}");
        }
    }
}

fn is_open(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Inconclusive | Verdict::Withheld)
}

/// Windows of which some are void, as where a process restarts: `share` of them.
struct Holes {
    traffic: Traffic,
    share: f64,
}

impl Subject for Holes {
    fn measures(&self) -> Vec<Measure> {
        self.traffic.measures()
    }
    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        self.traffic.set_arm(arm)
    }
    fn settle(&mut self, duration: Duration) {
        self.traffic.settle(duration);
    }
    fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
        let sample = self.traffic.measure(window)?;
        let is_void = self.traffic.rng.random_bool(self.share);
        Ok(if is_void { Sample { void: Some("it stalled".into()), ..sample } } else { sample })
    }
}

#[test]
fn stalled_windows_are_left_out_and_many_of_them_withhold_the_verdict() {
    let verdicts = |share: f64, effect: f64| -> Vec<Verdict> {
        let trials = (0..FEWER_TRIALS).map(|seed| {
            let traffic = Traffic::new(Weather::Calm, effect, seed);
            verdict(&run(&plan(None, seed), &mut Holes { traffic, share }, on).unwrap())
        });
        trials.collect()
    };
    for (effect, expected) in [(1.0, Verdict::NoDifference), (1.05, Verdict::Better)] {
        // One block of 25 has such a window.
        let some = verdicts(0.01, effect);
        let open = some.iter().filter(|verdict| is_open(**verdict)).count();
        let wrong = some.iter().filter(|v| **v != expected && !is_open(**v)).count();
        println!("effect {effect}: {wrong} wrong, {open} open, of {FEWER_TRIALS}");
        assert!(wrong <= FEWER_FALSE_ALARMS, "effect {effect}: {wrong} wrong");
        // One block of three has one.
        let many = verdicts(0.1, effect);
        let withheld = many.iter().filter(|verdict| **verdict == Verdict::Withheld).count();
        assert!(withheld as u64 * 100 >= FEWER_TRIALS * 95, "effect {effect}: {withheld}");
    }
}

#[test]
fn default_plan_sees_that_quiet_equal_arms_make_no_difference() {
    let found = (0..FEWER_TRIALS).filter(|&seed| {
        let mut traffic = Traffic { noise: 0.01, ..Traffic::new(Weather::Calm, 1.0, seed) };
        let outcome = run(&plan(None, seed), &mut traffic, on).unwrap();
        verdict(&outcome) == Verdict::NoDifference
    });
    let found = found.count();
    assert!(found as u64 * 100 >= FEWER_TRIALS * 95, "{found} of {FEWER_TRIALS}");
}

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    for blocks in [6, 8, 12, 17, 44] {
        for weather in [Weather::Calm, Weather::Wandering] {
            let held = (0..TRIALS).filter(|&seed| {
                let found = trial(weather, 1.03, Some(blocks), seed).compare(1).unwrap();
                let interval = found.interval.unwrap();
                interval.low <= 1.03 && 1.03 <= interval.high
            });
            let percent = 100.0 * held.count() as f64 / TRIALS as f64;
            println!("{blocks} blocks, {weather:?}: {percent:.1} %");
            // 6 blocks allow 96.9 % or nothing, give or take 0.8 % for the simulation.
            let most = if blocks == 6 { 97.7 } else { 97.0 };
            assert!((93.0..=most).contains(&percent), "{blocks} blocks, {weather:?}: {percent} %");
        }
    }
}

/// Why intervals are not from a percentile bootstrap: it falls short where blocks are few.
#[test]
fn a_percentile_bootstrap_would_not_hold_the_truth_in_short_plans() {
    let held = (0..1000).filter(|&seed| {
        let mut traffic = Traffic::new(Weather::Calm, 1.03, seed);
        let logs: Vec<f64> = (0..8).map(|_| 0.05 * traffic.normal()).collect();
        let resample = |rng: &mut Xoshiro256PlusPlus| {
            (0..8).map(|_| logs[rng.random_range(0..8)]).sum::<f64>() / 8.0
        };
        let mut means: Vec<f64> = (0..1000).map(|_| resample(&mut traffic.rng)).collect();
        means.sort_unstable_by(f64::total_cmp);
        means[24] <= 0.0 && 0.0 <= means[975]
    });
    let held = held.count();
    println!("percentile bootstrap, 8 blocks: {held} of 1000");
    assert!(held < 920, "held the truth in {held} of 1000");
}

/// Somebody looks after every block and stops as soon as there is a difference.
#[test]
fn stopping_as_soon_as_it_looks_good_raises_no_more_false_alarms() {
    const BLOCKS: u32 = 20;
    let (mut found, mut naive) = (0, 0);
    for seed in 0..FEWER_TRIALS {
        let looks: Vec<Outcome> = (1..=BLOCKS)
            .map(|blocks| {
                let mut traffic = Traffic::new(Weather::Calm, 1.0, seed);
                let stop = stop_after(4 * blocks as usize);
                run(&plan(Some(BLOCKS), seed), &mut traffic, stop).unwrap()
            })
            .collect();
        found += usize::from(looks.iter().any(|look| is_difference(verdict(look))));
        naive += usize::from(looks.iter().any(|look| is_difference(unguarded(look))));
    }
    println!("{found} of {FEWER_TRIALS}; without sharing the budget out: {naive}");
    assert!(found <= FEWER_FALSE_ALARMS, "{found} false alarms in {FEWER_TRIALS}");
    assert!(naive > 2 * FEWER_FALSE_ALARMS, "peeking should have fooled the plain test: {naive}");
}

/// The verdict as if this were the only look.
fn unguarded(outcome: &Outcome) -> Verdict {
    let sum = |block: &[cachelane_trial::Window], arm| {
        let mut sum = Part::default();
        for window in block.iter().filter(|window| window.arm == arm) {
            let Value::Part(part) = window.values[0] else { panic!("{window:?}") };
            sum += part;
        }
        sum
    };
    let sums = |arm| -> Vec<Part> { outcome.windows.chunks(4).map(|b| sum(b, arm)).collect() };
    let rules = Rules {
        better: Better::Higher,
        margin: outcome.plan.margin,
        confidence: outcome.plan.confidence,
        share: 1.0,
        seed: outcome.plan.seed,
    };
    compare(&sums(0), &sums(1), &rules).unwrap().verdict
}

#[test]
fn a_stopped_trial_still_finds_what_is_plain() {
    let mut traffic = Traffic::new(Weather::Calm, 1.2, 1);
    let outcome = run(&plan(None, 1), &mut traffic, stop_after(4 * 20)).unwrap();
    assert_eq!(outcome.ended, Ended::Stopped);
    assert_eq!(verdict(&outcome), Verdict::Better);
}

#[test]
fn three_arms_are_each_compared_with_the_first() {
    struct Three(Traffic);
    impl Subject for Three {
        fn measures(&self) -> Vec<Measure> {
            self.0.measures()
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            self.0.effect = [1.0, 0.9, 1.1][arm];
            self.0.set_arm(1)
        }
        fn settle(&mut self, _: Duration) {}
        fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
            self.0.measure(window)
        }
    }
    let plan = Plan { seed: 2, ..Plan::new(["a", "b", "c"]) };
    let mut subject = Three(Traffic::new(Weather::Wandering, 1.0, 2));
    let outcome = run(&plan, &mut subject, on).unwrap();
    assert_eq!(outcome.compare(1).unwrap().verdict, Verdict::Worse);
    assert_eq!(outcome.compare(2).unwrap().verdict, Verdict::Better);
}

/// A trial of traffic of which nobody says how soon arms take effect: with a pilot that holds them for
/// a minute, and settling as it says, up to ten seconds.
fn piloted(traffic: &mut Traffic, seed: u64) -> Outcome {
    let plan = Plan { reach: Reach::Unknown, ..plan(None, seed) };
    let seen = pilot(&plan, traffic, 10, Duration::from_secs(60), on).unwrap();
    let settle =
        seen.settle().map_or(plan.settle, |s| Duration::from_secs_f64(s.clamp(0.25, 10.0)));
    let outcome = run(&Plan { settle, ..plan }, traffic, on).unwrap();
    Outcome { pilot: Some(seen), ..outcome }
}

#[test]
fn slow_effects_are_never_called_no_difference() {
    const TRIALS: u64 = 200;
    for slowness in [1.0, 10.0, 60.0] {
        for weather in ALL_WEATHER {
            let verdicts = (0..TRIALS).map(|seed| {
                let mut traffic = Traffic { slowness, ..Traffic::new(weather, 1.1, seed) };
                verdict(&piloted(&mut traffic, seed))
            });
            let verdicts: Vec<Verdict> = verdicts.collect();
            let count = |of: Verdict| verdicts.iter().filter(|verdict| **verdict == of).count();
            let (wrong, better) =
                (count(Verdict::NoDifference) + count(Verdict::Worse), count(Verdict::Better));
            println!("{slowness} s, {weather:?}: {wrong} wrong, {better} better, of {TRIALS}");
            assert!(wrong as u64 * 100 <= TRIALS * 5, "{slowness} s, {weather:?}: {wrong} wrong");
        }
    }
}

/// A pilot is not randomised: what changes slowly by itself may change just when an arm is held.
#[test]
fn pilots_of_equal_arms_are_rarely_ended_by_a_guard() {
    for weather in ALL_WEATHER {
        for limit in [0.95, 1.0 / 1.5] {
            let ended = (0..FEWER_TRIALS).filter(|&seed| {
                let guards = vec![Guard { measure: 0, limit }];
                let plan = Plan { reach: Reach::Unknown, guards, ..plan(None, seed) };
                let mut traffic = Traffic::new(weather, 1.0, seed);
                let hold = Duration::from_secs(15);
                pilot(&plan, &mut traffic, 10, hold, on).unwrap().harmed.is_some()
            });
            let ended = ended.count();
            println!("{weather:?}, limit {limit:.2}: {ended} of {FEWER_TRIALS} pilots");
            // What wanders by 4 % a window goes beyond a limit of 5 %; a wide limit bears it.
            let changes = matches!(weather, Weather::Wandering | Weather::Spells | Weather::Step);
            let most = if changes && limit > 0.9 { 100 } else { 16 };
            assert!(ended <= most, "{weather:?}, limit {limit:.2}: {ended} of {FEWER_TRIALS}");
        }
    }
}

#[test]
fn arms_that_make_no_difference_are_mostly_said_to_make_none_after_a_pilot() {
    const TRIALS: u64 = 200;
    let said = (0..TRIALS).filter(|&seed| {
        let mut traffic = Traffic { noise: 0.01, ..Traffic::new(Weather::Calm, 1.0, seed) };
        verdict(&piloted(&mut traffic, seed)) == Verdict::NoDifference
    });
    let said = said.count() as u64;
    println!("{said} of {TRIALS}");
    assert!(said * 100 >= TRIALS * 80, "{said} of {TRIALS}");
}

#[test]
fn a_pilot_settles_arms_whose_effect_takes_a_second() {
    const TRIALS: u64 = 100;
    let settled = (0..TRIALS).filter(|&seed| {
        let slow = Traffic { slowness: 2.0, noise: 0.02, ..Traffic::new(Weather::Calm, 1.2, seed) };
        let outcome = piloted(&mut { slow }, seed);
        let found = outcome.compare(1).unwrap();
        let ratio = found.ratio.unwrap();
        found.verdict == Verdict::Better && (1.15..1.25).contains(&ratio)
    });
    let settled = settled.count() as u64;
    println!("{settled} of {TRIALS}");
    assert!(settled * 100 >= TRIALS * 90, "{settled} of {TRIALS}");
}

/// What an arm does differs from block to block and cancels: the ratio of sums is 1.
#[test]
fn effects_that_cancel_are_rarely_called_a_difference() {
    struct Mixed {
        traffic: Traffic,
        window: usize,
    }
    impl Subject for Mixed {
        fn measures(&self) -> Vec<Measure> {
            self.traffic.measures()
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            // Mostly it helps by a little; in one block of ten, by chance, it harms nine times as much.
            if self.window.is_multiple_of(4) {
                self.traffic.effect = if self.traffic.rng.random_bool(0.1) { 0.55 } else { 1.05 };
            }
            self.window += 1;
            self.traffic.set_arm(arm)
        }
        fn settle(&mut self, _: Duration) {}
        fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
            self.traffic.measure(window)
        }
    }
    let found = (0..FEWER_TRIALS).filter(|&seed| {
        let traffic = Traffic { noise: 0.01, ..Traffic::new(Weather::Calm, 1.0, seed) };
        let outcome = run(&plan(None, seed), &mut Mixed { traffic, window: 0 }, on).unwrap();
        is_difference(verdict(&outcome))
    });
    let found = found.count();
    println!("{found} of {FEWER_TRIALS}");
    // Nobody can tell what has not happened yet: of 44 blocks, none harms in 1 trial of 100.
    assert!(found as u64 * 1000 <= FEWER_TRIALS * 60, "{found} of {FEWER_TRIALS}");
}

/// Three arms, and four measures besides the first one, none of which is changed by anything.
#[test]
fn many_comparisons_raise_no_more_false_alarms() {
    struct Many([Traffic; 5]);
    impl Subject for Many {
        fn measures(&self) -> Vec<Measure> {
            self.0.iter().flat_map(Traffic::measures).collect()
        }
        fn set_arm(&mut self, _: usize) -> Result<(), BoxError> {
            Ok(())
        }
        fn settle(&mut self, _: Duration) {}
        fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
            let samples = self.0.iter_mut().map(|traffic| traffic.measure(window));
            let samples: Vec<Sample> = samples.collect::<Result<_, _>>()?;
            let values = samples.into_iter().flat_map(|sample| sample.values).collect();
            Ok(Sample { values, ..Sample::default() })
        }
    }
    let (mut first, mut others, mut careless) = (0, 0, 0);
    for seed in 0..400 {
        let traffic = |i| Traffic::new(Weather::Calm, 1.0, 10 * seed + i);
        let plan = Plan { seed, blocks: 20, ..Plan::new(["a", "b", "c"]) };
        let outcome = run(&plan, &mut Many([0, 1, 2, 3, 4].map(traffic)), on).unwrap();
        let judged = outcome.judge().unwrap();
        let differs = |first: bool| {
            let family = judged.iter().filter(|judged| (judged.measure == 0) == first);
            family.filter(|judged| is_difference(judged.comparison.verdict)).count()
        };
        first += usize::from(differs(true) > 0);
        others += usize::from(differs(false) > 0);
        careless +=
            usize::from((1..3).any(|arm| is_difference(outcome.compare(arm).unwrap().verdict)));
    }
    println!("{first} by the first measure, {others} by others, {careless} uncorrected, of 400");
    // What 5 % of 400 exceeds once in 40 times.
    assert!(first <= 28 && others <= 28, "{first} {others} of 400");
    assert!(careless > first, "{careless} {first}");
}
