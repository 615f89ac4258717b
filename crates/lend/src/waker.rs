//! What wakes a borrower that sleeps: a thread of its own, by a message on its socket.
//!
//! To wake somebody is to walk the list of those who wait, and a borrower makes that list as long
//! as it likes. So the threads that have packets write an event that only the lender has, and for
//! each borrower there is a thread that takes it and writes to the socket. It is the only one that
//! does; if the list is long it takes its time, and its borrower's place. Before that it finds out
//! how long it takes to wake somebody who waits alone: on a slow machine nobody is to blame.
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
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
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

/// What waking somebody who waits alone takes on machines that these limits are made for. Where it
/// takes more, they are longer in proportion, [`MOST_SLOW`] times at most: an emulated machine takes
/// 400 microseconds.
const ALONE: Duration = Duration::from_micros(60);
const MOST_SLOW: u32 = 20;

/// So many are woken alone to find that out, and so long each is given to fall asleep again.
const TRIES: usize = 9;
const ASLEEP: Duration = Duration::from_millis(2);

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
                Verdict::TooSlow if pace.is_the_machines(time_alone()) => last = cpu_time(),
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

/// The CPU time of a wake-up of somebody who waits alone: the median of some. Zero if that cannot be
/// tried.
fn time_alone() -> Duration {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let Ok((ours, theirs)) = pair else { return Duration::ZERO };
    let sleeps =
        move || while recv(&theirs, &mut [0; 8], RecvFlags::empty()).is_ok_and(|r| r.1 > 0) {};
    let Ok(sleeper) = thread::Builder::new().stack_size(STACK).spawn(sleeps) else {
        return Duration::ZERO;
    };
    let mut times = [(); TRIES].map(|()| {
        thread::sleep(ASLEEP);
        let before = cpu_time();
        let _ = send(&ours, MESSAGE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        cpu_time() - before
    });
    drop(ours);
    let _ = sleeper.join();
    times.sort_unstable();
    times[TRIES / 2]
}

/// How long wake-ups take, in CPU time of their thread: a machine that is busy makes nobody an
/// offender. What an interrupt does meanwhile, or another machine on the same CPU, can be counted as
/// CPU time too, and is milliseconds at a time. But it comes now and then, while a long list makes
/// every wake-up slow. So single ones count for nothing: more than half of them have to be slow, or
/// some in direct succession very slow.
#[derive(Debug)]
struct Pace {
    /// How many times longer than usual things take on this machine.
    slowness: u32,
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

impl Default for Pace {
    fn default() -> Self {
        Self::on(1)
    }
}

impl Pace {
    /// On a machine so many times slower than usual.
    fn on(slowness: u32) -> Self {
        let (wakes, slow, burdens, run, run_time) = (0, 0, 0, 0, Duration::ZERO);
        Self { slowness, wakes, slow, burdens, run, run_time }
    }

    /// Whether the machine is slower than it was taken for, where a wake-up takes this long at best.
    /// Then all begins anew, with longer limits.
    fn is_the_machines(&mut self, alone: Duration) -> bool {
        let slowness = (alone.as_nanos() / ALONE.as_nanos()).min(MOST_SLOW.into()) as u32;
        let is_slower = slowness > self.slowness;
        if is_slower {
            *self = Self::on(slowness);
        }
        is_slower
    }

    /// What to think of the wake-ups, with one more that took so long.
    fn judge(&mut self, time: Duration) -> Verdict {
        self.wakes += 1;
        self.burdens += u32::from(time > BURDEN * self.slowness);
        if time > SLOW * self.slowness {
            self.slow += 1;
            self.run += 1;
            self.run_time += time;
        } else {
            (self.run, self.run_time) = (0, Duration::ZERO);
        }
        let is_run_too_slow = self.run >= RUN && self.run_time > RUN_TIME * self.slowness;
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

    /// As measured on an emulated machine: an ordinary wake-up takes 400 us, and with other work on
    /// the host three took 24 ms.
    #[test]
    fn where_waking_anybody_is_slow_the_limits_are_longer_in_proportion() {
        let alone = Duration::from_micros(400);
        let three = [[8_500_u64; 3].to_vec(), vec![400; 61]].concat();
        for times in [[400, 650, 650].repeat(1000), three.repeat(100)] {
            let after = first(Verdict::TooSlow, times.iter().copied());
            let mut pace = Pace::default();
            let is_blamed = |micros: &u64| {
                pace.judge(Duration::from_micros(*micros)) == Verdict::TooSlow
                    && !pace.is_the_machines(alone)
            };
            let blamed = times.iter().position(is_blamed);
            assert!(after.is_some() && blamed.is_none(), "{after:?}, then {blamed:?}");
        }
    }

    #[test]
    fn a_slow_machine_is_an_excuse_once_and_to_an_extent() {
        let (alone, hour) = (Duration::from_micros(400), Duration::from_secs(3600));
        let mut pace = Pace::default();
        assert!(!pace.is_the_machines(Duration::from_micros(70)), "it is as fast as others");
        assert!(pace.is_the_machines(alone));
        assert!(!pace.is_the_machines(alone), "that was known");
        let found = (0..256).position(|_| pace.judge(alone * 100) == Verdict::TooSlow);
        assert_eq!(found, Some(3), "a list of waiters is found out all the same");
        assert!(pace.is_the_machines(hour));
        assert!(!pace.is_the_machines(hour));
        assert_eq!(pace.slowness, MOST_SLOW);
    }

    #[test]
    fn somebody_who_waits_alone_can_be_woken() {
        assert!((1..100_000).contains(&time_alone().as_micros()), "{:?}", time_alone());
    }

    #[test]
    fn time_without_a_cpu_is_no_time() {
        let before = cpu_time();
        thread::sleep(Duration::from_millis(20));
        assert!(cpu_time() - before < Duration::from_millis(10));
    }
}
