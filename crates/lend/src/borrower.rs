//! The borrower: connects to a lender, receives loans, gives them back.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use derive_setters::Setters;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::layout::{Ending, LOAN_MORE, LOAN_SHARED, LOAN_STAMPED, Layout};
use crate::memory::Memory;
use crate::ring;
use crate::wake::Sleeper;
use crate::{Error, ErrorKind, Result};

mod channel;
mod connect;

use channel::{Area, Channel, Limits};

/// What a borrower asks its lender for.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct BorrowerOptions {
    /// What it is called in the lender's tables: up to 48 bytes. If it is empty, the process's
    /// name.
    pub name: String,
    /// The most loans that it wants to have at a time in each channel. 0 leaves it to the lender,
    /// which can also give less than is asked for.
    pub quota: u32,
    /// Every packet, beside the borrowers that share them out among themselves. A lender that
    /// keeps ledgers refuses that.
    pub mirror: bool,
    /// The group whose borrowers share the packets out among themselves. Each group gets all packets. A
    /// lender that keeps ledgers refuses all but 0, the default, and so does one of version 2.
    pub group: u16,
    /// How long to wait for the lender's answer.
    pub timeout: Duration,
}

impl Default for BorrowerOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            quota: 0,
            mirror: false,
            group: 0,
            timeout: Duration::from_secs(2),
        }
    }
}

/// A connection to a lender.
///
/// ```no_run
/// use cachelane_lend::{Borrower, BorrowerOptions, Wait};
///
/// # fn main() -> cachelane_lend::Result<()> {
/// let mut borrower = Borrower::connect("/run/lend".as_ref(), &BorrowerOptions::default())?;
/// let (mut loans, mut bytes) = (Vec::with_capacity(64), 0);
/// while borrower.wait(None)? == Wait::Ready {
///     borrower.receive(&mut loans, 64)?;
///     for loan in &loans {
///         bytes += borrower.bytes(loan).len();
///     }
///     borrower.give_back(loans.drain(..));
/// }
/// println!("{bytes} bytes, {} packets dropped", borrower.dropped());
/// # Ok(())
/// # }
/// ```
///
/// Nothing is allocated after it is connected, but for what `into` grows. One that must not sleep
/// calls [`receive`](Self::receive) again and again and, now and then,
/// [`wait`](Self::wait) with a time of zero.
///
/// # It trusts its lender
///
/// The lender writes the memory that a borrower reads. A borrower checks what it is handed, so that
/// a lender that is out of step is an error, and no read outside the memory. But that bytes stay as
/// they are while they are on loan is the lender's word, and only as good as that; connect to
/// sockets of lenders that you trust. Once the lender is gone, bytes of loans that were kept may
/// change.
///
/// # Loans that are not given back
///
/// A [`Loan`] that is dropped or kept counts against this borrower's quota and nobody else's.
/// With its quota used up it is lent nothing more, and what is meant for it is dropped
/// ([`dropped`](Self::dropped)). When the connection ends, however it ends, the lender takes back
/// everything.
#[derive(Debug)]
pub struct Borrower {
    /// A message in it is a wake-up, and its end is the lender's.
    socket: OwnedFd,
    memory: Memory,
    area: Area,
    out: Arc<Memory>,
    back: Arc<Memory>,
    channels: Box<[Channel]>,
    /// The channel that comes first next time.
    first: usize,
    quota: u32,
    mirror: bool,
    group: u16,
    device: Option<String>,
    sleeper: Sleeper,
    /// The socket has said that the lender is gone.
    gone: bool,
}

/// What a wait came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// There is something to receive.
    Ready,
    /// Nothing came in that time.
    TimedOut,
    /// The lender has ended, everything that it lent was received, and nothing will follow.
    Closed,
}

/// A packet, or a part of one, on loan.
///
/// It belongs to the [`Borrower`] that received it and is to be given back to that one; it cannot
/// be copied, so giving it back twice does not compile.
#[must_use = "a loan that is not given back uses up the borrower's quota"]
#[derive(Debug)]
pub struct Loan {
    addr: u64,
    time: u64,
    len: u32,
    token: u32,
    hash: u32,
    channel: u16,
    flags: u16,
    /// Whose it is.
    borrower: u32,
}

