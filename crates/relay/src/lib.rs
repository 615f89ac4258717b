//! A TCP relay that forwards on the CPUs its operator chose.
//!
//! For those who run proxies and sidecars: every byte of a connection is forwarded by one worker
//! that is pinned to one CPU, through memory that stays in that CPU's cache, and what a
//! connection can hold in memory is bounded. How bytes move is an [`Engine`]; which engine is
//! good for what is measured in `docs/mechanisms/relay.md`.
//!
//! TCP's meaning is kept: half-close and resets pass through, a slow receiver slows its sender,
//! and a connection never ends by a clean close after lost bytes. UDP, TLS termination and
//! looking into the bytes are not here.
//!
//! [`Relay::start`] is where to begin; reading on, `worker` is the event loop, `connection` one
//! client, `flow` one direction with its engines, `sockmap` the part in the kernel.

mod backend;
mod config;
mod connection;
mod counters;
mod error;
mod flow;
#[cfg(feature = "knobs")]
mod knobs;
mod relay;
mod shared;
mod socket;
mod sockmap;
mod sockopt;

mod worker;

pub mod proxy;

#[cfg(feature = "knobs")]
pub use self::knobs::register;
pub use config::{Balance, Config, Engine, parse_backend, parse_listen};
pub use counters::Stats;
pub use error::{Error, ErrorKind};
pub use relay::Relay;
pub use sockmap::{buffer_for, jiffy};
