//! From a hello to a borrower: what it gets, which is memories, channels and a welcome.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;

use super::admission::{Refusal, Situation, Terms, UserSituation};
use super::control::{ControlThread, PendingBorrower, Slot, SlotState};
use super::door::{Guest, blank, field, take_hello};
use super::eviction::Watched;
use super::roster::BorrowerRecord;
use super::status::ChannelTally;
use super::users::{Charge, Peer};
use super::waiting::Reckon;
use crate::distributor::{Channel, Command, Copies, JoinedBorrower, Report};
use crate::layout::{
    GROUP_SHIFT, HELLO_MIRROR, Layout, MAGIC, Mapped, Status, VERSION_GROUPS, Welcome,
};
use crate::memory::{Memory, Witness};
use crate::reaper::Reaped;
use crate::spread::Share;
use crate::waker::{Waker, spawn};
use crate::wire::{EVENTS, Received, peek, receive, send};

/// How long a borrower has to map what it got.
const MAPPING: Duration = Duration::from_secs(10);

struct Outfit {
    layout: Layout,
    out: Arc<Memory>,
    /// What it writes, as we have it, which is not what it gets.
    back: OwnedFd,
    /// What it gets: out, back, and an area of its own, if it gets one.
    handed_out: Vec<OwnedFd>,
    witnesses: Vec<Witness>,
    own_area: Option<Arc<Memory>>,
    area_len: u64,
}

impl ControlThread {
    /// Has somebody join on these terms, that are what it can have now.
    pub(super) fn take_in(
        &mut self,
        Guest { socket, peer, .. }: Guest,
        terms: Terms,
        now: Instant,
    ) {
        if !self.joins.take(now) {
            debug_assert!(false, "it was not busy");
        }
        self.users.join(peer.uid, now);
        self.admit(socket, peer, terms);
    }

    pub(super) fn situation(&self, uid: u32, now: Instant, reckon: Reckon) -> Situation {
        let counts = |slot: &Slot| reckon == Reckon::All || !slot.is_ending();
        let taken: BTreeMap<u8, &Slot> = self
            .slots
            .iter()
            .filter(|(_, slot)| counts(slot))
            .map(|(at, slot)| (*at, slot))
            .collect();
        let mut borrowed: u64 = taken.values().map(|slot| slot.charge.loans).sum();
        let lingering = self.users.lingering_loans(None, now, reckon);
        if self.options.private {
            // An area of its own is there for as long as somebody holds it.
            borrowed += lingering;
        }
        let frames = u64::from(self.pool.area().frames() - self.options.reserve);
        let mut slots = 0..self.options.borrowers as u8;
        Situation {
            accounting: self.accounting,
            free_slot: slots.find(|slot| !taken.contains_key(slot)),
            borrowers: taken.len(),
            left: frames.saturating_sub(borrowed),
            kept: if self.options.private { lingering } else { 0 },
            channels: self.distributors.len() as u32,
            quota: self.options.quota,
            is_busy: self.joins.wait(now).is_some(),
            private: self.options.private,
            user: self.user_situation(uid, (frames, &taken), now, reckon),
        }
    }

    fn user_situation(
        &self,
        uid: u32,
        (frames, taken): (u64, &BTreeMap<u8, &Slot>),
        now: Instant,
        reckon: Reckon,
    ) -> Option<UserSituation> {
        if !self.users.is_limited(uid) {
            return None;
        }
        let charges = || taken.values().map(|slot| &slot.charge);
        let (borrowers, loans) = self.users.has(uid, charges(), now, reckon);
        let its = || taken.values().filter(|slot| slot.charge.uid == uid);
        let one = u64::from(self.options.quota) * self.distributors.len() as u64;
        let most_loans = self.users.share(frames, one);
        Some(UserSituation {
            uid,
            borrowers,
            most_borrowers: self.users.share(self.options.borrowers as u64, 1) as usize,
            all_borrowers: self.options.borrowers,
            left: most_loans.saturating_sub(loans),
            has: loans,
            most_loans,
            all_loans: frames,
            kept: self.users.lingering_loans(Some(uid), now, reckon),
            is_busy: self.users.is_busy(uid, now),
            is_crowded: self.users.is_crowded(charges(), now, reckon),
            mirrors: its().filter(|slot| slot.mirror).count(),
            groups: its().map(|slot| slot.group).filter(|group| *group != 0).collect(),
        })
    }

