//! How large the table of records is.

use std::fs;

use crate::Result;
use crate::error::Context as _;

/// The fewest records, and the most.
pub(crate) const RECORDS: std::ops::RangeInclusive<u32> = 1 << 8..=1 << 24;
/// As many as cost nothing: they stay in a core's own cache.
const LEAST: u64 = 2048;
/// Records for each flow. With four there are two in a set of eight on average, and more than
/// eight, which displace each other, in one set of 4,000.
const PER_FLOW: u64 = 4;

/// The records that so many flows need: four each, but at least 2048, as a power of two.
///
/// More are no use and cost time: a table that does not stay in the CPUs' caches is a miss or two
/// for each packet.
pub fn records_for(flows: u64) -> u32 {
    let wanted = flows.saturating_mul(PER_FLOW).clamp(LEAST, u64::from(*RECORDS.end()));
    // At most the end of the range, which is a power of two.
    wanted.next_power_of_two() as u32
}

/// The sockets of TCP and UDP that are in use in the caller's network namespace.
pub(crate) fn sockets() -> Result<u64> {
    let read = |name: &str| {
        let path = format!("/proc/thread-self/net/{name}");
        fs::read_to_string(&path).context(&path)
    };
    // A kernel without IPv6 has none of its own.
    Ok(in_use(&read("sockstat")?) + read("sockstat6").map_or(0, |text| in_use(&text)))
}

/// The sum of the lines `TCP: inuse N …` and `UDP: inuse N …`, and of those of IPv6.
fn in_use(text: &str) -> u64 {
    let of_line = |line: &str| {
        let (protocol, rest) = line.split_once(": inuse ")?;
        let count = rest.split_whitespace().next()?.parse::<u64>().ok()?;
        matches!(protocol, "TCP" | "UDP" | "TCP6" | "UDP6").then_some(count)
    };
    text.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_a_power_of_two_with_four_a_flow() {
        for (flows, records) in [
            (0, 2048),
            (512, 2048),
            (513, 4096),
            (10_000, 65_536),
            (4_000_000, 1 << 24),
            (u64::MAX, 1 << 24),
        ] {
            assert_eq!(records_for(flows), records, "{flows}");
        }
    }

    #[test]
    fn sockets_of_both_protocols_count() {
        let text = "sockets: used 290\nTCP: inuse 12 orphan 0 tw 4 alloc 15 mem 3\n\
                    UDP: inuse 3 mem 0\nUDPLITE: inuse 7\nRAW: inuse 5\nFRAG: inuse 0 memory 0\n";
        assert_eq!(in_use(text), 15);
        assert_eq!(in_use("TCP6: inuse 4\nUDP6: inuse 5\nRAW6: inuse 1\n"), 9);
    }
}
