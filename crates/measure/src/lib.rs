//! What only measures: the experiments of `cachelane bench`, and `cachelane demo`.
//!
//! For the command, which prints what is found here, and for nobody else: nothing of this crate is
//! in what runs in production.

pub mod bench;
pub mod demo;
mod simulation;

/// Says something on stderr. Where nobody reads that any more, nobody is told.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{text}");
}
