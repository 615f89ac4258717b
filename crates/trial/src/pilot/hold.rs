//! What an arm does that is held for long.

use serde::{Deserialize, Serialize};

use crate::engine::Window;
use crate::measure::Measure;
use crate::plan::Plan;
use crate::stats::{Estimate, Interval, mean, t_quantile};

/// How many margins an effect of a held arm may be away from none.
const ROOM: f64 = 3.0;

/// Into how many groups of windows a hold is split to see how it varies.
pub(super) const GROUPS: usize = 6;

/// After so many time constants an effect is there but for a tenth.
const SETTLED: f64 = 2.303;

/// What an unsettled hold says.
const STILL_GROWING: &str = "effects last longer than the arm was held, and still grew then";

/// What an arm did when it was held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// The measure, an index into the subject's.
    pub measure: usize,
    /// The arm.
    pub arm: usize,
    /// The ratio to the baseline at the end of the hold; none if the baseline was 0.
    pub ratio: Option<f64>,
    /// Its interval, 95 %; none if it could not be told.
    pub interval: Option<Interval>,
    /// How long the effect takes to build up but for a tenth, in seconds, where it is seen to build up.
    pub settles: Option<f64>,
    /// Whether it still built up at the end.
    pub unsettled: bool,
}

/// What each held arm did by each measure.
pub(super) fn holds(windows: &[Window], plan: &Plan, measures: &[Measure]) -> Vec<Hold> {
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
    let [mut before, held, after] = [0, 1, 2].map(|i| numbers(around[i]));
    let late = |numbers: &[f64]| numbers[numbers.len() / 2..].to_vec();
    if around[0][0].block > 0 {
        // It began with what the arm before it had left.
        before = late(&before);
    }
    let base: Vec<f64> = before.iter().copied().chain(late(&after)).collect();
    let (ratio, interval) = compare(&base, &late(&held));
    let window = plan.window.as_secs_f64();
    let times = [held.len(), after.len()].map(|n| n as f64 * window);
    let constant = time_constant(&before, &held, &after, window);
    Hold {
        measure,
        arm: around[1][0].arm,
        ratio: ratio.is_finite().then_some(ratio),
        interval,
        settles: constant.map(|constant| SETTLED * constant),
        unsettled: constant.is_some_and(|constant| SETTLED * constant > times[1]),
    }
}

/// The ratio of the means, and its interval from the spread of groups of neighbours.
fn compare(base: &[f64], held: &[f64]) -> (f64, Option<Interval>) {
    let of = |values: &[f64]| mean(values.iter().copied());
    let ratio = of(held) / of(base);
    let groups = |values: &[f64]| {
        let size = values.len().div_ceil(GROUPS).max(1);
        Estimate::of(values.chunks(size).map(of).collect::<Vec<_>>())
    };
    let interval = || {
        let (base, held) = (groups(base)?, groups(held)?);
        let part = |one: &Estimate| one.variance / one.value.powi(2);
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
        let (x_mean, y_mean) = (mean(xs.iter().copied()), mean(ys.clone()));
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

impl Hold {
    /// Why "no difference" cannot be said, if it cannot: the held arm may have made one.
    pub(crate) fn leaves_room(&self, margin: f64) -> Option<String> {
        if self.unsettled {
            return Some(format!("{STILL_GROWING}; hold it for longer"));
        }
        let room = ROOM * margin;
        let within = |low: f64, high: f64| low > 1.0 - room && high < 1.0 + room;
        match self.interval {
            Some(Interval { low, high }) if within(low, high) => None,
            Some(Interval { low, high }) if low > 1.0 || high < 1.0 => Some(format!(
                "the arm makes no difference within a window, but one of {:+.1} % when it is held; \
                 make windows longer",
                100.0 * (self.ratio? - 1.0)
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

    /// Why an effect seen in windows may be larger, if it was when the arm was held, or still grew then.
    pub(crate) fn outlasts(&self, seen: Interval) -> Option<String> {
        if self.unsettled {
            return Some(STILL_GROWING.into());
        }
        let Interval { low, high } = self.interval?;
        let larger = if seen.low > 1.0 { low > seen.high } else { high < seen.low };
        larger.then_some(self.ratio).flatten().map(|ratio| {
            format!("effects last longer than the windows; held for long, the ratio was {ratio:.3}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Better;

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
    fn what_an_arm_leaves_behind_is_not_held_against_the_next() {
        let plan = Plan::new(["off", "slow", "same"]);
        let measures = [Measure::new("rate", "/s", Better::Higher)];
        // The first arm doubles the rate; that wears off in the first half of what follows it.
        let left = |t: f64| if t < 24.0 { 2.0 - t / 24.0 } else { 1.0 };
        let stretches = [
            (0, series(48, |_| 1.0)),
            (1, series(96, |_| 2.0)),
            (0, series(48, left)),
            (2, series(96, |_| 1.0)),
            (0, series(48, |_| 1.0)),
        ];
        let windows = stretches.into_iter().enumerate().flat_map(|(block, (arm, values))| {
            let block = block as u32;
            values.into_iter().map(move |value| Window::simulated(block, arm, value))
        });
        let found = holds(&windows.collect::<Vec<_>>(), &plan, &measures);
        assert_eq!(found.iter().map(|hold| hold.arm).collect::<Vec<_>>(), [1, 2]);
        assert!((found[0].ratio.unwrap() - 2.0).abs() < 0.02, "{:?}", found[0]);
        assert!((found[1].ratio.unwrap() - 1.0).abs() < 0.01, "{:?}", found[1]);
        assert_eq!((found[1].settles, found[1].unsettled), (None, false));
    }

    #[test]
    fn a_held_arm_says_whether_no_difference_can_be_said() {
        let hold = |ratio, low, high| Hold {
            measure: 0,
            arm: 1,
            ratio: Some(ratio),
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
        let unsettled = |ratio| Hold { unsettled: true, ..hold(ratio, ratio - 0.01, ratio + 0.01) };
        assert!(unsettled(1.02).outlasts(seen).unwrap().contains("still grew"));
        assert!(said(unsettled(1.0)).contains("hold it for longer"));
    }
}
