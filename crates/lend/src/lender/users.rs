//! What each user has of a lender, so that none takes what the others need.
//!
//! Whoever may connect could take all slots, all loans, and all joins of a second, and could keep
//! the memory of each borrower that it ever had: for as long as it has a descriptor or a mapping,
//! the kernel keeps the memory at our expense. So each user has a share of all these. A borrower
//! that left counts until it has let go of what we made for it.
//!
//! The lender's own user and root are not limited: they can end the lender as it is.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;

use super::LenderOptions;
use super::rate::Rate;
use super::waiting::{PATIENCE, Reckon};
use crate::memory::Witness;
use crate::reaper::Reaped;

/// Who is at the other end of a connection, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// None if the process is of another namespace.
    pub(super) pid: Option<u32>,
    pub(super) uid: u32,
}

impl Peer {
    pub(super) fn of(socket: &OwnedFd) -> rustix::io::Result<Self> {
        // Not rustix's, whose process numbers cannot be 0.
        let peer =
            getsockopt(socket, PeerCredentials).map_err(|e| Errno::from_raw_os_error(e as i32))?;
        Ok(Self { pid: u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0), uid: peer.uid() })
    }
}

/// What is reserved for a borrower, and charged to its user.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) uid: u32,
    /// In all channels together.
    pub(super) loans: u64,
    /// What was made for it.
    pub(super) memories: Reaped<Vec<Witness>>,
}

/// How often those that left are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What users have beside the borrowers that are there.
#[derive(Debug)]
pub(super) struct Users {
    /// In percent.
    share: u32,
    joins_per_second: u32,
    /// The most that are watched when they have left, of all users together.
    watched: usize,
    own: u32,
    /// By user, of those that joined of late.
    joins: BTreeMap<u32, Rate>,
    /// Of those that left, and have not let go of their memories, since when.
    lingering: Vec<(Instant, Charge)>,
    looked: Instant,
}

impl Users {
    pub(super) fn new(options: &LenderOptions) -> Self {
        Self {
            share: options.user_share,
            joins_per_second: options.joins_per_second,
            watched: options.watched,
            own: rustix::process::geteuid().as_raw(),
            joins: BTreeMap::new(),
            lingering: Vec::new(),
            looked: Instant::now(),
        }
    }

    /// How much of so many one user may have: at least as much as one borrower needs.
    pub(super) fn share(&self, of: u64, one: u64) -> u64 {
        (of * u64::from(self.share) / 100).max(one)
    }

    /// Whether a user gets no more than its share.
    pub(super) fn is_limited(&self, uid: u32) -> bool {
        uid != 0 && uid != self.own
    }

    /// How many borrowers a user has, those of its that linger among them, and the loans that are
    /// reserved for them.
    pub(super) fn has<'a>(
        &'a self,
        uid: u32,
        charges: impl Iterator<Item = &'a Charge>,
        now: Instant,
        reckon: Reckon,
    ) -> (usize, u64) {
        let all = charges.chain(self.lingerers(now, reckon));
        let its = all.filter(|charge| charge.uid == uid);
        its.fold((0, 0), |(borrowers, loans), charge| (borrowers + 1, loans + charge.loans))
    }

    /// Those that left, and hold what was made for them; without those who have left just now and
    /// are perhaps about to let go, if they do not count.
    fn lingerers(&self, now: Instant, reckon: Reckon) -> impl Iterator<Item = &Charge> {
        let counts =
            move |since: Instant| reckon == Reckon::All || now.duration_since(since) >= PATIENCE;
        self.lingering.iter().filter(move |(since, _)| counts(*since)).map(|(_, charge)| charge)
    }

    /// Whether as many of a user's borrowers joined in the last second as may.
    pub(super) fn is_busy(&self, uid: u32, now: Instant) -> bool {
        self.joins.get(&uid).is_some_and(|joins| joins.wait(now).is_some())
    }

    pub(super) fn join(&mut self, uid: u32, now: Instant) {
        if !self.is_limited(uid) {
            return;
        }
        // A user that has not joined of late is as good as a new one.
        self.joins.retain(|_, joins| !joins.is_full(now));
        let rate = self.share(self.joins_per_second.into(), 1) as u32;
        let new = || Rate::new(rate, rate, now);
        let is_in_time = self.joins.entry(uid).or_insert_with(new).take(now);
        debug_assert!(is_in_time, "user {uid} was busy");
    }

    /// Whether there would be no room to watch all of these, beside those that left, and one more.
    pub(super) fn is_crowded<'a>(
        &self,
        charges: impl Iterator<Item = &'a Charge>,
        now: Instant,
        reckon: Reckon,
    ) -> bool {
        let limited = charges.filter(|charge| self.is_limited(charge.uid)).count();
        self.lingerers(now, reckon).count() + limited >= self.watched
    }

    /// Lets go of what nobody else holds any more.
    pub(super) fn refresh(&mut self) {
        self.lingering.retain(|(_, charge)| charge.is_held());
    }

    /// A borrower has left; what was made for it is perhaps held.
    pub(super) fn left(&mut self, charge: Charge) {
        if self.is_limited(charge.uid) && charge.is_held() {
            debug_assert!(self.lingering.len() < self.watched, "it joined although it was crowded");
            self.lingering.push((Instant::now(), charge));
        }
    }

    /// Loans that are reserved for those that left and hold what was made for them: of a user, or
    /// of all.
    pub(super) fn lingering_loans(&self, uid: Option<u32>, now: Instant, reckon: Reckon) -> u64 {
        let its =
            self.lingerers(now, reckon).filter(|charge| uid.is_none_or(|uid| charge.uid == uid));
        its.map(|charge| charge.loans).sum()
    }

    /// Lets go of what nobody else holds any more, which is kept by our watching it; true if it
    /// was time for that.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let is_time = !self.lingering.is_empty() && now.duration_since(self.looked) >= LOOK;
        if is_time {
            self.looked = now;
            self.refresh();
        }
        is_time
    }

    /// How long until the next [`look`](Self::look), if there is something to look at.
    pub(super) fn next_look(&self, now: Instant) -> Option<Duration> {
        let since = now.duration_since(self.looked);
        (!self.lingering.is_empty()).then(|| LOOK.saturating_sub(since))
    }

    /// How many that left hold what was made for them.
    pub(super) fn lingering(&self) -> usize {
        self.lingering.len()
    }
}

impl Charge {
    fn is_held(&self) -> bool {
        self.memories.iter().any(Witness::is_held)
    }
}
