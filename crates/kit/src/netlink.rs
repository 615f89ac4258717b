//! Asking the kernel by netlink, one question at a time; what is unknown of its answers is skipped.

mod attributes;
mod ethtool;
mod xdp;

use std::io;

pub use attributes::{
    attributes, attributes_after, big_endian, emitted, find, find_after, message, nested_attribute,
    number, number_attribute, string, string_attribute,
};
pub use ethtool::{Channels, Features};
use netlink_packet_core::{
    DefaultNla, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkHeader,
};
use netlink_sys::SocketAddr;
use rustix::io::Errno;
use rustix::net::RecvFlags;
pub use xdp::Xdp;

/// `struct genlmsghdr`: the command, the family's version, and two bytes that nobody uses.
pub const GENERIC_HEADER: usize = 4;

/// What the kernel fills at most in one go; a longer buffer gains nothing.
const BUFFER: usize = 64 << 10;

/// The length of a netlink header.
const HEADER: usize = 16;

/// How often a dump is asked for again when the kernel says that it changed meanwhile.
const TRIES: usize = 20;

/// A netlink socket for questions.
#[derive(Debug)]
pub struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// A request of generic netlink, to be sent to the family that has this command.
pub fn generic(command: u8, attributes: &[DefaultNla]) -> Vec<u8> {
    message(&[command, 1, 0, 0], attributes)
}

/// One message of an answer.
#[derive(Debug)]
pub struct Message<'a> {
    /// Its type.
    pub kind: u16,
    flags: u16,
    sequence: u32,
    /// What follows the netlink header.
    pub payload: &'a [u8],
}

impl Socket {
    /// Opens one of this protocol.
    ///
    /// # Errors
    /// Those of `socket(2)` and `bind(2)`; `EPROTONOSUPPORT` if the kernel lacks the protocol.
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(protocol)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Makes the kernel check requests strictly, and honour the filters of all dumps.
    pub fn strict(self) -> io::Result<Self> {
        self.socket.set_netlink_get_strict_chk(true)?;
        Ok(self)
    }

    /// The number of a family of generic netlink, which the kernel gives out as it starts.
    ///
    /// # Errors
    /// As [`one`](Self::one); `NotFound` if there is no such family.
    pub fn family(&mut self, name: &str) -> io::Result<u16> {
        // GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME and CTRL_ATTR_FAMILY_ID.
        let request = generic(3, &[string_attribute(2, name)]);
        self.one(16, &request, |message| {
            let id = find_after(GENERIC_HEADER, message, 1);
            let id = id.and_then(|value| Some(u16::from_ne_bytes(value.try_into().ok()?)));
            id.ok_or(io::ErrorKind::InvalidData.into())
        })
    }

    /// Asks for one thing.
    ///
    /// # Errors
    /// The error that the kernel answers with.
    pub fn one<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        parse: impl Fn(&[u8]) -> io::Result<T>,
    ) -> io::Result<T> {
        self.send(kind, 0, body)?;
        loop {
            let (sequence, bytes) = self.receive()?;
            let Some(message) = messages(bytes).find(|message| message.sequence == sequence) else {
                continue;
            };
            return match message.kind {
                NLMSG_ERROR | NLMSG_DONE => {
                    Err(message.error().unwrap_or(io::ErrorKind::InvalidData.into()))
                }
                _ => parse(message.payload),
            };
        }
    }

    /// Asks for a list, of which `parse` picks what matters. Asks again if it changed while the
    /// kernel wrote it down.
    ///
    /// # Errors
    /// The error that the kernel answers with; `Interrupted` if the list never stood still.
    pub fn dump<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut parse: impl FnMut(&[u8]) -> io::Result<Option<T>>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..TRIES {
            if let Some(list) = self.dump_once(kind, body, &mut parse)? {
                return Ok(list);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "it changed whenever it was read"))
    }

    /// None if the list changed meanwhile.
    fn dump_once<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        parse: &mut impl FnMut(&[u8]) -> io::Result<Option<T>>,
    ) -> io::Result<Option<Vec<T>>> {
        self.send(kind, NLM_F_DUMP, body)?;
        let (mut list, mut changed, mut wrong) = (Vec::new(), false, None);
        loop {
            let (sequence, bytes) = self.receive()?;
            for message in messages(bytes).filter(|message| message.sequence == sequence) {
                changed |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_ERROR | NLMSG_DONE => {
                        return match message.error().or(wrong) {
                            Some(error) => Err(error),
                            None => Ok((!changed).then_some(list)),
                        };
                    }
                    // The rest of the answer has to be read all the same.
                    _ if wrong.is_some() => {}
                    _ => match parse(message.payload) {
                        Ok(found) => list.extend(found),
                        Err(error) => wrong = Some(error),
                    },
                }
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.length = (HEADER + body.len()) as u32;
        (header.message_type, header.flags) = (kind, NLM_F_REQUEST | flags);
        header.sequence_number = self.sequence;
        let bytes = [&emitted(&header), body].concat();
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// The next datagram, and the number of the question that is being answered.
    fn receive(&mut self) -> io::Result<(u32, &[u8])> {
        let length = receive(&self.socket, &mut self.buffer)?;
        let bytes = self.buffer.get(..length);
        let bytes = bytes.ok_or_else(|| io::Error::other("an answer of more than 64 KiB"))?;
        Ok((self.sequence, bytes))
    }
}

impl Message<'_> {
    /// The error in an `NLMSG_ERROR` or `NLMSG_DONE`.
    fn error(&self) -> Option<io::Error> {
        let code = i32::from_ne_bytes(*self.payload.first_chunk()?);
        (code != 0).then(|| io::Error::from_raw_os_error(code.wrapping_neg()))
    }
}

/// Receives one datagram and returns its full length, also if the buffer is shorter.
pub fn receive(socket: &netlink_sys::Socket, buffer: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::TRUNC.bits().cast_signed();
    loop {
        match socket.recv(&mut &mut *buffer, flags) {
            Err(error) if is(&error, Errno::INTR) => {}
            received => return received,
        }
    }
}

/// The messages in a datagram.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let buffer = NetlinkBuffer::new_checked(bytes).ok()?;
        let length = buffer.length() as usize;
        let message = Message {
            kind: buffer.message_type(),
            flags: buffer.flags(),
            sequence: buffer.sequence_number(),
            payload: bytes.get(HEADER..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Whether it is this error of the system.
pub fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
