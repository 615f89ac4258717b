//! Raw Ethernet frames: sent from a device of a host, and captured as it receives them.
//!
//! A socket stays in the namespace of the host that it was opened in, so both can be used from
//! any thread afterwards. An open [`FrameCapture`] is a packet socket: programs that look for
//! those, as cachelane's bridge does in the bridge's own host, see it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::socket::{
        self, AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol,
        SockType, sockopt,
    },
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{Error, ErrorKind, Host, Result, timespec};

/// The longest frame: a GSO packet of 64 KiB with its headers, and room to notice a longer one.
const LONGEST: usize = 66 * 1024;
/// What stands before a frame's VLAN tag: its two addresses.
const ADDRESSES: usize = 12;
/// The size of struct tpacket_auxdata, and what says in its status that there is a tag, and its
/// protocol (linux/if_packet.h).
const AUXDATA: usize = 20;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
/// Memory for frames that were captured and not yet read, in bytes.
const WAITING: usize = 64 << 20;

/// Sends frames from a device, as they are.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
    name: String,
}

/// Captures the frames that a device receives and, if asked, those that it sends.
///
/// Frames come as the device hands them to the stack: GSO packets whole, checksums perhaps not
/// filled in. The outermost VLAN tag, which the kernel has taken off by then, is put back.
#[derive(Debug)]
pub struct FrameCapture {
    socket: OwnedFd,
    index: usize,
    /// Reports what the device sends too.
    both: bool,
    name: String,
    buffer: Vec<u8>,
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// From the destination address on, without the checksum of the wire.
    pub bytes: Vec<u8>,
    /// Whom the kernel takes it to be for.
    pub to: FrameTarget,
}

/// Whom the kernel takes a frame to be for (`skb->pkt_type`): the numbers are those of
/// linux/if_packet.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum FrameTarget {
    /// The device: its protocols are handed it.
    Host,
    /// Everybody.
    Broadcast,
    /// A group.
    Multicast,
    /// Another station: IP and its kind ignore it.
    Other,
    /// The device sends it.
    Sent,
}

impl FrameSender {
    /// Opens a sender on a device of this host.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] without root; [`ErrorKind::Invalid`] if the host has no such
    /// device; [`ErrorKind::Io`] if the system refuses.
    pub fn open(host: &Host, device: &str) -> Result<Self> {
        // Without a protocol it receives nothing.
        let (socket, _) = host.run(|| packet_socket(host, device, None))??;
        Ok(Self { socket, name: format!("{device} of {host}") })
    }

    /// Sends one frame, from its destination address on. It has left the device's queue
    /// discipline, or waits in it, when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a frame that is shorter than its header or longer than the
    /// device's MTU allows; [`ErrorKind::Io`] if the device is down or gone, or drops it.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.try_send(frame).map_err(|error| {
            let context = format!("sending {} bytes from {}", frame.len(), self.name);
            match error {
                Errno::EMSGSIZE | Errno::EINVAL => Error::invalid(format!("{context}: {error}")),
                error => Error::io(context, error),
            }
        })
    }

    /// The same, with the system's own error: ENOBUFS if a queue on its way was full.
    pub(super) fn try_send(&self, frame: &[u8]) -> nix::Result<()> {
        socket::send(self.socket.as_raw_fd(), frame, MsgFlags::empty()).map(drop)
    }
}

impl FrameCapture {
    /// Starts to capture what a device of this host receives.
    ///
    /// # Errors
    /// As [`FrameSender::open`].
    pub fn open(host: &Host, device: &str) -> Result<Self> {
        Self::with(host, device, false)
    }

    /// Starts to capture what a device of this host receives and sends, as `tcpdump` does.
    ///
    /// # Errors
    /// As [`FrameSender::open`].
    pub fn both_ways(host: &Host, device: &str) -> Result<Self> {
        Self::with(host, device, true)
    }

    fn with(host: &Host, device: &str, both: bool) -> Result<Self> {
        let (socket, index) =
            host.run(|| packet_socket(host, device, Some(SockProtocol::EthAll)))??;
        let name = format!("{device} of {host}");
        bpf::tell_tags(socket.as_fd())
            .map_err(|error| Error::io(format!("the tags of frames of {name}"), error))?;
        socket::setsockopt(&socket, sockopt::RcvBufForce, &WAITING)
            .map_err(|error| Error::io(format!("memory for frames of {name}"), error))?;
        Ok(Self { socket, index, both, name, buffer: vec![0; LONGEST] })
    }

