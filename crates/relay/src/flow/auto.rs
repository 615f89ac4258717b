//! The auto engine's choice for a bulk flow: it moves some spans of bytes by splice and some by copy,
//! takes note of what each cost, and goes on with the better one. From time to time it tries both
//! again.
//!
//! The better one is not the one that costs the worker less. What is spliced is in the cache of the
//! sender's CPU, or in none, when the receiver reads it; what was copied is in the worker's. So a part
//! of what a splice saves the worker is paid by the receiver. The worker sees that only where the
//! receiver, or the CPUs that all of them share, are what the stream waits for: the stream is slower
//! then, by about as much as the whole machine pays more. So the stream's pace decides; where it is
//! the same, since a network or a slow peer sets it, splice has to save the worker a fifth of its time
//! ([`WORTH`]): at that, both cost the whole machine the same.
//! `cachelane bench relay --only engines,busy` compares auto with the better engine.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::repeated::say;

/// Bytes at the start of a span that do not count: what the other way left in the queues up to the
/// receiver, which are as long as its receive buffer may become (`net.ipv4.tcp_rmem`).
const SETTLE: u64 = 8 << 20;
/// Bytes after them that do: some milliseconds' worth.
const TRY: u64 = 16 << 20;
/// How often both are tried, by turns. The least of the worker's time that each cost counts: other
/// programs, which take the cache away between two turns, only ever add to it. Of the stream's time it
/// is the middle one: what was queued before the receiver had its turn makes some tries look fast.
const TRIES: usize = 5;
/// Bytes moved by the better way before both are tried again: the worse one moves about 3 %.
const KEEP: u64 = 4 << 30;
/// Splice is worth it if it takes less than this share of the worker's time for copying, and the
/// stream is as fast.
const WORTH: f64 = 0.8;
/// How much more the stream's time weighs, as a power: one twelfth of it outweighs a fifth of the
/// worker's.
const WEIGHT: i32 = 3;

/// A way to move bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Copy = 0,
    Splice = 1,
}

/// What is known of the two ways, for one flow.
#[derive(Debug)]
pub(super) struct Auto {
    costs: [Vec<Cost>; 2],
    way: Way,
    /// Tries to come, the present one included; none while the better way is kept.
    tries: usize,
    /// Bytes left of the present span.
    left: u64,
    counted: Option<Counted>,
}

/// What a try cost, nanoseconds a byte.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// CPU time of this worker.
    worker: f64,
    /// Time that passed.
    stream: f64,
}

/// The part of a span that counts.
#[derive(Debug)]
struct Counted {
    since: Instant,
    bytes: u64,
    spent: Duration,
}

impl Auto {
    /// Begins with splice, which is mostly the better one.
    pub(super) fn new() -> Auto {
        Auto::starting(Way::Splice)
    }

