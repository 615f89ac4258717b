//! The XDP program: which packets go to the sockets.
//!
//! It is a link that this process owns: it goes with the process, however that ends, and the
//! kernel gets every packet from the next one on.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use bpf::{Expression, Map};
use derive_setters::Setters;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::lease::{Lease, Looks};
use crate::stamp::Stamps;
use crate::{Attach, Device, Error, ErrorKind, Hook, LEASE, Result, Socket};

#[cfg(test)]
mod tests;

include!(concat!(env!("OUT_DIR"), "/xsk.skel.rs"));

use skel::types::{counts as Counts, rodata as Constants};

/// Room for queues that a device gets while the program is on it.
const SPARE_QUEUES: u32 = 64;

/// Packets that go to the sockets. It looks behind up to two VLAN tags (802.1Q and 802.1ad).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// UDP to one of these ports, over IPv4 or IPv6, without IPv6 extension headers and fragments.
    UdpPorts(Vec<u16>),
    /// TCP to one of these ports, likewise.
    TcpPorts(Vec<u16>),
    /// Ethernet frames of one of these types, which may be that of a tag: 0x8100.
    EtherTypes(Vec<u16>),
    /// IPv4 packets of one of these protocols, fragments included, and IPv6 packets with such a next
    /// header.
    IpProtocols(Vec<u8>),
}

/// VLANs, by the outermost tag of a packet, as far as the driver has not taken that off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans {
    /// IDs, from 0 (a tag with a priority and no VLAN) to 4094.
    pub ids: Vec<u16>,
    /// Packets without tag, too.
    pub untagged: bool,
}

