//! What goes before a trial: a look at the traffic under the baseline alone, and, where nobody knows
//! how soon an arm takes effect, every arm held for long.
//!
//! Windows of a second cannot see an effect that takes a minute to build up: under both arms they
//! see the mixture. So an arm is held for a time, from a baseline that was held before to one that is
//! held after. What it does by the end of that time bounds what the short windows may have missed. This
//! is one long window, not a randomised trial: it is never a reason to call a difference, only to
//! withhold "no difference", or to call an effect a lower bound.

use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::{Step, Subject, Window, take};
use crate::error::Error;
use crate::measure::Measure;
use crate::outcome::Outcome;
use crate::plan::{Plan, Reach, Slot};
use crate::series::{self, Sample};
use crate::stats::{Interval, t_quantile};

/// How many margins an effect of a held arm may be away from none.
const ROOM: f64 = 3.0;

/// Into how many groups of windows a hold is split to see how it varies.
const GROUPS: usize = 6;

/// How likely an effect of the size that was asked for is found.
const POWER: f64 = 0.9;

/// After so many time constants an effect is there but for a tenth.
const SETTLED: f64 = 2.303;

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
    /// Whether it was broken off.
    pub stopped: bool,
}

/// What an arm did when it was held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// The measure, an index into the subject's.
    pub measure: usize,
    /// The arm.
    pub arm: usize,
    /// The ratio to the baseline at the end of the hold.
    pub ratio: f64,
    /// Its interval, 95 %; none if it could not be told.
    pub interval: Option<Interval>,
    /// How long the effect takes to build up but for a tenth, in seconds, where it is seen to build up.
    pub settles: Option<f64>,
    /// Whether it still built up at the end.
    pub unsettled: bool,
}

