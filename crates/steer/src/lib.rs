//! Receive flow steering that leaves a flow alone while its consumer stays in its lane.

pub mod cost;
mod counters;
mod error;
mod host;
#[cfg(feature = "knobs")]
mod knobs;
pub mod model;
mod native;
mod program;
pub mod simulate;
mod size;
mod steering;
mod threads;
mod tick;

#[cfg(feature = "knobs")]
pub use self::knobs::register;
pub use counters::{Counters, Reason};
pub use error::{Error, ErrorKind, Result};
pub use host::{COSTS, Cost, Note, Obstacle, Plan, inspect};
pub use size::records_for;
pub use steering::{LOOK, SteerOptions, Steering};
