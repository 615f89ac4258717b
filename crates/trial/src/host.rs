use std::fmt;
use std::fs;
use std::path::Path;

use rustix::time::{ClockId, clock_getres};
use serde::{Deserialize, Serialize};

/// The machine that something was measured on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The kernel's release, e.g. `6.18.5`.
    pub kernel: String,
    /// The CPU's model, or the architecture where the kernel names no model.
    pub cpu: String,
    /// How many CPUs are online.
    pub cpus: usize,
    /// Timer ticks a second, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hz: Option<u32>,
    /// Memory in bytes.
    pub memory: u64,
}

impl Host {
    /// This machine. What cannot be read stays empty or 0; this never fails.
    pub fn detect() -> Self {
        // The coarse clock advances once a tick, so its resolution is the tick.
        let tick = clock_getres(ClockId::MonotonicCoarse);
        let hz = (tick.tv_sec == 0 && tick.tv_nsec > 0)
            .then(|| (1e9 / tick.tv_nsec as f64).round() as u32)
            // Without high-resolution timers any clock could claim this; no kernel ticks faster.
            .filter(|hz| (1..=10_000).contains(hz));
        Self { hz, ..Self::read(Path::new("/")) }
    }

    /// What `/proc` and `/sys` under `root` say.
    fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let cpuinfo = text("proc/cpuinfo");
        Self {
            kernel: text("proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: cpu_model(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_owned(),
            cpus: count_cpus(text("sys/devices/system/cpu/online").trim()),
            hz: None,
            memory: memory(&text("proc/meminfo")),
        }
    }
}

/// One line for people: `Linux 6.18.5, AMD EPYC 9B14, 2 CPUs, 15.6 GiB, HZ=250`.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.cpus == 1 { "" } else { "s" };
        let gib = self.memory as f64 / f64::from(1 << 30);
        write!(f, "Linux {}, {}, {} CPU{plural}, {gib:.1} GiB", self.kernel, self.cpu, self.cpus)?;
        self.hz.map_or(Ok(()), |hz| write!(f, ", HZ={hz}"))
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let (_, model) = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| ["model name", "cpu model", "cpu"].contains(&key.trim()))?;
    Some(model.trim()).filter(|model| !model.is_empty())
}

/// How many CPUs a kernel list such as `0-3,8` names.
fn count_cpus(list: &str) -> usize {
    let count = |range: &str| -> Option<usize> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last + 1).checked_sub(first)
    };
    list.split(',').filter_map(count).sum()
}

fn memory(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn reads_what_the_kernel_tells() {
        let root = tree(&[
            ("proc/sys/kernel/osrelease", "6.18.5\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14\n"),
            ("sys/devices/system/cpu/online", "0-3,8\n"),
            ("proc/meminfo", "MemTotal:       16384000 kB\nMemFree: 1 kB\n"),
        ]);
        let host = Host::read(root.path());
        assert_eq!(host.to_string(), "Linux 6.18.5, AMD EPYC 9B14, 5 CPUs, 15.6 GiB");
        assert_eq!(host.memory, 16_384_000 * 1024);
    }

    #[test]
    fn a_kernel_that_names_no_model_gives_the_architecture() {
        let root = tree(&[("proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd0c\n")]);
        let host = Host::read(root.path());
        assert_eq!((host.cpu.as_str(), host.cpus), (std::env::consts::ARCH, 0));
    }

    #[test]
    fn this_machine_is_known() {
        let host = Host::detect();
        assert!(!host.kernel.is_empty() && host.cpus > 0 && host.memory > 0, "{host:?}");
        assert!(host.hz.is_some_and(|hz| [100, 250, 300, 1000].contains(&hz)), "{host:?}");
    }
}
