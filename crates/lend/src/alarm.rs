//! What wakes a borrower that sleeps: a thread of its own, by a message on its socket.
//!
//! To wake somebody is to walk the list of those who wait, and a borrower makes that list as long
//! as it likes. So the threads that have packets write an event that only the lender has, and for
//! each borrower there is a thread that takes it and writes to the socket. It is the only one that
//! does; if the list is long it takes its time, and its borrower's place.
//!
//! A message on a socket, because the borrower has nothing in it that is the lender's: an event
//! that both have could be in an epoll instance of the borrower's, locked for ever, and who closes
//! such an event waits for the lock. It never waits for room either: what does not fit is not
//! needed, since a borrower with unread messages is awake.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, Result, read, write};
use rustix::net::{SendFlags, send, sockopt::set_socket_send_buffer_size};
use rustix::time::{ClockId, clock_gettime};

use crate::reaper::{Reaped, STACK};

/// What a wake-up says. A borrower reads that there is a message, and no more.
const MESSAGE: &[u8] = &[0];

/// Bytes of messages that are not read yet, on which the kernel has a minimum: room for some.
const UNREAD: usize = 1;

/// CPU time of so many wake-ups together, at most. One takes some 5 microseconds; now and then an
/// interrupt's work of a millisecond or two is counted as its.
const BUDGET: Duration = Duration::from_millis(8);
const WAKES: u32 = 128;

/// When a wake-up took as long, the CPU time is looked at.
const LONG: Duration = Duration::from_micros(200);

/// The end that threads with packets have.
#[derive(Debug)]
pub(crate) struct Alarm {
    event: OwnedFd,
    is_over: AtomicBool,
}

impl Alarm {
    pub(crate) fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { event, is_over: AtomicBool::new(false) })
    }

    /// Has the borrower woken. It does not block, and cannot fail: to fill the event takes 2^64
    /// calls.
    pub(crate) fn ring(&self) {
        let _ = write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Nobody is to be woken any more.
    pub(crate) fn end(&self) {
        // Release: the partner is in `wait`.
        self.is_over.store(true, Ordering::Release);
        self.ring();
    }

    /// Waits for a ring; false at the end.
    fn wait(&self) -> bool {
        while read(&self.event, &mut [0; 8]) == Err(Errno::INTR) {}
        // Acquire: nothing depends on it but this.
        !self.is_over.load(Ordering::Acquire)
    }
}

/// Starts the thread that wakes a borrower, after it has `begun`: false if the borrower is not
/// there. Who takes too long to be woken is woken no more, and `offends`.
pub(crate) fn attend(
    alarm: Arc<Alarm>,
    socket: Arc<Reaped<OwnedFd>>,
    begin: impl FnOnce(&Reaped<OwnedFd>) -> bool + Send + 'static,
    offends: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let builder = thread::Builder::new().name("lend-wake".into()).stack_size(STACK);
    let attendant = move || {
        if !begin(&socket) {
            return;
        }
        // It says how much the borrower can have the lender keep; what it does not get is less.
        let _ = set_socket_send_buffer_size(&socket, UNREAD);
        let mut pace = Pace::new();
        while alarm.wait() {
            if pace.is_too_slow(|| wake(&socket)) {
                return offends();
            }
        }
    };
    builder.spawn(attendant).map(drop)
}

fn wake(socket: &Reaped<OwnedFd>) {
    // Full is as good, and gone is noticed elsewhere.
    let _ = send(socket, MESSAGE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// How long wake-ups take, in CPU time of this thread: a machine that is busy makes nobody an
/// offender.
struct Pace {
    since: Duration,
    wakes: u32,
}

impl Pace {
    fn new() -> Self {
        Self { since: cpu_time(), wakes: 0 }
    }

    /// Whether this and the last few have taken more than their time.
    fn is_too_slow(&mut self, wake: impl FnOnce()) -> bool {
        let before = Instant::now();
        wake();
        self.wakes += 1;
        if self.wakes < WAKES && before.elapsed() < LONG {
            return false;
        }
        let now = cpu_time();
        let is_too_slow = now - self.since > BUDGET;
        if self.wakes == WAKES {
            *self = Self { since: now, wakes: 0 };
        }
        is_too_slow
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;
    use crate::reaper::Reaper;

    fn spin(time: Duration) {
        let until = cpu_time() + time;
        while cpu_time() < until {}
    }

    #[test]
    fn each_ring_is_a_message_and_one_that_is_not_read_delays_nobody() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (reaper, alarm) = (Reaper::new().unwrap(), Arc::new(Alarm::new().unwrap()));
        let (begun, begins) = channel();
        let socket = Arc::new(reaper.keep(ours));
        let begin = move |_: &Reaped<OwnedFd>| begun.send(()).is_ok();
        attend(Arc::clone(&alarm), socket, begin, || panic!("too slow")).unwrap();
        begins.recv().unwrap();
        for _ in 0..100 {
            alarm.ring();
            assert_eq!(recv(&theirs, &mut [0; 8], RecvFlags::empty()).unwrap().1, 1);
        }
        for _ in 0..10_000 {
            alarm.ring();
        }
        let mut polled = [PollFd::new(&theirs, PollFlags::IN)];
        assert_eq!(poll(&mut polled, None).unwrap(), 1);
        alarm.end();
        let mut unread = 0;
        while recv(&theirs, &mut [0; 8], RecvFlags::empty()).unwrap().1 > 0 {
            unread += 1;
        }
        assert!((1..100).contains(&unread), "{unread} messages");
    }

    #[test]
    fn a_slow_wake_up_or_many_that_are_not_quick_are_too_slow_and_a_delay_now_and_then_is_not() {
        let mut pace = Pace::new();
        let slow = |wakes: u32| wakes.is_multiple_of(64);
        let delay = |at| if slow(at) { Duration::from_millis(3) } else { Duration::ZERO };
        assert!(!(0..1024).any(|at| pace.is_too_slow(|| spin(delay(at)))));
        assert!(pace.is_too_slow(|| spin(Duration::from_millis(12))));
        let mut pace = Pace::new();
        assert!((0..128).any(|_| pace.is_too_slow(|| spin(Duration::from_micros(90)))));
        let mut pace = Pace::new();
        // Not on a CPU is no time.
        assert!(!pace.is_too_slow(|| thread::sleep(Duration::from_millis(20))));
    }
}
