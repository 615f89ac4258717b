//! Receive flow steering that leaves a flow alone while its consumer stays in its lane.
//!
//! [`Steering`] attaches an XDP program that sends each flow of a device to the CPU that its consumer
//! last used; [`inspect`] says beforehand what stands against that. It needs root and Linux 6.6.
//!
//! What fails says what the system reports; its documentation has what it says besides.
//!
//! The code is MIT or Apache-2.0; the BPF programs in `src/bpf`, which are compiled in, are GPL-2.0.

mod counters;
mod error;
mod host;
#[cfg(feature = "knobs")]
mod knobs;
#[cfg(any(test, feature = "measure"))]
pub mod model;
mod native;
mod program;
#[cfg(feature = "measure")]
mod run_times;
mod size;
mod steering;
mod targets;
mod threads;

#[cfg(feature = "knobs")]
pub use self::knobs::register;
pub use counters::{Counters, Reason};
pub use error::{Error, ErrorKind, Result};
pub use host::{COSTS, Cost, Note, Obstacle, Plan, inspect};
#[cfg(feature = "measure")]
pub use run_times::RunTimes;
pub use size::records_for;
pub use steering::{LOOK, SteerOptions, Steering};