/// Looks at the traffic for `windows` windows under the baseline, then, if the plan's
/// [`Reach`] is unknown, holds every arm twice as long as `hold`, with the baseline for `hold` before and
/// after it. Windows are as long as the plan's, with no time to settle in between.
///
/// # Errors
/// As [`run`](crate::run).
pub fn pilot(
    plan: &Plan,
    subject: &mut dyn Subject,
    windows: u32,
    hold: Duration,
    mut before: impl FnMut(&Step<'_>) -> ControlFlow<()>,
) -> Result<Pilot, Error> {
    plan.check()?;
    let measures = subject.measures();
    let arms = stretches(plan, windows as usize, hold);
    let schedule = arms.iter().enumerate().flat_map(|(block, &(arm, length))| {
        std::iter::repeat_n(Slot { block: block as u32, arm }, length)
    });
    let schedule: Vec<Slot> = schedule.collect();
    let seen = Outcome::new(plan.clone(), measures.clone());
    let unsettled = Plan { settle: Duration::ZERO, ..plan.clone() };
    let mut found = Vec::with_capacity(schedule.len());
    for (window, &slot) in schedule.iter().enumerate() {
        let (arm, windows) = (&plan.arms[slot.arm], schedule.len());
        if before(&Step { window, windows, slot, arm, seen: &seen }).is_break() {
            break;
        }
        let place = format!("window {} of {windows} of the pilot", window + 1);
        found.push(take(&unsettled, subject, slot, &measures, &place)?);
    }
    let stopped = found.len() < schedule.len();
    let holds = if stopped { Vec::new() } else { holds(&found, plan, &measures) };
    let first = |window: &Window| Some(window.values.first()?.number(measures[0].quantile));
    let quiet: Vec<f64> = found.iter().filter(|w| w.block == 0).filter_map(first).collect();
    Ok(Pilot {
        noise: measures.iter().enumerate().map(|(i, measure)| noise(&found, i, measure)).collect(),
        autocorrelation: series::autocorrelation(&quiet).map_or(0.0, |(r, _)| r),
        holds,
        windows: found,
        stopped,
    })
}

/// The arms, and how many windows of each.
fn stretches(plan: &Plan, windows: usize, hold: Duration) -> Vec<(usize, usize)> {
    let held = (hold.as_secs_f64() / plan.window.as_secs_f64()).ceil().max(2.0 * GROUPS as f64);
    let held = held as usize;
    match plan.reach {
        Reach::AtOnce => vec![(0, windows)],
        Reach::Unknown => {
            let arms = (1..plan.arms.len()).flat_map(|arm| [(arm, 2 * held), (0, held)]);
            std::iter::once((0, windows.max(held))).chain(arms).collect()
        }
    }
}

/// The standard deviation of a window as a share of the mean, from neighbours under one arm: slow
/// changes, which blocks cancel, count little.
fn noise(windows: &[Window], measure: usize, of: &Measure) -> f64 {
    let number = |window: &Window| Some(window.values.get(measure)?.number(of.quantile));
    let mean = series::mean(windows.iter().filter_map(number));
    let pairs = windows.windows(2).filter(|pair| pair[0].block == pair[1].block);
    let squares = pairs.filter_map(|pair| Some((number(&pair[1])? - number(&pair[0])?).powi(2)));
    let deviation = (series::mean(squares) / 2.0).sqrt() / mean;
    if deviation.is_finite() { deviation } else { 0.0 }
}

fn holds(windows: &[Window], plan: &Plan, measures: &[Measure]) -> Vec<Hold> {
    let stretches: Vec<&[Window]> = windows.chunk_by(|a, b| a.block == b.block).collect();
    let arms = stretches.windows(3).step_by(2);
    let each = arms.flat_map(|around| {
        measures.iter().enumerate().map(|(i, measure)| hold(around, i, measure, plan))
    });
    each.collect()
}

/// What the arm in the middle of three stretches did.
fn hold(around: &[&[Window]], measure: usize, of: &Measure, plan: &Plan) -> Hold {
    let number = |window: &Window| Some(window.values.get(measure)?.number(of.quantile));
    let numbers = |windows: &[Window]| windows.iter().filter_map(number).collect::<Vec<f64>>();
    let [before, held, after] = [0, 1, 2].map(|i| numbers(around[i]));
    let late = |numbers: &[f64]| numbers[numbers.len() / 2..].to_vec();
    let base: Vec<f64> = before.iter().copied().chain(late(&after)).collect();
    let (ratio, interval) = compare(&base, &late(&held));
    let window = plan.window.as_secs_f64();
    let times = [held.len(), after.len()].map(|n| n as f64 * window);
    let constant = time_constant(&before, &held, &after, window);
    Hold {
        measure,
        arm: around[1][0].arm,
        ratio,
        interval,
        settles: constant.map(|constant| SETTLED * constant),
        unsettled: constant.is_some_and(|constant| SETTLED * constant > times[1]),
    }
}

/// The ratio of the means, and its interval from the spread of groups of neighbours.
fn compare(base: &[f64], held: &[f64]) -> (f64, Option<Interval>) {
    let of = |values: &[f64]| series::mean(values.iter().copied());
    let ratio = of(held) / of(base);
    let groups = |values: &[f64]| {
        let size = values.len().div_ceil(GROUPS).max(1);
        Sample::of(values.chunks(size).map(of).collect::<Vec<_>>())
    };
    let interval = || {
        let (base, held) = (groups(base)?, groups(held)?);
        let part = |sample: &Sample| sample.variance / sample.mean.powi(2);
        let deviation = ratio * (part(&base) + part(&held)).sqrt();
        let room = t_quantile(0.975, base.plus(&held, -1.0).freedom.max(1.0)) * deviation;
        room.is_finite().then_some(Interval { low: ratio - room, high: ratio + room })
    };
    (ratio, interval())
}

/// With which time constant, in seconds, an effect builds up under the held arm and goes again after
/// it, by least squares over a range of constants; none where it is there at once, or is not seen.
fn time_constant(before: &[f64], held: &[f64], after: &[f64], window: f64) -> Option<f64> {
    let fit = |constant: f64| {
        let level = |windows: f64| 1.0 - (-(windows + 0.5) * window / constant).exp();
        let full = level(held.len() as f64 - 0.5);
        let rises = (0..held.len()).map(|i| if constant > 0.0 { level(i as f64) } else { 1.0 });
        let falls = (0..after.len())
            .map(|i| if constant > 0.0 { full * (1.0 - level(i as f64)) } else { 0.0 });
        let xs: Vec<f64> = before.iter().map(|_| 0.0).chain(rises).chain(falls).collect();
        let ys = before.iter().chain(held).chain(after).copied();
        let n = xs.len() as f64;
        let (x_mean, y_mean) = (series::mean(xs.iter().copied()), series::mean(ys.clone()));
        let xx: f64 = xs.iter().map(|x| (x - x_mean).powi(2)).sum();
        let xy: f64 = xs.iter().zip(ys.clone()).map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
        let effect = xy / xx;
        let left = |(x, y): (&f64, f64)| (y - y_mean - effect * (x - x_mean)).powi(2);
        let left: f64 = xs.iter().zip(ys).map(left).sum();
        let variance = left / (n - 3.0);
        (left, variance, effect.abs() / (variance / xx).sqrt())
    };
    let longest = held.len() as f64 * window;
    let constants = (0..).map(|i| 0.25 * window * 1.5_f64.powi(i));
    let constants = constants.take_while(|constant| *constant <= longest);
    let all = constants.map(|constant| (constant, fit(constant)));
    let (constant, (left, variance, certain)) =
        all.min_by(|(_, (a, ..)), (_, (b, ..))| a.total_cmp(b))?;
    let (at_once, ..) = fit(0.0);
    // Three deviations: better than at once, and an effect at all.
    (at_once - left > 9.0 * variance && certain > 3.0).then_some(constant)
}

impl Pilot {
    /// What holding this arm did by this measure; none if it was not held.
    pub fn hold(&self, measure: usize, arm: usize) -> Option<&Hold> {
        self.holds.iter().find(|hold| (hold.measure, hold.arm) == (measure, arm))
    }

    /// The smallest effect, as a share, that so many blocks find nine times out of ten at this
    /// confidence, by the first measure.
    pub fn smallest_effect(&self, blocks: u32, confidence: f64) -> f64 {
        let freedom = f64::from(blocks.max(2) - 1);
        let sure = t_quantile(1.0 - (1.0 - confidence) / 2.0, freedom);
        (sure + t_quantile(POWER, freedom)) * self.noise[0] / f64::from(blocks).sqrt()
    }

    /// How many blocks find an effect of this share nine times out of ten.
    pub fn blocks_for(&self, effect: f64, confidence: f64) -> u32 {
        let enough = |blocks: &u32| self.smallest_effect(*blocks, confidence) <= effect;
        (6..10_000).find(enough).unwrap_or(10_000)
    }

    /// How long arms should settle, in seconds: the longest that any held arm took by the first
    /// measure. None where all were there at once.
    pub fn settle(&self) -> Option<f64> {
        let first = self.holds.iter().filter(|hold| hold.measure == 0);
        first.filter_map(|hold| hold.settles).reduce(f64::max)
    }
}

impl Hold {
    /// Why "no difference" cannot be said, if it cannot: the held arm may have made one.
    pub(crate) fn leaves_room(&self, margin: f64) -> Option<String> {
        let room = ROOM * margin;
        let within = |low: f64, high: f64| low > 1.0 - room && high < 1.0 + room;
        match self.interval {
            Some(Interval { low, high }) if within(low, high) => None,
            Some(Interval { low, high }) if low > 1.0 || high < 1.0 => Some(format!(
                "the arm makes no difference within a window, but one of {:+.1} % when it is held; \
                 make windows longer",
                100.0 * (self.ratio - 1.0)
            )),
            _ => Some(format!(
                "an effect that takes longer than a window to appear cannot be excluded: held for \
                 long, the arm's ratio lies between {}; hold it for longer, or say what it reaches",
                self.interval.map_or("0 and infinity".into(), |Interval { low, high }| {
                    format!("{low:.3} and {high:.3}")
                })
            )),
        }
    }

    /// Why an effect seen in windows may be larger when the arm is held, if it was.
    pub(crate) fn outlasts(&self, seen: Interval) -> Option<String> {
        let Interval { low, high } = self.interval?;
        let larger = if seen.low > 1.0 { low > seen.high } else { high < seen.low };
        larger.then(|| {
            format!(
                "effects last longer than the windows; held for long, the ratio was {:.3}",
                self.ratio
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise_at(i: usize) -> f64 {
        0.01 * ((i * 37 % 11) as f64 - 5.0)
    }

    fn series(n: usize, level: impl Fn(f64) -> f64) -> Vec<f64> {
        (0..n).map(|i| 100.0 * (level(i as f64 + 0.5) + noise_at(i))).collect()
    }

    #[test]
    fn the_time_constant_of_an_effect_is_found() {
        for constant in [2.0, 8.0, 30.0] {
            let rise = |t: f64| 1.0 + 0.1 * (1.0 - (-t / constant).exp());
            let fall =
                |t: f64| 1.0 + 0.1 * (1.0 - (-120.0 / constant).exp()) * (-t / constant).exp();
            let (before, held) = (series(60, |_| 1.0), series(120, rise));
            let found = time_constant(&before, &held, &series(60, fall), 1.0).unwrap();
            assert!(found > constant / 2.0 && found < constant * 2.0, "{constant}: {found}");
        }
    }

    #[test]
    fn an_effect_that_is_there_at_once_or_not_at_all_has_none() {
        for effect in [0.0, 0.1] {
            let held = series(120, |_| 1.0 + effect);
            let found = time_constant(&series(60, |_| 1.0), &held, &series(60, |_| 1.0), 1.0);
            assert_eq!(found, None, "{effect}");
        }
    }

    #[test]
    fn more_blocks_find_smaller_effects() {
        let pilot = Pilot {
            noise: vec![0.05],
            autocorrelation: 0.0,
            holds: Vec::new(),
            windows: Vec::new(),
            stopped: false,
        };
        let smallest = pilot.smallest_effect(44, 0.95);
        assert!((0.02..0.03).contains(&smallest), "{smallest}");
        let blocks = pilot.blocks_for(0.03, 0.95);
        assert!(pilot.smallest_effect(blocks, 0.95) <= 0.03);
        assert!(pilot.smallest_effect(blocks - 1, 0.95) > 0.03);
    }

    #[test]
    fn a_held_arm_says_whether_no_difference_can_be_said() {
        let hold = |ratio, low, high| Hold {
            measure: 0,
            arm: 1,
            ratio,
            interval: Some(Interval { low, high }),
            settles: None,
            unsettled: false,
        };
        assert_eq!(hold(1.0, 0.98, 1.02).leaves_room(0.01), None);
        let said = |hold: Hold| hold.leaves_room(0.01).unwrap();
        assert!(said(hold(1.1, 1.05, 1.15)).contains("+10.0 % when it is held"));
        assert!(said(hold(1.0, 0.9, 1.1)).contains("0.900 and 1.100"));
        let seen = Interval { low: 1.01, high: 1.03 };
        assert!(hold(1.1, 1.05, 1.15).outlasts(seen).unwrap().contains("1.100"));
        assert_eq!(hold(1.02, 1.0, 1.04).outlasts(seen), None);
    }
}
