//! Test hosts in network namespaces, traffic drivers, accounting, and the programs that
//! cachelane is compared with.
//!
//! For demos, benches and tests: everything happens inside namespaces that the lab makes, and
//! nothing of the machine's own network is changed. Making hosts needs root, `ip` and
//! `setpriv`; drivers and accounting work without, on [`Host::here`].
//!
//! ```no_run
//! use cachelane_lab::{Lab, LinkOptions};
//!
//! # fn main() -> cachelane_lab::Result<()> {
//! let lab = Lab::new("doc")?;
//! let (client, server) = (lab.host("client")?, lab.host("server")?);
//! let link = lab.link(&client, &server, LinkOptions::default())?;
//! println!("{}", client.command("ip").args(["-br", "address"]).run()?);
//! println!("the server is {}", link.b.socket(80));
//! # Ok(())
//! # }
//! ```

mod attribute;
mod bridge;
mod command;
mod error;
mod host;
mod lab;
mod link;
mod pass;
mod path;
pub mod peer;
mod tempdir;
pub mod testing;
pub mod traffic;
pub mod usage;

pub use attribute::DeviceCounters;
pub use bridge::{Bridge, BridgeOptions};
pub use command::{Command, Process};
pub use error::{Error, ErrorKind, Result};
pub use host::Host;
pub use kit::Mac;
pub use lab::Lab;
pub use link::{End, Link, LinkOptions};
pub use pass::PassProgram;
pub use path::{Path, PathOptions};

/// A duration as the system calls want it; one that does not fit is as good as for ever.
pub(crate) fn timespec(duration: std::time::Duration) -> rustix::time::Timespec {
    duration.try_into().unwrap_or(rustix::time::Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}