    /// The next frame, waiting for it for at most `limit`; none if none came. Zero does not
    /// wait.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a frame longer than 64 KiB and its headers;
    /// [`ErrorKind::Io`] if the device went down or is gone. A device that comes up again is
    /// captured on by the same capture; one that is gone is not.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Frame>> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !self.readable(left)? {
                return Ok(None);
            }
            if let Some(frame) = self.read()? {
                return Ok(Some(frame));
            }
        }
    }

    /// Everything that has been captured and not read yet.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn waiting(&mut self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next(Duration::ZERO)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    fn readable(&self, limit: Duration) -> Result<bool> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(limit))) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.error(error.into())),
        }
    }

    /// Reads one frame; none if it is not asked for or came before the socket was bound.
    fn read(&mut self) -> Result<Option<Frame>> {
        let mut parts = [io::IoSliceMut::new(&mut self.buffer)];
        let mut told = nix::cmsg_space!([u8; AUXDATA]);
        let received = socket::recvmsg::<LinkAddr>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut told),
            MsgFlags::empty(),
        );
        let read = received.map(|read| (read.bytes, read.address, tag_of(&read)));
        let (len, from, tag) = read.map_err(|error| self.error(error.into()))?;
        if len == self.buffer.len() {
            let message = format!("a frame of more than {} bytes at {}", len - 1, self.name);
            return Err(Error::invalid(message));
        }
        let to = match from {
            Some(from) if from.ifindex() == self.index => FrameTarget::from_repr(from.pkttype()),
            _ => None,
        };
        let to = to.filter(|to| self.both || *to != FrameTarget::Sent);
        let bytes = &self.buffer[..len];
        let whole = match (tag, bytes.split_at_checked(ADDRESSES)) {
            (Some(tag), Some((addresses, rest))) => [addresses, &tag, rest].concat(),
            _ => bytes.to_vec(),
        };
        Ok(to.map(|to| Frame { bytes: whole, to }))
    }

    fn error(&self, error: io::Error) -> Error {
        Error::io(format!("capturing at {}", self.name), error)
    }
}

impl AsFd for FrameCapture {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The VLAN tag that the kernel says to have taken off a frame.
fn tag_of(read: &socket::RecvMsg<'_, '_, LinkAddr>) -> Option<[u8; 4]> {
    let mut told = read.cmsgs().ok()?.filter_map(|message| match message {
        ControlMessageOwned::Unknown(message) => Some(message.data_bytes),
        _ => None,
    });
    let told = told.find(|bytes| bytes.len() >= AUXDATA)?;
    let status = u32::from_ne_bytes(*told.first_chunk()?);
    let short = |at: usize| Some(u16::from_ne_bytes(*told.get(at..)?.first_chunk()?));
    // What it says last: the tag, and the protocol of tags.
    let ([a, b], [c, d]) = (short(18)?.to_be_bytes(), short(16)?.to_be_bytes());
    (status & TP_STATUS_VLAN_VALID != 0).then_some([a, b, c, d])
}

/// A packet socket on a device of the namespace that this thread is in, and the device's index.
pub(crate) fn packet_socket(
    host: &Host,
    device: &str,
    protocol: Option<SockProtocol>,
) -> Result<(OwnedFd, usize)> {
    let context = |error: Errno| Error::io(format!("a packet socket on {device} of {host}"), error);
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Packet, SockType::Raw, flags, protocol);
    let socket = socket.map_err(|error| match error {
        Errno::EPERM => Error::new(ErrorKind::NotPermitted, "a packet socket needs root"),
        error => context(error),
    })?;
    // The device's own address names it, and no protocol, which keeps that of the socket.
    let address = getifaddrs()
        .map_err(context)?
        .filter(|interface| interface.interface_name == device)
        .find_map(|interface| interface.address?.as_link_addr().copied())
        .ok_or_else(|| Error::invalid(format!("{host}: no device {device}")))?;
    socket::bind(socket.as_raw_fd(), &address).map_err(context)?;
    Ok((socket, address.ifindex()))
}
