//! Whether the host is short of memory: for sockets, or at all.

use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// How long an answer holds.
const WHILE: Duration = Duration::from_secs(1);

/// The part of the host's memory that is available where it is not short of it, as a divisor.
const AVAILABLE: u64 = 16;

/// What one worker knows of the host's memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    asked: Option<Instant>,
    is_short: bool,
}

impl Memory {
    /// Whether the host is, as of the last second before `now`. What the host does not show is plenty: a
    /// container sees no `tcp_mem`.
    pub(crate) fn is_short(&mut self, now: Instant) -> bool {
        if self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= WHILE) {
            let read = |path| read_to_string(path).unwrap_or_default();
            let of_tcp =
                under_pressure(&read("/proc/net/sockstat"), &read("/proc/sys/net/ipv4/tcp_mem"));
            self.is_short = of_tcp || is_scarce(&read("/proc/meminfo"));
            self.asked = Some(now);
        }
        self.is_short
    }
}

/// Whether TCP's sockets hold more pages than where the kernel begins to save memory, the second value of
/// `tcp_mem`.
fn under_pressure(sockstat: &str, tcp_mem: &str) -> bool {
    let mut words = sockstat.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    words = words.split_once(" mem ").map_or("", |(_, rest)| rest);
    let held = number(words);
    let pressure = tcp_mem.split_whitespace().nth(1).and_then(number);
    matches!((held, pressure), (Some(held), Some(pressure)) if held >= pressure)
}

fn is_scarce(meminfo: &str) -> bool {
    let of = |name: &str| number(meminfo.lines().find_map(|line| line.strip_prefix(name))?);
    let (all, available) = (of("MemTotal:"), of("MemAvailable:"));
    matches!((all, available), (Some(all), Some(available)) if available < all / AVAILABLE)
}

/// The number that the text begins with.
fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_short_of_memory_from_its_pressure_on() {
        let sockstat =
            "sockets: used 9\nTCP: inuse 5 orphan 0 tw 0 alloc 7 mem 300\nUDP: inuse 1 mem 0\n";
        for (tcp_mem, short) in [
            ("100\t301\t400\n", false),
            ("100\t300\t400\n", true),
            ("", false),
            ("no numbers here", false),
        ] {
            assert_eq!(under_pressure(sockstat, tcp_mem), short, "{tcp_mem:?}");
        }
        assert!(!under_pressure("", "1 1 1"));
    }

    #[test]
    fn a_host_is_short_of_memory_below_a_sixteenth() {
        for (available, short) in [(1000, false), (999, true)] {
            let meminfo =
                format!("MemTotal:   16000 kB\nMemFree: 1 kB\nMemAvailable:  {available} kB\n");
            assert_eq!(is_scarce(&meminfo), short, "{available}");
        }
        assert!(!is_scarce(""));
    }

    #[test]
    fn an_answer_holds_for_a_while() {
        let now = Instant::now();
        let mut memory = Memory { asked: Some(now), is_short: true };
        assert!(memory.is_short(now + WHILE / 2));
        memory.is_short(now + WHILE);
        assert_eq!(memory.asked, Some(now + WHILE));
    }
}
