//! What goes before a trial: a look at the traffic under the baseline alone, and, where nobody knows
//! how soon an arm takes effect, every arm held for long.
//!
//! Windows of a second cannot see an effect that takes a minute to build up: under both arms they
//! see the mixture. So an arm is held for a time, from a baseline that was held before to one that is
//! held after. What it does by the end of that time bounds what the short windows may have missed. This
//! is one long window, not a randomised trial: it is never a reason to call a difference, only to
//! withhold "no difference", or to call an effect a lower bound.

mod guard;
mod hold;

use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::{Step, Subject, Window, take};
use crate::error::{Error, ErrorKind};
use crate::measure::Measure;
use crate::outcome::Outcome;
use crate::plan::{MOST_BLOCKS, Plan, Reach, Slot, fewest_blocks};
use crate::series;
use crate::stats::{mean, t_quantile};
pub use hold::Hold;
use hold::{GROUPS, holds};

/// The most windows that a pilot may have.
const MOST_WINDOWS: u64 = 100_000;

/// How likely an effect of the size that was asked for is found.
const POWER: f64 = 0.9;

/// What a pilot saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pilot {
    /// By how much a window differs from the one before it under one arm, as a share; for each
    /// measure.
    pub noise: Vec<f64>,
    /// How much a window of the first measure resembles the one before it, from -1 to 1.
    pub autocorrelation: f64,
    /// What held arms did.
    pub holds: Vec<Hold>,
    /// The windows, in the order of time; their blocks count the stretches under one arm.
    pub windows: Vec<Window>,
    /// Whether it was broken off, or ended by a guard.
    pub stopped: bool,
    /// The measure and the arm of the guard that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harmed: Option<(usize, usize)>,
}

