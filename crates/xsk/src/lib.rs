//! AF_XDP sockets over a frame pool.
//!
//! An area of frames ([`frames`]) is registered with the kernel ([`Umem`]); sockets on queues of
//! devices ([`Socket`]) send and receive packets that lie in its frames, and a BPF program
//! ([`Program`]) chooses which of a device's packets go to them. All other packets, and all packets
//! once the process is gone, however it went, take the kernel's own path.
//!
//! A frame that is posted to a socket is the kernel's until it comes back in a ring: it is
//! released from the pool under a name of its own ([`frames::Holder`]) for each set of fill and
//! completion ring, and claimed back by address, so that a frame that the kernel returns twice, or
//! that it never had, is refused. A socket that is closed gives back what the kernel had.
//!
//! Linux only. Copy mode needs 5.11 or later; what newer kernels add is used where it is there,
//! and [`Socket::in_force`] says what is.

#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod hook;
#[cfg(not(loom))]
mod lease;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod program;
#[cfg_attr(loom, expect(dead_code, reason = "the sockets that use all of it are not there"))]
mod ring;
#[cfg(not(loom))]
mod socket;
mod sync;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod umem;

#[cfg(not(loom))]
pub use device::Device;
#[cfg(not(loom))]
pub use error::{Error, ErrorKind, Result};
#[cfg(not(loom))]
pub use frames::Packet;
#[cfg(not(loom))]
pub use hook::{Attach, Hook};
#[cfg(not(loom))]
pub use lease::LEASE;
#[cfg(not(loom))]
pub use options::{BusyPoll, InForce, Mode, SocketOptions};
#[cfg(not(loom))]
pub use program::{Filter, Program, ProgramCounters, ProgramOptions};
#[cfg(not(loom))]
pub use socket::{Outstanding, Socket, Statistics};
#[cfg(not(loom))]
pub use umem::Umem;