impl Borrower {
    /// Connects to the lender that listens on this socket.
    ///
    /// # Errors
    /// Of [`ErrorKind`](crate::ErrorKind), `NoLender` if there is no such socket or nobody listens
    /// there, `NotPermitted` if the caller may not open it, `Refused` if the lender refused, and
    /// `NoRoom` if it has no room now, with its reason, `Died` if it closed and did not say why, `TimedOut` if it did not answer in time, `Protocol` if what listens there is no
    /// lender, and `Invalid` for a name or a path that is too long.
    pub fn connect(path: &Path, options: &BorrowerOptions) -> Result<Self> {
        connect::connect(path, options)
    }

    /// Appends loans: whole packets only, and at most `max` loans, unless the first packet alone
    /// has more parts than that. Takes from the channels in turn. How many loans there were; it
    /// does not wait.
    ///
    /// # Errors
    /// [`Protocol`](crate::ErrorKind::Protocol) if what the lender has written makes no sense. The
    /// connection is of no use then; what is already in `into` is good.
    #[inline]
    pub fn receive(&mut self, into: &mut Vec<Loan>, max: usize) -> Result<usize> {
        let (before, channels) = (into.len(), self.channels.len());
        let first = self.first;
        self.first = if first + 1 < channels { first + 1 } else { 0 };
        // A share for each; then whatever is there, for those that have more.
        let shares = [max.div_ceil(channels), max];
        for &share in &shares[..channels.min(2)] {
            for at in (first..channels).chain(0..first) {
                let room = max.saturating_sub(into.len() - before);
                if room == 0 {
                    break;
                }
                let limits = Limits { share, room, first_whole: into.len() == before };
                self.channels[at].receive(&self.area, into, limits)?;
            }
        }
        Ok(into.len() - before)
    }

    /// The bytes of a loan.
    ///
    /// # Panics
    /// If it is another borrower's.
    #[inline]
    pub fn bytes<'a>(&'a self, loan: &'a Loan) -> &'a [u8] {
        assert!(loan.borrower == self.area.borrower, "a loan of another borrower");
        let start = self.memory.part::<u8>(loan.addr as usize, loan.len as usize);
        // SAFETY: inside the mapping, as `part` checks, which lives as long as the reference. The
        // loan is there for as long, and while it is, nobody writes these bytes: that is what a
        // lender promises, and a borrower trusts it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), loan.len as usize) }
    }

    /// Gives loans back, in any order. The lender sees them all at once, at the end.
    ///
    /// # Panics
    /// If one is another borrower's.
    #[inline]
    pub fn give_back(&mut self, loans: impl IntoIterator<Item = Loan>) {
        for loan in loans {
            assert!(loan.borrower == self.area.borrower, "a loan of another borrower");
            self.channels[usize::from(loan.channel)].give_back(loan.token);
        }
        self.channels.iter_mut().for_each(Channel::publish);
    }

