//! The lender: who borrows, on what terms, and whether they live.
//!
//! # Threads
//!
//! A lender has one thread of its own, the **control thread**: it accepts connections, shakes
//! hands, notices who is gone. Packets go through the caller's threads, each with a [`Distributor`]. The
//! control thread never touches an account: it sends commands, and the distributors report. So a
//! distributor never waits, neither for the control thread nor for a borrower.
//!
//! # A borrower's way
//!
//! It connects, and when its hello has come it is refused, or has a **slot** and is **pending**:
//! the control thread makes its memories, and has the welcome sent. When the borrower has mapped
//! them, what it writes is sealed and mapped here (`Memory::theirs`), each distributor gets its
//! channel, and it has **joined**. From then on its socket shows that it lives. When that ends, or
//! a distributor reports that it offended too often, or it is evicted (`eviction.rs`), it is
//! **leaving**: every distributor takes back what it has and says so, and only then are slot and
//! quota somebody else's. A newcomer that has room only then waits for that, a second at most (`waiting.rs`).
//!
//! # Nobody waits for a borrower
//!
//! Whoever writes to what a borrower has the other end of, or closes it, waits for as long as the
//! borrower likes. The control thread accepts, polls and peeks, which does none of this. A thread for
//! each borrower welcomes it and wakes it (`waker.rs`); refusals, sockets and memories are the
//! reaper's, where it stands why (`reaper.rs`).
//!
//! # What it costs to be besieged
//!
//! Whoever may open the socket can connect as often as the machine lets it. The lender accepts
//! [`ACCEPTS_PER_SECOND`](door::ACCEPTS_PER_SECOND) connections; beyond that it does not look,
//! the queue of the socket fills, and the kernel turns others away without waking anybody. Of those
//! accepted at most [`CONNECTIONS`](door::CONNECTIONS) are without a hello: the one that was silent
//! for longest makes room for the next, so that silence does not keep those out that speak. Joins
//! are limited by [`LenderOptions::joins_per_second`], and of everything one user gets a share
//! ([`LenderOptions::user_share`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use derive_setters::Setters;
use frames::{Accounting, FramePool, LoanTable};

use crate::distributor::Distributor;
use crate::hash::FlowHasher;
use crate::mailbox::{Post, mailbox};
use crate::reaper::Reaper;
use crate::{Error, ErrorKind, Result};

pub(crate) mod admission;
mod control;
mod door;
mod eviction;
mod join;
mod listener;
mod passing;
mod rate;
mod roster;
mod status;
mod switch;
mod users;
mod waiting;

pub use status::{BorrowerStatus, LenderCounters, Offences, Refusals, Standing};
pub(crate) use status::{ChannelTally, Tally};

use control::ControlThread;
use door::Door;
use eviction::Evictions;
use listener::Listener;
use rate::Rate;
use roster::Roster;
use users::Users;
use waiting::Waiting;

/// More threads than any machine has queues for; borrowers refuse more channels.
const DISTRIBUTORS: u32 = 1 << 12;

/// How long a change of the accounting waits for a moment in which nothing is on loan.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(2);

/// A welcome has room for so many bytes of a device's name, and a zero.
const DEVICE_MOST: usize = 95;

/// The control thread looks several times until then.
const EVICT_AFTER_LEAST: Duration = Duration::from_millis(10);

