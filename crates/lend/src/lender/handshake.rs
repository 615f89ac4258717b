//! From a connection to a borrower, or a refusal.

use std::cmp::Reverse;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::admission::{Refusal, Situation, UserSituation, decide};
use super::control::{Control, Source, Tenant};
use super::status::Refusals;
use super::users::Peer;
use crate::layout::{Hello, Status};
use crate::reaper::Reaped;
use crate::wire::{Received, peek};

/// Connections that are accepted in a second: what is beyond waits in the socket's queue, or is
/// turned away by the kernel. One costs some 13 microseconds (`tests/lender_siege.rs`).
pub(super) const ACCEPTS_PER_SECOND: u32 = 1000;

/// As many connections may be without their hello.
pub(super) const HALF_OPEN: usize = 64;

/// As many connections are accepted before anything else is looked at.
pub(super) const ACCEPTS_AT_ONCE: u32 = 32;

/// How long nothing is accepted when there were too many; what may be accepted then is accepted at
/// once.
const PAUSE: Duration = Duration::from_millis(20);

/// What the reaper has to do, sockets of those refused among it: beyond that nothing is accepted.
const UNREAPED: usize = 256;

/// How long nothing is accepted when there are no descriptors.
pub(super) const EXHAUSTED: Duration = Duration::from_millis(100);

/// A connection without its hello.
#[derive(Debug)]
pub(super) struct HalfOpen {
    pub(super) socket: Reaped<OwnedFd>,
    pub(super) deadline: Instant,
    pub(super) peer: Peer,
}

impl Control {
    /// Accepts connections that wait.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let now = Instant::now();
            if !self.accepts.take(now) || self.reaper.pending() > UNREAPED {
                return self.pause(PAUSE);
            }
            match self.listener.accept() {
                Ok(socket) => {
                    let socket = self.reaper.keep(socket);
                    let Ok(peer) = Peer::of(&socket) else { continue };
                    if self.half_open.len() == HALF_OPEN {
                        self.make_room();
                    }
                    let deadline = now + self.options.handshake;
                    self.half_open.push_back(HalfOpen { socket, deadline, peer });
                }
                Err(Errno::AGAIN) => return,
                // It is gone again.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptors, or no memory: those who wait go on waiting.
                Err(_) => return self.pause(EXHAUSTED),
            }
        }
    }

    /// Gives up the connection that was silent for longest, of the user that has most of them.
    fn make_room(&mut self) {
        let of = |uid| self.half_open.iter().filter(|other| other.peer.uid == uid).count();
        let numbers = self.half_open.iter().map(|each| of(each.peer.uid));
        // The first of those with the largest number: they are in the order in which they came.
        let first = numbers.enumerate().max_by_key(|&(at, number)| (number, Reverse(at)));
        if let Some(HalfOpen { socket, .. }) = first.and_then(|(at, _)| self.half_open.remove(at)) {
            let reason = "too many connections without a hello";
            self.refuse(socket, &Refusal::new(Status::Busy, reason));
        }
    }

    /// Hears those who have spoken, and gives up those who have not in time.
    pub(super) fn shake_hands(&mut self, ready: &[Source]) {
        let now = Instant::now();
        for at in (0..self.half_open.len()).rev() {
            let HalfOpen { socket, deadline, .. } = &self.half_open[at];
            let is_ready = ready.contains(&Source::HalfOpen(at));
            let heard = if is_ready { peek::<Hello>(socket) } else { Err(Errno::AGAIN) };
            if let Err(Errno::AGAIN | Errno::INTR) = heard
                && now < *deadline
            {
                continue;
            }
            let Some(HalfOpen { socket, peer, .. }) = self.half_open.remove(at) else { continue };
            match heard {
                Ok(Received::Message(hello, _)) => self.greet(socket, peer, &hello),
                Ok(Received::Garbage) => {
                    self.refuse(socket, &Refusal::new(Status::Invalid, "that is not a hello"));
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    let time = self.options.handshake.as_millis();
                    let reason = format!("no hello within {time} ms");
                    self.count(|refused| &mut refused.late);
                    self.tell(socket, &Refusal::new(Status::Invalid, reason));
                }
                Ok(Received::Closed) | Err(_) => self.count(|refused| &mut refused.gone),
            }
        }
    }

    /// Admits whoever said hello, or says why not.
    fn greet(&mut self, socket: Reaped<OwnedFd>, peer: Peer, hello: &Hello) {
        let now = Instant::now();
        let terms = match decide(hello, &self.situation(peer.uid, now)) {
            Ok(terms) => terms,
            Err(refusal) => return self.refuse(socket, &refusal),
        };
        if !self.joins.take(now) {
            debug_assert!(false, "it was not busy");
        }
        self.users.join(peer.uid, now);
        self.admit(socket, peer, terms);
    }

    fn situation(&mut self, uid: u32, now: Instant) -> Situation {
        let mut borrowed: u64 = self.tenants.values().map(|tenant| tenant.charge.loans).sum();
        if self.options.private {
            // An area of its own is there for as long as somebody holds it.
            borrowed += self.users.lingering_loans();
        }
        let frames = u64::from(self.pool.area().frames() - self.options.reserve);
        let mut slots = 0..self.options.borrowers as u8;
        let channels = self.distributors.len() as u32;
        Situation {
            accounting: self.accounting,
            free_slot: slots.find(|slot| !self.tenants.contains_key(slot)),
            borrowers: self.tenants.len(),
            left: frames.saturating_sub(borrowed),
            channels,
            quota: self.options.quota,
            is_busy: self.joins.wait(now).is_some(),
            private: self.options.private,
            user: self.user_situation(uid, frames, now),
        }
    }

    fn user_situation(&mut self, uid: u32, frames: u64, now: Instant) -> Option<UserSituation> {
        if !self.users.is_limited(uid) {
            return None;
        }
        let (borrowers, loans) = self.users.has(uid, self.tenants.values());
        let is_its = |tenant: &&Tenant| tenant.mirror && tenant.charge.uid == uid;
        let mirrors = self.tenants.values().filter(is_its).count();
        let is_crowded = self.users.is_crowded(self.tenants.values());
        let one = u64::from(self.options.quota) * self.distributors.len() as u64;
        let most_loans = self.users.share(frames, one);
        Some(UserSituation {
            uid,
            borrowers,
            most_borrowers: self.users.share(self.options.borrowers as u64, 1) as usize,
            left: most_loans.saturating_sub(loans),
            most_loans,
            is_busy: self.users.is_busy(uid, now),
            is_crowded,
            mirrors,
        })
    }

    /// Counts a refusal and says why: whoever has heard it finds it counted.
    pub(super) fn refuse(&mut self, socket: Reaped<OwnedFd>, refusal: &Refusal) {
        self.count(|refused| match refusal.status {
            _ if refusal.user => &mut refused.user,
            Status::Version => &mut refused.version,
            Status::Full => &mut refused.full,
            Status::Quota => &mut refused.quota,
            Status::Busy => &mut refused.busy,
            Status::Mirror => &mut refused.mirror,
            Status::Closing => &mut refused.closing,
            // The last two are no answers for who is no user, or no refusal.
            Status::Invalid | Status::Denied | Status::Welcome => &mut refused.invalid,
        });
        self.tell(socket, refusal);
    }

    pub(super) fn count(&self, which: impl FnOnce(&mut Refusals) -> &mut u64) {
        *which(&mut self.roster.state().refused) += 1;
    }

    /// Accepts nothing for a while.
    fn pause(&mut self, time: Duration) {
        self.paused_until = Some(Instant::now() + time);
        self.roster.state().paused += 1;
    }
}
