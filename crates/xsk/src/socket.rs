//! AF_XDP sockets: four rings, and the frames that go round in them.
//!
//! Made for batches by one thread. Nothing here allocates once the vectors that callers pass have
//! grown to their size.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frames::{Frame, LaneCache};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use rustix::net::{RecvFlags, SendFlags};

use self::buffers::{Buffers, Held, Reach, Shareable, Sizes};
use self::open::Opened;
use self::queue::Probe;
use crate::lease::{Lease, NAP};
use crate::ring::{Consumer, Producer, mapped};
use crate::umem::failed;
use crate::{Device, Error, InForce, Packet, Result, SocketOptions, Umem};

mod buffers;
mod close;
mod fit;
mod open;
mod queue;

/// A socket on one queue of a device. One thread's.
///
/// Dropping it waits for packets that the kernel still has to send, for at most a second, closes
/// it, and sends the frames that the kernel had home.
#[derive(Debug)]
pub struct Socket {
    // Dropped in this order: the rings, whose mappings keep the socket open, then the socket, then
    // what was held for the kernel.
    rx: Option<Consumer<XdpDesc>>,
    tx: Option<Producer<XdpDesc>>,
    buffers: Shareable,
    fd: Arc<OwnedFd>,
    held: Arc<Held>,
    in_force: InForce,
    options: SocketOptions,
    umem: Umem,
    /// While a program sends packets to it. Locked only to put it there.
    lease: Mutex<Option<Lease>>,
    /// Frames between a cache and a ring.
    passing: Vec<Frame>,
    /// Packets that the device dropped while it was told to send.
    tx_dropped: u64,
}

/// Where a socket's frames are. Sockets beside each other share what is said of fill and
/// completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// With the kernel to receive into; with sockets beside this one, also what waits for them.
    pub fill: u32,
    /// Received on this socket, not yet taken.
    pub rx: u32,
    /// With the kernel to send.
    pub tx: u32,
    /// Sent, not yet taken back.
    pub completed: u32,
}

/// What the kernel counted on a socket (`XDP_STATISTICS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received packets dropped for other reasons than a full receive ring: too long for a frame,
    /// and in copy mode also those for which there was no frame.
    pub rx_dropped: u64,
    /// Addresses in the fill ring that are no frame.
    pub rx_invalid: u64,
    /// Descriptors in the transmit ring that are no packet.
    pub tx_invalid: u64,
    /// Received packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Packets that the device dropped instead of sending them, in copy mode: it is down, has no
    /// carrier, or its queue discipline says so.
    pub tx_dropped: u64,
    /// Times that the kernel wanted a frame and the fill ring was empty. In copy mode that is a packet
    /// dropped; in zero-copy mode a driver asks for frames before packets come.
    pub fill_ring_empty: u64,
    /// Times that the kernel found nothing to send.
    pub tx_ring_empty: u64,
}

impl Socket {
    /// A socket on a queue of a device of the network namespace that the caller is in.
    ///
    /// A queue that seems taken is tried again for two seconds: the kernel lets go of the queue
    /// of a closed socket only after a while.
    ///
    /// # Errors
    /// `NoQueue`, `QueueTaken`, `NoXdp`, `FrameTooSmall` (a socket that receives without
    /// multi-buffer needs frames that hold the device's MTU), `MemlockLimit`, `NotPermitted`,
    /// `Unsupported` (zero-copy, multi-buffer) and `Invalid` (options out of range) of
    /// [`ErrorKind`](crate::ErrorKind).
    pub fn bind(umem: &Umem, device: &Device, queue: u32, options: &SocketOptions) -> Result<Self> {
        let opened = open::bind(umem, device, queue, options)?;
        let pool = umem.pool().clone();
        let holder = pool.holder().map_err(|error| Error::invalid(error.to_string()))?;
        let referenced =
            opened.in_force.zero_copy || open::sends_without_copying(device.driver().as_deref());
        let reach = match referenced {
            true => Reach::Frames(Probe::new(device, queue)),
            false => Reach::Copies,
        };
        let device = device.clone();
        let held = Arc::new(Held { pool, holder, device, queue, reach });
        let sizes = Sizes { fill: options.fill_size, completion: options.completion_size };
        let buffers = Buffers::new(opened.fd.as_fd(), sizes, Arc::clone(&held))
            .map_err(|error| failed("cannot map its rings", opened.fd.as_fd(), error))?;
        let buffers = Shareable::Own(Box::new(buffers));
        Self::with(opened, buffers, held, umem.clone(), options.clone())
    }

