//! Receive flow steering that leaves a flow alone while its consumer stays in its lane.

mod control;
#[cfg(feature = "measure")]
pub mod cost;
mod counters;
mod error;
mod host;
#[cfg(any(test, feature = "measure"))]
pub mod model;
mod native;
mod program;
mod size;
mod steering;
mod threads;
mod tick;

pub use control::register;
pub use counters::{Counters, Reason};
pub use error::{Error, ErrorKind, Result};
pub use host::{COSTS, Cost, Note, Obstacle, Plan, inspect};
pub use size::records_for;
pub use steering::{LOOK, SteerOptions, Steering};
