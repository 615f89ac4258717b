//! Counts of the CPUs' own counters (PMU): cycles, instructions, and cache lines fetched from
//! another CPU's cache.
//!
//! The last has no event that all CPUs share:
//!
//! | CPU | event | counts |
//! |---|---|---|
//! | AMD from Zen 3 on | `ls_any_fills_from_sys`, 0x1644 | lines filled from another cache, by any access: another core's or the last-level cache that it shares, or one of another complex or node |
//! | Intel from Skylake on | `MEM_LOAD_L3_HIT_RETIRED.XSNP_FWD` (once `XSNP_HITM`), 0x04d2 | loads answered by another core's cache; stores are not counted |
//!
//! On other CPUs, and where a virtual machine hides the counters, there is no count, and a reason.

mod event;
mod source;

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use perf_event::events::{Event, Hardware, Raw};
use perf_event::{Builder, Counter};

pub(crate) use event::{better, names};
pub(crate) use source::Events;

/// `ls_any_fills_from_sys` with the units for the same complex, another one, another node.
const AMD: u64 = 0x1644;
/// `MEM_LOAD_L3_HIT_RETIRED.XSNP_FWD`.
const INTEL: u64 = 0x04d2;

/// The CPUs' counters, once they have been seen to count.
#[derive(Clone, Debug)]
pub struct Pmu {
    fills: Raw,
    cpus: Vec<usize>,
}

/// Counters that run, on every CPU, for every process and the kernel.
pub struct Counting([Vec<Counter>; 3]);

/// What all CPUs together have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Cache lines fetched from another CPU's cache.
    pub fills: f64,
    /// Cycles in which the CPUs were not halted.
    pub cycles: f64,
    /// Instructions retired.
    pub instructions: f64,
}

impl Pmu {
    /// Finds the event of this CPU and tries it on a cache line that two threads write.
    ///
    /// # Errors
    /// Why nothing can be counted here, for people.
    pub fn detect() -> Result<Pmu, String> {
        let fills = fills()?;
        let map = lanes::LaneMap::detect().map_err(|error| error.to_string())?;
        let pmu = Pmu { fills, cpus: map.online().iter().collect() };
        let counting = pmu.start().map_err(|error| refused(&error))?;
        share_a_line();
        let counts = counting.stop().map_err(|error| error.to_string())?;
        match counts.fills as u64 {
            // Two CPUs cannot write a line in turns without fetching it from each other.
            0..TURNS_SEEN if pmu.cpus.len() > 1 => Err(format!(
                "event {:#06x} counts nothing here where two CPUs write one cache line",
                fills.config
            )),
            _ => Ok(pmu),
        }
    }

    /// Starts counting.
    ///
    /// # Errors
    /// Those of `perf_event_open(2)`.
    pub fn start(&self) -> io::Result<Counting> {
        let mut counters = [
            on_all(&self.cpus, self.fills)?,
            on_all(&self.cpus, Hardware::CPU_CYCLES)?,
            on_all(&self.cpus, Hardware::INSTRUCTIONS)?,
        ];
        counters.iter_mut().flatten().try_for_each(Counter::enable)?;
        Ok(Counting(counters))
    }
}

impl Counting {
    /// What has been counted since the start.
    ///
    /// # Errors
    /// Those of `read(2)`.
    pub fn stop(self) -> io::Result<Counts> {
        let [mut fills, mut cycles, mut instructions] = self.0;
        let (fills, cycles) = (sum(&mut fills)?, sum(&mut cycles)?);
        Ok(Counts { fills, cycles, instructions: sum(&mut instructions)? })
    }
}

/// The event for fills from another cache, of the CPU at hand.
fn fills() -> Result<Raw, String> {
    let text = fs::read_to_string("/proc/cpuinfo").map_err(|e| format!("/proc/cpuinfo: {e}"))?;
    fills_event(&text)
}