/// How a lender is set up.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct LenderOptions {
    /// The path of its socket.
    pub socket: PathBuf,
    /// The device that it receives from, as borrowers are told; empty, the default, says nothing. At most 95
    /// bytes.
    pub device: String,
    /// Who may connect: the mode of the socket's file. The default is 0o600.
    pub mode: u32,
    /// The group of the socket's file; None leaves it as it is.
    pub group: Option<u32>,
    /// The most borrowers at a time: from 1 to 64, the default.
    pub borrowers: usize,
    /// The most loans that a borrower has at a time, for each distributor: for who does not say,
    /// and the most that anybody gets. From 1 to 65,536; the default is 1024.
    pub quota: u32,
    /// Frames that are never lent, for the queues and caches. The default is 0.
    pub reserve: u32,
    /// Offences that are forgiven to a borrower; with one more it is disconnected. The default is
    /// 16. An index out of step is not forgiven, nor is a message after the hello.
    pub offences: u32,
    /// How account is kept, at first.
    pub accounting: Accounting,
    /// How long a connection may be without its hello. The default is a second.
    pub handshake: Duration,
    /// The most borrowers that join in a second; others are told to come later. The default is
    /// 100.
    pub joins_per_second: u32,
    /// The most that one user has of all borrowers, loans, and joins in a second, in percent, but
    /// at least one borrower. Borrowers that left count for as long as they hold the memory that
    /// was made for them. Root and the lender's own user are not limited: they can end it as it is.
    /// From 1 to 100; the default is 50.
    pub user_share: u32,
    /// The most borrowers that such users have, all of them together, with those that left and hold
    /// the memory that was made for them: each costs some descriptors and that memory. Beyond that
    /// they are told to come later. The default is 256.
    pub watched: usize,
    /// Whether packets are copied into an area of each borrower's own, so that no borrower can read
    /// what others get, or what was received before it joined; a mirror or a group of its own would
    /// see all, so only those may have one who are not limited by `user_share`. The default is
    /// false: all read the same area, and nothing is copied.
    pub private: bool,
    /// How long a borrower that shares flows may have its quota, so that packets for it are dropped, and
    /// return nothing, until it is evicted and others get its flows; none is for ever. Mirrors are left
    /// alone: they take nothing from others. At least 10 ms; the default is 30 seconds.
    pub evict_after: Option<Duration>,
}

impl LenderOptions {
    /// The defaults, with a socket at this path.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            device: String::new(),
            mode: 0o600,
            group: None,
            borrowers: LoanTable::BORROWERS,
            quota: 1024,
            reserve: 0,
            offences: 16,
            accounting: Accounting::default(),
            handshake: Duration::from_secs(1),
            joins_per_second: 100,
            user_share: 50,
            watched: 256,
            private: false,
            evict_after: Some(Duration::from_secs(30)),
        }
    }

    fn check(&self, frames: u32) -> Result<()> {
        let Self { borrowers, quota, reserve, mode, user_share, .. } = *self;
        let (most_borrowers, most_quota) = (LoanTable::BORROWERS, LoanTable::QUOTA);
        let wrong = if !(1..=most_borrowers).contains(&borrowers) {
            format!("{borrowers} borrowers: expected 1 to {most_borrowers}")
        } else if !(1..=most_quota).contains(&quota) {
            format!("a quota of {quota}: expected 1 to {most_quota}")
        } else if self.device.len() > DEVICE_MOST {
            format!("a device of {} bytes: expected at most {DEVICE_MOST}", self.device.len())
        } else if reserve >= frames {
            format!("a reserve of {reserve} of {frames} frames")
        } else if mode & !0o777 != 0 {
            format!("mode {mode:#o}: expected at most 0o777")
        } else if !(1..=100).contains(&user_share) {
            format!("a user's share of {user_share} %: expected 1 to 100")
        } else if let Some(after) = self.evict_after.filter(|after| *after < EVICT_AFTER_LEAST) {
            format!("eviction after {after:?}: expected at least {EVICT_AFTER_LEAST:?}")
        } else if self.handshake.is_zero() || self.joins_per_second == 0 {
            "no time for a handshake, or no joins".into()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, wrong))
    }
}

