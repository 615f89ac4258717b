//! What the machine and its processes use: CPU time and memory, from `/proc`.
//!
//! Take a snapshot before and one after, and ask the later one what happened `since` the
//! earlier one.

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use rustix::param::{clock_ticks_per_second, page_size};

use crate::{Error, Result};

/// The CPU time of the whole machine at one moment.
///
/// Busy time is what is left of elapsed time × CPUs after idle, waiting for I/O and time stolen
/// by the hypervisor. It is not the sum of the busy columns: those are sampled at ticks on many
/// kernels, and softirq work that starts and ends between two ticks is missed there, while idle
/// time is measured exactly on tickless (`NO_HZ`) kernels, which are all the usual ones. The
/// figures count in ticks of `USER_HZ`, mostly 10 ms a CPU, so measure over a second or more.
#[derive(Clone, Copy, Debug)]
pub struct SystemCpu {
    at: Instant,
    cpus: u32,
    /// Idle, waiting for I/O, or stolen by the hypervisor.
    not_busy: Duration,
}

/// What all CPUs did between two snapshots.
#[derive(Clone, Copy, Debug)]
pub struct CpuUse {
    /// Time on the clock.
    pub elapsed: Duration,
    /// CPU time spent on anything but idling, summed over CPUs.
    pub busy: Duration,
}

impl SystemCpu {
    /// The machine's CPU time now.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if `/proc/stat` cannot be read.
    pub fn now() -> Result<Self> {
        let text = read("/proc/stat")?;
        Self::parse(&text, Instant::now()).ok_or_else(|| unexpected("/proc/stat"))
    }

    fn parse(text: &str, at: Instant) -> Option<Self> {
        let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = all.split_whitespace().map_while(|tick| tick.parse().ok()).collect();
        let column = |index: usize| ticks.get(index).copied().map(from_ticks);
        let is_cpu = |line: &&str| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_numeric()))
        };
        let cpus = u32::try_from(text.lines().filter(is_cpu).count()).ok()?;
        let not_busy = column(3)? + column(4)? + column(7)?;
        Some(Self { at, cpus, not_busy })
    }

    /// What the CPUs did since an earlier snapshot.
    pub fn since(&self, earlier: &Self) -> CpuUse {
        let elapsed = self.at.saturating_duration_since(earlier.at);
        let not_busy = self.not_busy.saturating_sub(earlier.not_busy);
        CpuUse { elapsed, busy: (elapsed * self.cpus).saturating_sub(not_busy) }
    }
}

/// The memory that a process has resident now, in bytes, each shared page divided by the number of
/// its users (PSS).
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io) if there is no such process.
pub fn process_memory(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    kib_field(&read(&path)?, "Pss").ok_or_else(|| unexpected(&path))
}

/// Memory in use on the whole machine, in bytes, without what the kernel would give back:
/// total − free − pages free in per-CPU lists − buffers − page cache − reclaimable slabs.
///
/// The per-CPU lists are not in `MemFree`, and grow by hundreds of megabytes where one CPU frees
/// what another allocated, which is what zero-copy does.
///
/// Unaccounted kernel memory, such as packets queued without limit, shows here and nowhere else.
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io) if `/proc/meminfo` or `/proc/zoneinfo` cannot be read.
pub fn system_memory() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = read(path)?;
    let field = |name| kib_field(&text, name).ok_or_else(|| unexpected(path));
    let free = field("MemFree")? + per_cpu_pages(&read("/proc/zoneinfo")?) * page_size() as u64;
    let reusable = free + field("Buffers")? + field("Cached")? + field("SReclaimable")?;
    Ok(field("MemTotal")?.saturating_sub(reusable))
}

/// The free pages in the per-CPU lists of all zones.
fn per_cpu_pages(zoneinfo: &str) -> u64 {
    let counts = zoneinfo.lines().filter_map(|line| line.trim_start().strip_prefix("count:"));
    counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
}

/// The PIDs of all that descends from `pid`, without itself: its children first.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut parents = parents();
    let mut found = parents.remove(&pid).unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(parents.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// The children of each process that has some.
fn parents() -> HashMap<u32, Vec<u32>> {
    let mut found: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(parent) = parent(pid) {
            found.entry(parent).or_default().push(pid);
        }
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, can hold anything, brackets included. State and parent follow.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// The value in bytes of a line like `Rss:   123 kB`.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn from_ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).map_err(|error| Error::io(path.display().to_string(), error))
}

fn unexpected(path: impl std::fmt::Display) -> Error {
    Error::io(format!("{path}: unexpected contents"), io::ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(idle: u64, iowait: u64, steal: u64) -> String {
        format!(
            "cpu  100 0 100 {idle} {iowait} 0 7 {steal} 0 0\n\
             cpu0 50 0 50 1 1 0 0 0 0 0\ncpu1 50 0 50 1 1 0 0 0 0 0\nctxt 5\n"
        )
    }

    #[test]
    fn busy_is_what_idle_waiting_and_stolen_time_leave() {
        let start = Instant::now();
        let hz = clock_ticks_per_second();
        let before = SystemCpu::parse(&stat(1000, 10, 5), start).expect("parses");
        let later = start + Duration::from_secs(10);
        // Of 20 CPU-seconds, 12 idle, 1 waiting and 2 stolen.
        let text = stat(1000 + 12 * hz, 10 + hz, 5 + 2 * hz);
        let after = SystemCpu::parse(&text, later).expect("parses");
        let used = after.since(&before);
        assert!((used.busy.as_secs_f64() - 5.0).abs() < 1e-6, "{used:?}");
    }

    #[test]
    fn work_of_this_process_shows_in_the_system_cpu_time() {
        let before = SystemCpu::now().expect("all");
        let until = Instant::now() + Duration::from_millis(300);
        let mut spins = 0u64;
        while Instant::now() < until {
            spins = std::hint::black_box(spins + 1);
        }
        let now = SystemCpu::now().expect("all");
        let all = now.since(&before);
        assert!(all.elapsed >= Duration::from_millis(300));
        assert!(all.busy > Duration::from_millis(30), "{all:?} after {spins} spins");
        assert!(all.busy <= all.elapsed * now.cpus, "{all:?}");
    }

    #[test]
    fn memory_that_is_touched_shows() {
        let pid = std::process::id();
        let before = process_memory(pid).expect("memory");
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = process_memory(pid).expect("memory");
        assert!(after >= before + (48 << 20), "{before} {after}");
        assert!(system_memory().expect("memory") >= after);
        drop(block);
    }

    #[test]
    fn per_cpu_lists_of_all_zones_are_added_up() {
        let text = "Node 0, zone  DMA32\n  pages free 9\n  pagesets\n    cpu: 0\n              \
                    count:    3\n              high:  7\n    cpu: 1\n              count:    40\n";
        assert_eq!(per_cpu_pages(text), 43);
    }

    #[test]
    fn a_child_is_found_under_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        assert!(descendants(std::process::id()).contains(&child.id()));
        child.kill().expect("it runs");
        child.wait().expect("its status");
        assert!(!descendants(std::process::id()).contains(&child.id()));
    }
}
