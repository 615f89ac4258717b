//! Ratios of sums over subsets of blocks: the sign-flip test and its inversion in one.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// Up to so many blocks every subset is looked at: 65,536 of them.
const EXACT_UP_TO: usize = 16;

/// The fewest random subsets to draw, and how many to have in each tail.
const RANDOM_AT_LEAST: usize = 20_000;
const RANDOM_IN_TAIL: f64 = 10.0;

/// Blocks are taken eight at a time, from a table of the sums of all 256 subsets of the eight.
const CHUNK: usize = 8;

/// One block's part of the numerator and of the denominator.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Item {
    pub(super) num: f64,
    pub(super) den: f64,
}

/// The subsets of some blocks, and the value that the null hypothesis gives num / den.
pub(super) struct Subsets {
    tables: Vec<[Item; 1 << CHUNK]>,
    blocks: usize,
    total: Item,
    null: f64,
    /// Sums closer to the null than this differ from it by rounding only.
    tolerance: f64,
}

/// What the subsets say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// num / den of all blocks.
    pub(super) centre: f64,
    /// The bounds of what the test does not reject; infinite where there are too few blocks.
    pub(super) low: f64,
    pub(super) high: f64,
    /// Whether there are enough blocks for bounds.
    pub(super) bounded: bool,
    /// Two-sided, at least 2 / the number of sign patterns.
    pub(super) p: f64,
}

/// The values of the subsets that were looked at.
pub(super) struct Values {
    /// num / den of all blocks.
    centre: f64,
    defined: Vec<f64>,
    /// Subsets that have no value: they count for both sides.
    undefined: usize,
    not_above: usize,
    not_below: usize,
}

impl Subsets {
    pub(super) fn new(items: impl Iterator<Item = Item>, null: f64) -> Self {
        let items: Vec<Item> = items.collect();
        let scale: f64 = items.iter().map(|item| item.num.abs() + (null * item.den).abs()).sum();
        Self {
            tables: items.chunks(CHUNK).map(table).collect(),
            blocks: items.len(),
            total: items.iter().fold(Item::default(), |sum, &item| sum.plus(item)),
            null,
            tolerance: 1e-12 * scale,
        }
    }

    /// The values of all subsets, or of as many as a level of `alpha` asks for.
    pub(super) fn values(&self, alpha: f64, seed: u64) -> Values {
        let centre = self.total.num / self.total.den;
        if self.blocks <= EXACT_UP_TO {
            let masks = 1..1_u64 << self.blocks;
            let mut values = Values::new(centre, 1 << self.blocks);
            masks.for_each(|mask| values.add(self.sum(&mask.to_le_bytes()), self));
            return values;
        }
        let draws = RANDOM_AT_LEAST.max((2.0 * RANDOM_IN_TAIL / alpha).ceil() as usize);
        // Not the stream that the plan's order came from.
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(!seed);
        let mut mask = vec![0; self.tables.len()];
        let mut values = Values::new(centre, draws);
        // One less: the observed pattern is one of them.
        for _ in 1..draws {
            rng.fill_bytes(&mut mask);
            values.add(self.sum(&mask), self);
        }
        values
    }

    fn sum(&self, mask: &[u8]) -> Item {
        let parts = self.tables.iter().zip(mask).map(|(table, &byte)| table[usize::from(byte)]);
        parts.fold(Item::default(), Item::plus)
    }
}

impl Values {
    fn new(centre: f64, subsets: usize) -> Self {
        let defined = Vec::with_capacity(subsets);
        Self { centre, defined, undefined: 0, not_above: 0, not_below: 0 }
    }

    /// How likely the blocks are under the null, two-sided, at least 2 / the number of sign patterns.
    pub(super) fn p(&self) -> f64 {
        let extreme = 1 + self.not_above.min(self.not_below);
        (2.0 * extreme as f64 / self.patterns() as f64).min(1.0)
    }

    /// What the test does not reject at level `alpha`.
    pub(super) fn judge(&mut self, alpha: f64) -> Found {
        let tail = (self.patterns() as f64 * alpha / 2.0 + 1e-9).floor() as usize;
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        let bounded = tail > self.undefined;
        if bounded {
            let from_end = tail - self.undefined - 1;
            let last = self.defined.len() - 1;
            low = *self.defined.select_nth_unstable_by(from_end, f64::total_cmp).1;
            high = *self.defined.select_nth_unstable_by(last - from_end, f64::total_cmp).1;
        }
        Found { centre: self.centre, low, high, bounded, p: self.p() }
    }

