//! Asking the kernel by netlink, one question at a time.

use std::io;

use netlink_packet_core::{
    Emitable as _, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NetlinkBuffer, NetlinkHeader,
};
use netlink_sys::SocketAddr;
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// What the kernel fills at most in one go; a longer buffer gains nothing.
const BUFFER: usize = 64 << 10;

/// How often a dump is asked for again when the kernel says that it changed meanwhile.
const TRIES: usize = 20;

/// A netlink socket for questions.
#[derive(Debug)]
pub(super) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// One message of an answer.
pub(super) struct Message<'a> {
    /// Its type.
    pub(super) kind: u16,
    flags: u16,
    sequence: u32,
    /// What follows the netlink header.
    pub(super) payload: &'a [u8],
}

impl Socket {
    /// # Errors
    /// Those of `socket(2)` and `bind(2)`; `EPROTONOSUPPORT` if the kernel lacks the protocol.
    pub(super) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(protocol)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Makes the kernel check requests strictly, and honour the filters of all dumps.
    pub(super) fn strict(self) -> io::Result<Self> {
        self.socket.set_netlink_get_strict_chk(true)?;
        Ok(self)
    }

    /// Asks for one thing.
    ///
    /// # Errors
    /// The error that the kernel answers with.
    pub(super) fn one<T>(
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
    pub(super) fn dump<T>(
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

    #[cfg(test)]
    pub(super) fn answers_fit(&mut self, fit: bool) {
        self.buffer.resize(if fit { BUFFER } else { 0 }, 0);
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        let length = header.buffer_len() + body.len();
        header.length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        header.message_type = kind;
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut bytes = vec![0; header.buffer_len()];
        header.emit(&mut bytes);
        bytes.extend(body);
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
pub(super) fn receive(socket: &netlink_sys::Socket, buffer: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::TRUNC.bits().cast_signed();
    loop {
        match socket.recv(&mut &mut *buffer, flags) {
            Err(error) if is(&error, Errno::INTR) => {}
            received => return received,
        }
    }
}

/// The messages in a datagram.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let buffer = NetlinkBuffer::new_checked(bytes).ok()?;
        let length = buffer.length() as usize;
        let message = Message {
            kind: buffer.message_type(),
            flags: buffer.flags(),
            sequence: buffer.sequence_number(),
            payload: bytes.get(buffer_header()..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The length of a netlink header.
fn buffer_header() -> usize {
    NetlinkHeader::default().buffer_len()
}

/// Whether it is this error of the system.
pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
