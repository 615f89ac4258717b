//! Windows as a series in time: transients after a change of the arm, drift, autocorrelation.

use crate::engine::Window;
use crate::measure::Measure;
use crate::stats::{Estimate, mean, t_probability};

/// How sure a remark is.
const REMARKED: f64 = 0.01;

/// How likely it is by chance that the halves of windows after a change to or from `arm` differ from
/// each other as much more than those of windows after none as they do: in one direction (a
/// disturbance), or in opposite ones under the two arms (an effect that builds up). None where no
/// window tells halves, or too few do.
pub(crate) fn transient(windows: &[Window], measure: usize, arm: usize) -> Option<f64> {
    let mut groups: [Vec<f64>; 4] = Default::default();
    for pair in windows.windows(2) {
        let [before, window] = pair else { continue };
        let other = if window.arm == arm { 0 } else { arm };
        if ![0, arm].contains(&window.arm) || ![window.arm, other].contains(&before.arm) {
            continue;
        }
        let Some(difference) = late_less_early(window, measure) else { continue };
        let changed = usize::from(window.arm != before.arm);
        groups[2 * changed + usize::from(window.arm == arm)].push(difference);
    }
    let [same_base, same_arm, changed_base, changed_arm] = groups.map(Estimate::of);
    let change = |changed: Option<Estimate>, same: Option<Estimate>| Some(changed?.minus(&same?));
    let (base, arm) = (change(changed_base, same_base)?, change(changed_arm, same_arm)?);
    let disturbance = base.plus(&arm, 1.0).p();
    let build_up = arm.plus(&base, -1.0).p();
    Some((2.0 * disturbance.min(build_up)).min(1.0))
}

/// The second half of a window less its first one, as a share of their sum; none where halves are not
/// known or empty.
fn late_less_early(window: &Window, measure: usize) -> Option<f64> {
    use crate::value::{Part, Value};
    let early = window.early.as_ref()?.get(measure)?;
    match (early, window.values.get(measure)?) {
        (Value::Part(early), Value::Part(whole)) => {
            let late = Part { num: whole.num - early.num, den: whole.den - early.den };
            let (early, late) = (early.ratio(), late.ratio());
            let difference = (late - early) / (late + early);
            difference.is_finite().then_some(difference)
        }
        _ => None,
    }
}

/// What a reader should know about the windows as a series.
pub(crate) fn remarks(windows: &[Window], measure: &Measure) -> Vec<String> {
    let arms = windows.iter().map(|window| window.arm).max().map_or(0, |arm| arm + 1);
    let number = |window: &Window| window.values.first().map(|v| v.number(measure.quantile));
    let means: Vec<f64> = (0..arms)
        .map(|arm| mean(windows.iter().filter(|w| w.arm == arm).filter_map(number)))
        .collect();
    let series: Vec<f64> = windows
        .iter()
        .filter_map(|window| Some(number(window)? / means[window.arm]))
        .filter(|value| value.is_finite())
        .collect();
    let name = &measure.name;
    let drift = slope(&series).filter(|(_, p)| *p < REMARKED).map(|(slope, _)| {
        let change = 100.0 * slope * series.len() as f64;
        format!(
            "{name} changed by {change:+.0} % over the trial under every arm; blocks cancel that"
        )
    });
    let correlation = autocorrelation(&series).filter(|(r, p)| *p < REMARKED && *r > 0.2);
    let correlation = correlation.map(|(r, _)| {
        format!("{name} in a window resembles that in the window before (autocorrelation {r:.2})")
    });
    drift.into_iter().chain(correlation).collect()
}

