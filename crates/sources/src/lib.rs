//! What can be measured on this host while a trial runs.
//!
//! A **quantity** can be read at any moment: a growing total, a level, or a histogram. A **measure**
//! is one by second, one by another, or a quantile. A [`MeasureSpec`] is a measure as users write
//! it; docs/measures.md has all names. A [`Meter`] opens what some measures need, reads it at the
//! start, in the middle and at the end of a window, and says what each measure came to between two
//! of these readings. [`list`] says what there is on this host.
//!
//! What cannot be judged is said, never guessed: a counter that was reset, a CPU or a device that
//! came or went and an endpoint that did not answer make a window void, with the reason. Files stay
//! open, what is not asked for is not read, and what is read together is read once.
//!
//! A [`Command`] of the user's is different: it has one value for a window as a whole.
//!
//! ```
//! use cachelane_sources::Meter;
//! use trial::Value;
//!
//! let mut meter = Meter::open(&["cpu.busy".parse()?, "cpu.busy/switches".parse()?])?;
//! let start = meter.read()?;
//! std::thread::sleep(std::time::Duration::from_millis(50)); // the window
//! let end = meter.read()?;
//! for (measure, value) in meter.measures().iter().zip(meter.values(&start, &end)) {
//!     let Value::Part(part) = value? else { continue };
//!     println!("{}: {} {}", measure.name, part.ratio(), measure.unit);
//! }
//! # Ok::<(), cachelane_sources::Error>(())
//! ```

mod command;
mod error;
mod histogram;
mod list;
mod meter;
pub mod pmu;
mod prom;
mod quantity;
mod source;
mod spec;
mod value;

pub use command::{Command, Running};
pub use error::{Error, ErrorKind, Result};
pub use list::{Listed, list};
pub use meter::{Meter, Reading};
pub use quantity::{Kind, Quantity};
pub use spec::MeasureSpec;
pub use trial::Better;
pub(crate) use value::Value;
