//! Guards while arms are held.
//!
//! A held arm stands between two stretches of the baseline, as in a trial's block. The later halves of
//! those two are compared with as many windows under the arm, from where a drift that is linear
//! cancels; neighbours are paired, so that the test of a trial's blocks is that of these pairs. Nothing
//! is randomised here: a measure that wanders by itself may do so just while an arm is held, so narrow
//! limits end more pilots without harm than wide ones (`tests/simulation.rs`).

use crate::engine::Window;
use crate::error::Error;
use crate::measure::Measure;
use crate::outcome::Arms;
use crate::plan::Plan;
use crate::value::Value;

/// The most pairs on each side of the hold.
const PAIRS: usize = 16;

/// The measure and the arm of a guard that is certainly beyond its limit, where the windows end with a
/// hold and the baseline after it.
pub(super) fn harmed(
    windows: &[Window],
    plan: &Plan,
    measures: &[Measure],
) -> Result<Option<(usize, usize)>, Error> {
    let stretches: Vec<&[Window]> = windows.chunk_by(|a, b| a.block == b.block).collect();
    let &[.., before, held, after] = stretches.as_slice() else { return Ok(None) };
    let arm = held[0].arm;
    if arm == 0 {
        return Ok(None);
    }
    for guard in &plan.guards {
        let measure = &measures[guard.measure];
        let (base, other) = pairs([before, held, after], guard.measure);
        let Ok(arms) = Arms::of(base, other) else { continue };
        if guard.is_exceeded(arms, measure, plan.guard_alpha_of_pilot(), plan.seed)? {
            return Ok(Some((guard.measure, arm)));
        }
    }
    Ok(None)
}

/// What the baseline and the arm gave, pair by pair; pairs with a void window are left out.
fn pairs([before, held, after]: [&[Window]; 3], measure: usize) -> (Vec<Value>, Vec<Value>) {
    let half = after.len() / 2;
    // With the stretches h, 2 h and h long, the middle of these windows is that of the baseline's.
    let held = &held[3 * (after.len() - half) / 2..][..2 * half];
    let base = [before, after].map(|stretch| &stretch[stretch.len() - half..]);
    let size = half.div_ceil(PAIRS).max(1);
    let sides = base.into_iter().zip([&held[..half], &held[half..]]);
    let pairs = sides.flat_map(|(base, held)| base.chunks(size).zip(held.chunks(size)));
    pairs.filter_map(|(base, held)| Some((sum(base, measure)?, sum(held, measure)?))).unzip()
}

/// What windows give together; none if one is void.
fn sum(windows: &[Window], measure: usize) -> Option<Value> {
    let mut values = windows.iter().map(|window| window.values.get(measure));
    let mut sum = values.next()??.clone();
    values.try_for_each(|value| sum.add(value?).ok())?;
    Some(sum)
}
