//! How many packets are due at a rate, and how late they were.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;

use super::times::Times;
use crate::packets::job::Report;

/// Says how many packets are due, so that in the long run so many a second are sent.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Packets a second; none means all that can be sent.
    rate: Option<f64>,
    /// When the first was due: when it was first asked.
    from: Option<Instant>,
    /// When the last ones were made.
    last: Option<Instant>,
    /// Packets that were due since `from`, and have been sent or skipped.
    sent: u64,
    /// Those that were skipped.
    skipped: u64,
    /// How late packets were.
    pub(super) lateness: Times,
}

/// How far a sender that was held up may catch up.
pub(super) const ARREARS: Duration = Duration::from_millis(10);

impl Pacer {
    /// A rate in packets a second; 0 means as fast as possible.
    pub(super) fn new(rate: f64) -> Pacer {
        let (rate, lateness) = ((rate > 0.0).then_some(rate), Times::default());
        Pacer { rate, from: None, last: None, sent: 0, skipped: 0, lateness }
    }

    /// How many packets are due, at most `most`.
    pub(super) fn due(&mut self, now: Instant, most: usize) -> usize {
        let Some(rate) = self.rate else { return most };
        let from = *self.from.get_or_insert(now);
        let due = due_after(now.saturating_duration_since(from), rate) - self.sent as f64;
        let limit = (rate * ARREARS.as_secs_f64()).max(most as f64);
        if due > limit {
            // What could not be sent in time is not made up for.
            let skipped = (due - limit) as u64;
            self.sent += skipped;
            self.skipped += skipped;
        }
        due.clamp(0.0, most as f64) as usize
    }

    /// So many have been made to be sent now.
    pub(super) fn sent(&mut self, packets: usize, now: Instant) {
        if let Some(at) = self.at(self.sent).filter(|_| packets > 0) {
            self.lateness.add(now.saturating_duration_since(at), packets);
            self.last = Some(now);
        }
        self.sent += packets as u64;
    }

    /// How long it is until `packets` are due.
    pub(super) fn wait(&self, now: Instant, packets: usize) -> Duration {
        let before = (self.sent + packets as u64).saturating_sub(1);
        self.at(before).map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// When the packet of this number is due.
    fn at(&self, number: u64) -> Option<Instant> {
        Some(self.from? + Duration::from_secs_f64(number as f64 / self.rate?))
    }

    /// What came of it by the time of the last packet.
    pub(super) fn end(&self, pacing: &Pacing) {
        let (Some(rate), Some(from), Some(last)) = (self.rate, self.from, self.last) else {
            return;
        };
        let due = due_after(last.saturating_duration_since(from), rate);
        let mut all = pacing.0.lock();
        let all = all.get_or_insert_with(Sum::default);
        all.rate += rate;
        all.due += due;
        all.sent += self.sent - self.skipped;
        all.skipped += self.skipped;
        all.lateness.join(&self.lateness);
    }
}

/// The first packet is due at once.
fn due_after(time: Duration, rate: f64) -> f64 {
    time.as_secs_f64() * rate + 1.0
}

/// How well all threads kept their rate.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacing(Arc<Mutex<Option<Sum>>>);

#[derive(Debug, Default)]
struct Sum {
    rate: f64,
    due: f64,
    sent: u64,
    skipped: u64,
    lateness: Times,
}

impl Pacing {
    /// Adds it to what came of a run that sent so many packets, if there was a rate.
    pub(super) fn add_to(&self, report: &mut Report) {
        let all = self.0.lock();
        let Some(Sum { rate, due, sent, skipped, lateness }) = &*all else { return };
        // Up to one packet of each thread may not be due yet.
        let error = (*sent as f64 - due.floor()) / due.floor().max(1.0) * 100.0;
        report.lines.push(format!(
            "rate: {rate} a second asked, {error:+.3} % off; late: {}; {skipped} not sent in time",
            lateness.text()
        ));
        report.fields["pacing"] = json!({
            "asked_pps": rate,
            "due": due.floor(),
            "sent": sent,
            "error_percent": error,
            "skipped": skipped,
            "late_us": lateness.object(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_at_the_rate_and_how_late_they_are_is_known() {
        let start = Instant::now();
        let mut pacer = Pacer::new(1000.0);
        let mut sent = 0;
        for step in 0..10_000_u32 {
            let now = start + Duration::from_micros(u64::from(step) * 300);
            let due = pacer.due(now, 64);
            pacer.sent(due, now);
            sent += due;
        }
        assert!((2999..=3001).contains(&sent), "{sent}");
        let worst = pacer.lateness.object()["max"].as_f64().expect("a number");
        assert!((200.0..303.0).contains(&worst), "{worst}");
        let pacing = Pacing::default();
        pacer.end(&pacing);
        let mut report = Report { fields: json!({}), ..Report::default() };
        pacing.add_to(&mut report);
        let error = report.fields["pacing"]["error_percent"].as_f64().expect("a number");
        assert!(error.abs() < 0.1, "{}", report.fields);
    }

    #[test]
    fn without_a_rate_everything_is_due() {
        let mut pacer = Pacer::new(0.0);
        assert_eq!(pacer.due(Instant::now(), 64), 64);
        assert_eq!(pacer.wait(Instant::now(), 64), Duration::ZERO);
    }

    #[test]
    fn a_sender_that_was_held_up_does_not_flood_and_says_what_it_skipped() {
        let start = Instant::now();
        let mut pacer = Pacer::new(100_000.0);
        assert_eq!(pacer.due(start, 64), 1);
        let late = start + Duration::from_secs(5);
        let mut burst = 0;
        loop {
            match pacer.due(late, 64) {
                0 => break,
                due => {
                    pacer.sent(due, late);
                    burst += due;
                }
            }
        }
        assert!((900..=1001).contains(&burst), "{burst}");
        assert!(pacer.wait(late, 100) <= Duration::from_micros(1_001));
        assert!(pacer.skipped.abs_diff(499_000) < 10, "{}", pacer.skipped);
    }
}
