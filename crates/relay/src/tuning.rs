//! Sizes that a bench sweeps. The relay chooses them itself; see [`Shares`].

use crate::socket::Shares;

/// What a relay uses in place of what it would choose; none leaves it the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// The most bytes that one call moves: a read, or what a pipe holds.
    pub step: Option<usize>,
    /// Bytes that wake the worker for a bulk flow.
    pub low_water: Option<usize>,
}

impl Tuning {
    pub(crate) fn applied_to(self, shares: Shares) -> Shares {
        let [chunk, pipe] = [shares.chunk, shares.pipe].map(|own| self.step.unwrap_or(own));
        let low_water = self.low_water.unwrap_or(shares.low_water);
        Shares { chunk, pipe, low_water, ..shares }
    }
}
