//! The cachelane command.
fn main() {}
