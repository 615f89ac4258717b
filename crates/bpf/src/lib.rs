//! What every user of BPF here shares: loading, links, maps, runs of programs, and the build
//! script's helper.
//!
//! A program and its maps come from a skeleton that the build script generates
//! (`build::skeletons`, with the feature `build`) and [`load`] loads. What is kept of it are
//! [`Program`]s and [`Map`]s, which need no skeleton any more. Values of maps are the generated
//! structs, which are [`Plain`]; numbers that C and Rust share are enums in C, of which the build
//! script makes constants. A [`Link`] keeps a program attached for as long as it is there.
//!
//! Where libbpf-rs has no safe call for something, the call of libbpf is here, so that no other
//! crate needs `unsafe` for BPF. The same holds for the scheduling of threads ([`thread`]), which
//! libbpf's users need for the kernel's threads that take packets, and for their own.
//!
//! An [`Expression`] is a filter as tcpdump has it, compiled by the host's libpcap, which is loaded when
//! it is needed; it becomes an XDP program, or is asked about packets.
//!
//! What fails says what the system reports; its documentation has what it says besides.

#[cfg(feature = "build")]
pub mod build;
mod classic;
mod expression;
mod filter;
pub mod kernel;
mod link;
mod load;
mod map;
mod mapped;
mod plain;
mod program;
pub mod tcx;
pub mod thread;
mod tick;
mod version;
pub mod xdp;

pub use expression::{Expression, ExpressionError};
pub use filter::{attach_filter, tell_tags};
pub use link::Link;
pub use load::{Error, Object, load};
pub use map::{Map, io_error};
pub use mapped::Words;
pub use plain::Plain;
pub use program::{Packet, Program, RunTime, Statistics, program_name};
pub use tick::{tick, ticks};
pub use version::libbpf_version;

use std::io;

/// An error of a system call from what libbpf returns: 0 or more, or a negative error number.
fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}
