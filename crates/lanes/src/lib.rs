//! Which CPUs share a last-level cache.
//!
//! A **lane** is the set of CPUs that share a last-level cache: an AMD CCX, an Intel socket or
//! cluster. Where the machine shows no L3 it is the set that shares L2; where it shows nothing it
//! is all CPUs. A lane never spans NUMA nodes. [`LaneMap`] answers "which lane is this CPU in?"
//! with one array read; [`CpuSet`] and [`CpuSpec`] are how people write CPUs.
//!
//! [`quota`] says how much of them a process's cgroup lets it use.
//!
//! The map is a snapshot: CPU hotplug after [`LaneMap::detect`] is not followed. CPU numbers go up
//! to [`CpuSet::MAX`]; a machine with more is refused, not misread.
//!
//! ```
//! use cachelane_lanes::{CpuSet, CpuSpec};
//!
//! let cpus: CpuSet = "0-3,8".parse()?;
//! assert_eq!(cpus.len(), 5);
//! let spec: CpuSpec = "lane:1,8".parse()?;
//! assert_eq!(spec.to_string(), "lane:1,8");
//! # Ok::<(), cachelane_lanes::Error>(())
//! ```

mod cache;
mod cpuset;
mod error;
mod layout;
mod map;
mod pin;
mod quota;
mod scan;
mod spec;
mod sysfs;

pub use cache::l2_size;
pub use cpuset::CpuSet;
pub use error::{Error, ErrorKind, Result};
pub use map::{LaneId, LaneMap, Source};
pub use pin::{keep_thread, pin, pin_thread};
pub use quota::quota;
pub use spec::CpuSpec;
