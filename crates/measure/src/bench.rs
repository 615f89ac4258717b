//! `cachelane bench`: repeats a claim of the docs on this host, with peers beside it.
//!
//! An experiment is a list of cases, each measured once a round, in a new random order every
//! round; so whatever drifts on the machine drifts over all of them, and the ratio of two cases
//! is taken round by round. [`Series`] collects what was measured.

pub mod bridge;
pub mod frames;
pub mod lend;
mod peer;
mod places;
pub mod relay;
pub(crate) mod relay_process;
mod series;
pub mod steer;
mod stop;
mod worker;

use std::time::Duration;

pub(crate) use series::{Progress, Series};
pub use stop::Stop;

/// How much of an experiment with parts of type `P` is measured.
#[derive(Clone, Debug)]
pub struct Plan<P> {
    /// Parts to run.
    pub parts: Vec<P>,
    /// Times that each case is measured.
    pub rounds: usize,
    /// Length of one measurement.
    pub window: Duration,
    /// Seed of the order of the cases.
    pub seed: u64,
    /// No progress line.
    pub quiet: bool,
}