    /// Sleeps until there is something to receive, or the lender is gone, or the time is over;
    /// none is no limit. With a time of zero it only looks: that is how a borrower that never
    /// sleeps learns that the lender is gone, and costs one system call on this side and none on
    /// the lender's.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`Io`](crate::ErrorKind::Io) if the system does not wait. Once
    /// everything was received: [`Died`](crate::ErrorKind::Died) if the lender is gone and did not say
    /// that it ends, [`Disconnected`](crate::ErrorKind::Disconnected) if it has disconnected this borrower
    /// for an offence, [`Evicted`](crate::ErrorKind::Evicted) if it did so because this borrower had its
    /// quota and returned nothing for longer than borrowers may.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Wait> {
        if let Some(there) = self.look()? {
            return Ok(there);
        }
        if timeout == Some(Duration::ZERO) {
            self.wait_once(Some(Duration::ZERO))?;
            return Ok(self.look()?.unwrap_or(Wait::TimedOut));
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let slept = self.sleep(until)?;
            if let Some(there) = self.look()? {
                return Ok(there);
            }
            if slept == Wait::TimedOut {
                return Ok(Wait::TimedOut);
            }
        }
    }

    /// Packets that the lender dropped because this borrower had its quota.
    pub fn dropped(&self) -> u64 {
        self.channels.iter().map(|channel| channel.loans.dropped()).sum()
    }

    /// Loans that were received and not given back.
    pub fn out(&self) -> usize {
        self.channels.iter().map(|channel| channel.out as usize).sum()
    }

    /// The most loans at a time in each channel.
    pub fn quota(&self) -> u32 {
        self.quota
    }

    /// How many channels there are: as many as the lender has threads that receive.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Bytes of a frame: the most that a loan can have.
    pub fn frame_size(&self) -> u32 {
        self.area.frame_size
    }

    /// How many frames the lender has.
    pub fn frames(&self) -> u32 {
        self.area.frames
    }

    /// Whether it gets every packet.
    pub fn is_mirror(&self) -> bool {
        self.mirror
    }

    /// The device that the lender receives from, if it says so; lenders of version 2 do not.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The group whose borrowers share the packets out among themselves; of a mirror 0.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// How it is when nothing more comes: the lender has ended, or why else. A lender of version 2 does
    /// not say that it has disconnected a borrower: that is as if it had ended.
    #[cold]
    fn ending(&self) -> Result<Wait> {
        let (kind, what) = match ring::why(&self.out) {
            Ending::Lender => return Ok(Wait::Closed),
            Ending::Offence => {
                (ErrorKind::Disconnected, "the lender has disconnected us, for what we did")
            }
            Ending::Evicted => (
                ErrorKind::Evicted,
                "the lender has disconnected us: we had our quota, and returned nothing for too long \
                 (lend --evict-after)",
            ),
            // It has no word for it.
            Ending::Unsaid if self.channels.iter().any(|channel| channel.loans.is_closed()) => {
                return Ok(Wait::Closed);
            }
            Ending::Unsaid => (
                ErrorKind::Died,
                "the lender is gone and said nothing: it was killed, or it crashed",
            ),
        };
        Err(Error::new(kind, what))
    }

    /// Sleeps once, unless there is something already.
    fn sleep(&mut self, until: Option<Instant>) -> Result<Wait> {
        let Self { sleeper, back, .. } = self;
        sleeper.lie_down(back.word(Layout::ASLEEP));
        let slept = match self.look() {
            Ok(None) => {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                self.wait_once(left)
            }
            there => there.map(|_| Wait::Ready),
        };
        let Self { sleeper, back, .. } = self;
        sleeper.get_up(back.word(Layout::ASLEEP));
        slept
    }

    fn wait_once(&mut self, timeout: Option<Duration>) -> Result<Wait> {
        let waited = wait_at(&self.socket, timeout);
        let waited = waited.map_err(|e| Error::io("cannot wait for the lender", e))?;
        self.gone |= waited == Wait::Closed;
        Ok(waited)
    }

    /// Whether there is something to receive, or never will be.
    fn look(&self) -> Result<Option<Wait>> {
        // Before the rings: what was published before the end is seen after it.
        let closed = self.gone || self.channels.iter().all(|channel| channel.loans.is_closed());
        for channel in &self.channels {
            if channel.is_ready()? {
                return Ok(Some(Wait::Ready));
            }
        }
        if closed { self.ending().map(Some) } else { Ok(None) }
    }
}

#[allow(clippy::len_without_is_empty)] // It never is.
impl Loan {
    /// Its bytes, at least 1.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The same for all packets of a flow, in both directions; by this, packets are shared out
    /// among borrowers. It says nothing between two runs of a lender.
    pub fn flow_hash(&self) -> u32 {
        self.hash
    }

    /// When the packet came, if it [is stamped](Self::stamped); else when the lender took its batch from
    /// its queue.
    pub fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.time)
    }

    /// Whether its time is that of its packet alone (`cachelane lend --timestamps software`).
    pub fn stamped(&self) -> bool {
        u32::from(self.flags) & LOAN_STAMPED != 0
    }

    /// Whether the packet goes on in the next loan.
    pub fn more(&self) -> bool {
        u32::from(self.flags) & LOAN_MORE != 0
    }

    /// Whether other borrowers have it too.
    pub fn shared(&self) -> bool {
        u32::from(self.flags) & LOAN_SHARED != 0
    }
}

/// Waits for a wake-up or a signal (ready), or until the lender is gone (closed) or the time is over;
/// none is no limit.
fn wait_at(socket: &OwnedFd, timeout: Option<Duration>) -> rustix::io::Result<Wait> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let flags = match timeout {
        // One system call.
        None => RecvFlags::empty(),
        Some(Timespec { tv_sec: 0, tv_nsec: 0 }) => RecvFlags::DONTWAIT,
        Some(_) => match poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Ok(Wait::TimedOut),
            Err(Errno::INTR) => return Ok(Wait::Ready),
            Ok(_) => RecvFlags::DONTWAIT,
            Err(error) => return Err(error),
        },
    };
    match recv(socket, &mut [0; 16], flags) {
        Ok((_, 0)) | Err(Errno::CONNRESET) => Ok(Wait::Closed),
        Ok(_) | Err(Errno::INTR) => Ok(Wait::Ready),
        Err(Errno::AGAIN) => Ok(Wait::TimedOut),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
