//! When a worker looks at connections that may have work without an event.
//!
//! A look that finds nothing makes the next one come later, so that what stands still costs next to
//! nothing: from a look every [`POLL`](super::POLL) to one every [`LONGEST`] of them, each wait about
//! a quarter of what the connection has stood still for. Looks fall on multiples of `POLL`, so that a
//! worker wakes up once for all that are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::POLL;

/// The longest wait between two looks, in multiples of `POLL`: 64 ms.
const LONGEST: u64 = 128;

/// Looks in vain before the wait doubles.
const SAME: u32 = 4;

/// A connection's next look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// When it is due, if at all.
    at: Option<u64>,
    /// Looks since something moved.
    vain: u32,
}

/// Looks that are due at some time, by when.
#[derive(Debug, Default)]
pub(super) struct Looks {
    heap: BinaryHeap<Reverse<(u64, usize, u32)>>,
}

/// How long it is until the multiple `at` of `POLL`, where `passed` is the time since the first.
pub(super) fn left(at: u64, passed: Duration) -> Duration {
    let at = Duration::from_nanos(at.saturating_mul(POLL.as_nanos() as u64));
    at.saturating_sub(passed)
}

impl Look {
    /// Something has moved.
    pub(super) fn moved(&mut self) {
        self.vain = 0;
    }

    /// It is looked at.
    pub(super) fn taken(&mut self) {
        self.at = None;
        self.vain = self.vain.saturating_add(1);
    }

    /// Whether this is the look that was asked for last, for the time `at`.
    pub(super) fn is_due(self, at: u64) -> bool {
        self.at == Some(at)
    }

    /// How long the next look may wait.
    pub(super) fn wait(self) -> u64 {
        1u64.checked_shl(self.vain / SAME).map_or(LONGEST, |wait| wait.min(LONGEST))
    }
}

impl Looks {
    /// Asks for a look, not later than `at`, at the connection `key` with `generation`.
    pub(super) fn ask(&mut self, look: &mut Look, at: u64, key: usize, generation: u32) {
        if look.at.is_none_or(|asked| at < asked) {
            look.at = Some(at);
            self.heap.push(Reverse((at, key, generation)));
        }
    }

    /// The next connection that may be due at `now`: if its look [`is_due`](Look::is_due).
    pub(super) fn due(&mut self, now: u64) -> Option<(u64, usize, u32)> {
        let &Reverse((at, ..)) = self.heap.peek()?;
        (at <= now).then(|| self.heap.pop()).flatten().map(|Reverse(due)| due)
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|&Reverse((at, ..))| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Duration` multiplies by 32 bits, which are used up after 25 days: workers then span.
    #[test]
    fn a_worker_of_any_age_sleeps_until_the_next_look() {
        for days in [0, 30, 3650] {
            let age = Duration::from_secs(days * 24 * 3600);
            let now = (age.as_nanos() / POLL.as_nanos()) as u64;
            assert_eq!(left(now + 3, age), 3 * POLL, "{days} days");
            assert_eq!(left(now, age + POLL), Duration::ZERO, "{days} days");
        }
    }

    fn ask(looks: &mut Looks, look: &mut Look, now: u64) {
        let at = now + look.wait();
        looks.ask(look, at, 7, 1);
    }

    /// The times at which a connection is looked at in which nothing moves.
    fn looks_in_vain(until: u64) -> Vec<u64> {
        let (mut looks, mut look, mut times) = (Looks::default(), Look::default(), Vec::new());
        ask(&mut looks, &mut look, 0);
        while let Some((at, key, generation)) = looks.due(until) {
            assert_eq!((key, generation), (7, 1));
            assert!(look.is_due(at));
            look.taken();
            times.push(at);
            ask(&mut looks, &mut look, at);
        }
        times
    }

    #[test]
    fn looks_in_vain_become_rare() {
        let times = looks_in_vain(100_000);
        assert_eq!(times[..4], [1, 2, 3, 4]);
        for (before, after) in times.iter().zip(&times[1..]) {
            let wait = after - before;
            assert!(wait <= LONGEST && wait <= 1 + after / 3, "{wait} after {before}");
        }
        assert!(times.len() < 900, "{}", times.len());
    }

    #[test]
    fn a_move_brings_the_next_look_forward() {
        let (mut looks, mut look) = (Looks::default(), Look::default());
        for _ in 0..100 {
            look.taken();
        }
        ask(&mut looks, &mut look, 0);
        assert_eq!(looks.next(), Some(LONGEST));
        look.moved();
        ask(&mut looks, &mut look, 0);
        assert_eq!(looks.next(), Some(1));
        let due = looks.due(LONGEST).unwrap();
        assert!(look.is_due(due.0));
        look.taken();
        // The earlier one is void.
        let void = looks.due(LONGEST).unwrap();
        assert!(!look.is_due(void.0));
    }
}
