//! `cachelane bench`: repeats a claim of the docs on this host, with peers beside it.
//!
//! An experiment's module has its parts, a file each; `experiment.rs` says what they are made of,
//! and `driver.rs` runs them.

pub mod all;
pub mod bridge;
pub mod bundle;
mod claim;
mod command;
pub mod doctor;
mod driver;
pub(crate) mod exchanges;
mod experiment;
mod found;
pub mod frames;
mod growth;
pub mod lend;
pub mod list;
mod peer;
mod places;
pub mod relay;
pub(crate) mod relay_process;
pub mod results;
mod series;
mod share;
pub mod steer;
mod stop;
pub mod trial;
mod worker;

pub use driver::{Outcome, in_words, run};
pub(crate) use experiment::Absent;
pub use experiment::{Experiment, Part, Plan};
pub use found::Found;
pub(crate) use series::{Progress, Series};
pub use stop::Stop;
