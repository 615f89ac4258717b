//! The auto engine's choice for a bulk flow: it moves some spans of bytes by splice and some by copy,
//! takes note of the CPU time that each cost this worker, and goes on with the better one. From time
//! to time it tries both again.
//!
//! The better one is not the one that costs the worker less. What is spliced is in the cache of the
//! sender's CPU, or in none, when the receiver reads it; what was copied is in the worker's. So a part
//! of what a splice saves the worker is paid by the receiver, which the worker cannot see. Where
//! splice took four fifths of the worker's time for copying, both cost the whole machine the same, for
//! writes of 64 bytes to 1 MiB, paced and unpaced: that is [`WORTH`].
//! `cachelane bench relay --only engines,busy` compares auto with the better engine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Bytes that a way is tried with at a time: some hundred microseconds' worth.
const TRY: u64 = 2 << 20;
/// How often both are tried, by turns. The least that each cost counts: other programs, which take
/// the cache away between two turns, only ever add to it.
const TRIES: u32 = 4;
/// Bytes moved by the better way before both are tried again: the worse one moves less than 1 %.
const KEEP: u64 = 1 << 30;
/// Splice is worth it if it takes less than this share of the worker's time for copying.
const WORTH: f64 = 0.8;

/// A way to move bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Copy = 0,
    Splice = 1,
}

/// What is known of the two ways, for one flow.
#[derive(Debug)]
pub(super) struct Auto {
    /// The least nanoseconds of this worker's time a byte, of the present tries.
    cost: [f64; 2],
    way: Way,
    /// Tries to come, the present one included; none while the better way is kept.
    tries: u32,
    /// Bytes left of the present span, and what it has moved and cost so far.
    left: u64,
    moved: u64,
    spent: Duration,
}

impl Auto {
    /// Begins with splice, which is mostly the better one.
    pub(super) fn new() -> Auto {
        let (way, tries, left) = (Way::Splice, 2 * TRIES, TRY);
        Auto { cost: [f64::INFINITY; 2], way, tries, left, moved: 0, spent: Duration::ZERO }
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Whether the time that turns take is of interest now.
    pub(super) fn measures(&self) -> bool {
        self.tries > 0
    }

    /// A turn has moved so many bytes, for so much of this thread's CPU time if that was measured.
    pub(super) fn note(&mut self, bytes: u64, spent: Duration) {
        self.moved += bytes;
        self.spent += spent;
        self.left = self.left.saturating_sub(bytes);
        if self.left > 0 {
            return;
        }
        match self.tries {
            0 => *self = Auto { way: self.way, ..Auto::new() },
            tries => {
                let cost = &mut self.cost[self.way as usize];
                *cost = cost.min(self.spent.as_nanos() as f64 / self.moved as f64);
                self.tries = tries - 1;
                (self.way, self.left) = match self.tries {
                    0 => (self.better(), KEEP),
                    _ => (other(self.way), TRY),
                };
                (self.moved, self.spent) = (0, Duration::ZERO);
            }
        }
    }

    fn better(&self) -> Way {
        let [copy, splice] = self.cost;
        if splice < copy * WORTH { Way::Splice } else { Way::Copy }
    }
}

fn other(way: Way) -> Way {
    match way {
        Way::Copy => Way::Splice,
        Way::Splice => Way::Copy,
    }
}

pub(super) fn thread_time() -> Duration {
    // The clock counts up from 0: neither part is negative.
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves `total` bytes with ways that cost so many nanoseconds a byte; the bytes by way.
    fn play(auto: &mut Auto, total: u64, costs: [f64; 2]) -> [u64; 2] {
        let mut by_way = [0; 2];
        let turn = 1 << 20;
        for _ in 0..total / turn {
            let way = auto.way() as usize;
            by_way[way] += turn;
            let spent = if auto.measures() { turn as f64 * costs[way] } else { 0.0 };
            auto.note(turn, Duration::from_nanos(spent as u64));
        }
        by_way
    }

    #[test]
    fn the_better_way_moves_all_but_a_hundredth() {
        let (copy, splice) = (Way::Copy, Way::Splice);
        // The receiver pays for a part of what a splice saves the worker.
        for (costs, better) in
            [([0.3, 0.1], splice), ([0.1, 0.3], copy), ([0.3, 0.27], copy), ([0.3, 0.2], splice)]
        {
            let total = 20 << 30;
            let moved = play(&mut Auto::new(), total, costs);
            assert!(moved[better as usize] > total / 100 * 99, "{costs:?}: {moved:?}");
        }
    }

    #[test]
    fn a_flow_that_changes_is_followed() {
        let mut auto = Auto::new();
        play(&mut auto, 5 << 30, [0.3, 0.1]);
        play(&mut auto, 2 << 30, [0.1, 0.3]);
        let moved = play(&mut auto, 10 << 30, [0.1, 0.3]);
        assert!(moved[Way::Copy as usize] > moved[Way::Splice as usize] * 20, "{moved:?}");
    }
}
