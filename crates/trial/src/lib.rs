//! Interleaved A/B trials of a knob under live traffic: does it help, by how much, how sure is that?
//!
//! Use it to flip a setting and get an answer that drift, bursts and wishful stopping cannot fake. The
//! crate is pure: it knows nothing of knobs, networks or privileges. The caller brings a [`Subject`],
//! which sets an arm and measures a window; the crate brings the order of the windows, the statistics
//! and the report.
//!
//! 1. A [`Plan`] lays windows out in randomised ABBA blocks.
//! 2. [`run`] walks the plan; whoever is told of each window may stop it.
//! 3. An [`Outcome`] compares each arm with the first one: a [`Comparison`] with a ratio, its
//!    interval, a p-value and a [`Verdict`].
//! 4. A [`Record`] keeps all that as JSON.
//! 5. [`combine()`] makes one answer of the records of many hosts and hours.
//! 6. A [`report::Page`] draws that as one HTML page or as a table for a terminal.
//!
//! [`mod@bench`] holds what benches print; [`paired_ratio`] does the statistics of their paired runs.
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::time::Duration;
//! use cachelane_trial::{Better, BoxError, Measure, Plan, Sample, Subject, Verdict, run};
//!
//! struct Echo { arm: usize }
//!
//! impl Subject for Echo {
//!     fn measures(&self) -> Vec<Measure> {
//!         vec![Measure::new("rate", "/s", Better::Higher)]
//!     }
//!     fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
//!         self.arm = arm; // flip the knob here
//!         Ok(())
//!     }
//!     fn measure(&mut self, _window: Duration) -> Result<Sample, BoxError> {
//!         Ok(if self.arm == 0 { 100.0 } else { 120.0 }.into()) // count for the window here
//!     }
//! }
//!
//! let plan = Plan { blocks: 6, settle: Duration::ZERO, ..Plan::new(["off", "on"]) };
//! let outcome = run(&plan, &mut Echo { arm: 0 }, |_| ControlFlow::Continue(()))?;
//! assert_eq!(outcome.compare(1)?.verdict, Verdict::Better);
//! # Ok::<(), cachelane_trial::Error>(())
//! ```
//!
//! Several trials are not corrected for each other: of twenty, expect one to stand out by chance.

pub mod bench;
mod combine;
mod engine;
mod error;
mod host;
mod measure;
mod number;
mod outcome;
mod pilot;
mod plan;
pub mod record;
pub mod report;
mod series;
mod stats;
mod table;
mod value;

pub use combine::{Combined, CombinedReport, HostRatio, LeftOut, Source, combine};
pub use engine::{Sample, Step, Subject, Window, run};
pub use error::{BoxError, Error, ErrorKind};
pub use measure::{Better, Measure};
pub use outcome::{Ended, Judged, Outcome};
pub use pilot::{Hold, Pilot, pilot, pilot_time, pilot_windows};
pub use plan::{Guard, Plan, Reach, Slot};
pub use record::Record;
pub use stats::{
    Comparison, Interval, Ratio, Rules, Verdict, compare, paired_difference, paired_ratio,
};
pub use value::{Histogram, Part, Value};
