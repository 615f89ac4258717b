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

mod device;
mod error;
mod hook;
mod lease;
mod options;
mod program;
mod ring;
mod socket;
mod sync;
mod sys;
mod umem;

pub use device::Device;
pub use error::{Error, ErrorKind, Result};
pub use frames::Packet;
pub use hook::{Attach, Hook};
pub use lease::LEASE;
pub use options::{BusyPoll, InForce, Mode, SocketOptions};
pub use program::{Filter, Program, ProgramCounters, ProgramOptions};
pub use socket::{Outstanding, Socket, Statistics};
pub use umem::Umem;
