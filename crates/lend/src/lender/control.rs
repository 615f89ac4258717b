//! The control thread's loop.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use frames::{Accounting, FramePool};
use kit::Count;
use kit::pulse::Pulse;
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use super::admission::Terms;
use super::door::{At, Door, EXHAUSTED};
use super::eviction::{Evictions, Watched};
use super::rate::Rate;
use super::roster::Roster;
use super::status::LenderCounts;
use super::users::{Charge, Peer, Users};
use super::waiting::Waiting;
use super::{LenderOptions, Request};
use crate::distributor::{Command, JoinedBorrower, Report};
use crate::layout::{Ending, Hello, Layout};
use crate::mailbox::{Mailbox, Post};
use crate::memory::Memory;
use crate::reaper::{Reaped, Reaper};
use crate::waker::Waker;
use crate::wire::{EVENTS, Received, peek};

#[derive(Debug)]
pub(super) struct ControlThread {
    pub(super) options: LenderOptions,
    pub(super) door: Door,
    pub(super) pool: FramePool,
    pub(super) area: Arc<Reaped<OwnedFd>>,
    pub(super) reaper: Reaper,
    /// By distributor; none for one that was dropped.
    pub(super) distributors: Vec<Option<Post<Command>>>,
    /// Those that are dropped, or about to be.
    pub(super) ending: BTreeSet<u32>,
    pub(super) requests: Mailbox<Request>,
    /// For the threads that wake borrowers.
    pub(super) report: Post<Report>,
    pub(super) reports: Mailbox<Report>,
    pub(super) roster: Arc<Roster>,
    pub(super) accounting: Accounting,
    /// Those that somebody has.
    pub(super) slots: BTreeMap<u8, Slot>,
    pub(super) joins: Rate,
    pub(super) users: Users,
    pub(super) waiting: Waiting,
    pub(super) evictions: Evictions,
    /// How many borrowers ever had a slot.
    pub(super) generations: u64,
    /// How often the distributors were asked what is on loan.
    pub(super) round: u64,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) charge: Charge,
    /// Tells late reports of an earlier borrower in the same slot from those of this one.
    pub(super) generation: u64,
    pub(super) mirror: bool,
    pub(super) group: u16,
    pub(super) state: SlotState,
}

#[derive(Debug)]
pub(super) enum SlotState {
    /// It maps what it got; no distributor knows of it.
    Pending(Box<PendingBorrower>),
    Joined {
        socket: Arc<Reaped<OwnedFd>>,
        borrower: Arc<JoinedBorrower>,
        /// By distributor; of a mirror none.
        watched: Vec<Watched>,
    },
    /// These distributors have not said yet that it is gone.
    Leaving(BTreeSet<u32>),
}

/// What is kept for a borrower until it has mapped what it got.
#[derive(Debug)]
pub(super) struct PendingBorrower {
    pub(super) terms: Terms,
    pub(super) peer: Peer,
    pub(super) layout: Layout,
    pub(super) out: Arc<Memory>,
    pub(super) own_area: Option<Arc<Memory>>,
    pub(super) socket: Arc<Reaped<OwnedFd>>,
    pub(super) waker: Arc<Waker>,
    /// As it was when somebody last needed to know.
    pub(super) is_hung_up: bool,
}

impl Slot {
    /// On what terms a borrower that has not joined yet is to join.
    pub(super) fn pending(&self) -> Option<&Terms> {
        match &self.state {
            SlotState::Pending(pending) => Some(&pending.terms),
            SlotState::Joined { .. } | SlotState::Leaving(_) => None,
        }
    }

    /// Whether the slot is about to be free.
    pub(super) fn is_ending(&self) -> bool {
        match &self.state {
            SlotState::Leaving(_) => true,
            SlotState::Pending(pending) => pending.is_hung_up,
            SlotState::Joined { .. } => false,
        }
    }
}

/// What there was to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Mail,
    Door(At),
    Slot(u8),
}

impl ControlThread {
    /// Until the lender ends.
    pub(super) fn run(mut self) {
        let pulse = Pulse::of_this_thread();
        loop {
            let ready = pulse.wait(|| self.wait());
            if ready.contains(&Source::Mail) && !self.mail() {
                return self.end();
            }
            // Who hung up before another said hello has gone when that one is heard: connections are
            // polled before slots.
            for source in &ready {
                if let Source::Slot(slot) = *source {
                    self.hear(slot);
                }
            }
            self.look_for_stuck();
            // They came first.
            self.look_at_waiting();
            // Before others are accepted: who has spoken makes no room for who comes now.
            let guests = self.door.hear(|at| ready.contains(&Source::Door(at)));
            if !guests.is_empty() {
                // What was reported before they spoke.
                self.hear_reports();
            }
            for guest in guests {
                self.greet(guest);
            }
            if self.users.look(Instant::now()) {
                self.roster.lingering.set(self.users.lingering() as u64);
            }
            if ready.contains(&Source::Door(At::Listener)) {
                self.door.accept();
            }
        }
    }

