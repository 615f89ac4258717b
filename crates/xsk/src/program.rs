//! The XDP program: which packets go to the sockets.
//!
//! It is a link that this process owns: it goes with the process, however that ends, and the
//! kernel gets every packet from the next one on. `unsafe` here is the generated skeleton's, and
//! the byte cast of its plain struct.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, ProgramHandle};
use rustix::io::Errno;

use crate::{Device, Error, ErrorKind, Result, Socket};

mod hook;
#[cfg(test)]
mod tests;

#[allow(unreachable_pub, unused_qualifications, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/xsk.skel.rs"));
}

/// As in xsk.h.
const FILTER_EVERYTHING: u32 = 0;
const FILTER_UDP_PORTS: u32 = 1;
const FILTER_ETHERTYPE: u32 = 2;
const FILTER_IP_PROTOCOL: u32 = 3;

/// Room for queues that a device gets while the program is on it.
const SPARE_QUEUES: u32 = 64;

/// Where in the device's path the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// In the driver where it can, else generic.
    #[default]
    Auto,
    /// In the driver, before the kernel makes a buffer, or an error.
    Native,
    /// On the kernel's buffers; any device.
    Generic,
}

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOptions {
    /// Driver or generic.
    pub attach: Attach,
    /// What goes to the sockets.
    pub filter: Filter,
    /// Packets may lie in several buffers: for sockets with multi-buffer.
    pub multi_buffer: bool,
}

/// What became of the packets that the program saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounters {
    /// Sent to a socket.
    pub redirected: u64,
    /// Left to the kernel: the filter did not choose it.
    pub not_chosen: u64,
    /// Left to the kernel: chosen, but there is no socket on its queue.
    pub no_socket: u64,
    /// Left to the kernel: a header is cut short or makes no sense.
    pub malformed: u64,
    /// Left to the kernel: an IP fragment, of which ports are not known.
    pub fragment: u64,
}

/// Our XDP program on a device, for as long as this is there: it goes with the process, however
/// that ends.
#[derive(Debug)]
pub struct Program {
    device: Device,
    attached: Attach,
    link: OwnedFd,
    loaded: Loaded,
}

/// The loaded program and its maps.
#[derive(Debug)]
struct Loaded {
    program: OwnedFd,
    sockets: MapHandle,
    counts: MapHandle,
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
        refuse_if_present(device)?;
        let loaded = Loaded::new(options, device.queues()?.saturating_add(SPARE_QUEUES))?;
        let attach = |attach| hook::attach(loaded.program.as_fd(), device, attach);
        let (link, attached) = match options.attach {
            Attach::Auto => match attach(Attach::Native) {
                // What the driver said tells more than that generic is not there either.
                Err(native) if worth_generic(&native) => {
                    (attach(Attach::Generic).map_err(|_| native), Attach::Generic)
                }
                link => (link, Attach::Native),
            },
            given => (attach(given), given),
        };
        let link = link.map_err(|error| explain(device, options, error))?;
        Ok(Self { device: device.clone(), attached, link, loaded })
    }

    /// Chosen packets of the socket's queue go to it from now on, until it is closed. Replaces
    /// another socket on that queue.
    ///
    /// # Errors
    /// `Invalid` if the socket is on another device, or does not receive.
    pub fn insert(&mut self, socket: &Socket) -> Result<()> {
        let (device, queue) = (&self.device, socket.queue());
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
        let fd = socket.as_fd().as_raw_fd().to_ne_bytes();
        self.loaded.sockets.update(&queue.to_ne_bytes(), &fd, MapFlags::ANY).map_err(|error| {
            system(&format!("{device}: cannot send queue {queue} to its socket"), &error)
        })
    }

    /// Packets of this queue go to the kernel from now on. Also where they do already.
    ///
    /// # Errors
    /// `NoQueue` for a number that no queue of the device has.
    pub fn remove(&mut self, queue: u32) -> Result<()> {
        self.loaded.sockets.delete(&queue.to_ne_bytes()).map_err(|error| match error.kind() {
            libbpf_rs::ErrorKind::NotFound | libbpf_rs::ErrorKind::InvalidInput => {
                Error::new(ErrorKind::NoQueue, format!("{} has no queue {queue}", self.device))
            }
            _ => system(&format!("{}: cannot free queue {queue}", self.device), &error),
        })
    }

    /// What became of the packets so far.
    ///
    /// # Errors
    /// What the system reports.
    pub fn counters(&self) -> Result<ProgramCounters> {
        let counted = self.loaded.counters();
        counted
            .map_err(|error| system(&format!("{}: cannot read the counters", self.device), &error))
    }

    /// Where it runs: [`Attach::Native`] or [`Attach::Generic`].
    pub fn attached(&self) -> Attach {
        self.attached
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        hook::detach(self.link.as_fd());
    }
}

