//! `/proc/meminfo` and `/proc/zoneinfo`: memory that is in use for good.
//!
//! The free lists of CPUs are not in `MemFree`. They grow by hundreds of megabytes where one CPU
//! frees what another allocated.

use rustix::param::page_size;

use super::file::Kept;
use super::text::Text;
use super::unexpected;
use crate::spec::Named;
use crate::{Result, Value};

const MEMINFO: &str = "/proc/meminfo";

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let files = [MEMINFO, "/proc/zoneinfo"].map(|path| Kept::open(path, "procfs is not mounted"));
    let files = files.into_iter().collect::<Result<_>>()?;
    Text::new(files, names, |_| {
        Ok(Box::new(|files| used(files[0].text()?, files[1].text()?).map(Value::Level)))
    })
}

/// In bytes.
fn used(meminfo: &str, zoneinfo: &str) -> Result<f64> {
    let field = |name: &str| {
        let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib =
            value.and_then(|value| value.split_ascii_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib * 1024.0).ok_or_else(|| unexpected(MEMINFO, name))
    };
    let cached = field("Buffers")? + field("Cached")? + field("SReclaimable")?;
    let free = field("MemFree")? + listed(zoneinfo) * page_size() as f64;
    Ok((field("MemTotal")? - free - cached).max(0.0))
}

/// The free pages in the lists of all CPUs and zones.
fn listed(zoneinfo: &str) -> f64 {
    let counts = zoneinfo.lines().filter_map(|line| line.trim_start().strip_prefix("count:"));
    counts.filter_map(|count| count.trim().parse::<f64>().ok()).sum()
}

#[test]
fn what_the_kernel_would_give_back_is_not_in_use() {
    let meminfo = "MemTotal: 10000 kB\nMemFree:  3000 kB\nMemAvailable: 5000 kB\nBuffers: 100 kB\n\
                   Cached: 1500 kB\nSwapCached: 7 kB\nSReclaimable: 400 kB\n";
    let zoneinfo = "Node 0, zone  DMA32\n  pages free 9\n  pagesets\n    cpu: 0\n              \
                    count:    3\n              high:  7\n    cpu: 1\n              count:    40\n";
    let lists = 43.0 * page_size() as f64;
    assert_eq!(used(meminfo, zoneinfo).unwrap(), 5000.0 * 1024.0 - lists);
    let error = used("MemTotal: 10000 kB\n", zoneinfo).unwrap_err().to_string();
    assert!(error.contains("Buffers"), "{error}");
}
