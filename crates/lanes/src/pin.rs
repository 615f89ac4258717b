//! Threads that stay on one CPU.

use std::fmt;

use rustix::thread::{Pid, gettid, sched_setaffinity};

use crate::{CpuSet, Error, ErrorKind, Result};

/// Pins the calling thread to a CPU.
///
/// # Errors
/// [`ErrorKind::NotAllowed`] if the CPU is offline, does not exist or is closed to this process.
pub fn pin(cpu: usize) -> Result<()> {
    pin_thread(gettid(), cpu)
}

/// Pins a thread to a CPU, as [`pin`] does the calling one.
///
/// # Errors
/// As [`pin`].
pub fn pin_thread(thread: Pid, cpu: usize) -> Result<()> {
    if cpu > CpuSet::MAX {
        return Err(refused(&cpu, &format_args!("expected at most {}", CpuSet::MAX)));
    }
    keep_thread(thread, &CpuSet::from_iter([cpu]))
}

/// Lets a thread run on these CPUs only, as far as they are online and open to this process.
///
/// # Errors
/// As [`pin`], if none of them is.
pub fn keep_thread(thread: Pid, cpus: &CpuSet) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu));
    sched_setaffinity(Some(thread), &set).map_err(|error| refused(cpus, &error))
}

fn refused(cpus: &dyn fmt::Display, why: &dyn fmt::Display) -> Error {
    let what = format!("cpu {cpus} is offline, or this process may not run on it ({why})");
    Error::new(ErrorKind::NotAllowed, what)
}
