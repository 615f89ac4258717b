//! What every library here declares in the same way: counters and reasons, each in one line.

mod counters;

pub use counters::{Count, Field};
