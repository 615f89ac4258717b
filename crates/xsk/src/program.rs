//! The XDP program: which packets go to the sockets.
//!
//! It is a link that this process owns: it goes with the process, however that ends, and the
//! kernel gets every packet from the next one on.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use bpf::Map;
use derive_setters::Setters;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::lease::{Lease, Looks};
use crate::stamp::Stamps;
use crate::{Attach, Device, Error, ErrorKind, Hook, LEASE, Result, Socket};

#[cfg(test)]
mod tests;

include!(concat!(env!("OUT_DIR"), "/xsk.skel.rs"));

use skel::types::{counts as Counts, filter as FilterKind};

/// Room for queues that a device gets while the program is on it.
const SPARE_QUEUES: u32 = 64;

/// Which packets go to the sockets; the kernel gets the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All.
    #[default]
    Everything,
    /// UDP to one of these ports, over IPv4 or IPv6, without VLAN tag, IPv6 extension headers and
    /// fragments.
    UdpPorts(Vec<u16>),
    /// Ethernet frames of this type, as it stands in the header (a VLAN tag is a type: 0x8100).
    EtherType(u16),
    /// IPv4 packets of this protocol, fragments included, and IPv6 packets with this next header.
    /// Without VLAN tag.
    IpProtocol(u8),
}

/// How a program is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Setters)]
#[non_exhaustive]
pub struct ProgramOptions {
    /// Driver or generic.
    pub attach: Attach,
    /// What goes to the sockets.
    pub filter: Filter,
    /// Packets may lie in several buffers: for sockets with multi-buffer.
    pub multi_buffer: bool,
    /// Each packet that goes to a socket gets a stamp of when it came: [`Program::stamps`].
    pub stamps: bool,
}

kit::counters! {
    /// What became of the packets that the program saw: sent to a socket, or left to the kernel.
    pub struct ProgramCounters from Counts {
        redirected: "packets", "Sent to a socket.";
        not_chosen: "packets", "The filter did not choose it.";
        no_socket: "packets", "Chosen, but there is no socket on its queue.";
        unattended: "packets",
            "Chosen, but the thread of its socket has not looked for longer than the lease.";
        malformed: "packets", "A header is cut short or makes no sense.";
        fragment: "packets", "An IP fragment, of which ports are not known.";
    }
}

/// Our XDP program on a device, for as long as this is there: it goes with the process, however
/// that ends.
#[derive(Debug)]
pub struct Program {
    hook: Hook,
    loaded: Loaded,
}

#[derive(Debug)]
struct Loaded {
    program: bpf::Program,
    sockets: Map,
    looks: Arc<Looks>,
    counts: Map,
    stamps: Option<Stamps>,
}

impl Program {
    /// Puts the program on a device of the network namespace that the caller is in. Until a socket
    /// is inserted, all packets go to the kernel.
    ///
    /// # Errors
    /// `ProgramPresent` if another program is on the device, `NoXdp` if the device takes none of
    /// this kind, `NotPermitted`, `Unsupported` if the kernel does not load it, and `Invalid` (no
    /// port) of [`ErrorKind`].
    pub fn attach(device: &Device, options: &ProgramOptions) -> Result<Self> {
        Hook::refuse_if_taken(device)?;
        let loaded = Loaded::new(options, device.queues()?.saturating_add(SPARE_QUEUES))?;
        let hook =
            Hook::attach(device, loaded.program.as_fd(), options.attach, options.multi_buffer)?;
        Ok(Self { hook, loaded })
    }

    /// Chosen packets of the socket's queue go to it from now on, until it is closed. Replaces
    /// another socket on that queue.
    ///
    /// They go to it while its thread looks at it by [`Socket::receive`] or [`Socket::wait`]. Once
    /// it has not done so for [`LEASE`](crate::LEASE), they are the kernel's, until it does again.
    ///
    /// # Errors
    /// `Invalid` if the socket is on another device, or does not receive.
    pub fn insert(&mut self, socket: &Socket) -> Result<()> {
        let (device, queue) = (self.hook.device(), socket.queue());
        if socket.device().index() != device.index() {
            return Err(Error::invalid(format!(
                "the socket is on {}, the program on {device}: expected the same device",
                socket.device()
            )));
        }
        if !socket.receives() {
            return Err(Error::invalid(format!(
                "the socket on queue {queue} of {device} has no receive ring (rx_size 0)"
            )));
        }
        // First the lease: the socket may have packets from the next line on.
        socket.attend(Lease::new(&self.loaded.looks, queue));
        let fd = socket.as_fd().as_raw_fd();
        self.loaded.sockets.set(&queue, &fd).map_err(|error| {
            Error::io(format!("{device}: cannot send queue {queue} to its socket"), error)
        })
    }

