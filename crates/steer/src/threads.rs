//! The kernel's threads that take packets for CPUs, and their priority.
//!
//! A packet that the kernel steers itself is handled in a softirq, which goes before whatever runs
//! on that CPU. A cpumap's thread is an ordinary one and waits for its turn beside busy programs,
//! while its queue fills. So these threads get a real-time priority.
//!
//! A thread of that priority that never sleeps would keep its CPU from all ordinary programs, where
//! the kernel would leave the work to ksoftirqd, an ordinary thread. So one that has used up several
//! looks in a row, and does not get done, gives way to all others for some milliseconds
//! ([`Threads::look`]). That is what its queue has room for; who looks goes before these threads
//! ([`Threads::go_before`]), so that it does not last longer.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use bpf::thread::{Policy, cpu_time, set_own_policy, set_policy};
use lanes::CpuSet;

use crate::{Error, ErrorKind, Result};

/// The priority unless said: above whatever an administrator lets run at once, as softirqs are, and
/// below the last one, which is left to programs that go before the network.
pub(crate) const PRIORITY: u8 = 98;
/// The highest there is.
pub(crate) const HIGHEST: u8 = 99;
/// Of the time between two looks: a thread that has run for longer never slept.
const NEVER_SLEPT: f64 = 0.9;
/// Looks that follow each other faster say nothing.
const SHORTEST: Duration = Duration::from_millis(20);
/// After so many looks in a row at which it never slept, and its packets did not become half as
/// many, a thread rests.
const LOOKS: u32 = 3;
/// After so many if they did.
const LOOKS_AT_MOST: u32 = 12;
/// For so long it gives way to all others then. The packets that come meanwhile mostly have room.
const REST: Duration = Duration::from_millis(5);

/// The threads of one cpumap.
#[derive(Debug)]
pub(crate) struct Threads {
    /// The cpumap's.
    map: u32,
    /// 0: they stay ordinary threads.
    priority: u8,
    of_cpus: BTreeMap<usize, Thread>,
    /// How often one gave way for a while.
    pub(crate) rests: u64,
}

#[derive(Debug)]
struct Thread {
    id: i32,
    /// When it was looked at, and the time that it had run by then.
    looked: (Instant, Duration),
    /// What its CPU had not taken then.
    waiting: u32,
    /// Looks in a row at which it never slept, and those of them at which its packets had not become
    /// half as many.
    busy: [u32; 2],
}

impl Threads {
    pub(crate) fn new(map: u32, priority: u8) -> Self {
        Self { map, priority, of_cpus: BTreeMap::new(), rests: 0 }
    }

    /// Gives the threads of these CPUs, which are there, their priority.
    ///
    /// # Errors
    /// `NotPermitted` of [`ErrorKind`] if this process may not, or does not see them.
    pub(crate) fn start(&mut self, cpus: &CpuSet) -> Result<()> {
        if self.priority == 0 || cpus.is_empty() {
            return Ok(());
        }
        let found = found(self.map)?;
        for cpu in cpus.iter() {
            let id = *found
                .get(&cpu)
                .ok_or_else(|| self.refused("does not see", "the host's PID namespace"))?;
            set_policy(id, Policy::Realtime(self.priority))
                .map_err(|error| self.failed(&format!("the thread of CPU {cpu}"), error))?;
            let looked = (Instant::now(), cpu_time(id).unwrap_or_default());
            self.of_cpus.insert(cpu, Thread { id, looked, waiting: 0, busy: [0; 2] });
        }
        Ok(())
    }

    /// A CPU's thread has ended, or is about to.
    pub(crate) fn forget(&mut self, cpu: usize) {
        self.of_cpus.remove(&cpu);
    }

    /// Has those that never slept for several looks, and do not get done, give way to all others for
    /// a moment, for which it waits. `waiting` says how many packets a CPU has not taken.
    pub(crate) fn look(&mut self, waiting: impl Fn(usize) -> Result<u32>) {
        let (map, now) = (self.map, Instant::now());
        let mut rest = Vec::new();
        for (cpu, thread) in &mut self.of_cpus {
            let span = now - thread.looked.0;
            if span < SHORTEST {
                continue;
            }
            // One that has ended is followed with its CPU.
            let Ok(used) = cpu_time(thread.id) else { continue };
            let busy = (used.saturating_sub(thread.looked.1)).as_secs_f64() / span.as_secs_f64();
            let waits = waiting(*cpu).unwrap_or_default();
            thread.looked = (now, used);
            let before = std::mem::replace(&mut thread.waiting, waits);
            thread.busy = match thread.busy {
                _ if busy < NEVER_SLEPT => [0; 2],
                [all, stuck] if waits < before / 2 => [all + 1, stuck],
                [all, stuck] => [all + 1, stuck + 1],
            };
            let [all, stuck] = thread.busy;
            // Numbers of threads that have ended are given to others.
            if (all >= LOOKS_AT_MOST || stuck >= LOOKS)
                && thread_of(thread.id, map).is_some_and(|(served, _)| served == *cpu)
            {
                thread.busy = [0; 2];
                rest.push(thread.id);
            }
        }
        rest.retain(|id| set_policy(*id, Policy::Idle).is_ok());
        if !rest.is_empty() {
            self.rests += rest.len() as u64;
            std::thread::sleep(REST);
        }
        for id in rest {
            // It may just have ended.
            let _ = set_policy(id, Policy::Realtime(self.priority));
        }
    }

