use std::fmt;
use std::fs;

use rustix::system::{sysinfo, uname};
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
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let sysinfo = sysinfo();
        Self {
            kernel: uname().release().to_string_lossy().into_owned(),
            cpu: cpu_model(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_owned(),
            cpus: count_cpus(online.trim()),
            hz,
            memory: sysinfo.totalram as u64 * u64::from(sysinfo.mem_unit),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_tells() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14\n";
        let (cpu, cpus) = (cpu_model(cpuinfo).unwrap().to_owned(), count_cpus("0-3,8"));
        let memory = 16_384_000 * 1024;
        let host = Host { kernel: "6.18.5".into(), cpu, cpus, hz: Some(250), memory };
        let expected = "Linux 6.18.5, AMD EPYC 9B14, 5 CPUs, 15.6 GiB, HZ=250";
        assert_eq!(host.to_string(), expected);
        assert_eq!(cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
        assert_eq!(count_cpus(""), 0);
    }

    #[test]
    fn this_machine_is_known() {
        let host = Host::detect();
        assert!(!host.kernel.is_empty() && host.cpus > 0 && host.memory > 0, "{host:?}");
        assert!(host.hz.is_some_and(|hz| [100, 250, 300, 1000].contains(&hz)), "{host:?}");
    }
}
