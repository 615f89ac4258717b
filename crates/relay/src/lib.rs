//! A TCP relay that forwards on the CPUs its operator chose.
//!
//! For proxies and sidecars, over TCP and Unix sockets. One worker, pinned to one CPU, forwards every byte of a connection,
//! through memory that stays in that CPU's cache. What a connection can hold in memory is bounded. How
//! bytes move is an [`Engine`]; `docs/mechanisms/relay.md` measures which engine is good for what.
//!
//! The relay keeps TCP's meaning: half-close and resets pass through, a slow receiver slows its
//! sender, and a connection never ends by a clean close after lost bytes. It knows no UDP and no TLS,
//! and does not look into the bytes. It needs privileges for the sockmap engine only.
//!
//! ```no_run
//! use cachelane_relay::{Config, Relay};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listen: cachelane_relay::Listen = ":8080".parse()?;
//! let backend: cachelane_relay::Backend = "10.0.0.5:80,check".parse()?;
//! let relay = Relay::start(Config::new(vec![listen], vec![backend], "0-3".parse()?))?;
//! relay.set_cpus(&"2".parse()?)?; // the workers move at once, with their connections
//! relay.drain(Duration::from_secs(30));
//! # Ok(())
//! # }
//! ```
//!
//! The code is MIT or Apache-2.0; the BPF program in `src/bpf`, which is compiled in, is GPL-2.0.

mod access;
mod access_log;
mod addr;
mod backends;
mod baton;
mod cause;
mod clients;
mod config;
mod congestion;
mod connection;
mod counters;
mod crew;
mod error;
mod files;
mod flow;
mod grants;
#[cfg_attr(not(feature = "knobs"), allow(dead_code))]
mod handover;
mod inherited;
#[cfg(feature = "knobs")]
mod knobs;
mod listeners;
mod loops;
mod memory;
mod placement;
#[cfg(feature = "fuzzing")]
pub mod proxy;
#[cfg(not(feature = "fuzzing"))]
#[allow(unreachable_pub)]
mod proxy;
mod relay;
mod repeated;
mod session;
mod shared;
mod socket;
mod sockmap;
mod sockopt;
mod source;
mod statistics;
#[cfg(feature = "knobs")]
mod succession;
mod tls;
#[cfg(feature = "measure")]
mod tuning;
mod waiting;
mod worker;

#[cfg(feature = "knobs")]
pub use self::knobs::{STATISTICS, register, register_service};
pub use access::AddressEntry;
pub use access_log::{AccessLog, LogFormat, LogSample, LogTarget};
pub use addr::{Addr, UnixAddr};
pub use backends::{BackendState, settings::BackendSettings};
pub use cause::Cause;
pub use clients::{ClientMask, Rate};
pub use config::{Backend, Balance, Check, Config, Engine, Listen, ProxyHeader, Target};
pub use congestion::CongestionControl;
pub use counters::Stats;
pub use error::{Error, ErrorKind};
pub use inherited::Inherited;
pub use relay::Relay;
pub use socket::on_this_host;
pub use source::Source;
pub use statistics::{Statistics, Times, Traffic};
#[cfg(feature = "knobs")]
pub use succession::Predecessor;
#[cfg(feature = "measure")]
pub use tuning::Tuning;
