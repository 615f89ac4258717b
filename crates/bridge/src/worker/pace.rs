//! How often the worker looks at the host.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How often to look for what the kernel does not announce, where that is cheap.
pub(super) const GLANCE: Duration = Duration::from_millis(250);
/// When to glance again after something has changed under a glance.
pub(super) const AGAIN: Duration = Duration::from_millis(10);
/// How often to look at everything.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Looks and glances take each at most one part in so many of a CPU.
const SHARE: u32 = 50;

/// When to do again what began at this CPU time and has ended now: after `time`, or as much later
/// as it takes to keep within its share of a CPU.
pub(super) fn later(begin: Duration, time: Duration) -> Instant {
    Instant::now() + time.max(cpu_time().saturating_sub(begin).saturating_mul(SHARE))
}

/// The CPU time of this thread: what it spends while it is stopped, or waits, is nobody's.
pub(crate) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