    /// Waits until there is something to do, or it is time for something.
    fn wait(&mut self) -> Vec<Source> {
        let now = Instant::now();
        let next = [
            self.door.next(now),
            self.users.next_look(now),
            self.waiting.next(now),
            self.next_eviction(now),
        ];
        let timeout = next.into_iter().flatten().min();
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            // Rounded up by the kernel to its ticks, so that a deadline has passed afterwards.
            tv_nsec: time.subsec_nanos().into(),
        });
        let mail = [self.requests.as_fd(), self.reports.as_fd()].map(|fd| (Source::Mail, fd));
        let door = self.door.polled(now).map(|(at, fd)| (Source::Door(at), fd));
        let joined = self.slots.iter().filter_map(|(number, slot)| match &slot.state {
            SlotState::Joined { socket, .. } => Some((Source::Slot(*number), socket.as_fd())),
            SlotState::Pending(_) | SlotState::Leaving(_) => None,
        });
        let (sources, mut polled): (Vec<_>, Vec<_>) = mail
            .into_iter()
            .chain(door)
            .chain(joined)
            .map(|(source, fd)| (source, PollFd::from_borrowed_fd(fd, EVENTS)))
            .unzip();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel has no memory for it: not at once again.
            Err(_) => std::thread::sleep(EXHAUSTED),
        }
        let events = polled.iter().map(PollFd::revents);
        let ready = sources.into_iter().zip(events).filter(|(_, events)| !events.is_empty());
        ready.map(|(source, _)| source).collect()
    }

    /// Does what is asked for; false if it is to end.
    fn mail(&mut self) -> bool {
        self.hear_reports();
        for request in self.requests.take().collect::<Vec<_>>() {
            match request {
                Request::SetAccounting(to, reply) => {
                    let result = self.set_accounting(to);
                    // Who asked may have gone meanwhile.
                    let _ = reply.send(result);
                }
                Request::Close => return false,
            }
        }
        true
    }

    fn hear_reports(&mut self) {
        for report in self.reports.take().collect::<Vec<_>>() {
            self.note(report);
        }
    }

    pub(super) fn note(&mut self, report: Report) {
        match report {
            Report::Left { distributor, slot } => self.acknowledged(distributor, slot),
            Report::Offender { slot } => {
                self.part(slot, Ending::Offence, |counts| &counts.disconnected);
            }
            Report::Ending { distributor } => drop(self.ending.insert(distributor)),
            Report::Gone { distributor } => {
                self.distributors[distributor as usize] = None;
                let slots: Vec<u8> = self.slots.keys().copied().collect();
                slots.into_iter().for_each(|slot| self.acknowledged(distributor, slot));
            }
            Report::Mapped { slot, generation, back } if self.is_there(slot, generation) => {
                self.mapped(slot, back);
            }
            Report::Slow { slot, generation } if self.is_there(slot, generation) => {
                self.roster.own.offences.slow.add(1);
                self.part(slot, Ending::Offence, |counts| &counts.disconnected);
            }
            // Of one that is gone, or an answer that nobody waits for any more.
            Report::Mapped { .. } | Report::Slow { .. } | Report::Holdings { .. } => {}
        }
    }

    /// Whether a slot is this borrower's, and not a later one's, and it is not leaving.
    fn is_there(&self, slot: u8, generation: u64) -> bool {
        self.slots.get(&slot).is_some_and(|slot| {
            slot.generation == generation && !matches!(slot.state, SlotState::Leaving(_))
        })
    }

    /// A distributor has nothing of a borrower's any more.
    fn acknowledged(&mut self, distributor: u32, number: u8) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        if let SlotState::Leaving(waiting) = &mut slot.state {
            waiting.remove(&distributor);
            if waiting.is_empty() {
                self.vacate(number);
            }
        }
    }

    /// A borrower goes: its socket is closed now, its slot is free when all have said so.
    pub(super) fn part(&mut self, number: u8, why: Ending, count: fn(&LenderCounts) -> &Count) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let SlotState::Joined { borrower, .. } = &slot.state else { return };
        borrower.end(why);
        let mut waiting = BTreeSet::new();
        for (index, distributor) in (0..).zip(&self.distributors) {
            if distributor
                .as_ref()
                .is_some_and(|post| post.send(Command::Leave { slot: number, why }))
            {
                waiting.insert(index);
            }
        }
        if waiting.is_empty() {
            self.vacate(number);
        } else {
            // This has the socket closed.
            slot.state = SlotState::Leaving(waiting);
        }
        // Counted under the lock: whoever sees one of the two finds the other.
        let mut state = self.roster.state();
        let borrower = state.borrowers.remove(&number);
        count(&self.roster.own.counts).add(1);
        // Without the lock.
        drop((state, borrower));
    }

    /// A slot is free. Its user is charged for it until it lets go of what was made for it.
    pub(super) fn vacate(&mut self, slot: u8) {
        if let Some(Slot { charge, .. }) = self.slots.remove(&slot) {
            self.users.left(charge);
            self.waiting.is_vacated = true;
            self.roster.lingering.set(self.users.lingering() as u64);
        }
    }

    /// Something happened at a borrower's socket.
    fn hear(&mut self, slot: u8) {
        let Some(Slot { state: SlotState::Joined { socket, .. }, .. }) = self.slots.get(&slot)
        else {
            return;
        };
        match peek::<Hello>(socket) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(Received::Closed) | Err(_) => {
                self.part(slot, Ending::Unsaid, |counts| &counts.left);
            }
            Ok(Received::Message(..) | Received::Garbage) => {
                self.roster.own.offences.message.add(1);
                self.part(slot, Ending::Offence, |counts| &counts.disconnected);
            }
        }
    }

    fn end(mut self) {
        self.door.close(self.waiting.take().into_iter().map(|(_, guest)| guest));
        for post in self.distributors.iter().flatten() {
            post.send(Command::Close);
        }
        for slot in self.slots.values() {
            match &slot.state {
                SlotState::Pending(pending) => pending.waker.end(),
                SlotState::Joined { borrower, .. } => borrower.end(Ending::Lender),
                SlotState::Leaving(_) => {}
            }
        }
        let borrowers = std::mem::take(&mut self.roster.state().borrowers);
        // Without the lock.
        drop(borrowers);
    }
}
