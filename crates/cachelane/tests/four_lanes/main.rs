//! A machine of eight CPUs, of which each two share a cache, whose CPUs go offline and come back. That is no
//! test for a machine that others use: `scripts/kernels/test lanes` runs it in an emulated one, and says so
//! in the environment.

mod bridge;
#[path = "../common/mod.rs"]
mod common;
mod machine;
mod packets;
mod relay;
mod steer;
