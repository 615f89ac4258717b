//! AF_XDP sockets over a frame pool.
//!
//! A [`Umem`] registers an area of frames ([`frames`]) with the kernel. A [`Socket`] on a queue of a
//! device sends and receives packets that lie in these frames. A [`Program`], in BPF, chooses which of a
//! device's packets go to sockets. All other packets take the kernel's own path, and so do all packets
//! once the process is gone, however it went.
//!
//! ```no_run
//! use frames::{AreaOptions, FrameArea, FramePool, PoolOptions};
//! use cachelane_xsk::{Device, Filter, Program, ProgramOptions, Socket, SocketOptions, Umem};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = FramePool::new(FrameArea::new(&AreaOptions::default())?, &PoolOptions::default())?;
//! let mut cache = pool.cache(0)?;
//! let umem = Umem::new(pool.clone())?;
//! let device = Device::find("eth1")?;
//! let mut socket = Socket::bind(&umem, &device, 0, &SocketOptions::default())?;
//! socket.fill(&mut cache, 1024); // frames for the kernel to receive into
//!
//! let filter = Filter::UdpPorts(vec![53]);
//! let mut program = Program::attach(&device, &ProgramOptions::default().filters(vec![filter]))?;
//! program.insert(&socket)?; // from here on, these packets come to the socket
//!
//! let mut packets = Vec::new();
//! while socket.wait(None)? {
//!     socket.receive(&mut packets, 64);
//!     for packet in packets.drain(..) {
//!         println!("{} bytes", packet.bytes(pool.area()).len());
//!         cache.put(packet.frame);
//!     }
//!     socket.fill(&mut cache, 1024);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The kernel has a frame from the time that it is posted to a socket until it comes back in a ring.
//! It leaves the pool under a name of its own ([`frames::Holder`]) for each set of fill and completion
//! ring, and is claimed back by address. So a frame that the kernel returns twice, or never had, is
//! refused. A socket that is closed gives back what the kernel had.
//!
//! It needs Linux 6.6 or newer. What newer kernels add is used where it exists;
//! [`Socket::in_force`] says what that is.
//!
//! The code is MIT or Apache-2.0; the BPF program in `src/bpf`, which is compiled in, is GPL-2.0.

mod device;
mod error;
mod hook;
mod lease;
mod live;
mod options;
mod program;
mod ring;
mod socket;
mod stamp;
mod sync;
mod sys;
mod umem;

pub use bpf::{Expression, ExpressionError};
pub use device::Device;
pub use error::{Error, ErrorKind, Result};
pub use frames::Packet;
pub use hook::{Attach, Hook};
pub use lease::LEASE;
pub use live::{
    LIVE_LONGEST, LIVE_SLOWEST, LivePackets, LiveSender, LiveSent, LiveStop, check_live,
    prefers_live,
};
pub use options::{BusyPoll, InForce, Mode, SocketOptions};
pub use program::{Filter, Program, ProgramCounters, ProgramOptions, Vlans};
pub use socket::{Outstanding, Socket, Statistics};
pub use stamp::Stamps;
pub use umem::{Umem, check_kernel};