    /// Gives the calling thread a priority above theirs, or theirs if there is none.
    ///
    /// # Errors
    /// `NotPermitted` of [`ErrorKind`] if this process may not.
    pub(crate) fn go_before(&self) -> Result<()> {
        match self.priority {
            0 => Ok(()),
            priority => set_own_policy(Policy::Realtime((priority + 1).min(HIGHEST)))
                .map_err(|error| self.failed("this thread", error)),
        }
    }

    fn failed(&self, which: &str, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.refused("may not change", "CAP_SYS_NICE"),
            _ => Error::io(format!("cannot give {which} a priority"), error),
        }
    }

    fn refused(&self, why: &str, expected: &str) -> Error {
        Error::new(
            ErrorKind::NotPermitted,
            format!(
                "this process {why} the kernel's threads that take steered packets, to give them \
                 the real-time priority {} (expected {expected}, or --priority 0, with which \
                 packets are late beside busy programs)",
                self.priority
            ),
        )
    }
}

/// The threads of a cpumap, by the CPU that they serve, as far as they are seen here: the last one
/// that was started, for the one before may not have ended yet.
fn found(map: u32) -> Result<BTreeMap<usize, i32>> {
    let failed = |error| Error::io("cannot look for the kernel's threads in /proc", error);
    let mut found: BTreeMap<usize, (u64, i32)> = BTreeMap::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some((cpu, started)) = thread_of(id, map) {
            let last = found.entry(cpu).or_default();
            *last = (started, id).max(*last);
        }
    }
    Ok(found.into_iter().map(|(cpu, (_, id))| (cpu, id)).collect())
}

/// The CPU whose packets of this cpumap a thread takes, and when it was started, in ticks since the
/// machine was; none if it is no such thread. Processes may call themselves what they like, so it has
/// to be one of the kernel's.
fn thread_of(id: i32, map: u32) -> Option<(usize, u64)> {
    /// `PF_KTHREAD` of linux/sched.h.
    const KERNEL_THREAD: u32 = 0x0020_0000;

    let comm = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
    let cpu = cpu_of(&comm, map)?;
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, which may be anything, is in parentheses; the flags are the seventh behind it, and
    // the start is the 20th.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let flags = fields.nth(6)?.parse::<u32>().ok()?;
    let started = fields.nth(12)?.parse().ok()?;
    (flags & KERNEL_THREAD != 0).then_some((cpu, started))
}

/// The CPU in `cpumap/CPU/map:ID` (kernel/bpf/cpumap.c).
fn cpu_of(comm: &str, map: u32) -> Option<usize> {
    let (cpu, id) = comm.trim_end().strip_prefix("cpumap/")?.split_once("/map:")?;
    (id.parse() == Ok(map)).then(|| cpu.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_map_are_known_by_their_names() {
        for (comm, cpu) in [
            ("cpumap/0/map:12\n", Some(0)),
            ("cpumap/1023/map:12\n", Some(1023)),
            ("cpumap/1/map:123\n", None),
            ("cpumap/1/map:1\n", None),
            ("cpumap/1/map:\n", None),
            ("cpumap/x/map:12\n", None),
            ("cpumap/1\n", None),
            ("worker\n", None),
        ] {
            assert_eq!(cpu_of(comm, 12), cpu, "{comm:?}");
        }
    }

    #[test]
    fn a_process_that_calls_itself_such_a_thread_is_none() {
        let work = || rustix::thread::gettid().as_raw_nonzero().get();
        let thread = std::thread::Builder::new().name("cpumap/1/map:12".into());
        let seen = thread.spawn(move || (work(), fs::read_to_string("/proc/thread-self/comm")));
        let (id, comm) = seen.expect("a thread").join().expect("its number");
        assert_eq!(cpu_of(&comm.expect("its name"), 12), Some(1));
        assert_eq!(thread_of(id, 12), None);
    }
}