    fn starting(way: Way) -> Auto {
        let costs = [(); 2].map(|()| Vec::with_capacity(TRIES));
        Auto { costs, way, tries: 2 * TRIES, left: SETTLE + TRY, counted: None }
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Whether the time that turns take is of interest now.
    pub(super) fn measures(&self) -> bool {
        self.tries > 0
    }

    /// A turn that ended at `now` has moved so many bytes, for so much of this thread's CPU time if
    /// that was measured.
    pub(super) fn note(&mut self, bytes: u64, spent: Duration, now: impl FnOnce() -> Instant) {
        self.left = self.left.saturating_sub(bytes);
        if self.tries == 0 {
            if self.left == 0 {
                *self = Auto::starting(self.way);
            }
            return;
        }
        let Some(counted) = &mut self.counted else {
            if self.left <= TRY {
                self.counted = Some(Counted { since: now(), bytes: 0, spent: Duration::ZERO });
            }
            return;
        };
        counted.bytes += bytes;
        counted.spent += spent;
        if self.left == 0 {
            self.end_try(now());
        }
    }

    fn end_try(&mut self, now: Instant) {
        let Some(Counted { since, bytes, spent }) = self.counted.take() else { return };
        let a_byte = |time: Duration| time.as_nanos() as f64 / bytes as f64;
        let stream = a_byte(now.saturating_duration_since(since));
        self.costs[self.way as usize].push(Cost { worker: a_byte(spent), stream });
        self.tries -= 1;
        (self.way, self.left) = match self.tries {
            0 => (self.better(), KEEP),
            _ => (other(self.way), SETTLE + TRY),
        };
    }

    fn better(&self) -> Way {
        let least =
            |costs: &Vec<Cost>| costs.iter().map(|cost| cost.worker).fold(f64::INFINITY, f64::min);
        let middle = |costs: &Vec<Cost>| {
            let mut streams: Vec<f64> = costs.iter().map(|cost| cost.stream).collect();
            streams.sort_by(f64::total_cmp);
            streams.get(streams.len() / 2).copied().unwrap_or(f64::INFINITY)
        };
        let [copy, splice] = &self.costs;
        let (worker, stream) = (least(splice) / least(copy), middle(splice) / middle(copy));
        let is_worth_it = worker * stream.powi(WEIGHT) < WORTH;
        let way = if is_worth_it { Way::Splice } else { Way::Copy };
        say!(
            DEBUG,
            "bulk goes by {way:?}: splice takes {worker:.2} of the worker's time for copying, \
             {stream:.2} of the stream's"
        );
        way
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

    /// Nanoseconds a byte.
    #[derive(Clone, Copy)]
    struct Costs {
        worker: [f64; 2],
        stream: [f64; 2],
    }

    struct Play {
        auto: Auto,
        now: Instant,
    }

    impl Play {
        fn new() -> Play {
            Play { auto: Auto::new(), now: Instant::now() }
        }

        /// Moves `total` bytes with ways that cost so much; the bytes by way.
        fn moves(&mut self, total: u64, costs: Costs) -> [u64; 2] {
            let mut by_way = [0; 2];
            let turn = 1 << 20;
            let time = |a_byte: f64| Duration::from_nanos((turn as f64 * a_byte) as u64);
            let Play { auto, now } = self;
            for _ in 0..total / turn {
                let way = auto.way() as usize;
                by_way[way] += turn;
                *now += time(costs.stream[way]);
                let spent = if auto.measures() { time(costs.worker[way]) } else { Duration::ZERO };
                auto.note(turn, spent, || *now);
            }
            by_way
        }
    }

    #[test]
    fn the_better_way_moves_nearly_all() {
        let (copy, splice) = (Way::Copy, Way::Splice);
        for (worker, stream, better) in [
            // The stream is as fast: the receiver pays for a part of what a splice saves the worker.
            ([0.3, 0.1], [0.5, 0.5], splice),
            ([0.1, 0.3], [0.5, 0.5], copy),
            ([0.3, 0.27], [0.5, 0.5], copy),
            ([0.3, 0.2], [0.5, 0.5], splice),
            // The receiver pays for more than that, or the stream gains from it.
            ([0.3, 0.2], [0.4, 0.5], copy),
            ([0.3, 0.27], [0.5, 0.4], splice),
        ] {
            let total = 20 << 30;
            let moved = Play::new().moves(total, Costs { worker, stream });
            assert!(moved[better as usize] > total / 100 * 96, "{worker:?}, {stream:?}: {moved:?}");
        }
    }

    #[test]
    fn a_flow_that_changes_is_followed() {
        let stream = [0.5, 0.5];
        let [spliced, copied] = [[0.3, 0.1], [0.1, 0.3]].map(|worker| Costs { worker, stream });
        let mut play = Play::new();
        play.moves(5 << 30, spliced);
        play.moves(5 << 30, copied);
        let moved = play.moves(10 << 30, copied);
        assert!(moved[Way::Copy as usize] > moved[Way::Splice as usize] * 20, "{moved:?}");
    }

    /// What the last way left on its way to the receiver says nothing of this one.
    #[test]
    fn the_start_of_a_span_does_not_count() {
        let mut play = Play::new();
        play.moves(SETTLE, Costs { worker: [9.0; 2], stream: [9.0; 2] });
        play.moves(TRY, Costs { worker: [0.5; 2], stream: [0.5; 2] });
        let cost = play.auto.costs[Way::Splice as usize][0];
        assert!((cost.worker - 0.5).abs() < 1e-6 && (cost.stream - 0.5).abs() < 1e-6, "{cost:?}");
    }
}