/// Why a counter cannot be opened, for people.
fn refused(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "counting on all CPUs needs root, or kernel.perf_event_paranoid at 0 or less".into()
        }
        Some(libc::EMFILE) => {
            format!("{error}: each event takes a file on each CPU; raise the limit (ulimit -n)")
        }
        _ => format!(
            "the CPU's counters cannot be opened ({error}): a virtual machine mostly hides them"
        ),
    }
}

fn on_all<E: Event + Copy>(cpus: &[usize], event: E) -> io::Result<Vec<Counter>> {
    let open = |&cpu: &usize| {
        let mut builder = Builder::new(event);
        builder.any_pid().one_cpu(cpu).include_kernel().build()
    };
    cpus.iter().map(open).collect()
}

/// All counts; where the kernel has shared a counter out, as if each had run all the time.
fn sum(counters: &mut [Counter]) -> io::Result<f64> {
    let mut sum = 0.0;
    for counter in counters {
        let read = counter.read_count_and_time()?;
        let share = read.time_enabled.max(1) as f64 / read.time_running.max(1) as f64;
        sum += read.count as f64 * share;
    }
    Ok(sum)
}

/// The event for what `/proc/cpuinfo` describes.
fn fills_event(cpuinfo: &str) -> Result<Raw, String> {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().unwrap_or("").trim() == name);
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
    };
    let family: u32 = field("cpu family").parse().unwrap_or(0);
    match field("vendor_id") {
        "AuthenticAMD" if family >= 0x19 => Ok(Raw::new(AMD)),
        "GenuineIntel" if family == 6 => Ok(Raw::new(INTEL)),
        vendor => Err(format!(
            "no event for fills from another CPU's cache is known for this CPU (vendor '{vendor}', \
             family {family})"
        )),
    }
}

/// How often each thread writes the line, and how many fetches that must at least cost.
const WRITES: u64 = 2_000_000;
const TURNS_SEEN: u64 = 1000;

/// Has two threads write one line, both at once for most of the time.
fn share_a_line() {
    let (line, other_runs) = (AtomicU64::new(0), AtomicBool::new(false));
    let write = || {
        // Relaxed: only the line's way between the CPUs matters.
        other_runs.store(true, Relaxed);
        (0..WRITES).for_each(|_| {
            line.fetch_add(1, Relaxed);
        });
    };
    thread::scope(|scope| {
        scope.spawn(write);
        while !other_runs.load(Relaxed) {
            thread::yield_now();
        }
        write();
    });
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use perf_event::events::Software;

    use super::*;

    #[test]
    fn the_event_follows_from_vendor_and_family() {
        let event = |vendor: &str, family: u32| {
            let text = format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 1\n"
            );
            fills_event(&text).map(|event| event.config)
        };
        assert_eq!(event("AuthenticAMD", 0x19), Ok(0x1644));
        assert_eq!(event("AuthenticAMD", 0x1a), Ok(0x1644));
        assert_eq!(event("GenuineIntel", 6), Ok(0x04d2));
        for (vendor, family) in [("AuthenticAMD", 0x17), ("GenuineIntel", 15), ("Other", 6)] {
            let reason = event(vendor, family).unwrap_err();
            assert!(reason.contains(vendor) && reason.contains(&family.to_string()), "{reason}");
        }
        assert!(fills_event("").is_err());
    }

    #[test]
    fn root_counts_of_all_cpus_are_added_up() {
        if !lab::testing::root("root_counts_of_all_cpus_are_added_up") {
            return;
        }
        // What the kernel counts itself is there in virtual machines too.
        let cpus: Vec<usize> = lanes::LaneMap::detect().unwrap().online().iter().collect();
        let mut counters = on_all(&cpus, Software::CPU_CLOCK).unwrap();
        counters.iter_mut().for_each(|counter| counter.enable().unwrap());
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let least = started.elapsed().as_nanos() as f64 * cpus.len() as f64;
        let sum = sum(&mut counters).unwrap();
        assert!(sum >= least, "{sum} ns on {} CPUs, at least {least}", cpus.len());
    }
}