    /// Packets of this queue go to the kernel from now on. Also where they do already.
    ///
    /// # Errors
    /// `NoQueue` for a number that no queue of the device has.
    pub fn remove(&mut self, queue: u32) -> Result<()> {
        self.loaded.sockets.remove(&queue).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => Error::new(
                ErrorKind::NoQueue,
                format!("{} has no queue {queue}", self.hook.device()),
            ),
            _ => Error::io(format!("{}: cannot free queue {queue}", self.hook.device()), error),
        })
    }

    /// What became of the packets so far.
    ///
    /// # Errors
    /// What the system reports.
    pub fn counters(&self) -> Result<ProgramCounters> {
        let counted = self.loaded.counters();
        let device = self.hook.device();
        counted.map_err(|error| Error::io(format!("{device}: cannot read the counters"), error))
    }

    /// Takes the stamps of its packets, if they get any. On some devices there is no room for them.
    pub fn stamps(&self) -> Option<Stamps> {
        self.loaded.stamps
    }

    /// Where it runs: [`Attach::Native`] or [`Attach::Generic`].
    pub fn attached(&self) -> Attach {
        self.hook.attached()
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        self.hook.device()
    }
}

impl Loaded {
    /// Loads the program; nothing runs yet.
    fn new(options: &ProgramOptions, queues: u32) -> Result<Self> {
        let (filter, wanted, ports) = match &options.filter {
            Filter::Everything => (FilterKind::FILTER_EVERYTHING, 0, &[][..]),
            Filter::UdpPorts(ports) if ports.is_empty() => {
                return Err(Error::invalid("no UDP port given: expected one or more"));
            }
            Filter::UdpPorts(ports) => (FilterKind::FILTER_UDP_PORTS, 0, &ports[..]),
            Filter::EtherType(kind) => (FilterKind::FILTER_ETHERTYPE, u32::from(*kind), &[][..]),
            Filter::IpProtocol(number) => {
                (FilterKind::FILTER_IP_PROTOCOL, u32::from(*number), &[][..])
            }
        };
        let multi_buffer = options.multi_buffer;
        let stamps = options.stamps.then(Stamps::new);
        let loaded = bpf::load(|storage| {
            let mut open = skel::XskSkelBuilder::default().open(storage)?;
            if let Some(constants) = &mut open.maps.rodata_data {
                (constants.filter, constants.wanted) = (filter, wanted);
                for port in ports.iter().copied().map(usize::from) {
                    constants.udp_ports[port / 64] |= 1 << (port % 64);
                }
                constants.lease_ns = LEASE.as_nanos() as u64;
                constants.seal = stamps.map_or(0, Stamps::seal);
            }
            open.maps.sockets.set_max_entries(queues)?;
            open.maps.looks.set_max_entries(queues)?;
            open.progs.cachelane_xsk.set_autoload(!multi_buffer);
            open.progs.cachelane_xskf.set_autoload(multi_buffer);
            let skel = open.load()?;
            let program = match multi_buffer {
                false => &skel.progs.cachelane_xsk,
                true => &skel.progs.cachelane_xskf,
            };
            Ok(Self {
                program: bpf::Program::of(program)?,
                sockets: Map::of(&skel.maps.sockets)?,
                looks: Arc::new(Looks::map(skel.maps.looks.as_fd(), queues)?),
                counts: Map::of(&skel.maps.counts)?,
                stamps,
            })
        });
        loaded.map_err(|error| match error.is_permission() {
            true => Error::new(
                ErrorKind::NotPermitted,
                format!("loading an XDP program needs CAP_BPF and CAP_NET_ADMIN: {error:#}"),
            ),
            false => Error::new(
                ErrorKind::Unsupported,
                format!("the kernel does not load the XDP program: {error:#}"),
            ),
        })
    }

    fn counters(&self) -> io::Result<ProgramCounters> {
        Ok(ProgramCounters::from(&self.counts.sum::<Counts>(&0_u32)?))
    }
}
