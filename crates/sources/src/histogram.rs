use crate::{Error, Result};

/// How many values fell between bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// The upper bound of each bucket, ascending; the last is infinite.
    bounds: Vec<f64>,
    /// The values in each bucket.
    counts: Vec<f64>,
}

impl Histogram {
    /// From buckets as Prometheus has them: upper bounds, and how many values are at or below each.
    ///
    /// # Errors
    /// [`ErrorKind::Void`](crate::ErrorKind::Void) if a bound or a count does not ascend, is not a
    /// number, or the last bound is not infinite.
    pub fn from_cumulative(mut buckets: Vec<(f64, f64)>) -> Result<Self> {
        buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        if buckets.last().is_none_or(|(bound, _)| *bound != f64::INFINITY) {
            return Err(Error::void("a histogram without a bucket le=\"+Inf\""));
        }
        let (mut below, mut histogram) = (0.0, Self::default());
        for (bound, count) in buckets {
            if bound.is_nan() || histogram.bounds.last() == Some(&bound) {
                return Err(Error::void(format!("a histogram with two buckets le=\"{bound}\"")));
            }
            if !count.is_finite() || count < below {
                return Err(Error::void(format!(
                    "a histogram whose bucket le=\"{bound}\" has {count} values where the one \
                     below it has {below}"
                )));
            }
            histogram.bounds.push(bound);
            histogram.counts.push(count - below);
            below = count;
        }
        Ok(histogram)
    }

    /// All values.
    pub fn count(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Adds the values of another one, such as that of another window. An empty one takes the
    /// other's buckets.
    ///
    /// # Errors
    /// [`ErrorKind::Void`](crate::ErrorKind::Void) if the buckets are not the same.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.bounds.is_empty() {
            *self = other.clone();
            return Ok(());
        }
        self.same_buckets(other)?;
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        Ok(())
    }

    /// The value below which the share `q`, 0 to 1, of all values is; none if there is none.
    ///
    /// Inside a bucket, values count as evenly spread, and the first one starts at 0 if its bound is
    /// above. Of values above the last finite bound, that bound is all that is known.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let wanted = q * self.count();
        let (mut below, mut lower) = (0.0, 0.0);
        if self.count() == 0.0 {
            return None;
        }
        for (index, (&bound, &count)) in self.bounds.iter().zip(&self.counts).enumerate() {
            if bound == f64::INFINITY {
                return index.checked_sub(1).map(|last| self.bounds[last]);
            }
            if index == 0 && bound <= 0.0 {
                lower = bound;
            }
            if count > 0.0 && below + count >= wanted {
                return Some(lower + (bound - lower) * ((wanted - below) / count).max(0.0));
            }
            (below, lower) = (below + count, bound);
        }
        None
    }

    /// What came since an earlier one.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Self> {
        self.same_buckets(earlier)?;
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, before)| now - before);
        let counts: Vec<f64> = counts.collect();
        if counts.iter().any(|count| *count < 0.0) {
            return Err(Error::void(
                "a histogram was reset: a bucket has fewer values than before",
            ));
        }
        Ok(Self { bounds: self.bounds.clone(), counts })
    }

    fn same_buckets(&self, other: &Self) -> Result<()> {
        if self.bounds == other.bounds {
            return Ok(());
        }
        let message = format!(
            "histograms with different buckets ({:?} and {:?}) cannot be compared",
            self.bounds, other.bounds
        );
        Err(Error::void(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INF: f64 = f64::INFINITY;

    fn of(buckets: &[(f64, f64)]) -> Histogram {
        Histogram::from_cumulative(buckets.to_vec()).unwrap()
    }

    #[test]
    fn a_quantile_lies_in_the_bucket_that_has_it() {
        let histogram = of(&[(1.0, 10.0), (2.0, 90.0), (4.0, 100.0), (INF, 100.0)]);
        for (q, value) in [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.5, 1.5), (0.95, 3.0), (1.0, 4.0)]
        {
            assert!((histogram.quantile(q).unwrap() - value).abs() < 1e-9, "{q}");
        }
        let above = of(&[(1.0, 1.0), (INF, 100.0)]);
        assert_eq!(above.quantile(0.99), Some(1.0), "all that is known");
        assert_eq!(of(&[(-1.0, 4.0), (INF, 4.0)]).quantile(0.5), Some(-1.0));
        assert_eq!(of(&[(1.0, 0.0), (INF, 0.0)]).quantile(0.5), None);
        assert_eq!(of(&[(INF, 5.0)]).quantile(0.5), None, "no bound at all");
    }

    #[test]
    fn buckets_that_make_no_sense_are_refused() {
        for (buckets, word) in [
            (vec![(1.0, 1.0)], "+Inf"),
            (vec![], "+Inf"),
            (vec![(1.0, 5.0), (INF, 4.0)], "below it has 5"),
            (vec![(1.0, 1.0), (1.0, 1.0), (INF, 4.0)], "two buckets"),
            (vec![(1.0, f64::NAN), (INF, 4.0)], "NaN"),
        ] {
            let error = Histogram::from_cumulative(buckets.clone()).unwrap_err().to_string();
            assert!(error.contains(word), "{buckets:?}: {error}");
        }
    }

    #[test]
    fn a_reset_and_other_buckets_are_noticed() {
        let (early, late) = (of(&[(1.0, 5.0), (INF, 9.0)]), of(&[(1.0, 6.0), (INF, 9.0)]));
        assert!(late.since(&early).is_err(), "the last bucket lost a value");
        let reset = early.since(&of(&[(1.0, 5.0), (INF, 10.0)])).unwrap_err();
        assert!(reset.to_string().contains("reset"), "{reset}");
        let other = of(&[(2.0, 50.0), (INF, 90.0)]);
        assert!(other.since(&early).unwrap_err().to_string().contains("different buckets"));
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
                all.push(Histogram::from_cumulative(cumulative.collect()).unwrap());
            }
            let mut merged = Histogram::default();
            for pair in all.windows(2) {
                merged.merge(&pair[1].since(&pair[0]).unwrap()).unwrap();
            }
            let whole = all.last().unwrap().since(&all[0]).unwrap();
            prop_assert_eq!(&merged, &whole);
            let quantiles = [0.1, 0.5, 0.9].map(|q| whole.quantile(q).unwrap_or(0.0));
            prop_assert!(quantiles.is_sorted());
        }
    }
}
