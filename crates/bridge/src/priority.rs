//! The priority of the thread that follows the bridge.
//!
//! `SCHED_FIFO` 1, the least of the real-time priorities: it runs before every ordinary program,
//! however many wait, and after whatever somebody gave a real-time priority on purpose, such as
//! threads of interrupts (50). While it works it keeps ordinary programs, ksoftirqd among them, from
//! its CPU. Stations that nobody knows make it work for as long as they come, so it has the
//! priority only within a [`Budget`], and is an ordinary thread beyond it. The threads of several
//! bridges share what one would have.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bpf::thread::{Policy, set_own_policy};

use crate::worker::cpu_time;

/// The threads of this process that have a budget. Relaxed: a number that stands for itself.
static THREADS: AtomicU32 = AtomicU32::new(0);

/// The part of the time that they may take at the priority in the long run: one in so many.
const SHARE: u32 = 10;
/// How much of that may come at once: about a look at 1,000 ports.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The calling thread's priority; it begins as an ordinary one.
#[derive(Debug)]
pub(crate) struct Priority {
    budget: Budget,
    raised: bool,
    /// It may have none, which has been said.
    refused: bool,
}

impl Priority {
    pub(crate) fn new() -> Priority {
        THREADS.fetch_add(1, Relaxed);
        Priority { budget: Budget::new(Instant::now(), cpu_time()), raised: false, refused: false }
    }

    /// Raises it, or takes it back, as the time allows that the thread has taken. To be called by
    /// the thread, between one piece of work and the next.
    pub(crate) fn review(&mut self) {
        let among = THREADS.load(Relaxed).max(1);
        let raise = self.budget.allows(among, Instant::now(), cpu_time(), self.raised);
        if self.refused || raise == self.raised {
            return;
        }
        // The least of the real-time priorities.
        let policy = if raise { Policy::Realtime(1) } else { Policy::Ordinary };
        match set_own_policy(policy) {
            Ok(()) => self.raised = raise,
            Err(error) => {
                self.refused = true;
                tracing::warn!(
                    "no real-time priority ({error}; it takes CAP_SYS_NICE): while all CPUs are \
                     busy, changes of the bridge and its ports take effect late"
                );
            }
        }
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Relaxed);
    }
}

/// What the thread may take at the priority: grows with time, shrinks by what it takes.
#[derive(Debug)]
struct Budget {
    /// In nanoseconds. Less than nothing: it has taken more than it had.
    left: i64,
    at: Instant,
    used: Duration,
}

impl Budget {
    fn new(now: Instant, used: Duration) -> Budget {
        Budget { left: nanos(AT_ONCE), at: now, used }
    }

    /// Whether the thread, one of `among`, may have the priority now; `used` is the CPU time that it
    /// has ever taken. Once it is lost it comes back when half of the budget is there again.
    fn allows(&mut self, among: u32, now: Instant, used: Duration, raised: bool) -> bool {
        let at_once = nanos(AT_ONCE / among);
        let more = nanos(now.saturating_duration_since(self.at) / SHARE / among);
        // The budget pays for the time at the priority alone.
        let less = if raised { nanos(used.saturating_sub(self.used)) } else { 0 };
        self.left = self.left.saturating_add(more).min(at_once).saturating_sub(less);
        (self.at, self.used) = (now, used);
        self.left > if raised { 0 } else { at_once / 2 }
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_works_all_the_time_has_the_priority_for_a_tenth_of_it() {
        let (start, step) = (Instant::now(), Duration::from_millis(10));
        let mut budget = Budget::new(start, Duration::ZERO);
        let (mut now, mut used, mut raised, mut at_it) = (start, Duration::ZERO, true, 0);
        for turn in 0..1000 {
            (now, used) = (now + step, used + step);
            raised = budget.allows(1, now, used, raised);
            at_it += u32::from(raised);
            // All that it may have at once, and then none for a good while.
            assert!(turn >= 100 || raised == (turn < at_it), "turn {turn}, {at_it} at it");
        }
        assert!((100..=150).contains(&at_it), "{at_it} of 1000 steps");
    }

    #[test]
    fn ten_threads_have_no_more_than_one_whatever_they_take_at_once() {
        let (start, turn) = (Instant::now(), Duration::from_millis(10));
        // How much it has at the priority in 100 s where it works for so long each time.
        let taken = |among: u32, piece: Duration| -> Duration {
            let mut budget = Budget::new(start, Duration::ZERO);
            let (mut now, mut used, mut raised) = (Duration::ZERO, Duration::ZERO, true);
            while now < Duration::from_secs(100) {
                now += if raised { piece } else { turn };
                used += if raised { piece } else { Duration::ZERO };
                raised = budget.allows(among, start + now, used, raised);
            }
            used
        };
        for (among, piece) in [(1, 10), (1, 300), (10, 10), (10, 300)] {
            let all = taken(among, Duration::from_millis(piece)) * among;
            // A tenth of 100 s, and what each may overdraw, and has, at the start.
            let most = Duration::from_secs(10) + AT_ONCE + among * Duration::from_millis(piece);
            assert!(all <= most, "{all:?} by {among} that take {piece} ms at once");
            assert!(
                all >= Duration::from_secs(8),
                "{all:?} by {among} that take {piece} ms at once"
            );
        }
    }

    #[test]
    fn who_works_less_than_its_share_keeps_the_priority() {
        let start = Instant::now();
        let mut budget = Budget::new(start, Duration::ZERO);
        for turn in 1..10_000 {
            let (now, used) = (Duration::from_millis(turn), Duration::from_micros(90 * turn));
            assert!(budget.allows(1, start + now, used, true), "turn {turn}");
        }
    }
}
