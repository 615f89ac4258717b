use std::fmt;
use std::fs;

use rustix::system::{sysinfo, uname};
use rustix::time::{ClockId, clock_getres};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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
    /// Which machine it is, without saying who: a hash of `/etc/machine-id`, the same in everything
    /// that is measured there. None where there is no such file, as in many containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
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
            id: id(&fs::read_to_string("/etc/machine-id").unwrap_or_default()),
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

/// The machine ID may not leave the machine, says machine-id(5), only a hash of it with a key of the
/// application's own. None of what is not 32 digits: `uninitialized`, or nothing.
fn id(machine: &str) -> Option<String> {
    let machine = machine.trim();
    let is_id = machine.len() == 32 && machine.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = || Sha256::digest(format!("cachelane host {}", machine.to_ascii_lowercase()));
    is_id.then(|| hash()[..16].iter().map(|byte| format!("{byte:02x}")).collect())
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
        let host = Host { kernel: "6.18.5".into(), cpu, cpus, hz: Some(250), memory, id: None };
        let expected = "Linux 6.18.5, AMD EPYC 9B14, 5 CPUs, 15.6 GiB, HZ=250";
        assert_eq!(host.to_string(), expected);
        assert_eq!(cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
        assert_eq!(count_cpus(""), 0);
    }

    #[test]
    fn a_machine_is_known_again_but_not_by_its_id() {
        let machine = "0123456789abcdef0123456789abcdef";
        let found = id(&format!("{machine}\n")).unwrap();
        assert_eq!(found.len(), 32);
        assert_eq!(id(machine), Some(found.clone()));
        assert_ne!(id(&machine.replace('0', "1")), Some(found.clone()));
        assert!(!found.contains(&machine[..8]));
        for none in ["", "uninitialized\n", "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(id(none), None, "{none}");
        }
    }

    #[test]
    fn this_machine_is_known() {
        let host = Host::detect();
        assert!(!host.kernel.is_empty() && host.cpus > 0 && host.memory > 0, "{host:?}");
        assert!(host.hz.is_some_and(|hz| [100, 250, 300, 1000].contains(&hz)), "{host:?}");
    }
}
