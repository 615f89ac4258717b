//! What the commands that handle packets themselves (`xsk`, `lend`, `borrow`) share.
//!
//! Each gives every thread its part of the work and runs the threads (`session`) until a count, a
//! time or a signal ends them. Threads count for themselves (`meter`); the live line and the report
//! read that, and a file for plotters (`csv`). Those with sockets of AF_XDP check their options and build devices, memory and sockets
//! from them (`options`, `setup`, `carrier`), handle sockets in the same way (`sockets`, `idle`), and show the
//! same (`job`, `live`).

pub(crate) mod carrier;
mod csv;
pub(crate) mod expression;
pub(crate) mod idle;
pub(crate) mod job;
mod live;
pub(crate) mod meter;
pub(crate) mod options;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod sockets;
pub(crate) mod values;
