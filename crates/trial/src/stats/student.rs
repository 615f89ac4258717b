//! Student's t of the blocks' excesses, with a correction for skewness.
//!
//! Hall, "On the removal of skewness by transformation" (1992): with m, s and g the mean, the
//! standard deviation and the skewness of n values, and w = m / s, the statistic
//! sqrt(n) (w + g w^2 / 3 + g^2 w^3 / 27 + g / 6n) is closer to Student's t than sqrt(n) w, and
//! grows with w.

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::subsets::{Found, Item};

/// The value that Student's t with so many degrees of freedom is at most with probability `p`.
pub(crate) fn t_quantile(p: f64, freedom: f64) -> f64 {
    student(freedom).inverse_cdf(p)
}

/// How likely a value so many deviations from 0 is by chance, in either direction.
pub(crate) fn t_probability(value: f64, deviation: f64, freedom: f64) -> f64 {
    // Values too large for their squares leave no number.
    if value == 0.0 || (value / deviation).is_nan() || freedom.is_nan() {
        return 1.0;
    }
    2.0 * student(freedom).cdf(-(value / deviation).abs())
}

fn student(freedom: f64) -> StudentsT {
    StudentsT::new(0.0, 1.0, freedom).expect("there is at least one degree of freedom")
}

/// How likely the excesses are under the null hypothesis, two-sided; 0 if one block says nothing.
pub(super) fn probability(items: &[Item], null: f64) -> f64 {
    match items.len() {
        0 | 1 => 0.0,
        blocks => t_probability(statistic(items, null), 1.0, (blocks - 1) as f64),
    }
}

/// What another test found, and this one too: the larger p-value, the hull of the intervals.
pub(super) fn widen(items: &[Item], null: f64, alpha: f64, found: Found) -> Found {
    let found = Found { p: found.p.max(probability(items, null)), ..found };
    if items.len() < 2 || !(found.bounded && found.centre.is_finite()) {
        return found;
    }
    let most = t_quantile(1.0 - alpha / 2.0, (items.len() - 1) as f64);
    let low = bound(items, found.centre, -1.0, most).min(found.low);
    let high = bound(items, found.centre, 1.0, most).max(found.high);
    Found { low, high, ..found }
}

/// The statistic of the excesses under the null hypothesis; infinite where they are all the same.
fn statistic(items: &[Item], null: f64) -> f64 {
    let n = items.len() as f64;
    let excess = |item: &Item| item.num - null * item.den;
    let mean = items.iter().map(excess).sum::<f64>() / n;
    let moment = |power| items.iter().map(|i| (excess(i) - mean).powi(power)).sum::<f64>() / n;
    let deviation = (moment(2) * n / (n - 1.0)).sqrt();
    let scale: f64 = items.iter().map(|i| i.num.abs() + (null * i.den).abs()).sum::<f64>() / n;
    // What is left by rounding is nothing.
    if mean.abs() <= 1e-12 * scale {
        return 0.0;
    }
    if deviation <= 1e-12 * scale {
        return mean.signum() * f64::INFINITY;
    }
    let (w, skew) = (mean / deviation, moment(3) / deviation.powi(3));
    let corrected = w + skew * w * w / 3.0 + skew * skew * w.powi(3) / 27.0 + skew / (6.0 * n);
    n.sqrt() * corrected
}

/// How far from the centre the statistic is at most this, upwards or downwards; infinite where it
/// always is.
fn bound(items: &[Item], centre: f64, direction: f64, most: f64) -> f64 {
    let rejects = |distance: f64| statistic(items, centre + direction * distance).abs() > most;
    let mut inside = 0.0;
    let mut outside = centre.abs().max(1e-9) * 1e-4;
    while !rejects(outside) {
        inside = outside;
        outside *= 2.0;
        if outside > 1e9 * centre.abs().max(1.0) {
            return direction * f64::INFINITY;
        }
    }
    for _ in 0..40 {
        let middle = f64::midpoint(inside, outside);
        if rejects(middle) { outside = middle } else { inside = middle }
    }
    centre + direction * inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(values: &[f64]) -> Vec<Item> {
        values.iter().map(|&num| Item { num, den: 1.0 }).collect()
    }

    #[test]
    fn without_skewness_it_is_students_t() {
        // Mean 3, standard deviation sqrt(2.5), 5 values; t for 95 % and 4 degrees is 2.776.
        let items = items(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        let expected = 3.0 / (2.5_f64 / 5.0).sqrt();
        assert!((statistic(&items, 0.0) - expected).abs() < 1e-9);
        let half = t_quantile(0.975, 4.0) * (2.5_f64 / 5.0).sqrt();
        assert!((t_quantile(0.975, 4.0) - 2.776).abs() < 1e-3);
        assert!((bound(&items, 3.0, 1.0, t_quantile(0.975, 4.0)) - 3.0 - half).abs() < 1e-6);
        assert!((bound(&items, 3.0, -1.0, t_quantile(0.975, 4.0)) - 3.0 + half).abs() < 1e-6);
    }

    #[test]
    fn a_long_tail_on_one_side_counts_against_the_other() {
        // Most values say +1, one says -9: the plain t is 0 at a mean of 0, and with a mean above 0
        // the long tail below makes it less sure.
        let mut values = vec![1.0; 18];
        values.extend([-4.0, -3.0]);
        let skewed = statistic(&items(&values), 0.0);
        let mirrored = statistic(&items(&values.iter().map(|v| 1.1 - v).collect::<Vec<_>>()), 0.0);
        assert!(skewed < mirrored, "{skewed} {mirrored}");
    }

    #[test]
    fn equal_values_are_certain() {
        assert_eq!(statistic(&items(&[2.0; 6]), 1.0), f64::INFINITY);
        assert_eq!(statistic(&items(&[2.0; 6]), 2.0), 0.0);
    }
}
