//! The auto engine's choice for a bulk flow: it moves a span of bytes by copy and one by splice,
//! takes note of the CPU time that each cost this worker, and goes on with the cheaper one; from
//! time to time it tries the other again. Which one is cheaper depends on what the sender makes:
//! large writes come in large pages, which a pipe moves at little cost; small ones do not.
//!
//! `cachelane bench relay --only engines` shows both beside auto.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Bytes that a way is tried with: some milliseconds' worth.
const TRY: u64 = 16 << 20;
/// Bytes moved by the better way before the other is tried again.
const KEEP: u64 = 1 << 30;

/// A way to move bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Copy = 0,
    Splice = 1,
}

/// What is known of the two ways, for one flow.
#[derive(Debug)]
pub(super) struct Auto {
    /// Nanoseconds a byte, as last measured.
    cost: [Option<f64>; 2],
    way: Way,
    /// Bytes left of the present span, and what it has moved and cost so far.
    left: u64,
    moved: u64,
    spent: Duration,
}

impl Auto {
    pub(super) fn new() -> Auto {
        Auto { cost: [None; 2], way: Way::Splice, left: TRY, moved: 0, spent: Duration::ZERO }
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// A turn has moved so many bytes for so much of this thread's CPU time.
    pub(super) fn note(&mut self, bytes: u64, spent: Duration) {
        self.moved += bytes;
        self.spent += spent;
        self.left = self.left.saturating_sub(bytes);
        if self.left > 0 {
            return;
        }
        self.cost[self.way as usize] = Some(self.spent.as_nanos() as f64 / self.moved as f64);
        let tried = self.way;
        (self.way, self.left) = match self.cost {
            [None, _] => (Way::Copy, TRY),
            [_, None] => (Way::Splice, TRY),
            [Some(copy), Some(splice)] => {
                let better = if copy < splice { Way::Copy } else { Way::Splice };
                // After a long span of the better way, the other one has its turn.
                if tried == better && self.moved >= KEEP {
                    (other(better), TRY)
                } else {
                    (better, KEEP)
                }
            }
        };
        (self.moved, self.spent) = (0, Duration::ZERO);
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
            auto.note(turn, Duration::from_nanos((turn as f64 * costs[way]) as u64));
        }
        by_way
    }

    #[test]
    fn the_cheaper_way_moves_nearly_all() {
        for (costs, cheap) in [([0.3, 0.1], Way::Splice), ([0.1, 0.3], Way::Copy)] {
            let total = 20 << 30;
            let moved = play(&mut Auto::new(), total, costs);
            assert!(moved[cheap as usize] > total / 100 * 97, "{costs:?}: {moved:?}");
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
