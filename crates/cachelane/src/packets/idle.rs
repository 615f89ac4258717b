//! Waiting for packets: for a moment awake, then asleep on several sockets at once.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use frames::LaneCache;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;

/// How long a thread sleeps at most: so soon it hears of the run's end.
pub(crate) const LONGEST: Duration = Duration::from_millis(50);

/// How long a thread that has had packets looks for more before it sleeps. Waking it costs the
/// sender's CPU as much as several packets, in a virtual machine as much as many.
const AWAKE: Duration = Duration::from_micros(100);

/// A sparing thread looks for more only where it was without work for less than this lately, on average:
/// to look for longer costs as much as to be woken, which takes some 30 to 60 microseconds in a virtual
/// machine.
const PAYS: Duration = Duration::from_micros(50);

/// A longer time without work counts as this long, so that a new burst is known for one soon.
const LONG: Duration = Duration::from_millis(1);

/// Whether a thread that finds nothing to do goes to sleep already.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// When it last found work.
    worked: Option<Instant>,
    /// Since when it is without work.
    idle: Option<Instant>,
    /// How long it was without work lately, on average over the turns that found some; none if it looks for
    /// more all the same.
    gap: Option<Duration>,
}

impl Patience {
    /// One that sleeps at once, unless work has come in quick succession lately.
    pub(crate) fn sparing() -> Patience {
        Patience { gap: Some(LONG), ..Patience::default() }
    }

    /// Tells of a turn of the thread's loop that began at `now` and found work or not; whether to
    /// sleep. If not, others who wait for the CPU have had it.
    pub(crate) fn is_over(&mut self, now: Instant, worked: bool) -> bool {
        if worked {
            // A turn that takes long, or that others kept waiting for the CPU, is no time without work.
            let gap = self.idle.take().map_or(Duration::ZERO, |idle| since(idle, now));
            if let Some(mean) = &mut self.gap {
                *mean = (*mean * 3 + gap.min(LONG)) / 4;
            }
            self.worked = Some(now);
            return false;
        }
        self.idle.get_or_insert(now);
        let most = if self.gap.is_some_and(|gap| gap > PAYS) { Duration::ZERO } else { AWAKE };
        let over = self.worked.is_none_or(|worked| since(worked, now) > most);
        if !over {
            std::thread::yield_now();
        }
        over
    }
}

/// Sleeps until one of the descriptors is ready for what is wanted of it. A cache whose thread has
/// nothing to do for so long gives back what it has.
pub(crate) fn sleep<'a>(
    wanted: impl Iterator<Item = (&'a dyn AsFd, PollFlags)>,
    cache: &mut LaneCache,
    longest: Duration,
) -> anyhow::Result<()> {
    let mut fds: Vec<PollFd<'_>> =
        wanted.map(|(fd, flags)| PollFd::from_borrowed_fd(fd.as_fd(), flags)).collect();
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(longest.subsec_nanos()) };
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => {
            cache.park();
            // A device that goes away leaves a word on its sockets, but wakes nobody. What is no
            // socket has none.
            let word = fds.iter().find_map(|fd| socket_error(fd).ok()?.err());
            word.map_or(Ok(()), |error| Err(error).context("the device is gone"))?;
        }
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error).context("cannot wait for packets"),
    }
    Ok(())
}

fn since(then: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(then)
}

/// Sleeps for less than a second, whatever comes; a signal may end it sooner.
pub(crate) fn nap(time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = rustix::thread::nanosleep(&time);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a thread that found work last looks for more.
    fn looks(patience: &mut Patience, mut now: Instant) -> Duration {
        let since = now;
        while !patience.is_over(now, false) {
            now += Duration::from_micros(1);
        }
        now - since
    }

    /// A thread that found work so many times, this long after the last time.
    fn after(mut patience: Patience, times: u32, gap: Duration) -> Duration {
        let mut now = Instant::now();
        for _ in 0..times {
            patience.is_over(now, false);
            now += gap;
            patience.is_over(now, true);
        }
        looks(&mut patience, now)
    }

    #[test]
    fn a_sparing_thread_sleeps_at_once_unless_work_comes_in_quick_succession() {
        for micros in [60, 100, 1_000, 1_000_000] {
            let looked = after(Patience::sparing(), 1000, Duration::from_micros(micros));
            assert!(looked <= Duration::from_micros(1), "{micros}: {looked:?}");
        }
        for micros in [0, 1, 40] {
            let looked = after(Patience::sparing(), 1000, Duration::from_micros(micros));
            assert!(looked >= AWAKE, "{micros}: {looked:?}");
        }
    }

    #[test]
    fn a_sparing_thread_gives_up_once_work_is_rare() {
        let (mut patience, mut now) = (Patience::sparing(), Instant::now());
        for _ in 0..100 {
            patience.is_over(now, true);
        }
        patience.is_over(now, false);
        now += LONG;
        patience.is_over(now, true);
        assert!(looks(&mut patience, now) <= Duration::from_micros(1));
    }

    /// As where borrowers share its CPU: it is kept waiting, and then takes what came meanwhile.
    #[test]
    fn a_sparing_thread_that_is_kept_from_its_cpu_is_not_without_work() {
        let (mut patience, mut now) = (Patience::sparing(), Instant::now());
        for _ in 0..100 {
            for _ in 0..16 {
                now += Duration::from_micros(300);
                patience.is_over(now, true);
            }
            assert!(!patience.is_over(now + Duration::from_micros(10), false), "it looks for more");
            now += Duration::from_millis(3);
        }
    }

    #[test]
    fn another_thread_always_looks_for_more() {
        assert!(after(Patience::default(), 3, Duration::from_secs(1)) >= AWAKE);
    }
}