/// Lends the frames of a pool to other processes: [the crate](crate) has an example.
///
/// When it is dropped, it ends as with [`close`](Self::close).
#[derive(Debug)]
pub struct Lender {
    roster: Arc<Roster>,
    requests: Post<Request>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Request {
    SetAccounting(Accounting, SyncSender<Result<()>>),
    Close,
}

impl Lender {
    /// Opens the socket and starts to admit borrowers. Of the distributors each is for one thread.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for options that cannot be met, and for a pool whose area is not
    /// shared; [`ErrorKind::InUse`] if somebody listens at the path, or what is there is not a
    /// socket; [`ErrorKind::NotPermitted`] and [`ErrorKind::Io`] as the system says.
    pub fn open(
        pool: &FramePool,
        distributors: u32,
        options: &LenderOptions,
    ) -> Result<(Lender, Vec<Distributor>)> {
        options.check(pool.area().frames())?;
        if !(1..=DISTRIBUTORS).contains(&distributors) {
            let message = format!("{distributors} distributors: expected 1 to {DISTRIBUTORS}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let area = duplicate_area(pool)?;
        let reaper = Reaper::new().map_err(|e| Error::io("the lender's reaper", e))?;
        let made = |e| Error::io("the lender's mailboxes", e);
        let (post, requests) = mailbox().map_err(made)?;
        let (report, reports) = mailbox().map_err(made)?;
        let hasher = FlowHasher::default();
        let tallies: Vec<Arc<Tally>> = (0..distributors).map(|_| Arc::default()).collect();
        let mut posts = Vec::new();
        let mut all = Vec::new();
        for (index, tally) in (0..).zip(&tallies) {
            let (post, commands) = mailbox().map_err(made)?;
            posts.push(Some(post));
            let (accounting, hasher) = (options.accounting, hasher.clone());
            let (answers, tally) = (report.clone(), Arc::clone(tally));
            let mut new =
                Distributor::new(index, pool, accounting, hasher, commands, answers, tally);
            new.private = options.private;
            all.push(new);
        }
        let roster = Arc::new(Roster::new(options.accounting, tallies));
        let listener = Listener::open(options, &reaper)?;
        let joins = options.joins_per_second;
        let control_thread = ControlThread {
            door: Door::new(listener, reaper.clone(), Arc::clone(&roster), options.handshake),
            pool: pool.clone(),
            area: Arc::new(reaper.keep(area)),
            reaper,
            distributors: posts,
            ending: BTreeSet::new(),
            requests,
            report,
            reports,
            roster: Arc::clone(&roster),
            accounting: options.accounting,
            slots: BTreeMap::new(),
            joins: Rate::new(joins, joins, Instant::now()),
            users: Users::new(options),
            waiting: Waiting::default(),
            evictions: Evictions::new(options.evict_after),
            generations: 0,
            round: 0,
            options: options.clone(),
        };
        let thread =
            thread::Builder::new().name("lend-control".into()).spawn(|| control_thread.run());
        let thread = thread.map_err(|e| Error::io("the lender's control thread", e))?;
        Ok((Lender { roster, requests: post, thread: Some(thread) }, all))
    }

    /// Who borrows, by slot.
    pub fn borrowers(&self) -> Vec<BorrowerStatus> {
        self.roster.borrowers()
    }

    /// What there is now.
    pub fn standing(&self) -> Standing {
        self.roster.standing()
    }

    /// What has happened so far. Each loan was returned or reclaimed, or a borrower has it.
    pub fn counters(&self) -> LenderCounters {
        self.roster.counters()
    }

    /// Connections that did not become borrowers. Those that the kernel turned away while the
    /// lender accepted none it does not know.
    pub fn refusals(&self) -> Refusals {
        Refusals::from(&self.roster.refusals)
    }

    /// What borrowers did that no honest one does.
    pub fn offences(&self) -> Offences {
        self.roster.offences()
    }

    /// How account is kept.
    pub fn accounting(&self) -> Accounting {
        self.roster.state().accounting
    }

    /// Changes how account is kept, in all distributors or in none. It waits for their threads,
    /// which answer with their next [`Distributor::collect`], and so is not for them to call;
    /// while the change lasts, packets are not lent. While borrowers have frames, it waits for a
    /// moment in which they have none, for half a second: those that work on what they get have such
    /// moments, and packets are lent as ever until then.
    ///
    /// # Errors
    /// [`ErrorKind::OnLoan`] if borrowers had frames all the time, by name; [`ErrorKind::Invalid`] for
    /// ledgers while there are mirrors, or groups but 0; [`ErrorKind::TimedOut`] if a thread does not
    /// answer.
    /// Nothing is changed then.
    pub fn set_accounting(&self, to: Accounting) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.try_set_accounting(to) {
                Err(error) if error.kind() == ErrorKind::OnLoan && Instant::now() < until => {
                    thread::sleep(LOOK);
                }
                done => return done,
            }
        }
    }

    fn try_set_accounting(&self, to: Accounting) -> Result<()> {
        let ended = || Error::new(ErrorKind::Io, "the lender's control thread has ended");
        let (reply, answer) = sync_channel(1);
        self.requests.send(Request::SetAccounting(to, reply));
        answer.recv().map_err(|_| ended())?
    }

    /// Removes the socket's path, and has all borrowers disconnected, by threads that nobody waits
    /// for. What is on loan comes back when
    /// the distributors next look, or are dropped.
    pub fn close(self) {}
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.requests.send(Request::Close);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            debug_assert!(false, "the lender's control thread panicked");
        }
    }
}

fn duplicate_area(pool: &FramePool) -> Result<OwnedFd> {
    let Some(memfd) = pool.area().memfd() else {
        return Err(Error::new(
            ErrorKind::Invalid,
            "the pool's area is not shared: make it with AreaOptions::shared(true)",
        ));
    };
    memfd.try_clone_to_owned().map_err(|e| Error::io("the area's descriptor", e))
}
