//! The control thread's loop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use frames::{Accounting, FramePool};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::admission::{Refusal, Terms};
use super::handshake::{ACCEPTS_AT_ONCE, ACCEPTS_PER_SECOND, EXHAUSTED, HalfOpen};
use super::join::Invitation;
use super::listener::Listener;
use super::rate::Rate;
use super::roster::Roster;
use super::users::{Charge, Users};
use super::{LenderOptions, Request};
use crate::alarm::Alarm;
use crate::distributor::{Command, Report};
use crate::layout::{Hello, Status};
use crate::mailbox::{Mailbox, Post};
use crate::reaper::{Reaped, Reaper};
use crate::wire::{Received, peek};

/// What the control thread has.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) options: LenderOptions,
    pub(super) listener: Listener,
    pub(super) pool: FramePool,
    /// The area's descriptor, to be handed out.
    pub(super) area: Arc<Reaped<OwnedFd>>,
    pub(super) reaper: Reaper,
    /// By distributor; none for one that was dropped.
    pub(super) distributors: Vec<Option<Post<Command>>>,
    pub(super) requests: Mailbox<Request>,
    /// For those who wake borrowers.
    pub(super) report: Post<Report>,
    pub(super) reports: Mailbox<Report>,
    pub(super) roster: Arc<Roster>,
    pub(super) accounting: Accounting,
    /// In the order in which they came.
    pub(super) half_open: VecDeque<HalfOpen>,
    /// By slot.
    pub(super) tenants: BTreeMap<u8, Tenant>,
    pub(super) accepts: Rate,
    pub(super) joins: Rate,
    pub(super) users: Users,
    /// Nothing is accepted before.
    pub(super) paused_until: Option<Instant>,
    /// How many ever joined.
    pub(super) members: u64,
    /// How often the distributors were asked what is on loan.
    pub(super) round: u64,
}

/// Who has a slot.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) charge: Charge,
    /// The how manieth it was: of a slot there can be several.
    pub(super) member: u64,
    pub(super) mirror: bool,
    pub(super) state: Tenancy,
}

impl Tenant {
    /// On what terms it was invited, if it has not joined yet.
    pub(super) fn invited(&self) -> Option<&Terms> {
        match &self.state {
            Tenancy::Invited(invitation) => Some(&invitation.terms),
            Tenancy::Here { .. } | Tenancy::Leaving(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum Tenancy {
    /// It maps what it got; no distributor knows of it.
    Invited(Box<Invitation>),
    Here {
        socket: Arc<Reaped<OwnedFd>>,
        alarm: Arc<Alarm>,
    },
    /// These distributors have not said yet that it is gone.
    Leaving(BTreeSet<u32>),
}

/// What there was to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Mail,
    Listener,
    HalfOpen(usize),
    Tenant(u8),
}

/// Why a borrower goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Left,
    Disconnected,
}

/// What a new control thread gets.
pub(super) struct Parts {
    pub(super) options: LenderOptions,
    pub(super) listener: Listener,
    pub(super) pool: FramePool,
    pub(super) area: Arc<Reaped<OwnedFd>>,
    pub(super) reaper: Reaper,
    pub(super) distributors: Vec<Option<Post<Command>>>,
    pub(super) requests: Mailbox<Request>,
    pub(super) report: Post<Report>,
    pub(super) reports: Mailbox<Report>,
    pub(super) roster: Arc<Roster>,
}

impl Control {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { options, listener, pool, area, reaper, distributors, .. } = parts;
        let Parts { requests, report, reports, roster, .. } = parts;
        let now = Instant::now();
        Self {
            accounting: options.accounting,
            half_open: VecDeque::new(),
            tenants: BTreeMap::new(),
            accepts: Rate::new(ACCEPTS_PER_SECOND, ACCEPTS_AT_ONCE, now),
            joins: Rate::new(options.joins_per_second, options.joins_per_second, now),
            users: Users::new(&options),
            paused_until: None,
            members: 0,
            round: 0,
            options,
            listener,
            pool,
            area,
            reaper,
            distributors,
            requests,
            report,
            reports,
            roster,
        }
    }

    /// Until the lender ends.
    pub(super) fn run(mut self) {
        loop {
            let ready = self.wait();
            if ready.contains(&Source::Mail) && !self.mail() {
                return self.end();
            }
            // Before others are accepted: who has spoken makes no room for who comes now.
            self.shake_hands(&ready);
            if self.users.look(Instant::now()) {
                self.roster.state().lingering = self.users.lingering() as u64;
            }
            for source in &ready {
                match *source {
                    Source::Tenant(slot) => self.hear(slot),
                    Source::Listener => self.accept(),
                    Source::Mail | Source::HalfOpen(_) => {}
                }
            }
        }
    }

    /// Waits until there is something to do, or it is time for something.
    fn wait(&mut self) -> Vec<Source> {
        let now = Instant::now();
        let pause = self.paused_until.and_then(|until| until.checked_duration_since(now));
        let deadline = self.half_open.front().map(|first| first.deadline - now.min(first.deadline));
        let timeout = [pause, deadline, self.users.next_look(now)].into_iter().flatten().min();
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            // Rounded up by the kernel to its ticks, so that a deadline has passed afterwards.
            tv_nsec: time.subsec_nanos().into(),
        });
        let listens = pause.is_none().then_some((Source::Listener, self.listener.as_fd()));
        let mail = [self.requests.as_fd(), self.reports.as_fd()].map(|fd| (Source::Mail, fd));
        let half_open = self.half_open.iter().enumerate();
        let half_open = half_open.map(|(at, each)| (Source::HalfOpen(at), each.socket.as_fd()));
        let tenants = self.tenants.iter().filter_map(|(slot, tenant)| match &tenant.state {
            Tenancy::Here { socket, .. } => Some((Source::Tenant(*slot), socket.as_fd())),
            Tenancy::Invited(_) | Tenancy::Leaving(_) => None,
        });
        let (sources, mut polled): (Vec<_>, Vec<_>) = mail
            .into_iter()
            .chain(listens)
            .chain(half_open)
            .chain(tenants)
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
        for report in self.reports.take().collect::<Vec<_>>() {
            self.note(report);
        }
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

