//! What only measures: the experiments of `cachelane bench`, and `cachelane demo`.
//!
//! For the command, which prints what is found here, and for nobody else: nothing of this crate is
//! in what runs in production.

pub mod bench;
pub mod demo;
mod simulation;
