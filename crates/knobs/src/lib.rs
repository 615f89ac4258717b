//! The knobs and counters of a running process, and the socket that carries them.
//!
//! A **knob** is a named setting that can be flipped while traffic flows, such as `relay.engine`.
//! A process puts its knobs and counters in a [`Registry`] and opens them to the `cachelane`
//! command with a [`Server`]; a [`Client`] finds and drives such processes. Both ends are for the
//! same user, or root.
//!
//! A [`Subject`] is a knob or a [`Setting`] of the host, such as a sysctl: [`Held`], it is set and
//! set back, whatever happens to the process that does so. [`undo`](undo()) restores settings that
//! killed processes left.
//!
//! # Protocol
//!
//! One JSON object per line each way over a Unix stream socket, `KIND-PID.sock` in the
//! [runtime directory](runtime_dir) (`KIND-PID.2.sock` where a process of another PID namespace has
//! that name). Requests are answered in order, each line by exactly one:
//!
//! ```text
//! {"schema":1,"op":"list"}
//! {"schema":1,"ok":{"process":"relay","name":"relay :8080","pid":42,"knobs":[{"name":"relay.engine","help":"how bytes
//!     move","values":{"one_of":["copy","splice"]},"default":"copy","reach":"new_connections",
//!     "exposure":{"under":"relay.bytes_under_engine","of":"relay.bytes"},"value":"splice"}]}}
//! {"schema":1,"op":"get","knob":"relay.engine"}
//! {"schema":1,"ok":{"knob":"relay.engine","value":"splice"}}
//! {"schema":1,"op":"set","knob":"relay.engine","value":"copy"}
//! {"schema":1,"ok":{"knob":"relay.engine","value":"copy"}}
//! {"schema":1,"op":"counters"}
//! {"schema":1,"ok":{"counters":[{"name":"relay.bytes","unit":"bytes","help":"forwarded",
//!     "kind":"counter","value":7}]}}
//! {"schema":1,"op":"get","knob":"relay.x"}
//! {"schema":1,"error":{"kind":"unknown_knob","message":"..."}}
//! ```
//!
//! A `set` with `"if":"splice"` sets the knob only if that is its value, and else gets the error
//! `changed`.
//!
//! A knob that does not reach all work at once may have a field `exposure`: the names of two counters
//! of the process, whose growths' ratio is the share of the work that ran under the knob's present
//! value ([`Exposure`]).
//!
//! To **hold** a knob is to keep it from everybody else for a while: a trial does so. The holder
//! makes up a token, and says how many milliseconds the hold lasts (at most [`MAX_HOLD`]):
//!
//! ```text
//! {"schema":1,"op":"hold","knob":"relay.engine","hold":"TOKEN","holder":"trial, pid 7","ms":10000}
//! {"schema":1,"ok":{"knob":"relay.engine","value":"copy"}}
//! {"schema":1,"op":"set","knob":"relay.engine","value":"splice","hold":"TOKEN"}
//! {"schema":1,"op":"renew","knob":"relay.engine","hold":"TOKEN","ms":10000}
//! {"schema":1,"op":"release","knob":"relay.engine","hold":"TOKEN"}
//! ```
//!
//! All are answered like `get`. A `release` puts the knob back to what it was before the hold,
//! unless it has `"keep":true`; so does the process itself when a hold is not renewed in time. A `renew`
//! counts from when it is answered, and is in time if it was sent in time.
//! While a knob is held, a `set` without the token gets the error `held`, and with `"force":true`
//! it ends the hold. A holder whose hold has ended gets `not_held`. In a list, a knob that is held
//! has a field `held`.
//!
//! A process may answer requests of its own ([`Registry::on_request`]), also with open files. These
//! come beside the first bytes of the line (`SCM_RIGHTS`), and the line says how many there are:
//!
//! ```text
//! {"schema":1,"op":"ask","request":"relay.listeners","with":{"generation":2}}
//! {"schema":1,"ok":{"answer":["0.0.0.0:80"],"files":1}}
//! ```
//!
//! A knob or counter whose value the process cannot read has a field `error` in place of `value`, with
//! the reason. (Lines are broken here to be read.) A request is at most [`MAX_LINE`] bytes. Fields of an
//! answer may be added within schema 1, so readers ignore what they don't know.
//!
//! # Example
//!
//! ```
//! use std::convert::Infallible;
//! use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
//! use std::sync::Arc;
//! use cachelane_knobs::{Knob, Registry};
//!
//! let on = Arc::new(AtomicBool::new(false));
//! let (shown, set) = (on.clone(), on);
//! let registry = Registry::new("bridge");
//! registry.register(Knob::off_on(
//!     "bridge.fastpath",
//!     "forward known unicast in BPF",
//!     false,
//!     move || Ok::<_, Infallible>(shown.load(Relaxed)),
//!     move |new| Ok(set.store(new, Relaxed)),
//! ))?;
//! registry.set("bridge.fastpath", "on")?;
//! assert_eq!(registry.get("bridge.fastpath")?, "on");
//! let error = registry.set("bridge.fastpath", "warp").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "knob bridge.fastpath does not take \"warp\" (expected off or on)"
//! );
//! # Ok::<(), cachelane_knobs::Error>(())
//! ```

mod client;
mod connection;
mod custom;
mod endpoint;
mod entry;
mod error;
mod held;
mod journal;
mod knob;
mod process_name;
mod protocol;
mod registry;
mod runtime_dir;
mod said;
mod search;
mod server;
mod setting;
mod undo;
mod wire;

pub use client::{Client, DEFAULT_TIMEOUT, Listing};
pub use custom::{Answer, MAX_FILES, Peer};
pub use entry::MAX_HOLD;
pub use error::{Error, ErrorKind, Result};
pub use held::{Held, Subject};
pub use kit::Field;
pub use knob::{Current, Exposure, HoldInfo, Knob, KnobInfo, Reach, Values};
pub use process_name::ProcessName;
pub use protocol::{MAX_LINE, Request, SCHEMA, reply};
pub use registry::{MeterKind, Reading, Registry};
pub use runtime_dir::runtime_dir;
pub use search::{
    Process, Search, Select, ask_each, discover, discover_in, search, search_in, side_by_side,
};
pub use server::Server;
pub use setting::Setting;
pub use undo::{Outcome, Undone, undo, undo_in};