/// How a program is attached, and what goes to the sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Setters)]
#[non_exhaustive]
pub struct ProgramOptions {
    /// Driver or generic.
    pub attach: Attach,
    /// What any of these takes goes to the sockets, and the kernel gets the rest; all, if there are
    /// none.
    pub filters: Vec<Filter>,
    /// Of that, what is in these VLANs; none for everything, in whatever VLAN.
    #[setters(strip_option)]
    pub vlans: Option<Vlans>,
    /// And of that, what this matches.
    #[setters(strip_option)]
    pub expression: Option<Arc<Expression>>,
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
    /// Of an expression: the programs that it hands packets on to, which are there for as long as
    /// somebody has this.
    answers: Option<Map>,
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
    /// this kind, `NotPermitted`, `Unsupported` if the kernel does not load it, and `Invalid` (a
    /// filter without numbers) of [`ErrorKind`].
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

impl ProgramOptions {
    /// Refuses what would take nothing.
    fn check(&self) -> Result<()> {
        for filter in &self.filters {
            let (is_empty, what) = match filter {
                Filter::UdpPorts(ports) => (ports.is_empty(), "UDP port"),
                Filter::TcpPorts(ports) => (ports.is_empty(), "TCP port"),
                Filter::EtherTypes(types) => (types.is_empty(), "Ethernet type"),
                Filter::IpProtocols(protocols) => (protocols.is_empty(), "IP protocol"),
            };
            if is_empty {
                return Err(Error::invalid(format!("no {what} given: expected one or more")));
            }
        }
        match &self.vlans {
            Some(Vlans { ids, untagged: false }) if ids.is_empty() => {
                Err(Error::invalid("no VLAN given: expected one or more, or untagged packets"))
            }
            Some(Vlans { ids, .. }) => match ids.iter().find(|&&id| id > Vlans::LAST) {
                Some(id) => {
                    let expected = format!("expected 0 to {}", Vlans::LAST);
                    Err(Error::invalid(format!("{id} is no VLAN ID: {expected}")))
                }
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
}

impl Filter {
    fn tell(&self, constants: &mut Constants) {
        match self {
            Filter::UdpPorts(ports) => {
                constants.by_udp_port = 1;
                add(&mut constants.udp_ports, ports);
            }
            Filter::TcpPorts(ports) => {
                constants.by_tcp_port = 1;
                add(&mut constants.tcp_ports, ports);
            }
            Filter::EtherTypes(types) => {
                constants.by_ethertype = 1;
                add(&mut constants.ethertypes, types);
            }
            Filter::IpProtocols(protocols) => {
                constants.by_protocol = 1;
                add(&mut constants.protocols, protocols);
            }
        }
    }
}

impl Vlans {
    /// The last ID; the one after it is reserved.
    pub const LAST: u16 = 4094;

    fn tell(&self, constants: &mut Constants) {
        (constants.by_vlan, constants.untagged) = (1, self.untagged.into());
        add(&mut constants.vlans, &self.ids);
    }
}

/// Adds numbers to a set of bits.
fn add<T: Copy + Into<usize>>(set: &mut [u64], numbers: &[T]) {
    for number in numbers.iter().copied().map(T::into) {
        set[number / 64] |= 1 << (number % 64);
    }
}

impl Loaded {
    /// Loads the program; nothing runs yet.
    fn new(options: &ProgramOptions, queues: u32) -> Result<Self> {
        options.check()?;
        let multi_buffer = options.multi_buffer;
        let stamps = options.stamps.then(Stamps::new);
        let loaded = bpf::load(|storage| {
            let mut open = skel::XskSkelBuilder::default().open(storage)?;
            if let Some(constants) = &mut open.maps.rodata_data {
                options.filters.iter().for_each(|filter| filter.tell(constants));
                options.vlans.iter().for_each(|vlans| vlans.tell(constants));
                constants.lease_ns = LEASE.as_nanos() as u64;
                constants.seal = stamps.map_or(0, Stamps::seal);
            }
            open.maps.sockets.set_max_entries(queues)?;
            open.maps.looks.set_max_entries(queues)?;
            let expression = options.expression.as_deref();
            open.maps.answers.set_autocreate(expression.is_some())?;
            let progs = &mut open.progs;
            progs.cachelane_xsk.set_autoload(!multi_buffer);
            progs.cachelane_xskf.set_autoload(multi_buffer);
            progs.cachelane_xskn.set_autoload(!multi_buffer && expression.is_some());
            progs.cachelane_xsknf.set_autoload(multi_buffer && expression.is_some());
            let skel = open.load()?;
            let (program, rest) = match multi_buffer {
                false => (&skel.progs.cachelane_xsk, &skel.progs.cachelane_xskn),
                true => (&skel.progs.cachelane_xskf, &skel.progs.cachelane_xsknf),
            };
            let answers = expression.map(|_| Map::of(&skel.maps.answers)).transpose()?;
            if let Some(answers) = &answers {
                for (number, program) in [program, rest].into_iter().enumerate() {
                    answers.set(&(number as u32), &program.as_fd().as_raw_fd())?;
                }
            }
            Ok(Self {
                program: bpf::Program::of(program)?,
                answers,
                sockets: Map::of(&skel.maps.sockets)?,
                looks: Arc::new(Looks::map(skel.maps.looks.as_fd(), queues)?),
                counts: Map::of(&skel.maps.counts)?,
                stamps,
            })
        });
        let loaded = loaded.map_err(|error| match error.is_permission() {
            true => Error::new(
                ErrorKind::NotPermitted,
                format!("loading an XDP program needs CAP_BPF and CAP_NET_ADMIN: {error:#}"),
            ),
            false => Error::new(
                ErrorKind::Unsupported,
                format!("the kernel does not load the XDP program: {error:#}"),
            ),
        })?;
        match &options.expression {
            Some(expression) => loaded.behind(expression, multi_buffer),
            None => Ok(loaded),
        }
    }

    /// It gets what an expression matches.
    fn behind(mut self, expression: &Expression, multi_buffer: bool) -> Result<Self> {
        let answers = self.answers.as_ref().expect("made where there is an expression");
        let program = expression.program(c"cachelane_xske", answers, multi_buffer);
        self.program = program.map_err(|error| {
            let what = format!("the kernel does not load the filter '{}'", expression.text());
            let kind = match error.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
                _ => ErrorKind::Unsupported,
            };
            Error::caused(kind, what, error)
        })?;
        Ok(self)
    }

    fn counters(&self) -> io::Result<ProgramCounters> {
        Ok(ProgramCounters::from(&self.counts.sum::<Counts>(&0_u32)?))
    }
}
