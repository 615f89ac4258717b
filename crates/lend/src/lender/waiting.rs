//! Newcomers that have room only once others, which are about to end, have ended.
//!
//! A borrower's slot and quota become free a moment after it hung up: when all distributors have
//! said that it is gone, and it has let go of the memory that was made for it. A newcomer that will
//! have room then waits in a row. Nobody else waits, and the control thread never does. When a slot
//! is vacated, the row is served before anybody new.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::admission::{Refusal, Terms, decide};
use super::control::{ControlThread, SlotState};
use super::door::{CLOSING, CONNECTIONS, Guest};
use crate::layout::Status;

/// How long somebody waits at most, and for how long one that left is waited for. Borrowers wait
/// for a welcome for two seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether those that left have let go of what was made for them.
const LOOK: Duration = Duration::from_millis(20);

/// Which borrowers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reckon {
    All,
    /// As if those that are about to end had ended.
    WithoutEnding,
}

#[derive(Default)]
pub(super) struct Waiting {
    /// In the order in which they came, with when each was first heard.
    guests: VecDeque<(Instant, Guest)>,
    /// Something was vacated since the row was looked at.
    pub(super) is_vacated: bool,
    looked: Option<Instant>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("guests", &self.guests.len()).finish_non_exhaustive()
    }
}

impl Waiting {
    /// How long until the row is looked at; none if nobody waits.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        let looked = self.looked.filter(|_| !self.guests.is_empty())?;
        Some(LOOK.saturating_sub(now.duration_since(looked)))
    }

    /// Whether it is time, and whether those that left are to be looked at too.
    fn is_due(&mut self, now: Instant) -> Option<bool> {
        let is_late = self.next(now)?.is_zero();
        if is_late {
            self.looked = Some(now);
        }
        (std::mem::take(&mut self.is_vacated) || is_late).then_some(is_late)
    }

    /// Puts somebody into the row; who loses the place for it, if there is no room.
    fn push(&mut self, now: Instant, guest: Guest) -> Option<Guest> {
        if self.guests.is_empty() {
            self.looked = Some(now);
        }
        self.guests.push_back((now, guest));
        if self.guests.len() <= CONNECTIONS {
            return None;
        }
        let uids = self.guests.iter().map(|(_, guest)| guest.peer.uid);
        let at = first_of_most(uids)?;
        self.guests.remove(at).map(|(_, guest)| guest)
    }

    pub(super) fn take(&mut self) -> VecDeque<(Instant, Guest)> {
        std::mem::take(&mut self.guests)
    }
}

/// The first of the user that has most of these.
pub(super) fn first_of_most(uids: impl Iterator<Item = u32> + Clone) -> Option<usize> {
    let of = |uid| uids.clone().filter(|other| *other == uid).count();
    let numbers = uids.clone().map(of).enumerate();
    numbers.max_by_key(|&(at, number)| (number, Reverse(at))).map(|(at, _)| at)
}

/// Asked without waiting, and without taking anything.
fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

impl ControlThread {
    /// Admits whoever said hello, has it wait, or says why not.
    pub(super) fn greet(&mut self, guest: Guest) {
        let now = Instant::now();
        if let Ok(terms) = self.decide(&guest, now, Reckon::All) {
            return self.take_in(guest, terms, now);
        }
        // Again, with what has ended meanwhile.
        self.users.refresh();
        self.notice_hung_up();
        let refusal = match self.decide(&guest, now, Reckon::All) {
            Ok(terms) => return self.take_in(guest, terms, now),
            Err(refusal) => refusal,
        };
        if self.decide(&guest, now, Reckon::WithoutEnding).is_err() {
            return self.door.refuse(guest.socket, &refusal);
        }
        if let Some(guest) = self.waiting.push(now, guest) {
            self.door.refuse(guest.socket, &self.too_late(false));
        }
    }

    /// Looks at the row of those that wait, if it is time.
    pub(super) fn look_at_waiting(&mut self) {
        let now = Instant::now();
        let Some(is_late) = self.waiting.is_due(now) else { return };
        if is_late {
            self.users.refresh();
        }
        self.notice_hung_up();
        for (since, guest) in self.waiting.take() {
            let refusal = match self.decide(&guest, now, Reckon::All) {
                Ok(terms) => {
                    self.take_in(guest, terms, now);
                    continue;
                }
                Err(refusal) => refusal,
            };
            let can_wait = self.decide(&guest, now, Reckon::WithoutEnding).is_ok();
            if can_wait && now.duration_since(since) < PATIENCE {
                self.waiting.guests.push_back((since, guest));
            } else {
                let refusal = if can_wait { self.too_late(refusal.user) } else { refusal };
                self.door.refuse(guest.socket, &refusal);
            }
        }
        self.roster.lingering.set(self.users.lingering() as u64);
    }

    fn decide(&self, guest: &Guest, now: Instant, reckon: Reckon) -> Result<Terms, Refusal> {
        // Whoever had the end of its channels perhaps connects again at once.
        if self.ending.len() == self.distributors.len() {
            return Err(Refusal::new(Status::Closing, CLOSING));
        }
        decide(&guest.hello, &self.situation(guest.peer.uid, now, reckon))
    }

    /// Borrowers that have not joined, and will not: their threads are about to say so.
    fn notice_hung_up(&mut self) {
        for slot in self.slots.values_mut() {
            if let SlotState::Pending(pending) = &mut slot.state {
                pending.is_hung_up = is_hung_up(&pending.socket);
            }
        }
    }

    /// What is said to somebody that has waited: of those that left one has not ended yet.
    fn too_late(&self, user: bool) -> Refusal {
        let ending = self.slots.values().filter(|slot| slot.is_ending()).count();
        let count = ending + self.users.lingering();
        let reason = format!("what was asked for is still with {count} that left: later");
        Refusal { user, ..Refusal::new(Status::Busy, reason) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use zerocopy::FromZeros as _;

    use super::super::users::Peer;
    use super::*;
    use crate::layout::Hello;
    use crate::reaper::Reaper;

    #[test]
    fn in_a_full_row_the_user_with_most_places_loses_its_first_one() {
        const GREEDY: u32 = 1000;
        const OTHER: u32 = 1001;
        let reaper = Reaper::new().unwrap();
        let guest = |uid, number: usize| Guest {
            socket: reaper.keep(UnixStream::pair().unwrap().0.into()),
            peer: Peer { pid: Some(number as u32), uid },
            hello: Hello::new_zeroed(),
        };
        let (mut row, now) = (Waiting::default(), Instant::now());
        assert!(row.push(now, guest(OTHER, 0)).is_none());
        for number in 1..CONNECTIONS {
            assert!(row.push(now, guest(GREEDY, number)).is_none(), "{number}");
        }
        for number in 1..4 {
            let loser = row.push(now, guest(OTHER, CONNECTIONS + number)).expect("it is full");
            assert_eq!((loser.peer.uid, loser.peer.pid), (GREEDY, Some(number as u32)));
        }
        assert_eq!(row.guests.len(), CONNECTIONS);
        // One's own, too.
        let loser = row.push(now, guest(GREEDY, 0)).expect("it is full");
        assert_eq!((loser.peer.uid, loser.peer.pid), (GREEDY, Some(4)));
    }
}
