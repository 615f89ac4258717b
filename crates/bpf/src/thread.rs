//! How threads are scheduled, and the time that they have run: what rustix lacks.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// A thread's scheduling policy (sched(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`.
    Ordinary,
    /// `SCHED_IDLE`: after all ordinary threads.
    Idle,
    /// `SCHED_FIFO` with this priority, 1 to 99: before all ordinary threads.
    Realtime(u8),
}

/// Sets the policy of the calling thread; threads and processes that it makes are ordinary ones.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`, where `RLIMIT_RTPRIO` is 0, and in a cgroup without real-time.
pub fn set_own_policy(policy: Policy) -> io::Result<()> {
    set(0, policy, libc::SCHED_RESET_ON_FORK)
}

/// Sets the policy of the thread with this number.
///
/// # Errors
/// As [`set_own_policy`], and `ESRCH` if there is none.
pub fn set_policy(id: i32, policy: Policy) -> io::Result<()> {
    set(id, policy, 0)
}

fn set(id: libc::pid_t, policy: Policy, flags: libc::c_int) -> io::Result<()> {
    let (policy, priority) = match policy {
        Policy::Ordinary => (libc::SCHED_OTHER, 0),
        Policy::Idle => (libc::SCHED_IDLE, 0),
        Policy::Realtime(priority) => (libc::SCHED_FIFO, priority),
    };
    let parameters = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: the parameters outlive the call, which reads them.
    match unsafe { libc::sched_setscheduler(id, policy | flags, &raw const parameters) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The time that the thread with this number has run.
///
/// # Errors
/// `EINVAL` if there is none.
pub fn cpu_time(id: i32) -> io::Result<Duration> {
    /// `CPUCLOCK_SCHED` of linux/posix-timers.h, of the process of this number.
    const SCHED: libc::clockid_t = 2;

    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call writes to the struct, which outlives it, or fails.
    if unsafe { libc::clock_gettime(!id << 3 | SCHED, time.as_mut_ptr()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it in.
    let time = unsafe { time.assume_init() };
    Ok(Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32))
}
