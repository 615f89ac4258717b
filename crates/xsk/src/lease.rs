//! Whether somebody still reads a queue's socket: the lease that the XDP program looks at.
//!
//! A process that is stopped, frozen or starved of its CPU keeps its sockets and its program, and
//! packets would go into rings that nobody reads. So the thread that has a socket writes down when
//! it last looked, and the program leaves the queue's packets to the kernel once that was longer
//! than [`LEASE`] ago. Both read the same clock, `CLOCK_MONOTONIC_COARSE`, which costs a few loads.
//! In a time namespace with another monotonic clock no lease holds, and all packets are the
//! kernel's.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bpf::Words;
use rustix::time::{ClockId, clock_gettime};

/// How long packets go to a socket that its thread has not looked at
/// ([`Socket::receive`](crate::Socket::receive), [`Socket::wait`](crate::Socket::wait)): after that
/// the kernel has them, until the thread looks again.
pub const LEASE: Duration = Duration::from_secs(1);

/// How old a look is when it is written down anew: so seldom that the line the program reads stays
/// in its CPU's cache.
const RENEWED: u64 = LEASE.as_nanos() as u64 / 8;

/// How long a thread that waits for packets sleeps at most: nobody wakes it once its lease is over.
pub(crate) const NAP: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 4);

/// The program's map: by queue, when its socket was last looked at.
#[derive(Debug)]
pub(crate) struct Looks {
    looks: Words,
    /// By queue, how many leases it ever had: only the last one is renewed.
    leases: Box<[AtomicU64]>,
}

#[derive(Debug)]
pub(crate) struct Lease {
    looks: Arc<Looks>,
    queue: u32,
    /// The how manieth of its queue it is.
    number: u64,
    written: u64,
}

impl Looks {
    /// Maps the map of this descriptor, which has so many queues.
    pub(crate) fn map(fd: BorrowedFd<'_>, queues: u32) -> io::Result<Self> {
        let looks = Words::map(fd, queues)?;
        Ok(Self { looks, leases: (0..queues).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Writes down when a queue's socket was looked at.
    pub(crate) fn write(&self, queue: u32, at: u64) {
        if let Some(look) = self.looks.get(queue as usize) {
            // Relaxed: a time, by which the program finds nothing else.
            look.store(at, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
impl Looks {
    pub(crate) fn read(&self, queue: u32) -> u64 {
        // Relaxed: as in `write`.
        self.looks[queue as usize].load(Ordering::Relaxed)
    }
}

impl Lease {
    /// A lease that begins now, and ends the one that the queue had before.
    pub(crate) fn new(looks: &Arc<Looks>, queue: u32) -> Self {
        // Relaxed: one that is renewed once more meanwhile says a time that is as good as ours.
        let leases = looks.leases.get(queue as usize);
        let number = leases.map_or(0, |leases| leases.fetch_add(1, Ordering::Relaxed) + 1);
        let written = now();
        looks.write(queue, written);
        Self { looks: Arc::clone(looks), queue, number, written }
    }

    /// Whether the queue has no other one since.
    fn is_last(&self) -> bool {
        let leases = self.looks.leases.get(self.queue as usize);
        // Relaxed: as in `new`.
        leases.is_some_and(|leases| leases.load(Ordering::Relaxed) == self.number)
    }

    /// The thread looks at the socket.
    #[inline]
    pub(crate) fn renew(&mut self) {
        let now = now();
        if now.wrapping_sub(self.written) >= RENEWED {
            self.written = now;
            // Another socket may have the queue by now, whose thread does not look.
            if self.is_last() {
                self.looks.write(self.queue, now);
            }
        }
    }
}

/// The time as the program has it from `bpf_ktime_get_coarse_ns`.
#[inline]
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
