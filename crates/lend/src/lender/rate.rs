//! So many a second, and not all at once.

use std::time::{Duration, Instant};

/// A token bucket: holds what may be done now, and fills at a rate.
#[derive(Debug)]
pub(super) struct Rate {
    /// How long one takes to come.
    each: Duration,
    /// How long it takes to fill from empty.
    full: Duration,
    /// When it was empty, or would have been: what has come since is in it.
    empty_at: Instant,
}

impl Rate {
    /// At most `per_second`, and at most `burst` of them at once; full at first.
    pub(super) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let each = Duration::from_secs(1) / per_second;
        let full = each * burst;
        Self { each, full, empty_at: now.checked_sub(full).unwrap_or(now) }
    }

    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.wait(now).is_some() {
            return false;
        }
        // No more than fits.
        let oldest = now.checked_sub(self.full).unwrap_or(self.empty_at);
        self.empty_at = self.empty_at.max(oldest) + self.each;
        true
    }

    /// Whether nothing was taken of late.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        now.duration_since(self.empty_at) >= self.full
    }

    /// How long until there is one; none if there is one now.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let next = self.empty_at + self.each;
        next.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_a_burst_and_then_at_its_rate() {
        let start = Instant::now();
        let mut rate = Rate::new(10, 3, start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!([(); 4].map(|()| rate.take(at(0))), [true, true, true, false]);
        assert_eq!(rate.wait(at(40)), Some(Duration::from_millis(60)));
        assert!(!rate.take(at(99)));
        assert!(rate.take(at(100)) && !rate.take(at(100)));
        // Not more than the burst, however long nobody came.
        assert_eq!([(); 4].map(|()| rate.take(at(60_000))), [true, true, true, false]);
        assert_eq!(rate.wait(at(60_100)), None);
    }
}