    /// Makes what a borrower gets, and hands it out.
    fn admit(&mut self, socket: Reaped<OwnedFd>, peer: Peer, terms: Terms) {
        let made = self.outfit(&terms).and_then(|outfit| Ok((outfit, Arc::new(Waker::new()?))));
        let (outfit, waker) = match made {
            Ok(made) => made,
            Err(e) => {
                let reason = format!("the lender cannot: {e}");
                self.roster.refusals.failed.add(1);
                return self.door.tell(socket, &Refusal::new(Status::Busy, reason));
            }
        };
        let welcome = self.welcome(&terms, &outfit);
        let Outfit { layout, out, back, handed_out, witnesses, own_area, .. } = outfit;
        let Terms { slot, quota, mirror, group, .. } = terms;
        let loans = u64::from(quota) * u64::from(layout.channels);
        self.generations += 1;
        let (socket, generation) = (Arc::new(socket), self.generations);
        let charge = Charge { uid: peer.uid, loans, memories: self.reaper.keep(witnesses) };
        let (kept, wakes) = (Arc::clone(&socket), Arc::clone(&waker));
        let pending = PendingBorrower {
            terms,
            peer,
            layout,
            out,
            own_area,
            socket: kept,
            waker: wakes,
            is_hung_up: false,
        };
        let state = SlotState::Pending(Box::new(pending));
        self.slots.insert(slot, Slot { charge, generation, mirror, group, state });
        let area = Arc::clone(&self.area);
        let (ends, reaper, report) = (Arc::clone(&waker), self.reaper.clone(), self.report.clone());
        let begin = move |socket: &Reaped<OwnedFd>| {
            take_hello(socket);
            let area = handed_out.get(2).map_or(area.as_fd(), |own| own.as_fd());
            let sent =
                send(socket, &welcome, &[area, handed_out[0].as_fd(), handed_out[1].as_fd()]);
            // Before it joins: from then on it alone has these, and whether it holds them counts.
            drop(handed_out);
            let mapped = sent.map_err(|_| Errno::PIPE).and_then(|()| hear_mapped(socket, &ends));
            // Only now, and here: who makes holes in it meanwhile makes this thread wait.
            let back = mapped.and_then(|()| Memory::theirs(&back, layout.back_len()));
            let is_there = back.is_ok();
            let back = back.map(|back| back.reaped(&reaper));
            report.send(Report::Mapped { slot, generation, back });
            is_there
        };
        let report = self.report.clone();
        let offends = move || {
            report.send(Report::Slow { slot, generation });
        };
        if spawn(waker, socket, begin, offends).is_err() {
            self.roster.refusals.failed.add(1);
            self.vacate(slot);
        }
    }