impl Loaded {
    /// Loads the program; nothing runs yet.
    fn new(options: &ProgramOptions, queues: u32) -> Result<Self> {
        let (filter, wanted, ports) = match &options.filter {
            Filter::Everything => (FILTER_EVERYTHING, 0, &[][..]),
            Filter::UdpPorts(ports) if ports.is_empty() => {
                return Err(Error::invalid("no UDP port given: expected one or more"));
            }
            Filter::UdpPorts(ports) => (FILTER_UDP_PORTS, 0, &ports[..]),
            Filter::EtherType(kind) => (FILTER_ETHERTYPE, u32::from(*kind), &[][..]),
            Filter::IpProtocol(number) => (FILTER_IP_PROTOCOL, u32::from(*number), &[][..]),
        };
        let load = || {
            let mut storage = MaybeUninit::uninit();
            let mut open = skel::XskSkelBuilder::default().open(&mut storage)?;
            if let Some(constants) = &mut open.maps.rodata_data {
                (constants.filter, constants.wanted) = (filter, wanted);
                for port in ports.iter().copied().map(usize::from) {
                    constants.udp_ports[port / 64] |= 1 << (port % 64);
                }
            }
            open.maps.sockets.set_max_entries(queues)?;
            open.progs.cachelane_xsk.set_autoload(!options.multi_buffer);
            open.progs.cachelane_xskf.set_autoload(options.multi_buffer);
            let skel = open.load()?;
            let program = match options.multi_buffer {
                false => skel.progs.cachelane_xsk.as_fd(),
                true => skel.progs.cachelane_xskf.as_fd(),
            };
            Ok(Self {
                program: program.try_clone_to_owned()?,
                sockets: MapHandle::try_from(&skel.maps.sockets)?,
                counts: MapHandle::try_from(&skel.maps.counts)?,
            })
        };
        load().map_err(|error: libbpf_rs::Error| match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Error::new(
                ErrorKind::NotPermitted,
                format!("loading an XDP program needs CAP_BPF and CAP_NET_ADMIN: {error:#}"),
            ),
            _ => Error::new(
                ErrorKind::Unsupported,
                format!("the kernel does not load the XDP program: {error:#}"),
            ),
        })
    }

    fn counters(&self) -> libbpf_rs::Result<ProgramCounters> {
        type PerCpu = skel::types::counts;
        let mut sum = ProgramCounters::default();
        let per_cpu = self.counts.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)?;
        for one in per_cpu.iter().flatten().filter(|one| one.len() >= size_of::<PerCpu>()) {
            // SAFETY: the length was just checked, any bytes make the counts, and the read asks
            // for no alignment.
            let one = unsafe { std::ptr::read_unaligned(one.as_ptr().cast::<PerCpu>()) };
            for (sum, one) in [
                (&mut sum.redirected, one.redirected),
                (&mut sum.not_chosen, one.not_chosen),
                (&mut sum.no_socket, one.no_socket),
                (&mut sum.malformed, one.malformed),
                (&mut sum.fragment, one.fragment),
            ] {
                *sum = sum.wrapping_add(one);
            }
        }
        Ok(sum)
    }
}

/// Whether what the driver said may be different for a generic program.
fn worth_generic(error: &io::Error) -> bool {
    let never = [Errno::BUSY, Errno::EXIST, Errno::PERM, Errno::ACCESS, Errno::NODEV];
    !never.iter().any(|errno| Some(errno.raw_os_error()) == error.raw_os_error())
}

fn refuse_if_present(device: &Device) -> Result<()> {
    let ids = hook::programs(device).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NODEV) => gone(device),
        _ => Error::io(format!("{device}: cannot ask for its XDP program"), error),
    })?;
    if ids.is_empty() {
        return Ok(());
    }
    let name = |id: &u32| match ProgramHandle::from_prog_id(*id) {
        Ok(program) => format!("'{}' (id {id})", program.name().to_string_lossy()),
        Err(_) => format!("id {id}"),
    };
    let names = ids.iter().map(name).collect::<Vec<_>>().join(", ");
    Err(Error::new(
        ErrorKind::ProgramPresent,
        format!(
            "{device} has an XDP program already: {names}; expected none (`ip link set {device} \
             xdp off` removes it, unless a process holds it: `bpftool net` and `bpftool link`)"
        ),
    ))
}

fn explain(device: &Device, options: &ProgramOptions, error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        // One that came between looking and attaching.
        Some(Errno::BUSY | Errno::EXIST) => refuse_if_present(device).err().unwrap_or_else(|| {
            let message = format!("{device} has another XDP program");
            Error::caused(ErrorKind::ProgramPresent, message, error)
        }),
        Some(Errno::PERM | Errno::ACCESS) => {
            let message = format!("{device}: attaching an XDP program needs CAP_NET_ADMIN");
            Error::caused(ErrorKind::NotPermitted, message, error)
        }
        Some(Errno::NODEV) => gone(device),
        Some(Errno::RANGE | Errno::INVAL) if !options.multi_buffer => {
            let mtu = device.mtu().map_or_else(|_| "unknown".into(), |mtu| mtu.to_string());
            let message = format!(
                "{device}: its driver refuses the XDP program, maybe for its MTU of {mtu}; expected \
                 a smaller one, multi-buffer, or generic"
            );
            Error::caused(ErrorKind::NoXdp, message, error)
        }
        _ => {
            let kind = match options.attach {
                Attach::Native => "its driver takes no XDP program; expected generic or auto",
                Attach::Auto | Attach::Generic => "it takes no XDP program",
            };
            Error::caused(ErrorKind::NoXdp, format!("{device}: {kind}"), error)
        }
    }
}

fn gone(device: &Device) -> Error {
    Error::new(ErrorKind::NoDevice, format!("{device}: the device is gone"))
}

fn system(what: &str, error: &libbpf_rs::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {error}"))
}
