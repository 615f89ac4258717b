//! What a look at the host has changed, for the log.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::decide::{Obstacle, Plan, PortPlan};

/// Lines about ports that may come at once, and one more in each so long a time: whoever is behind a
/// port can change it as often as he likes.
const AT_ONCE: u32 = 100;
const EVERY: Duration = Duration::from_millis(100);

/// What is said of ports, within limits.
#[derive(Debug)]
pub(super) struct Report {
    /// A line takes [`EVERY`] of what has passed since then.
    since: Instant,
    unsaid: u64,
}

impl Report {
    pub(super) fn new() -> Report {
        let now = Instant::now();
        Report { since: now.checked_sub(EVERY * AT_ONCE).unwrap_or(now), unsaid: 0 }
    }

    fn port(&mut self, line: &str) {
        match self.may_say() {
            None => {}
            Some(0) => tracing::info!("{line}"),
            Some(unsaid) => {
                tracing::info!("{line} ({unsaid} changes of ports before it were not logged)");
            }
        }
    }

    /// Whether there may be a line, and how many there were before it that might not be.
    fn may_say(&mut self) -> Option<u64> {
        let now = Instant::now();
        self.since = self.since.max(now.checked_sub(EVERY * AT_ONCE).unwrap_or(now));
        if now.saturating_duration_since(self.since) < EVERY {
            self.unsaid += 1;
            return None;
        }
        self.since += EVERY;
        Some(std::mem::take(&mut self.unsaid))
    }

    /// Logs what a look has changed.
    pub(super) fn changes(&mut self, before: &Plan, now: &Plan) {
        whole(before, now);
        let known: HashMap<u32, &PortPlan> =
            before.ports.iter().map(|old| (old.index, old)).collect();
        for port in &now.ports {
            let old = known.get(&port.index);
            let name = &port.name;
            match (old, port.receive.as_slice(), port.limits.as_slice()) {
                (Some(old), receive, limits) if old.receive == receive && old.limits == limits => {}
                (_, [], []) => self.port(&format!("port {name}: taken, and sent to straight")),
                (_, receive, limits) => {
                    let way = port.send.name();
                    let (from, to) = (list(receive), list(limits));
                    self.port(&format!("port {name}: from it: {from}; to it by {way}: {to}"));
                }
            }
        }
        let there: HashSet<u32> = now.ports.iter().map(|port| port.index).collect();
        for old in before.ports.iter().filter(|old| !there.contains(&old.index)) {
            self.port(&format!("port {} has left", old.name));
        }
    }
}

/// Logs what concerns every port.
fn whole(before: &Plan, now: &Plan) {
    if before.obstacles != now.obstacles {
        match now.obstacles.as_slice() {
            [] => tracing::info!("the bridge may take the fast path"),
            why => tracing::warn!("the whole bridge is left to the kernel path: {}", list(why)),
        }
    }
    if before.left != now.left && !now.left.is_empty() {
        let left: Vec<String> = now.left.iter().map(ToString::to_string).collect();
        tracing::warn!("left to the kernel path on every port: {}", left.join(", "));
    }
}

fn list(obstacles: &[Obstacle]) -> String {
    match obstacles {
        [] => "nothing in the way".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_changes_all_the_time_fills_no_log() {
        let (mut report, begin) = (Report::new(), Instant::now());
        let said = (0..10_000).filter(|_| report.may_say().is_some()).count() as u128;
        let more = begin.elapsed().as_millis() / EVERY.as_millis() + 1;
        assert!((90..=u128::from(AT_ONCE) + more).contains(&said), "{said} lines");
    }
}