    /// Notes what a distributor reports.
    pub(super) fn note(&mut self, report: Report) {
        match report {
            Report::Left { distributor, slot } => self.acknowledged(distributor, slot),
            Report::Offender { slot } => self.part(slot, Why::Disconnected),
            Report::Gone { distributor } => {
                self.distributors[distributor as usize] = None;
                let slots: Vec<u8> = self.tenants.keys().copied().collect();
                slots.into_iter().for_each(|slot| self.acknowledged(distributor, slot));
            }
            Report::Mapped { slot, member, back } if self.is_member(slot, member) => {
                self.mapped(slot, back);
            }
            Report::Slow { slot, member } if self.is_member(slot, member) => {
                self.roster.state().slow += 1;
                self.part(slot, Why::Disconnected);
            }
            // Of one that is gone.
            Report::Mapped { .. } | Report::Slow { .. } => {}
            // An answer that nobody waits for any more.
            Report::Holdings(_) => {}
        }
    }

    /// Whether a slot is this member's, and not a later one's, and it is not leaving.
    fn is_member(&self, slot: u8, member: u64) -> bool {
        self.tenants.get(&slot).is_some_and(|tenant| {
            tenant.member == member && !matches!(tenant.state, Tenancy::Leaving(_))
        })
    }

    /// A distributor has nothing of a borrower's any more.
    fn acknowledged(&mut self, distributor: u32, slot: u8) {
        let Some(tenant) = self.tenants.get_mut(&slot) else { return };
        if let Tenancy::Leaving(waiting) = &mut tenant.state {
            waiting.remove(&distributor);
            if waiting.is_empty() {
                self.vacate(slot);
            }
        }
    }

    /// A borrower goes: its socket is closed now, its slot is free when all have said so.
    pub(super) fn part(&mut self, slot: u8, why: Why) {
        let Some(tenant) = self.tenants.get_mut(&slot) else { return };
        let Tenancy::Here { alarm, .. } = &tenant.state else { return };
        alarm.end();
        let mut waiting = BTreeSet::new();
        for (index, distributor) in (0..).zip(&self.distributors) {
            if distributor.as_ref().is_some_and(|post| post.send(Command::Leave { slot })) {
                waiting.insert(index);
            }
        }
        if waiting.is_empty() {
            self.vacate(slot);
        } else {
            // This has the socket closed.
            tenant.state = Tenancy::Leaving(waiting);
        }
        let mut state = self.roster.state();
        let member = state.members.remove(&slot);
        match why {
            Why::Left => state.left += 1,
            Why::Disconnected => state.disconnected += 1,
        }
        // Without the lock.
        drop((state, member));
    }

    /// A slot is free. Its user is charged for it until it lets go of what was made for it.
    pub(super) fn vacate(&mut self, slot: u8) {
        if let Some(Tenant { charge, .. }) = self.tenants.remove(&slot) {
            self.users.left(charge);
            self.roster.state().lingering = self.users.lingering() as u64;
        }
    }

    /// Something happened at a borrower's socket.
    fn hear(&mut self, slot: u8) {
        let Some(Tenant { state: Tenancy::Here { socket, .. }, .. }) = self.tenants.get(&slot)
        else {
            return;
        };
        match peek::<Hello>(socket) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(Received::Closed) | Err(_) => self.part(slot, Why::Left),
            Ok(Received::Message(..) | Received::Garbage) => {
                self.roster.state().messages += 1;
                self.part(slot, Why::Disconnected);
            }
        }
    }

    /// The lender ends.
    fn end(mut self) {
        for HalfOpen { socket, .. } in std::mem::take(&mut self.half_open) {
            self.refuse(socket, &Refusal::new(Status::Closing, "the lender is about to end"));
        }
        for post in self.distributors.iter().flatten() {
            post.send(Command::Close);
        }
        for tenant in self.tenants.values() {
            match &tenant.state {
                Tenancy::Invited(invitation) => invitation.alarm.end(),
                Tenancy::Here { alarm, .. } => alarm.end(),
                Tenancy::Leaving(_) => {}
            }
        }
        let members = std::mem::take(&mut self.roster.state().members);
        // Without the lock.
        drop(members);
    }
}

pub(super) const EVENTS: PollFlags = PollFlags::IN.union(PollFlags::RDHUP);
