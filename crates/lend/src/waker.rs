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

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, Result, read, write};
use rustix::net::{SendFlags, send, sockopt::set_socket_send_buffer_size};
use rustix::time::{ClockId, clock_gettime};

use crate::reaper::{NICENESS, Reaped, STACK};

/// What a wake-up says. A borrower reads that there is a message, and no more.
const MESSAGE: &[u8] = &[0];

/// Bytes of messages that are not read yet, on which the kernel has a minimum: room for some.
const UNREAD: usize = 1;

/// So many wake-ups are judged together.
const WAKES: u32 = 128;

/// CPU time of a wake-up: with more it is slow. One takes some 5 microseconds, and 30 to 60 in a
/// virtual machine where the host has to wake the other CPU; each waiter adds some 25 nanoseconds.
/// With more than the second it is a burden, and its thread makes room for others.
const SLOW: Duration = Duration::from_micros(500);
const BURDEN: Duration = Duration::from_micros(125);

/// Slow ones in direct succession: so many that take so long together are too much already.
const RUN: u32 = 3;
const RUN_TIME: Duration = Duration::from_millis(24);

/// The end that threads with packets have.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    is_over: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { event, is_over: AtomicBool::new(false) })
    }

    /// Has the borrower woken. It does not block, and cannot fail: to fill the event takes 2^64
    /// calls.
    pub(crate) fn wake(&self) {
        let _ = write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Nobody is to be woken any more.
    pub(crate) fn end(&self) {
        // Release: the partner is in `is_over`.
        self.is_over.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn is_over(&self) -> bool {
        // Acquire: nothing depends on it but this.
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits to be asked for a wake-up; false at the end.
    fn wait(&self) -> bool {
        while read(&self.event, &mut [0; 8]) == Err(Errno::INTR) {}
        !self.is_over()
    }
}

impl AsFd for Waker {
    /// Readable when a wake-up was asked for that nobody has waited for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Starts the thread that wakes a borrower, after it has `begun`: false if the borrower is not
/// there. Who takes too long to be woken is woken no more, and `offends`.
pub(crate) fn spawn(
    waker: Arc<Waker>,
    socket: Arc<Reaped<OwnedFd>>,
    begin: impl FnOnce(&Reaped<OwnedFd>) -> bool + Send + 'static,
    offends: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let builder = thread::Builder::new().name("lend-wake".into()).stack_size(STACK);
    let work = move || {
        if !begin(&socket) {
            return;
        }
        // It says how much the borrower can have the lender keep; what it does not get is less.
        let _ = set_socket_send_buffer_size(&socket, UNREAD);
        let (mut pace, mut last) = (Pace::default(), cpu_time());
        while waker.wait() {
            send_wake_up(&socket);
            let now = cpu_time();
            match pace.judge(now - std::mem::replace(&mut last, now)) {
                Verdict::Fine => {}
                // Of this thread alone. It is allowed to everybody.
                Verdict::Burden => drop(rustix::process::nice(NICENESS)),
                Verdict::TooSlow => return offends(),
            }
        }
    };
    builder.spawn(work).map(drop)
}

fn send_wake_up(socket: &Reaped<OwnedFd>) {
    // Full is as good, and gone is noticed elsewhere.
    let _ = send(socket, MESSAGE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// How long wake-ups take, in CPU time of their thread: a machine that is busy makes nobody an
/// offender. What an interrupt does meanwhile, or another machine on the same CPU, can be counted as
/// CPU time too, and is milliseconds at a time. But it comes now and then, while a long list makes
/// every wake-up slow. So single ones count for nothing: more than half of them have to be slow, or
/// some in direct succession very slow.
#[derive(Debug, Default)]
struct Pace {
    wakes: u32,
    /// Of these.
    slow: u32,
    burdens: u32,
    /// Slow ones in direct succession, and their time.
    run: u32,
    run_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    Burden,
    TooSlow,
}

impl Pace {
    /// What to think of the wake-ups, with one more that took so long.
    fn judge(&mut self, time: Duration) -> Verdict {
        self.wakes += 1;
        self.burdens += u32::from(time > BURDEN);
        if time > SLOW {
            self.slow += 1;
            self.run += 1;
            self.run_time += time;
        } else {
            (self.run, self.run_time) = (0, Duration::ZERO);
        }
        let is_run_too_slow = self.run >= RUN && self.run_time > RUN_TIME;
        if self.slow > WAKES / 2 || is_run_too_slow {
            return Verdict::TooSlow;
        }
        if self.wakes < WAKES {
            return Verdict::Fine;
        }
        let is_burden = self.burdens > WAKES / 2;
        (self.wakes, self.slow, self.burdens) = (0, 0, 0);
        if is_burden { Verdict::Burden } else { Verdict::Fine }
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
    use rustix::net::{RecvFlags, recv};

    use super::*;
    use crate::reaper::Reaper;

    #[test]
    fn each_wake_up_is_a_message_and_one_that_is_not_read_delays_nobody() {
        let (ours, theirs) = crate::wire::pair();
        let (reaper, waker) = (Reaper::new().unwrap(), Arc::new(Waker::new().unwrap()));
        let (begun, begins) = channel();
        let socket = Arc::new(reaper.keep(ours));
        let begin = move |_: &Reaped<OwnedFd>| begun.send(()).is_ok();
        spawn(Arc::clone(&waker), socket, begin, || panic!("too slow")).unwrap();
        begins.recv().unwrap();
        for _ in 0..100 {
            waker.wake();
            assert_eq!(recv(&theirs, &mut [0; 8], RecvFlags::empty()).unwrap().1, 1);
        }
        for _ in 0..10_000 {
            waker.wake();
        }
        let mut polled = [PollFd::new(&theirs, PollFlags::IN)];
        assert_eq!(poll(&mut polled, None).unwrap(), 1);
        waker.end();
        let mut unread = 0;
        while recv(&theirs, &mut [0; 8], RecvFlags::empty()).unwrap().1 > 0 {
            unread += 1;
        }
        assert!((1..100).contains(&unread), "{unread} messages");
    }

    fn verdicts(times: impl IntoIterator<Item = u64>) -> Vec<Verdict> {
        let mut pace = Pace::default();
        times.into_iter().map(|micros| pace.judge(Duration::from_micros(micros))).collect()
    }

    /// After how many this is the verdict, for the first time.
    fn first(of: Verdict, times: impl IntoIterator<Item = u64>) -> Option<usize> {
        verdicts(times).into_iter().position(|verdict| verdict == of).map(|at| at + 1)
    }

    #[test]
    fn what_interrupts_add_to_some_wake_ups_makes_nobody_slow() {
        // Every fourth takes 3 ms, which is 96 ms in 128 wake-ups; and one stands out.
        let interrupted = |at: u64| if at.is_multiple_of(4) { 3_000 } else { 5 };
        let times = (0..4096).map(|at| if at == 1000 { 200_000 } else { interrupted(at) });
        assert!(verdicts(times).iter().all(|verdict| *verdict == Verdict::Fine));
        // Also when an interrupt's work goes on over two.
        let times = (0..4096).map(|at| if at % 64 < 2 { 20_000 } else { 5 });
        assert!(verdicts(times).iter().all(|verdict| *verdict == Verdict::Fine));
    }

    #[test]
    fn a_long_list_makes_each_wake_up_slow_and_is_found_out_the_sooner_the_longer_it_is() {
        for (micros, after) in [(110_000, 3), (11_000, 3), (1_000, 25), (501, 48)] {
            assert_eq!(first(Verdict::TooSlow, [micros; 256]), Some(after), "{micros} us each");
        }
        // One that is long for two of three wake-ups only.
        let times = (0..256).map(|at: u64| if at % 3 < 2 { 600 } else { 5 });
        assert!(first(Verdict::TooSlow, times).is_some());
    }

    #[test]
    fn a_list_that_is_just_not_too_long_lowers_its_threads_priority() {
        assert_eq!(first(Verdict::Burden, [400; 256]), Some(128));
        assert_eq!(first(Verdict::TooSlow, [400; 4096]), None);
    }

    #[test]
    fn where_a_cpu_is_woken_by_the_host_nobody_is_a_burden() {
        // As measured in a virtual machine with two CPUs that others use too.
        let times = (0..4096).map(|at| if at % 5 == 0 { 90 } else { 58 });
        assert!(verdicts(times).iter().all(|verdict| *verdict == Verdict::Fine));
    }

    #[test]
    fn time_without_a_cpu_is_no_time() {
        let before = cpu_time();
        thread::sleep(Duration::from_millis(20));
        assert!(cpu_time() - before < Duration::from_millis(10));
    }
}
