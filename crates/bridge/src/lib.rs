//! A fast path for a Linux bridge that exists.
//!
//! It forwards the frames that the bridge would forward in exactly the same way, without writing
//! a cache line that another CPU reads, and leaves every other frame to the bridge, which goes on
//! learning, ageing, flooding and speaking STP. [`Accelerator`] does it; [`decide`] says what it
//! may do on which port, and why not more. [`Fleet`] does it for several bridges, also for those that
//! come later. It needs root and Linux 6.6.
//!
//! ```no_run
//! # fn main() -> bridge::Result<()> {
//! let fast = bridge::Accelerator::start("br0", bridge::Config::default())?;
//! for port in fast.plan().ports {
//!     println!("{}: sent to by {}", port.name, port.send.name());
//! }
//! # Ok(())
//! # }
//! ```

mod accelerator;
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
mod reason;
mod rules;
pub mod state;
mod station;
mod tcx;
mod worker;

#[cfg(feature = "knobs")]
pub use self::knobs::register;
pub use accelerator::{Accelerator, Config, Stats, Table};
pub use decide::{Obstacle, Plan, PortPlan, Protocol, Refresh, Way, decide};
pub use error::{Error, ErrorKind, Result};
pub use fleet::{Bridges, Event, Fleet};
pub use inspect::{Inspection, bridges, inspect};
pub use lease::Lease;
pub use owner::Accelerated;
pub use reason::Reason;
pub use station::{Change, Entry, EntryKind};
pub use tcx::program_name;
