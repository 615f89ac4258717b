//! For how long the packet path trusts what the process has told it.
//!
//! The packet path forwards by what the process has read of the host. A process that is stopped,
//! frozen or starved of its CPU reads nothing more, so each completed look is good for a time
//! alone, the lease; past it, all is left to the kernel path until the next look is complete.
//!
//! The lease is a second. Where a look takes so long that a healthy process might lose the lease
//! meanwhile, it is three times as long as the longest look, but never more than [`MOST`]: where
//! that is not enough, the fast path stays off, and says so.

use std::time::Duration;

/// However fast a look is: a busy machine may keep the process waiting for a few ticks.
const LEAST: Duration = Duration::from_secs(1);
/// The longest that the packet path goes by what may be out of date.
const MOST: Duration = Duration::from_secs(2);
/// A lease lasts for so many looks.
const LOOKS: u32 = 3;

/// How often the process renews it, at least, while it has nothing else to do.
pub(crate) const RENEWAL: Duration = Duration::from_millis(250);

/// For how long the packet path goes by a look of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The longest look of late: the longest time from one renewal to the next that the process
    /// was at work.
    pub longest_look: Duration,
    /// How long the packet path goes by a look. None: looks take too long.
    pub length: Option<Duration>,
}

impl Lease {
    /// The lease for looks of this length.
    pub fn of(longest_look: Duration) -> Lease {
        let length = longest_look.saturating_mul(LOOKS).max(LEAST);
        Lease { longest_look, length: (length <= MOST).then_some(length) }
    }
}

/// The longest look of late: since the last look at everything but one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Longest {
    now: Duration,
    before: Duration,
}

impl Longest {
    /// A look has taken so long.
    pub(crate) fn add(&mut self, look: Duration) {
        self.now = self.now.max(look);
    }

    /// Everything has been looked at: what was before the last time that it was is forgotten.
    pub(crate) fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    pub(crate) fn lease(self) -> Lease {
        Lease::of(self.now.max(self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_three_looks_but_a_second_at_least_and_two_at_most() {
        let length = |millis| Lease::of(Duration::from_millis(millis)).length;
        assert_eq!(length(0), Some(LEAST));
        assert_eq!(length(333), Some(LEAST));
        assert_eq!(length(500), Some(Duration::from_millis(1500)));
        assert_eq!(length(666), Some(Duration::from_millis(1998)));
        assert_eq!(length(667), None);
        assert_eq!(Lease::of(Duration::MAX).length, None);
    }

    #[test]
    fn a_long_look_is_forgotten_after_two_looks_at_everything() {
        let mut longest = Longest::default();
        longest.add(Duration::from_secs(1));
        longest.add(Duration::from_millis(1));
        assert_eq!(longest.lease().length, None);
        longest.turn();
        assert_eq!(longest.lease().length, None);
        longest.turn();
        assert_eq!(longest.lease(), Lease::of(Duration::ZERO));
    }
}
