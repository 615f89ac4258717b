//! How many packets are due at a rate.

use std::time::{Duration, Instant};

/// Says how many packets are due, so that in the long run so many a second are sent.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Packets a second; none means all that can be sent.
    rate: Option<f64>,
    from: Instant,
    /// Packets that were due since `from` and have been sent.
    sent: u64,
}

/// How far a sender that was held up may catch up.
const ARREARS: Duration = Duration::from_millis(10);

impl Pacer {
    /// A rate in packets a second; 0 means as fast as possible.
    pub(super) fn new(rate: f64, now: Instant) -> Pacer {
        Pacer { rate: (rate > 0.0).then_some(rate), from: now, sent: 0 }
    }

    /// How many packets are due, at most `most`.
    pub(super) fn due(&mut self, now: Instant, most: usize) -> usize {
        let Some(rate) = self.rate else { return most };
        let due = due_after(now.saturating_duration_since(self.from), rate) - self.sent as f64;
        let limit = (rate * ARREARS.as_secs_f64()).max(most as f64);
        if due > limit {
            // What could not be sent in time is not made up for.
            self.sent += (due - limit) as u64;
        }
        due.clamp(0.0, most as f64) as usize
    }

    /// So many have been sent.
    pub(super) fn sent(&mut self, packets: usize) {
        self.sent += packets as u64;
    }

    /// How long it is until `packets` are due.
    pub(super) fn wait(&self, now: Instant, packets: usize) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let before = (self.sent + packets as u64).saturating_sub(1);
        let at = self.from + Duration::from_secs_f64(before as f64 / rate);
        at.saturating_duration_since(now)
    }
}

/// The first packet is due at once.
fn due_after(time: Duration, rate: f64) -> f64 {
    time.as_secs_f64() * rate + 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_at_the_rate() {
        let start = Instant::now();
        let mut pacer = Pacer::new(1000.0, start);
        let mut sent = 0;
        for step in 0..10_000_u32 {
            let due = pacer.due(start + Duration::from_micros(u64::from(step) * 300), 64);
            pacer.sent(due);
            sent += due;
        }
        assert!((2999..=3001).contains(&sent), "{sent}");
    }

    #[test]
    fn without_a_rate_everything_is_due() {
        let mut pacer = Pacer::new(0.0, Instant::now());
        assert_eq!(pacer.due(Instant::now(), 64), 64);
        assert_eq!(pacer.wait(Instant::now(), 64), Duration::ZERO);
    }

    #[test]
    fn a_sender_that_was_held_up_does_not_flood() {
        let start = Instant::now();
        let mut pacer = Pacer::new(100_000.0, start);
        let late = start + Duration::from_secs(5);
        let mut burst = 0;
        loop {
            match pacer.due(late, 64) {
                0 => break,
                due => {
                    pacer.sent(due);
                    burst += due;
                }
            }
        }
        assert!((900..=1001).contains(&burst), "{burst}");
        assert!(pacer.wait(late, 100) <= Duration::from_micros(1_001));
    }
}
