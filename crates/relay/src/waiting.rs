//! Whether a worker waits for its CPU because others use it.
//!
//! A pinned thread whose CPU is taken waits for its turn, also while another CPU of its lane is free.
//! Beside programs that spin that costs more than the caches that pinning keeps warm
//! (`cachelane bench relay --only busy`). So a worker that waits more than it runs gets the other
//! CPUs of the set in its lane besides, until it runs without waiting, or hardly runs for
//! several looks, in which nothing shows whether its CPU is free. The kernel counts both times.

use std::time::{Duration, Instant};

use rustix::process::Pid;

/// The least time between two looks: many turns of everybody.
const SPAN: Duration = Duration::from_secs(1);

/// Looks at a worker that hardly runs before it has its own CPU again.
const IDLE_LOOKS: u32 = 8;

/// What a thread has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: Duration,
    waited: Duration,
}

/// What is known of one worker.
#[derive(Debug)]
pub(crate) struct Waiting {
    since: Instant,
    before: Times,
    waits: bool,
    /// Looks in a row at which it had hardly run.
    idle: u32,
}

impl Waiting {
    /// Of a thread that starts now.
    pub(crate) fn new() -> Waiting {
        Waiting { since: Instant::now(), before: Times::default(), waits: false, idle: 0 }
    }

    /// Looks at the thread, which is this process's; whether it waits for its CPU.
    pub(crate) fn look(&mut self, thread: Pid) -> bool {
        let elapsed = self.since.elapsed();
        if elapsed < SPAN {
            return self.waits;
        }
        // Where the kernel does not count, nobody waits.
        let now = Times::of(thread).unwrap_or_default();
        let ran = now.ran.saturating_sub(self.before.ran);
        let waited = now.waited.saturating_sub(self.before.waited);
        self.idle = if ran < elapsed / 50 { self.idle.saturating_add(1) } else { 0 };
        let is_idle = (1..IDLE_LOOKS).contains(&self.idle);
        if !(self.waits && is_idle) {
            self.waits = waits(self.waits, elapsed, Times { ran, waited });
        }
        (self.since, self.before) = (Instant::now(), now);
        self.waits
    }
}

/// Whether it waits, if it did so `before`, and did this in the time that has elapsed.
fn waits(before: bool, elapsed: Duration, did: Times) -> bool {
    match before {
        // Less than a twentieth of the time is no loss that anybody sees.
        false => did.waited > did.ran && did.waited > elapsed / 20,
        true => did.waited > did.ran / 4,
    }
}

impl Times {
    fn of(thread: Pid) -> Option<Times> {
        let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
        Times::parse(&std::fs::read_to_string(path).ok()?)
    }

    /// Nanoseconds on a CPU, nanoseconds waiting for one, and the number of turns.
    fn parse(text: &str) -> Option<Times> {
        let mut times = text.split_whitespace().map(|field| field.parse().ok());
        let mut next = || times.next().flatten().map(Duration::from_nanos);
        Some(Times { ran: next()?, waited: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_waits_when_it_waits_more_than_it_runs_and_until_it_hardly_does() {
        for (before, ran, waited, expected) in [
            (false, 300, 200, false),
            (false, 300, 400, true),
            // A busy neighbour of an idle worker.
            (false, 1, 40, false),
            (true, 300, 200, true),
            (true, 300, 70, false),
            (true, 0, 0, false),
        ] {
            let [ran, waited] = [ran, waited].map(Duration::from_millis);
            let now = waits(before, SPAN, Times { ran, waited });
            assert_eq!(now, expected, "{before}, ran {ran:?}, waited {waited:?}");
        }
    }

    #[test]
    fn the_kernels_counts_are_read() {
        let (ran, waited) = (Duration::from_nanos(12), Duration::from_nanos(34));
        assert_eq!(Times::parse("12 34 5\n"), Some(Times { ran, waited }));
        assert_eq!(Times::parse("12"), None);
        assert_eq!(Times::parse("12 x 5"), None);
        assert!(Times::of(rustix::thread::gettid()).is_some());
    }
}
