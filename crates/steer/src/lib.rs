//! Receive flow steering that leaves a flow alone while its consumer stays in its lane.

mod control;
pub mod cost;
mod counters;
mod error;
mod host;
pub mod model;
mod native;
mod program;
pub mod simulate;
mod size;
mod steering;
mod targets;
mod threads;
mod tick;

pub use control::register;
pub use counters::{Counters, Reason};
pub use error::{Error, ErrorKind, Result};
pub use host::{COSTS, Cost, Note, Obstacle, Plan, inspect};
pub use size::records_for;
pub use steering::{LOOK, SteerOptions, Steering};