/// Looks at the traffic for `windows` windows under the baseline, then, if the plan's
/// [`Reach`] is unknown, holds every arm twice as long as `hold`, with the baseline for `hold` before and
/// after it; a hold has at least 12 windows. Windows are as long as the plan's, with no time to settle in
/// between.
///
/// A guard whose measure was certainly beyond its limit while an arm was held ends the pilot, and
/// [`Pilot::harmed`] names it: do not [`run`](crate::run) the trial then.
///
/// # Errors
/// As [`run`](crate::run), and [`ErrorKind::InvalidPlan`] as [`pilot_windows`].
pub fn pilot(
    plan: &Plan,
    subject: &mut dyn Subject,
    windows: u32,
    hold: Duration,
    mut before: impl FnMut(&Step<'_>) -> ControlFlow<()>,
) -> Result<Pilot, Error> {
    plan.check()?;
    pilot_windows(plan, windows, hold)?;
    let measures = subject.measures();
    plan.check_guards(&measures)?;
    let stretches = stretches(plan, windows, hold).enumerate();
    let schedule = stretches.flat_map(|(block, (arm, length))| {
        std::iter::repeat_n(Slot { block: block as u32, arm }, length as usize)
    });
    let schedule: Vec<Slot> = schedule.collect();
    let seen = Outcome::new(plan.clone(), measures.clone());
    let unsettled = Plan { settle: Duration::ZERO, ..plan.clone() };
    let mut found: Vec<Window> = Vec::with_capacity(schedule.len());
    let mut harmed = None;
    for (window, &slot) in schedule.iter().enumerate() {
        let (arm, windows) = (&plan.arms[slot.arm], schedule.len());
        if before(&Step { window, windows, slot, arm, seen: &seen }).is_break() {
            break;
        }
        let place = format!("window {} of {windows} of the pilot", window + 1);
        let first = found.iter().find(|window| window.void.is_none());
        let Some(taken) = take(&unsettled, subject, slot, &measures, first, &place)? else { break };
        found.push(taken);
        if schedule.get(window + 1).is_none_or(|next| next.block != slot.block) {
            harmed = guard::harmed(&found, plan, &measures)?;
            if harmed.is_some() {
                break;
            }
        }
    }
    let stopped = found.len() < schedule.len() && harmed.is_none();
    let holds = if stopped { Vec::new() } else { holds(&found, plan, &measures) };
    let first = |window: &Window| Some(window.values.first()?.number(measures[0].quantile));
    let quiet: Vec<f64> = found.iter().filter(|w| w.block == 0).filter_map(first).collect();
    Ok(Pilot {
        noise: measures.iter().enumerate().map(|(i, measure)| noise(&found, i, measure)).collect(),
        autocorrelation: series::autocorrelation(&quiet).map_or(0.0, |(r, _)| r),
        holds,
        windows: found,
        stopped: stopped || harmed.is_some(),
        harmed,
    })
}

/// How many windows a [`pilot`] has.
///
/// # Errors
/// [`ErrorKind::InvalidPlan`] if it has more than 100,000.
pub fn pilot_windows(plan: &Plan, windows: u32, hold: Duration) -> Result<u32, Error> {
    match total(plan, windows, hold) {
        total @ 0..=MOST_WINDOWS => Ok(total as u32),
        total => {
            let window = plan.window;
            let what = format!(
                "pilot: {total} windows of {window:?}; expected at most {MOST_WINDOWS}: make windows \
                 longer, or hold arms for less than {hold:?}"
            );
            Err(Error::new(ErrorKind::InvalidPlan, what))
        }
    }
}

/// How long the windows of a [`pilot`] last in all, whether or not it may have so many.
pub fn pilot_time(plan: &Plan, windows: u32, hold: Duration) -> Duration {
    let total = u32::try_from(total(plan, windows, hold));
    total.map_or(Duration::MAX, |total| plan.window.saturating_mul(total))
}

/// In how many windows, at most as many as can be counted.
fn total(plan: &Plan, windows: u32, hold: Duration) -> u64 {
    stretches(plan, windows, hold).fold(0, |sum: u64, (_, length)| sum.saturating_add(length))
}

/// The arms, and how many windows of each.
fn stretches(
    plan: &Plan,
    windows: u32,
    hold: Duration,
) -> impl Iterator<Item = (usize, u64)> + use<> {
    let held = hold.as_nanos().div_ceil(plan.window.as_nanos().max(1));
    let held = u64::try_from(held).unwrap_or(u64::MAX).max(2 * GROUPS as u64);
    let (quiet, others) = match plan.reach {
        Reach::AtOnce => (u64::from(windows), 0),
        Reach::Unknown => (held.max(windows.into()), plan.arms.len().saturating_sub(1)),
    };
    let arms = (1..=others).flat_map(move |arm| [(arm, held.saturating_mul(2)), (0, held)]);
    std::iter::once((0, quiet)).chain(arms)
}

/// The standard deviation of a window as a share of the mean, from neighbours under one arm: slow
/// changes, which blocks cancel, count little.
fn noise(windows: &[Window], measure: usize, of: &Measure) -> f64 {
    let number = |window: &Window| Some(window.values.get(measure)?.number(of.quantile));
    let level = mean(windows.iter().filter_map(number));
    let pairs = windows.windows(2).filter(|pair| pair[0].block == pair[1].block);
    let squares = pairs.filter_map(|pair| Some((number(&pair[1])? - number(&pair[0])?).powi(2)));
    let deviation = (mean(squares) / 2.0).sqrt() / level;
    if deviation.is_finite() { deviation } else { 0.0 }
}

impl Pilot {
    /// What holding this arm did by this measure; none if it was not held.
    pub fn hold(&self, measure: usize, arm: usize) -> Option<&Hold> {
        self.holds.iter().find(|hold| (hold.measure, hold.arm) == (measure, arm))
    }

    /// The smallest effect of an arm, as a share, that this plan finds nine times out of ten by the
    /// first measure, where the other arms have none.
    pub fn smallest_effect(&self, plan: &Plan) -> f64 {
        self.found_in(plan.blocks, plan)
    }

    /// How many blocks such a plan needs to find an effect of this share nine times out of ten; none
    /// where even 10,000, the most that it may have, are too few.
    pub fn blocks_for(&self, effect: f64, plan: &Plan) -> Option<u32> {
        let is_enough = |blocks: u32| self.found_in(blocks, plan) <= effect;
        let (mut least, mut most) = (fewest_blocks(plan.alpha_of_end()), MOST_BLOCKS);
        if !is_enough(most) {
            return None;
        }
        while least < most {
            let middle = u32::midpoint(least, most);
            if is_enough(middle) { most = middle } else { least = middle + 1 }
        }
        Some(most)
    }

    /// The smallest effect that so many blocks of a plan find.
    fn found_in(&self, blocks: u32, plan: &Plan) -> f64 {
        let blocks = f64::from(blocks.max(2));
        let sure = t_quantile(1.0 - plan.alpha_of_end() / 2.0, blocks - 1.0);
        (sure + t_quantile(POWER, blocks - 1.0)) * self.noise[0] / blocks.sqrt()
    }

    /// How long arms should settle, in seconds: the longest that any held arm took by the first
    /// measure. None where all were there at once.
    pub fn settle(&self) -> Option<f64> {
        let first = self.holds.iter().filter(|hold| hold.measure == 0);
        first.filter_map(|hold| hold.settles).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Sample;
    use crate::error::BoxError;
    use crate::measure::Better;
    use crate::outcome::Ended;
    use crate::plan::Guard;

    #[test]
    fn more_blocks_find_smaller_effects() {
        let pilot = Pilot {
            noise: vec![0.05],
            autocorrelation: 0.0,
            holds: Vec::new(),
            windows: Vec::new(),
            stopped: false,
            harmed: None,
        };
        let (two, many) = (Plan::new(["a", "b"]), Plan::new(["a", "b", "c", "d", "e"]));
        let [smallest, among_many] = [&two, &many].map(|plan| pilot.smallest_effect(plan));
        assert!((0.02..0.03).contains(&smallest), "{smallest}");
        assert!(among_many > 1.1 * smallest, "arms share the error budget: {among_many}");
        for plan in [two, many] {
            let blocks = pilot.blocks_for(0.03, &plan).unwrap();
            let with = |blocks| Plan { blocks, ..plan.clone() };
            assert!(pilot.smallest_effect(&with(blocks)) <= 0.03);
            assert!(pilot.smallest_effect(&with(blocks - 1)) > 0.03);
            let fewest = pilot.blocks_for(10.0, &plan).unwrap();
            assert!(with(fewest).check().is_ok() && with(fewest - 1).check().is_err());
            for effect in [0.0001, 0.0, -1.0, f64::NAN] {
                assert_eq!(pilot.blocks_for(effect, &plan), None, "{effect}");
            }
        }
    }

    #[test]
    fn a_pilot_has_as_many_windows_as_it_says() {
        struct Counting(u32);
        impl Subject for Counting {
            fn measures(&self) -> Vec<Measure> {
                vec![Measure::new("rate", "/s", Better::Higher)]
            }
            fn set_arm(&mut self, _: usize) -> Result<(), BoxError> {
                Ok(())
            }
            fn settle(&mut self, _: Duration) {}
            fn measure(&mut self, _: Duration) -> Result<Sample, BoxError> {
                self.0 += 1;
                Ok(100.0.into())
            }
        }
        let seconds = Duration::from_secs;
        for (arms, reach, windows, hold, expected) in [
            (2, Reach::AtOnce, 10, seconds(60), 10),
            (2, Reach::AtOnce, 0, seconds(60), 0),
            (2, Reach::Unknown, 10, seconds(1), 12 + 24 + 12),
            (3, Reach::Unknown, 100, seconds(20), 100 + 2 * (40 + 20)),
            (2, Reach::Unknown, 10, Duration::from_millis(20_001), 21 + 42 + 21),
        ] {
            let plan = Plan::new((0..arms).map(|arm| arm.to_string()));
            let plan = Plan { reach, ..plan };
            assert_eq!(pilot_windows(&plan, windows, hold).unwrap(), expected);
            assert_eq!(pilot_time(&plan, windows, hold), seconds(expected.into()));
            let mut subject = Counting(0);
            let on = |_: &Step<'_>| ControlFlow::Continue(());
            let found = pilot(&plan, &mut subject, windows, hold, on).unwrap();
            assert_eq!((subject.0, found.windows.len()), (expected, expected as usize));
            assert!(!found.stopped);
        }
    }

    #[test]
    fn a_pilot_too_long_is_refused_before_anything_is_done() {
        struct Untouched;
        impl Subject for Untouched {
            fn measures(&self) -> Vec<Measure> {
                panic!("asked");
            }
            fn set_arm(&mut self, _: usize) -> Result<(), BoxError> {
                panic!("set");
            }
            fn measure(&mut self, _: Duration) -> Result<Sample, BoxError> {
                panic!("measured");
            }
        }
        let plan = Plan { reach: Reach::Unknown, ..Plan::new(["a", "b"]) };
        let short = Plan { window: Duration::from_millis(10), ..plan.clone() };
        let none = Plan { window: Duration::ZERO, ..plan.clone() };
        let day = Duration::from_secs(24 * 3600);
        for (plan, windows, hold, expected) in [
            (&short, 10, day, "pilot: 34560000 windows of 10ms; expected at most 100000"),
            (&plan, 10, day, "pilot: 345600 windows of 1s;"),
            (&plan, 10, Duration::MAX, "windows of 1s; expected at most 100000"),
            (&plan, u32::MAX, day, "pilot: 4295226495 windows of 1s;"),
            (&none, 10, Duration::MAX, "window: 0ns; expected at least 10ms"),
        ] {
            let error = pilot(plan, &mut Untouched, windows, hold, |_| panic!("told")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidPlan);
            assert!(error.to_string().contains(expected), "'{error}' lacks '{expected}'");
        }
        assert_eq!(pilot_time(&short, 10, day), 4 * day);
        assert_eq!(pilot_time(&none, 10, Duration::MAX), Duration::MAX);
        assert_eq!(pilot_time(&plan, u32::MAX, Duration::MAX), Duration::MAX);
    }

    /// Three arms, of which the second gives twice as many drops.
    struct Harmful {
        arm: usize,
        windows: usize,
        stop_at: usize,
    }

    impl Subject for Harmful {
        fn measures(&self) -> Vec<Measure> {
            vec![
                Measure::new("rate", "/s", Better::Higher),
                Measure::new("drops", "", Better::Lower),
            ]
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            self.arm = arm;
            Ok(())
        }
        fn settle(&mut self, _: Duration) {}
        fn measure(&mut self, _: Duration) -> Result<Sample, BoxError> {
            self.windows += 1;
            let drops = if self.arm == 1 { 2.0 } else { 1.0 } * (10 + self.windows % 3) as f64;
            let stop = self.windows == self.stop_at;
            Ok(Sample { values: vec![100.0.into(), drops.into()], stop, ..Sample::default() })
        }
    }

    fn harmful(limit: f64, stop_at: usize) -> (Pilot, Outcome) {
        let guards = vec![Guard { measure: 1, limit }];
        let plan = Plan { reach: Reach::Unknown, guards, ..Plan::new(["off", "bad", "same"]) };
        let mut subject = Harmful { arm: 0, windows: 0, stop_at };
        let hold = Duration::from_secs(12);
        let found = pilot(&plan, &mut subject, 10, hold, |_| ControlFlow::Continue(())).unwrap();
        (found.clone(), Outcome::of_pilot(plan, subject.measures(), found))
    }

    #[test]
    fn a_guard_ends_a_pilot_after_the_arm_that_harms() {
        let (found, outcome) = harmful(1.5, 0);
        assert_eq!((found.harmed, found.stopped), (Some((1, 1)), true));
        assert_eq!(found.windows.len(), 12 + 24 + 12, "the third arm is not held");
        assert!((found.hold(1, 1).unwrap().ratio.unwrap() - 2.0).abs() < 0.1, "{:?}", found.holds);
        assert_eq!(outcome.ended, Ended::Guard { measure: 1, arm: 1 });
        assert!(outcome.windows.is_empty() && outcome.pilot == Some(found));
    }

    #[test]
    fn a_pilot_without_harm_goes_on_and_one_that_is_stopped_ends() {
        let (found, _) = harmful(3.0, 0);
        assert_eq!((found.harmed, found.stopped, found.windows.len()), (None, false, 84));
        let (found, outcome) = harmful(1.5, 48);
        assert_eq!((found.harmed, found.stopped, found.windows.len()), (None, true, 47));
        assert_eq!((found.holds, outcome.ended), (vec![], Ended::Stopped));
    }

    #[test]
    fn a_pilot_s_guard_of_no_measure_is_refused() {
        let guards = vec![Guard { measure: 2, limit: 1.5 }];
        let plan = Plan { guards, ..Plan::new(["off", "on"]) };
        let mut subject = Harmful { arm: 0, windows: 0, stop_at: 0 };
        let error = pilot(&plan, &mut subject, 10, Duration::ZERO, |_| ControlFlow::Continue(()));
        assert!(error.unwrap_err().to_string().contains("guard: no measure 2; there are 2"));
        assert_eq!(subject.windows, 0);
    }
}