    /// The empty subset is the pattern that was observed; it counts for both sides.
    fn patterns(&self) -> usize {
        self.defined.len() + self.undefined + 1
    }

    fn add(&mut self, sum: Item, of: &Subsets) {
        let excess = sum.num - of.null * sum.den;
        self.not_above += usize::from(excess <= of.tolerance);
        self.not_below += usize::from(excess >= -of.tolerance);
        match sum.value() {
            Some(value) => self.defined.push(value),
            None => self.undefined += 1,
        }
    }
}

impl Item {
    fn plus(self, other: Self) -> Self {
        Self { num: self.num + other.num, den: self.den + other.den }
    }

    /// The largest ratio at which flipping it leaves the sum at or above the observed one: those
    /// below do so too. None where there is no such ratio.
    fn value(self) -> Option<f64> {
        match self {
            Self { den, num } if den > 0.0 => Some(num / den),
            Self { num, .. } if num > 0.0 => Some(f64::INFINITY),
            Self { den: 0.0, num } if num < 0.0 => Some(f64::NEG_INFINITY),
            _ => None,
        }
    }
}

/// The sums of all subsets of up to eight items. Bits past the last item add nothing, so random
/// masks need no trimming.
fn table(items: &[Item]) -> [Item; 1 << CHUNK] {
    let mut table = [Item::default(); 1 << CHUNK];
    for mask in 1..table.len() {
        let lowest = mask.trailing_zeros() as usize;
        let item = items.get(lowest).copied().unwrap_or_default();
        table[mask] = table[mask & (mask - 1)].plus(item);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(differences: &[f64], alpha: f64) -> Found {
        let items = differences.iter().map(|&num| Item { num, den: 1.0 });
        Subsets::new(items, 0.0).values(alpha, 1).judge(alpha)
    }

    /// The two-sided sign-flip p-value, by the book.
    fn flips(differences: &[f64]) -> f64 {
        let n = differences.len();
        let observed: f64 = differences.iter().sum();
        let sums = (0..1_u32 << n).map(|mask| {
            let signed = |(i, d): (usize, &f64)| if mask >> i & 1 == 1 { -d } else { *d };
            differences.iter().enumerate().map(signed).sum::<f64>()
        });
        let as_extreme = sums.filter(|sum| *sum >= observed.abs() - 1e-12).count();
        (2.0 * as_extreme as f64 / f64::from(1 << n)).min(1.0)
    }

    const SAMPLE: [f64; 10] = [0.3, -0.1, 0.5, 0.2, -0.25, 0.7, 0.15, 0.05, 0.4, -0.02];

    #[test]
    fn p_is_that_of_flipping_every_sign() {
        for n in 2..=10 {
            for sign in [1.0, -1.0] {
                let sample: Vec<f64> = SAMPLE[..n].iter().map(|d| d * sign).collect();
                assert_eq!(judge(&sample, 0.05).p, flips(&sample), "{sample:?}");
            }
        }
    }

    #[test]
    fn interval_holds_exactly_what_the_test_does_not_reject() {
        let found = judge(&SAMPLE, 0.05);
        for (shift, inside) in
            [(found.low, true), (found.high, true), (found.low, false), (found.high, false)]
        {
            let outwards = (shift - found.centre).signum() * 1e-6;
            let null = if inside { shift - outwards } else { shift + outwards };
            let moved: Vec<f64> = SAMPLE.iter().map(|d| d - null).collect();
            assert_eq!(flips(&moved) > 0.05, inside, "at {null}: p = {}", flips(&moved));
        }
    }

    #[test]
    fn random_subsets_agree_with_all_subsets() {
        // 17 blocks are drawn at random; a block of zeros more than 16 changes the exact p little.
        let sixteen: Vec<f64> = (0..16).map(|i| SAMPLE[i % 10] - 0.08 + 0.01 * i as f64).collect();
        let exact = judge(&sixteen, 0.05);
        let mut seventeen = sixteen.clone();
        seventeen.push(0.0);
        let random = judge(&seventeen, 0.05);
        assert!((random.p - exact.p).abs() < 0.15 * exact.p + 0.002, "{random:?} {exact:?}");
    }

    #[test]
    fn p_of_random_patterns_is_never_zero() {
        let found = judge(&[1.0; 60], 0.05);
        assert_eq!(found.p, 2.0 / RANDOM_AT_LEAST as f64);
    }
}
