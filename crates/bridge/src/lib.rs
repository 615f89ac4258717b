//! A fast path for a Linux bridge that exists.
//!
//! It forwards frames that the bridge would forward in exactly the same way, without writing a cache
//! line that another CPU reads. It leaves every other frame to the bridge, which goes on learning,
//! ageing, flooding and speaking STP. [`Accelerator`] does it for one bridge, [`Fleet`] for several,
//! also for those that come later. [`decide`] says what may be done on which port, and why not more.
//! It needs root and Linux 6.6.
//!
//! ```no_run
//! # fn main() -> cachelane_bridge::Result<()> {
//! let fast = cachelane_bridge::Accelerator::start("br0", cachelane_bridge::Config::default())?;
//! for port in fast.plan().ports {
//!     println!("{}: sent to by {}", port.name, port.send.name());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The code is MIT or Apache-2.0; the BPF program in `src/bpf`, which is compiled in, is GPL-2.0.

mod accelerator;
mod config;
mod counters;
mod decide;
mod error;
mod fleet;
mod host;
mod inspect;
#[cfg(feature = "knobs")]
mod knobs;
mod lease;
mod mirror;
mod owner;
mod priority;
mod program;
mod rules;
mod shared;
pub mod state;
mod vlans;
mod worker;

#[cfg(feature = "knobs")]
pub use self::knobs::register;
pub use accelerator::Accelerator;
pub use bpf::program_name;
pub use config::{Config, Table};
pub use counters::{Counters, Reason};
pub use decide::{Obstacle, Plan, PortPlan, Protocol, Refresh, Way, decide};
pub use error::{Error, ErrorKind, Result};
pub use fleet::{Bridges, Event, Fleet, is_pattern, matching};
pub use inspect::{Inspection, bridges, inspect};
pub use lease::Lease;
pub use owner::Accelerated;
pub use state::{Change, Entry, EntryKind};
