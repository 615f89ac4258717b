//! What a process takes of its host, from /proc.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::LazyLock;

use rustix::param::{clock_ticks_per_second, page_size};

/// What one process takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usage {
    /// CPU time, in seconds.
    pub(super) cpu: f64,
    /// Resident memory in bytes.
    pub(super) memory: u64,
    /// When it started, in seconds since 1970.
    pub(super) start: f64,
    /// Open files; none where the kernel does not count them (before 6.2) or this user may not know.
    pub(super) files: Option<u64>,
    /// The most files that it may open.
    pub(super) max_files: Option<u64>,
}

/// Seconds since 1970 at which this host started.
static BOOT: LazyLock<f64> = LazyLock::new(|| {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    boot.unwrap_or(0.0)
});

impl Usage {
    /// Of the process with this id; none if it is not there, or another user's: a process of another PID
    /// namespace may be known by an id that is somebody else's here.
    pub(super) fn of(pid: u32, uid: u32) -> Option<Usage> {
        let dir = format!("/proc/{pid}");
        // A process that changed its user belongs to root here, as far as /proc is concerned.
        fs::metadata(&dir).ok().filter(|meta| [uid, 0].contains(&meta.uid()))?;
        let stat = fs::read_to_string(format!("{dir}/stat")).ok()?;
        let files = fs::metadata(format!("{dir}/fd")).ok().map(|fd| fd.size());
        let limits = fs::read_to_string(format!("{dir}/limits")).unwrap_or_default();
        let max = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let max_files = max.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let usage = parse(&stat, clock_ticks_per_second() as f64, page_size() as u64, *BOOT)?;
        Some(Usage { files: files.filter(|files| *files > 0), max_files, ..usage })
    }
}

/// Reads a line of /proc/PID/stat. The name of the program, in parentheses, may have anything in it.
fn parse(stat: &str, ticks: f64, page: u64, boot: f64) -> Option<Usage> {
    let (_, rest) = stat.rsplit_once(')')?;
    // From the third field on, as proc_pid_stat(5) counts them.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let (user, system, start, pages) = (number(14)?, number(15)?, number(22)?, number(24)?);
    Some(Usage {
        cpu: (user + system) as f64 / ticks,
        memory: pages * page,
        start: boot + start as f64 / ticks,
        files: None,
        max_files: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_program_is_called() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 149 0 0 0 250 50 0 0 20 0 2 0 1000 1234 \
                    300 18446744073709551615 1 1";
        let usage = parse(line, 100.0, 4096, 5.0).unwrap();
        assert_eq!((usage.cpu, usage.memory, usage.start), (3.0, 300 * 4096, 15.0));
        assert_eq!(parse("7 (a", 100.0, 4096, 0.0), None);
        assert_eq!(parse("7 (a) S 1", 100.0, 4096, 0.0), None);
    }

    #[test]
    fn this_process_has_memory_and_a_start_and_a_limit_of_files() {
        let uid = rustix::process::geteuid().as_raw();
        let usage = Usage::of(std::process::id(), uid).unwrap();
        assert!(usage.memory > 100_000 && usage.start > 1e9, "{usage:?}");
        assert!(usage.max_files.is_some_and(|max| max > 0), "{usage:?}");
        assert_eq!(Usage::of(std::process::id(), uid + 1).is_some(), uid == 0);
    }
}
