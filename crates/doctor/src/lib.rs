//! What of a host stands in the way of its network work, and what would help.
//!
//! For `cachelane doctor`. [`Host::look`] reads this host, or one that was recorded, into [`Facts`].
//! Each of [`findings`] is a pure function over them: it says what it found, what it costs, which
//! command helps, and which trial shows whether it did. [`Host::record`] writes down what was read,
//! so that findings can be made and tested on another machine.
//!
//! Nothing on the host is changed, and nothing stays loaded. What cannot be read is said
//! ([`Host::not_seen`]), and the findings that need it are silent. Traffic is watched for as long as
//! [`LookOptions`] say, by programs that end with the look ([`Watching`]).
//!
//! What keeps a mechanism from a device or a bridge, the mechanism's own crate says
//! (`steer::inspect`, `bridge::inspect`, `xsk`). The findings quote it, so that doctor and the
//! mechanisms' `--check` agree.
//!
//! The code is MIT or Apache-2.0; the BPF program in `src/bpf`, which is compiled in, is GPL-2.0.
//!
//! ```no_run
//! use cachelane_doctor::{Host, LookOptions, Place, findings};
//!
//! let host = Host::look(&Place::Here { pid: None }, &LookOptions::default())?;
//! for finding in findings() {
//!     if let Some(found) = finding.check(&host.facts) {
//!         println!("{} {}: {}", finding.id, finding.title, found.evidence.join("; "));
//!     }
//! }
//! # Ok::<(), cachelane_doctor::Error>(())
//! ```

mod answers;
mod error;
mod facts;
mod finding;
mod findings;
mod host;
mod read;
mod tree;
mod watch;

pub use answers::{
    Answers, BridgeAnswer, Channels, DeviceAnswer, Limit, PortAnswer, Said, Watch, XskAnswer,
};
pub use error::{Error, ErrorKind, Result};
pub use facts::{
    Cpus, Device, Facts, Interrupt, Irqbalance, Kernel, NapiThread, Process, Release, RxQueue,
    Softnet, TxQueue,
};
pub use finding::{Finding, Found, Severity, Subject};
pub use findings::{find, findings};
pub use host::{Host, LookOptions, Place};
pub use watch::Watching;
