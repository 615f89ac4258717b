//! What the libraries of cachelane have in common: how each declares its [`error!`], its
//! [`counters!`] and [`reasons!`], [`or`] for its messages, hardware addresses ([`Mac`]), whether
//! threads get on ([`pulse`]), and, with the feature `netlink`, asking the kernel by netlink.
//!
//! An error is opaque: it has a kind, a line that says what was being done to what, and what the
//! system said. Each kind belongs to a [`Class`], from which a command makes its exit code without
//! knowing the kinds of every library. Only the crate that declares an error can make one.
//!
//! ```
//! mod error {
//!     cachelane_kit::error! {
//!         /// What sort of error it is, for callers that act on it.
//!         pub enum ErrorKind {
//!             /// The caller may not.
//!             NotPermitted => NotPermitted,
//!             /// Anything else that the system reported.
//!             Io => Failed,
//!         }
//!         io,
//!     }
//! }
//! use error::{Context as _, Error, ErrorKind, Result};
//!
//! fn read() -> Result<String> {
//!     std::fs::read_to_string("/nowhere").context("read /nowhere")
//! }
//!
//! let error = read().unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Io);
//! assert_eq!(error.to_string(), "read /nowhere: No such file or directory (os error 2)");
//! assert_eq!(cachelane_kit::class_of::<Error>(&error), Some(cachelane_kit::Class::Failed));
//! ```

mod counters;
mod error;
mod mac;
#[cfg(feature = "netlink")]
pub mod netlink;
pub mod pulse;

pub use counters::{Count, Field};
pub use error::{Class, Classed, class_of};
pub use mac::Mac;

/// What is expected, in a message: "a", "a or b", "a, b or c".
///
/// ```
/// assert_eq!(cachelane_kit::or(["copy", "splice", "auto"]), "copy, splice or auto");
/// ```
pub fn or<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
