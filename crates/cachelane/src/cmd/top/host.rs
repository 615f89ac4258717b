//! What `/proc` says of the CPUs and of a process.

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::Context as _;
use nix::time::ClockId;
use nix::unistd::Pid;
use rustix::param::page_size;

use super::sample::Cpu;

/// What the CPUs have done so far.
pub(super) fn cpus() -> anyhow::Result<Vec<Cpu>> {
    let path = "/proc/stat";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let cpus: Vec<Cpu> =
        text.lines().map_while(|line| line.strip_prefix("cpu")).filter_map(cpu).collect();
    anyhow::ensure!(!cpus.is_empty(), "{path} names no CPU");
    Ok(cpus)
}

/// A line behind its `cpu`; none for the sum over all.
fn cpu(line: &str) -> Option<Cpu> {
    let (cpu, ticks) = line.split_once(' ')?;
    let cpu = cpu.parse().ok()?;
    // user nice system idle iowait irq softirq steal; what runs in guests is in user, too.
    let ticks: Vec<u64> = ticks.split_whitespace().map_while(|tick| tick.parse().ok()).collect();
    let column = |index: usize| ticks.get(index).copied().unwrap_or(0);
    Some(Cpu {
        cpu,
        user: column(0) + column(1),
        system: column(2),
        softirq: column(5) + column(6),
        rest: column(3) + column(4) + column(7),
    })
}

/// A process as its `stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: char,
    pub(super) threads: u64,
    /// Ticks after the host's start.
    pub(super) started: u64,
    /// In bytes.
    pub(super) rss: u64,
}

impl Stat {
    /// None if there is no such process.
    pub(super) fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name before it may have anything in it.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Counted from the state, which proc(5) calls the third.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            threads: number(20)?,
            started: number(22)?,
            rss: number(24)? * page_size() as u64,
        })
    }

    /// By a signal or a debugger.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The CPU time of a process with all its threads, to the nanosecond.
pub(super) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid))?;
    Ok(clock.now()?.into())
}

/// What this host is called.
pub(super) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_stat_is_read_by_its_columns() {
        let expected = Cpu { cpu: 3, user: 11, system: 5, softirq: 14, rest: 180 };
        assert_eq!(cpu("3 10 1 5 100 20 6 8 60 9 0"), Some(expected));
        // Old kernels have fewer.
        assert_eq!(cpu("0 1 2 3 4"), Some(Cpu { cpu: 0, user: 3, system: 3, softirq: 0, rest: 4 }));
        assert_eq!(cpu("  10 1 5 100"), None);
        assert_eq!(cpu("id 1"), None);
        assert!(!cpus().unwrap().is_empty());
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let text = "7 (a) S) b) T 1 1 1 0 -1 4194560 1 0 0 0 12 34 0 0 20 0 5 0 777 1000 3 18446744073709551615";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.threads, stat.started), ('T', 5, 777));
        assert_eq!(stat.rss, 3 * page_size() as u64);
        assert!(stat.is_stopped() && !stat.has_ended());
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        let own = Stat::of(std::process::id()).unwrap();
        assert!(own.rss > 0 && own.threads > 0 && !own.is_stopped());
        assert!(cpu_time(std::process::id()).unwrap() > Duration::ZERO);
        assert!(cpu_time(0x7fff_fffe).is_err());
    }
}