/// The change from a value to the next, by least squares, and how likely it is by chance.
fn slope(series: &[f64]) -> Option<(f64, f64)> {
    let n = series.len() as f64;
    if series.len() < 8 {
        return None;
    }
    let (x_mean, y_mean) = ((n - 1.0) / 2.0, mean(series.iter().copied()));
    let xs = || (0..series.len()).map(|x| x as f64 - x_mean);
    let xx: f64 = xs().map(|x| x * x).sum();
    let slope = xs().zip(series).map(|(x, y)| x * (y - y_mean)).sum::<f64>() / xx;
    let left = |(x, y): (f64, &f64)| (y - y_mean - slope * x).powi(2);
    let deviation = (xs().zip(series).map(left).sum::<f64>() / (n - 2.0) / xx).sqrt();
    Some((slope, t_probability(slope, deviation, n - 2.0)))
}

/// The correlation of a value with the next one, and how likely it is by chance.
pub(crate) fn autocorrelation(series: &[f64]) -> Option<(f64, f64)> {
    let n = series.len() as f64;
    if series.len() < 8 {
        return None;
    }
    let mean = mean(series.iter().copied());
    let square: f64 = series.iter().map(|value| (value - mean).powi(2)).sum();
    let cross: f64 = series.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let r = if square > 0.0 { cross / square } else { 0.0 };
    Some((r, t_probability(r, n.sqrt().recip(), n)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Better;
    use crate::value::{Part, Value};

    fn noise(i: usize) -> f64 {
        0.01 * ((i * 37 % 11) as f64 - 5.0)
    }

    /// Blocks of ABBA and BAAB; `halves` gives the halves of a window by its arm and whether the arm
    /// has changed.
    fn windows(halves: impl Fn(usize, bool) -> [f64; 2]) -> Vec<Window> {
        let mut before = 0;
        let arms =
            (0..20).flat_map(|block| if block % 3 == 0 { [1, 0, 0, 1] } else { [0, 1, 1, 0] });
        let window = |(i, arm): (usize, usize)| {
            let [early, late] = halves(arm, arm != std::mem::replace(&mut before, arm));
            let part = |num| Value::Part(Part { num, den: 0.5 });
            Window {
                block: i as u32 / 4,
                arm,
                started: i as f64,
                ended: i as f64 + 1.0,
                values: vec![Value::Part(Part { num: early + late + noise(i), den: 1.0 })],
                early: Some(vec![part(early)]),
                exposure: None,
                setting: None,
                void: None,
            }
        };
        arms.enumerate().map(window).collect()
    }

    #[test]
    fn an_effect_that_builds_up_is_seen_and_one_that_is_there_at_once_is_not() {
        let level = |arm: usize| 1.0 + 0.1 * arm as f64;
        let at_once = windows(|arm, _| [level(arm); 2]);
        assert!(transient(&at_once, 0, 1).unwrap() > 0.01);
        let slow = windows(|arm, changed| {
            let first = if changed { level(1 - arm) } else { level(arm) };
            [first, level(arm)]
        });
        assert!(transient(&slow, 0, 1).unwrap() < 0.001);
    }

    #[test]
    fn a_disturbance_by_every_change_is_seen() {
        let disturbed = windows(|_, changed| [if changed { 0.9 } else { 1.0 }, 1.0]);
        assert!(transient(&disturbed, 0, 1).unwrap() < 0.001);
    }

    #[test]
    fn windows_without_halves_say_nothing() {
        let mut windows = windows(|_, _| [1.0; 2]);
        windows.iter_mut().for_each(|window| window.early = None);
        assert_eq!(transient(&windows, 0, 1), None);
    }

    #[test]
    fn drift_and_resemblance_are_told() {
        let measure = Measure::new("rate", "/s", Better::Higher);
        let mut steady = windows(|_, _| [1.0; 2]);
        assert_eq!(remarks(&steady, &measure), [""; 0]);
        for (i, window) in steady.iter_mut().enumerate() {
            window.values = vec![Value::from(1.0 + 0.01 * i as f64 + noise(i))];
        }
        let told = remarks(&steady, &measure);
        assert!(told[0].contains("rate changed by +"), "{told:?}");
        assert!(told[1].contains("autocorrelation 0."), "{told:?}");
    }
}
