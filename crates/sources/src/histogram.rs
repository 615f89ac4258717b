//! Histograms as endpoints give them, which only grow.

use trial::Histogram;

use crate::{Error, Result};

/// From buckets as Prometheus has them: upper bounds, and how many values are at or below each.
///
/// # Errors
/// [`ErrorKind::Void`](crate::ErrorKind::Void) if a bound or a count does not ascend, is not a
/// number, or the last bound, and only that, is not infinite.
pub(crate) fn from_cumulative(mut buckets: Vec<(f64, f64)>) -> Result<Histogram> {
    buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    if buckets.last().is_none_or(|(bound, _)| *bound != f64::INFINITY) {
        return Err(Error::void("a histogram without a bucket le=\"+Inf\""));
    }
    let (mut below, mut bounds, mut counts) = (0.0, Vec::new(), Vec::new());
    for (bound, count) in buckets {
        if bound == f64::NEG_INFINITY || bound.is_nan() {
            return Err(Error::void(format!("a histogram with a bucket le=\"{bound}\"")));
        }
        if bounds.last() == Some(&bound) {
            return Err(Error::void(format!("a histogram with two buckets le=\"{bound}\"")));
        }
        if !count.is_finite() || count < below {
            return Err(Error::void(format!(
                "a histogram whose bucket le=\"{bound}\" has {count} values where the one below it \
                 has {below}"
            )));
        }
        bounds.push(bound);
        counts.push(count - below);
        below = count;
    }
    bounds.pop();
    Ok(Histogram { bounds, counts })
}

/// What came since an earlier one.
///
/// # Errors
/// [`ErrorKind::Void`](crate::ErrorKind::Void) if it has other buckets, or values went.
pub(crate) fn since(now: &Histogram, earlier: &Histogram) -> Result<Histogram> {
    same_buckets(now, earlier)?;
    let counts = now.counts.iter().zip(&earlier.counts).map(|(now, before)| now - before);
    let counts: Vec<f64> = counts.collect();
    if counts.iter().any(|count| *count < 0.0) {
        return Err(Error::void("a histogram was reset: a bucket has fewer values than before"));
    }
    Ok(Histogram { bounds: now.bounds.clone(), counts })
}

/// Adds another one, such as that of another series.
///
/// # Errors
/// [`ErrorKind::Void`](crate::ErrorKind::Void) if it has other buckets.
pub(crate) fn add(sum: &mut Histogram, other: &Histogram) -> Result<()> {
    same_buckets(sum, other)?;
    *sum += other;
    Ok(())
}

fn same_buckets(one: &Histogram, other: &Histogram) -> Result<()> {
    if one.has_buckets_of(other) {
        return Ok(());
    }
    let message = format!(
        "histograms with different buckets ({:?} and {:?}) cannot be compared",
        one.bounds, other.bounds
    );
    Err(Error::void(message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INF: f64 = f64::INFINITY;

    fn of(buckets: &[(f64, f64)]) -> Histogram {
        from_cumulative(buckets.to_vec()).unwrap()
    }

    #[test]
    fn counts_at_or_below_bounds_become_counts_between_them() {
        let histogram = of(&[(INF, 100.0), (2.0, 90.0), (1.0, 10.0), (4.0, 100.0)]);
        assert_eq!(histogram.bounds, [1.0, 2.0, 4.0]);
        assert_eq!(histogram.counts, [10.0, 80.0, 10.0, 0.0]);
        assert_eq!(of(&[(INF, 5.0)]).counts, [5.0]);
    }

    #[test]
    fn buckets_that_make_no_sense_are_refused() {
        for (buckets, word) in [
            (vec![(1.0, 1.0)], "+Inf"),
            (vec![], "+Inf"),
            (vec![(1.0, 5.0), (INF, 4.0)], "below it has 5"),
            (vec![(1.0, 1.0), (1.0, 1.0), (INF, 4.0)], "two buckets"),
            (vec![(1.0, f64::NAN), (INF, 4.0)], "NaN"),
            (vec![(-f64::NAN, 1.0), (INF, 4.0)], "a bucket le=\"NaN\""),
            (vec![(-INF, 1.0), (INF, 4.0)], "a bucket le=\"-inf\""),
        ] {
            let error = from_cumulative(buckets.clone()).unwrap_err().to_string();
            assert!(error.contains(word), "{buckets:?}: {error}");
        }
    }

    #[test]
    fn a_reset_and_other_buckets_are_noticed() {
        let (early, late) = (of(&[(1.0, 5.0), (INF, 9.0)]), of(&[(1.0, 6.0), (INF, 9.0)]));
        assert!(since(&late, &early).is_err(), "the last bucket lost a value");
        let reset = since(&early, &of(&[(1.0, 5.0), (INF, 10.0)])).unwrap_err();
        assert!(reset.to_string().contains("reset"), "{reset}");
        let other = of(&[(2.0, 50.0), (INF, 90.0)]);
        assert!(since(&other, &early).unwrap_err().to_string().contains("different buckets"));
        let mut sum = early;
        assert!(add(&mut sum, &other).unwrap_err().to_string().contains("different buckets"));
    }

    proptest! {
        #[test]
        fn windows_that_are_merged_are_the_whole(
            steps in prop::collection::vec(prop::collection::vec(0u32..100, 4), 1..6)
        ) {
            let bounds = [1.0, 2.5, 10.0, INF];
            let (mut counts, mut all) = ([0.0; 4], vec![of(&bounds.map(|bound| (bound, 0.0)))]);
            for step in steps {
                counts.iter_mut().zip(step).for_each(|(count, more)| *count += f64::from(more));
                let mut below = 0.0;
                let cumulative = bounds.iter().zip(counts).map(|(bound, count)| {
                    below += count;
                    (*bound, below)
                });
                all.push(from_cumulative(cumulative.collect()).unwrap());
            }
            let mut merged = since(&all[0], &all[0]).unwrap();
            for pair in all.windows(2) {
                add(&mut merged, &since(&pair[1], &pair[0]).unwrap()).unwrap();
            }
            let whole = since(all.last().unwrap(), &all[0]).unwrap();
            prop_assert_eq!(&merged, &whole);
            let quantiles = [0.1, 0.5, 0.9].map(|q| whole.quantile(q).unwrap_or(0.0));
            prop_assert!(quantiles.is_sorted());
        }
    }
}