    /// A pending borrower has mapped what it got: it joins, and is lent to from now on; unless
    /// something came in between.
    pub(super) fn mapped(&mut self, number: u8, back: rustix::io::Result<Memory>) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let SlotState::Pending(pending) = &slot.state else { return };
        let back = match back {
            Ok(back) => Arc::new(back),
            Err(why) => {
                let refused = &self.roster.refusals;
                let count = match why {
                    Errno::TIMEDOUT => &refused.late,
                    Errno::PIPE => &refused.gone,
                    // Of what it says, or because it has sealed what it was to map.
                    Errno::PROTO | Errno::PERM => &refused.invalid,
                    _ => &refused.failed,
                };
                count.add(1);
                // This has the socket closed.
                return self.vacate(number);
            }
        };
        let (socket, waker) = (Arc::clone(&pending.socket), Arc::clone(&pending.waker));
        let borrower = Arc::new(JoinedBorrower {
            out: Arc::clone(&pending.out),
            back,
            waker: Arc::clone(&waker),
            offences: AtomicU32::new(0),
            forgiven: self.options.offences,
        });
        let channels: Vec<Arc<ChannelTally>> =
            self.distributors.iter().map(|_| Arc::default()).collect();
        let watched = match pending.terms.mirror {
            true => Vec::new(),
            false => channels.iter().map(Watched::new).collect(),
        };
        let joined = SlotState::Joined { socket, borrower: Arc::clone(&borrower), watched };
        let SlotState::Pending(pending) = std::mem::replace(&mut slot.state, joined) else {
            return;
        };
        self.join(&pending, &borrower, &channels);
        let PendingBorrower { terms, peer, .. } = *pending;
        let since = Instant::now();
        let record = BorrowerRecord { terms, peer, since, borrower, channels };
        let mut state = self.roster.state();
        state.borrowers.insert(number, record);
        self.roster.own.counts.joined.add(1);
        drop(state);
        // After all this: who hears it is known, and gets its share of all
        // packets that come from now on.
        waker.wake();
    }

    fn outfit(&self, terms: &Terms) -> rustix::io::Result<Outfit> {
        let layout = Layout::new(self.distributors.len() as u32, terms.quota);
        let (out, out_fd) = Memory::ours(c"cachelane-lend-out", layout.out_len())?;
        let back = Memory::for_other(c"cachelane-lend-back", layout.back_len())?;
        let (out_fd, out_witness) = Witness::of(&out_fd)?;
        let (back_fd, back_witness) = Witness::of(&back)?;
        let mut witnesses = vec![out_witness, back_witness];
        let mut handed_out = vec![out_fd, back_fd];
        let mut own_area = None;
        if self.options.private {
            let frame_size = self.pool.area().frame_size();
            let len = Copies::area_len(frame_size, terms.quota, layout.channels)?;
            let (own, fd) = Memory::ours(c"cachelane-lend-area", len)?;
            let (fd, witness) = Witness::of(&fd)?;
            witnesses.push(witness);
            handed_out.push(fd);
            own_area = Some(Arc::new(own.reaped(&self.reaper)));
        }
        // What is mapped may be more than the frames: huge pages round it up.
        let area = handed_out.get(2).map_or(self.area.as_fd(), |own| own.as_fd());
        let area_len = fstat(area)?.st_size as u64;
        let out = Arc::new(out.reaped(&self.reaper));
        Ok(Outfit { layout, out, back, handed_out, witnesses, own_area, area_len })
    }

    /// Has each distributor lend to a borrower.
    fn join(
        &self,
        pending: &PendingBorrower,
        borrower: &Arc<JoinedBorrower>,
        tallies: &[Arc<ChannelTally>],
    ) {
        let PendingBorrower { layout, own_area, peer, .. } = pending;
        let Terms { slot, quota, mirror, group, .. } = pending.terms;
        let share = match mirror {
            true => Share::All,
            false => Share::Flows { group, user: peer.uid },
        };
        for (index, (post, tally)) in (0..).zip(self.distributors.iter().zip(tallies)) {
            let Some(post) = post else { continue };
            let (borrower, tally) = (Arc::clone(borrower), Arc::clone(tally));
            let copies = own_area.as_ref().map(|area| {
                Copies::new(Arc::clone(area), self.pool.area().frame_size(), quota, index)
            });
            let channel = Box::new(Channel::new(*layout, index, borrower, tally, copies));
            // It fails only for one that was dropped, which is about to be known.
            post.send(Command::Join { slot, quota, share, channel });
        }
    }

    fn welcome(&self, terms: &Terms, outfit: &Outfit) -> Welcome {
        let (area, layout) = (self.pool.area(), outfit.layout);
        let says_device = terms.version >= VERSION_GROUPS;
        Welcome {
            version: terms.version,
            status: Status::Welcome as u16,
            frame_size: area.frame_size(),
            frames: match outfit.own_area {
                Some(_) => terms.quota * layout.channels,
                None => area.frames(),
            },
            area_len: outfit.area_len,
            quota: terms.quota,
            slots: layout.slots,
            channels: layout.channels,
            flags: (HELLO_MIRROR * u32::from(terms.mirror)) | u32::from(terms.group) << GROUP_SHIFT,
            out_len: layout.out_len() as u64,
            back_len: layout.back_len() as u64,
            reason: field(if says_device { &self.options.device } else { "" }),
            ..blank()
        }
    }
}

/// Waits until the borrower says that it has mapped what it got, or the lender ends.
fn hear_mapped(socket: &Reaped<OwnedFd>, waker: &Waker) -> rustix::io::Result<()> {
    let until = Instant::now() + MAPPING;
    loop {
        // It stays where it is if it is something else: descriptors that come with it are not ours.
        match peek::<Mapped>(socket) {
            Ok(Received::Message(Mapped { magic: MAGIC }, _)) => {
                return receive::<Mapped>(socket).map(drop);
            }
            Ok(Received::Message(..) | Received::Garbage) => return Err(Errno::PROTO),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(Received::Closed) | Err(_) => return Err(Errno::PIPE),
        }
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(socket, EVENTS), PollFd::new(waker, PollFlags::IN)];
        let polled = poll(&mut polled, Timespec::try_from(left).ok().as_ref());
        if waker.is_over() {
            return Err(Errno::CANCELED);
        }
        if polled == Ok(0) {
            return Err(Errno::TIMEDOUT);
        }
    }
}
