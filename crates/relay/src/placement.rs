//! Which CPU a worker runs on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use lanes::CpuSet;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_getcpu};

/// Where a worker is to run. Relaxed: the kernel moves the thread on its own time, whatever this says;
/// see `worker/exposure.rs`.
#[derive(Debug)]
pub(crate) struct Place {
    cpu: AtomicUsize,
    /// Others use that CPU, and the worker has its lane's others besides.
    is_loose: AtomicBool,
}

impl Place {
    /// Nowhere.
    pub(crate) fn new() -> Place {
        Place { cpu: AtomicUsize::new(usize::MAX), is_loose: AtomicBool::new(false) }
    }

    /// The CPU that it was given; `usize::MAX` if none.
    pub(crate) fn cpu(&self) -> usize {
        self.cpu.load(Relaxed)
    }

    /// Gives it this CPU, and no other.
    pub(crate) fn give(&self, cpu: usize) {
        self.cpu.store(cpu, Relaxed);
        self.loosen(false);
    }

    pub(crate) fn loosen(&self, is_loose: bool) {
        self.is_loose.store(is_loose, Relaxed);
    }

    pub(crate) fn is_loose(&self) -> bool {
        self.is_loose.load(Relaxed)
    }

    /// Whether the calling thread, whose place this is, runs where it is to.
    pub(crate) fn is_kept(&self) -> bool {
        // A loose one is kept to its lane's part of the set by the kernel.
        sched_getcpu() == self.cpu() || self.is_loose()
    }
}

/// The CPUs of the workers, in their order: one each, and from the first again if there are more of
/// them than CPUs.
pub(crate) fn round(cpus: &CpuSet) -> impl Iterator<Item = usize> {
    let round: Vec<usize> = cpus.iter().collect();
    round.into_iter().cycle()
}

/// Finds a place for a worker that should be on `wanted` and is now on `given`, if anywhere: `wanted`
/// if `pin` can put it there, or where it is, or else another CPU of the set. None if it may run on
/// none of them.
pub(crate) fn place(
    wanted: usize,
    given: Option<usize>,
    cpus: &CpuSet,
    mut pin: impl FnMut(usize) -> bool,
) -> Option<usize> {
    if pin(wanted) {
        return Some(wanted);
    }
    // The next ones first: the workers of several CPUs that go do not all meet on one.
    let next = round(cpus).skip_while(|cpu| *cpu != wanted).skip(1).take(cpus.len() - 1);
    given.filter(|given| *given != wanted).or_else(|| next.into_iter().find(|cpu| pin(*cpu)))
}

/// Whether a thread may run on these CPUs and no other. The kernel takes CPUs from a thread when they
/// go offline, or leave its cpuset, and lets one whose last one that was run anywhere.
pub(crate) fn is_kept_to(thread: Pid, cpus: &CpuSet) -> bool {
    let Ok(set) = sched_getaffinity(Some(thread)) else { return false };
    cpus.iter().all(|cpu| cpu <= CpuSet::MAX && set.is_set(cpu))
        && set.count() as usize == cpus.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places a worker of CPU 1 where only these CPUs are left; where it is put, and what was tried.
    fn placed(given: Option<usize>, left: &[usize]) -> (Option<usize>, Vec<usize>) {
        let mut tried = Vec::new();
        let place = place(1, given, &"0-3".parse().unwrap(), |cpu| {
            tried.push(cpu);
            left.contains(&cpu)
        });
        (place, tried)
    }

    #[test]
    fn a_worker_is_on_its_cpu_or_on_the_next_and_comes_back() {
        for (given, left, place, tried) in [
            (None, vec![0, 1, 2, 3], Some(1), vec![1]),
            // Its CPU goes.
            (None, vec![0, 2, 3], Some(2), vec![1, 2]),
            (None, vec![0], Some(0), vec![1, 2, 3, 0]),
            // It stays where it was put, and comes back.
            (Some(3), vec![0, 2, 3], Some(3), vec![1]),
            (Some(3), vec![0, 1, 2, 3], Some(1), vec![1]),
            // All go.
            (None, vec![], None, vec![1, 2, 3, 0]),
        ] {
            assert_eq!(placed(given, &left), (place, tried), "{given:?}, {left:?}");
        }
    }

    #[test]
    fn a_set_of_one_cpu_has_no_other() {
        assert_eq!(place(0, None, &"0".parse().unwrap(), |_| false), None);
    }
}