    /// A further socket on the queue of `other`, for another thread. The two share fill and
    /// completion ring, behind a lock, from now on: frames that one posts, the other may receive
    /// into, and either takes back what the other sent. The sizes of those two rings, the mode,
    /// need-wakeup and multi-buffer are as `other`'s, whatever the options say.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_beside(other: &mut Socket, options: &SocketOptions) -> Result<Self> {
        let SocketOptions { fill_size, completion_size, mode, .. } = other.options;
        let InForce { need_wakeup, multi_buffer, .. } = other.in_force;
        let inherited = options
            .clone()
            .fill_size(fill_size)
            .completion_size(completion_size)
            .mode(mode)
            .need_wakeup(need_wakeup)
            .multi_buffer(multi_buffer);
        let Held { device, queue, .. } = &*other.held;
        let fd = other.fd.as_fd();
        let opened = open::bind_beside(fd, &other.umem, device, *queue, &inherited)?;
        let buffers = other.buffers.share(&other.fd, &opened.fd);
        Self::with(opened, buffers, Arc::clone(&other.held), other.umem.clone(), inherited)
    }

    fn with(
        opened: Opened,
        buffers: Shareable,
        held: Arc<Held>,
        umem: Umem,
        options: SocketOptions,
    ) -> Result<Self> {
        let Opened { fd, in_force } = opened;
        let ring = |kind, size| {
            let mapped = (size > 0).then(|| mapped::map(fd.as_fd(), kind, size)).transpose();
            mapped.map_err(|error| failed("cannot map its rings", fd.as_fd(), error))
        };
        let rx = ring(mapped::RX, options.rx_size)?.map(Consumer::new);
        let tx = ring(mapped::TX, options.tx_size)?.map(Producer::new);
        let most = options.fill_size.max(options.completion_size);
        let passing = Vec::with_capacity(most as usize);
        let lease = Mutex::default();
        Ok(Self {
            rx,
            tx,
            buffers,
            fd,
            held,
            in_force,
            options,
            umem,
            lease,
            passing,
            tx_dropped: 0,
        })
    }

    /// Takes up to `n` frames from the cache and gives them to the kernel to receive into; how
    /// many there were, as far as the fill ring had room.
    ///
    /// # Panics
    /// If the cache is of another pool.
    #[inline]
    pub fn fill(&mut self, cache: &mut LaneCache, n: usize) -> usize {
        let (passing, Held { pool, holder, .. }) = (&mut self.passing, &*self.held);
        self.buffers.with(|buffers| {
            let room = buffers.fill.room(batch(n));
            cache.get_bulk(room as usize, passing);
            let release = || passing.pop().map(|frame| pool.release(frame, holder));
            let filled = buffers.fill.push(room, release);
            buffers.filled = buffers.filled.wrapping_add(filled);
            filled as usize
        })
    }

    /// Appends up to `max` received packets; how many there were. A packet in several frames is
    /// never cut: it is appended once all of it is there, a part each, even if it alone is more
    /// than `max` parts.
    #[inline]
    pub fn receive(&mut self, into: &mut Vec<Packet>, max: usize) -> usize {
        self.look();
        let (Some(rx), Held { pool, holder, .. }) = (&mut self.rx, &*self.held) else { return 0 };
        let ready = match self.in_force.multi_buffer {
            false => rx.ready(batch(max)),
            true => whole_packets(rx, batch(max), self.options.rx_size),
        };
        if ready == 0 {
            return 0;
        }
        let size = u64::from(pool.area().frame_size());
        let before = into.len();
        rx.pop(ready, |XdpDesc { addr, len, options }| {
            // What is refused, the pool has counted: it is not ours to use.
            if let Ok(frame) = pool.claim(addr, holder) {
                let offset = (addr & (size - 1)) as u32;
                let more = options.contains(XdpDescOptions::XDP_PKT_CONTD);
                into.push(Packet { frame, offset, len, more });
            }
        });
        self.buffers.with(|buffers| buffers.received = buffers.received.wrapping_add(ready));
        into.len() - before
    }

    /// Posts packets from the front, as many as the ring has room for; how many. What does not
    /// fit stays. A packet in several frames is posted as a whole or not at all.
    /// [`kick`](Self::kick) makes the kernel send.
    ///
    /// # Panics
    /// If a packet is empty, not inside its frame, or of another pool, or in several frames on a
    /// socket without multi-buffer: the kernel would drop it and never give the frame back.
    #[inline]
    pub fn send(&mut self, packets: &mut Vec<Packet>) -> usize {
        let (Some(tx), Held { pool, holder, .. }) = (&mut self.tx, &*self.held) else { return 0 };
        let room = tx.room(batch(packets.len())) as usize;
        let count = sendable(&packets[..room], pool.area().frame_size(), &self.in_force);
        if count == 0 {
            return 0;
        }
        let mut posted = packets.drain(..count);
        let sent = tx.push(batch(count), || {
            let Packet { frame, offset, len, more } = posted.next()?;
            let addr = pool.release(frame, holder) + u64::from(offset);
            let mut options = XdpDescOptions::empty();
            options.set(XdpDescOptions::XDP_PKT_CONTD, more);
            Some(XdpDesc { addr, len, options })
        });
        drop(posted);
        self.buffers.with(|buffers| buffers.sent = buffers.sent.wrapping_add(sent));
        sent as usize
    }

    /// Makes the kernel send what is posted, where it has to be told. In copy mode this is where
    /// packets are sent: at most [`InForce::tx_budget`] of them a call.
    ///
    /// # Errors
    /// What the device reports, such as `ENETDOWN`. A full queue below is none: the packets stay
    /// posted, and the next call goes on.
    #[inline]
    pub fn kick(&mut self) -> Result<()> {
        let Some(tx) = &self.tx else { return Ok(()) };
        // In copy mode nobody but this call sends, so that with an empty ring there is nothing to
        // do; a zero-copy driver says itself when it wants to be called.
        let nothing = if self.in_force.zero_copy {
            self.in_force.need_wakeup && !tx.needs_wakeup()
        } else {
            tx.pending() == 0
        };
        if nothing && self.in_force.busy_poll.is_none() {
            return Ok(());
        }
        match rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT) {
            // Again: the budget is used up, or the completion ring is full. No buffers: the
            // device's queue is full.
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(()),
            // In copy mode: the device dropped a packet, one a call.
            Err(Errno::BUSY) => {
                self.tx_dropped += u64::from(!self.in_force.zero_copy);
                Ok(())
            }
            Err(error) => Err(self.failed("cannot send", error)),
        }
    }

    /// Puts up to `max` sent frames into the cache; how many there were.
    #[inline]
    pub fn complete(&mut self, cache: &mut LaneCache, max: usize) -> usize {
        let passing = &mut self.passing;
        self.buffers.with(|buffers| buffers.complete(batch(max), |frame| passing.push(frame)));
        let completed = passing.len();
        cache.put_bulk(passing);
        completed
    }

    /// Waits until there is something to receive or, on a socket with unsent packets, room to
    /// send; false if the time was over before. None waits for ever.
    ///
    /// # Errors
    /// What the system reports, such as that the device is gone.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        let unsent = self.tx.as_ref().is_some_and(|tx| tx.pending() > 0);
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.rx.is_some());
        events.set(PollFlags::OUT, unsent);
        // What does not fit is as good as for ever.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let nap = self.look().then_some(NAP);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let this = left.into_iter().chain(nap).min();
            let timeout = this.and_then(|this| Timespec::try_from(this).ok());
            match poll(&mut [PollFd::new(&self.fd, events)], timeout.as_ref()) {
                Ok(0) => (),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(self.failed("cannot wait", error)),
            }
            self.check()?;
            if this == left {
                return Ok(false);
            }
        }
    }

    /// Looks whether it is still bound: a device that goes away leaves a word, but wakes nobody.
    ///
    /// # Errors
    /// What the system reports, such as that the device is gone.
    pub fn check(&self) -> Result<()> {
        match sockopt::socket_error(&self.fd) {
            Ok(Err(error)) | Err(error) => Err(self.failed("no longer bound", error)),
            Ok(Ok(())) => Ok(()),
        }
    }

    /// The thread looks at the socket: renews the lease by which packets come to it. Whether there
    /// is one.
    #[inline]
    fn look(&mut self) -> bool {
        let lease = self.lease.get_mut();
        lease.as_mut().map(Lease::renew).is_some()
    }

    /// From now on packets come here, by this lease.
    pub(crate) fn attend(&self, lease: Lease) {
        *self.lease.lock() = Some(lease);
    }

    /// Whether the kernel waits to be told of new frames in the fill ring: [`wait`](Self::wait)
    /// does, or [`wake_rx`](Self::wake_rx) without waiting.
    pub fn rx_needs_wakeup(&self) -> bool {
        self.buffers.read(|buffers| buffers.fill.needs_wakeup())
    }

    /// Tells the kernel of new frames in the fill ring, where it has to be told, and with busy
    /// polling has it look for packets.
    ///
    /// # Errors
    /// What the system reports.
    pub fn wake_rx(&mut self) -> Result<()> {
        if self.rx.is_none() || self.in_force.busy_poll.is_none() && !self.rx_needs_wakeup() {
            return Ok(());
        }
        match rustix::net::recv(&self.fd, &mut [0_u8; 0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(error) => Err(self.failed("cannot receive", error)),
        }
    }

    /// Where this socket's frames are.
    pub fn outstanding(&self) -> Outstanding {
        let rx = self.rx.as_ref().map_or(0, Consumer::pending);
        self.buffers.read(|buffers| {
            let completed = buffers.completion.pending();
            // The counts are read one after the other, while the kernel goes on.
            let fill = buffers.filled.wrapping_sub(buffers.received).saturating_sub(rx);
            Outstanding { fill, rx, tx: buffers.sending().saturating_sub(completed), completed }
        })
    }

    /// What the kernel counted.
    ///
    /// # Errors
    /// What the system reports.
    pub fn statistics(&self) -> Result<Statistics> {
        let counted = sockopt::xdp_statistics(&self.fd);
        let counted = counted.map_err(|error| self.failed("cannot read its statistics", error))?;
        Ok(Statistics {
            rx_dropped: counted.rx_dropped,
            rx_invalid: counted.rx_invalid_descs,
            tx_invalid: counted.tx_invalid_descs,
            rx_ring_full: counted.rx_ring_full.unwrap_or(0),
            tx_dropped: self.tx_dropped,
            fill_ring_empty: counted.rx_fill_ring_empty_descs.unwrap_or(0),
            tx_ring_empty: counted.tx_ring_empty_descs.unwrap_or(0),
        })
    }

    /// What the kernel took of the options.
    pub fn in_force(&self) -> InForce {
        self.in_force
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.held.device
    }

    /// The queue that it is on.
    pub fn queue(&self) -> u32 {
        self.held.queue
    }

    /// The registered area.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    pub(crate) fn receives(&self) -> bool {
        self.rx.is_some()
    }

    fn failed(&self, what: &str, error: Errno) -> Error {
        let Held { device, queue, .. } = &*self.held;
        Error::io(format!("{device} queue {queue}: {what}"), error)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many of the descriptors that are ready make whole packets: as many packets as `max`
/// descriptors hold, but one if there is one.
fn whole_packets(rx: &mut Consumer<XdpDesc>, max: u32, size: u32) -> u32 {
    let goes_on =
        |rx: &Consumer<XdpDesc>, at| rx.peek(at).options.contains(XdpDescOptions::XDP_PKT_CONTD);
    let ready = rx.ready(max);
    if let Some(last) = (0..ready).rev().find(|&at| !goes_on(rx, at)) {
        return last + 1;
    }
    if max == 0 {
        return 0;
    }
    let all = rx.ready(size);
    (ready..all).find(|&at| !goes_on(rx, at)).map_or(0, |last| last + 1)
}

/// How many of the packets can be posted: whole ones.
#[inline]
fn sendable(packets: &[Packet], frame_size: u32, in_force: &InForce) -> usize {
    let mut count = 0;
    for (at, packet) in packets.iter().enumerate() {
        let Packet { offset, len, more, .. } = *packet;
        let inside = offset <= frame_size && len <= frame_size - offset;
        assert!(
            len > 0 && inside,
            "a packet of {len} bytes at {offset} is not inside a frame of {frame_size}"
        );
        assert!(!more || in_force.multi_buffer, "packets in several frames need multi-buffer");
        if !more {
            count = at + 1;
        }
    }
    count
}

/// A number of frames as the rings count, which are at most 2^30 long.
#[inline]
fn batch(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
