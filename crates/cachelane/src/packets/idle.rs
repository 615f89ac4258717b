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

/// Whether a thread that finds nothing to do goes to sleep already.
#[derive(Debug, Default)]
pub(crate) struct Patience(Option<Instant>);

impl Patience {
    /// Tells of a turn of the thread's loop that began at `now` and found work or not; whether to
    /// sleep. If not, others who wait for the CPU have had it.
    pub(crate) fn is_over(&mut self, now: Instant, worked: bool) -> bool {
        if worked {
            self.0 = Some(now);
            return false;
        }
        let over = self.0.is_none_or(|worked| now.saturating_duration_since(worked) > AWAKE);
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
