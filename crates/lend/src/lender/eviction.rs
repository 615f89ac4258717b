//! Borrowers that have their quota and return nothing: after a time they are evicted, and others get
//! their flows.
//!
//! Packets for such a borrower are dropped, and nobody else gets them. The control thread looks now and
//! then at what the distributors have counted, which costs those nothing. The time begins with the first
//! look that finds packets dropped, and nothing returned, since the look before, from a borrower that has
//! something to return. It ends a borrower only if packets were dropped once more: a distributor that waits
//! for a CPU drops none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::{ControlThread, SlotState};
use super::status::ChannelTally;
use crate::layout::Ending;

/// Looks until the time is over.
const LOOKS: u32 = 8;

#[derive(Debug)]
pub(super) struct Evictions {
    after: Option<Duration>,
    looked: Instant,
}

/// What was seen of one of a borrower's channels.
#[derive(Debug)]
pub(super) struct Watched {
    tally: Arc<ChannelTally>,
    returned: u64,
    dropped: u64,
    /// Since packets were dropped without anything being returned.
    stuck: Option<Duration>,
}

impl Evictions {
    pub(super) fn new(after: Option<Duration>) -> Self {
        Self { after, looked: Instant::now() }
    }
}

impl Watched {
    pub(super) fn new(tally: &Arc<ChannelTally>) -> Self {
        Self { tally: Arc::clone(tally), returned: 0, dropped: 0, stuck: None }
    }

    /// Whether it is to be evicted, when so much time has passed since the last look.
    fn is_over(&mut self, passed: Duration, after: Duration) -> bool {
        let (returned, dropped) = (self.tally.returned.get(), self.tally.dropped.get());
        let is_stuck_still = returned == self.returned;
        let drops = dropped != self.dropped;
        (self.returned, self.dropped) = (returned, dropped);
        self.stuck = match self.stuck.filter(|_| is_stuck_still) {
            Some(stuck) => Some(stuck + passed),
            // Who has nothing drops what is too large for it.
            None => (is_stuck_still && drops && self.tally.out.get() > 0).then_some(Duration::ZERO),
        };
        drops && self.stuck.is_some_and(|stuck| stuck >= after)
    }
}

impl ControlThread {
    /// How long until the next look, if anybody is to be looked at.
    pub(super) fn next_eviction(&self, now: Instant) -> Option<Duration> {
        let every = self.evictions.after? / LOOKS;
        let is_watched = self.slots.values().any(
            |slot| matches!(&slot.state, SlotState::Joined { watched, .. } if !watched.is_empty()),
        );
        is_watched.then(|| every.saturating_sub(now.duration_since(self.evictions.looked)))
    }

    /// Evicts those whose time is over, if it is time to look.
    pub(super) fn look_for_stuck(&mut self) {
        let now = Instant::now();
        let (Some(after), Some(Duration::ZERO)) = (self.evictions.after, self.next_eviction(now))
        else {
            return;
        };
        // While this thread was without a CPU, the others may have been too.
        let passed = now.duration_since(self.evictions.looked).min(after / LOOKS * 2);
        self.evictions.looked = now;
        let mut over = Vec::new();
        for (number, slot) in &mut self.slots {
            if let SlotState::Joined { watched, .. } = &mut slot.state {
                // All of them: each remembers what it has seen.
                if watched.iter_mut().fold(false, |is, one| one.is_over(passed, after) | is) {
                    over.push(*number);
                }
            }
        }
        for slot in over {
            self.part(slot, Ending::Evicted, |counts| &counts.evicted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(8);
    const LOOK: Duration = Duration::from_secs(1);

    fn one_with_its_quota() -> (Arc<ChannelTally>, Watched) {
        let tally: Arc<ChannelTally> = Arc::default();
        tally.out.set(1);
        let watched = Watched::new(&tally);
        (tally, watched)
    }

    #[test]
    fn who_has_nothing_to_return_stays_however_much_is_too_large_for_it() {
        let (tally, mut watched) = one_with_its_quota();
        tally.out.set(0);
        for look in 0..1000 {
            tally.dropped.add(1);
            assert!(!watched.is_over(LOOK, AFTER), "look {look}");
        }
    }

    #[test]
    fn who_returns_nothing_while_packets_are_dropped_is_evicted_when_the_time_is_over() {
        let (tally, mut watched) = one_with_its_quota();
        for look in 0..9 {
            tally.dropped.add(1);
            assert_eq!(watched.is_over(LOOK, AFTER), look == 8, "look {look}");
        }
    }

    #[test]
    fn who_returns_something_now_and_then_stays_and_so_does_who_misses_nothing() {
        let (tally, mut watched) = one_with_its_quota();
        for look in 0..1000 {
            tally.dropped.add(100);
            tally.returned.add(u64::from(look % 8 == 0));
            assert!(!watched.is_over(LOOK, AFTER), "look {look}");
        }
        // It has all its quota, and nothing comes.
        for _ in 0..1000 {
            assert!(!watched.is_over(LOOK, AFTER));
        }
        // What comes then makes the time that it had over.
        tally.dropped.add(1);
        assert!(watched.is_over(LOOK, AFTER));
    }

    #[test]
    fn what_comes_seldom_counts_from_the_first_that_was_dropped() {
        let (tally, mut watched) = one_with_its_quota();
        for look in 0..9 {
            tally.dropped.add(u64::from(look % 4 == 0));
            assert_eq!(watched.is_over(LOOK, AFTER), look == 8, "look {look}");
        }
    }
}
