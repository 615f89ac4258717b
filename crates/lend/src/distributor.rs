//! One thread's half of the lender: what was received goes out, what is returned comes in.
//!
//! For the thread that has the queue: it calls [`collect`](Distributor::collect) and
//! [`lend`](Distributor::lend) in each turn of its loop. Neither waits for anybody, and in a steady
//! state neither allocates.
//!
//! # Where threads meet
//!
//! Each distributor keeps account of its own loans, by itself. It meets others in three things:
//!
//! - **commands** of the control thread ([`Command`]): who joins, who leaves, how account is kept.
//!   They wait in a mailbox until the thread looks, and what has to be known to have happened is
//!   reported back ([`Report`]);
//! - **rings**, shared with borrowers, of which nothing is believed (`ring.rs`);
//! - **tallies**, that this thread writes and others read: they order nothing.
//!
//! A borrower's slot is used again only after every distributor has reported that it left, so that
//! no loan is ever booked to a namesake.

use std::fmt;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::vec::Drain;

use frames::{Accounting, Frame, FramePool, LaneCache, LoanTable, Packet, prefetch};
use rustix::time::{ClockId, clock_gettime};

use crate::hash::FlowHasher;
use crate::layout::{Ending, LOAN_MORE, LOAN_SHARED, LOAN_STAMPED, Loan};
use crate::lender::Tally;
use crate::mailbox::{Mailbox, Post};
use crate::spread::Spread;

mod channel;
mod command;
mod copies;

pub(crate) use channel::{Channel, JoinedBorrower};
pub(crate) use command::{Command, Report};
pub(crate) use copies::Copies;

/// Calls of a burst after which those who sleep are woken although more packets wait.
const CALLS_ASLEEP: u32 = 16;

/// One thread's part of a lender: lends what was received in its queues, and takes it back.
///
/// It can be moved to a thread, and is of one thread at a time. When it is dropped, its borrowers
/// get nothing more from it, and what they had goes home.
pub struct Distributor {
    index: u32,
    pool: FramePool,
    table: LoanTable,
    /// By slot.
    channels: Box<[Option<Channel>]>,
    /// Slots with a channel, a bit each; those to publish to.
    present: u64,
    touched: u64,
    /// Slots that were published to since their borrowers were last woken; calls to lend since
    /// then, and how many there were when it was last collected.
    unwoken: u64,
    calls: u32,
    calls_seen: u32,
    spread: Spread,
    hasher: FlowHasher,
    /// Borrowers have areas of their own, into which packets are copied; how many of the copies
    /// they have.
    pub(crate) private: bool,
    copies_out: u32,
    /// Nothing is lent while the accounting is being changed.
    frozen: bool,
    /// On their way into the cache; empty between calls.
    free: Vec<Frame>,
    commands: Mailbox<Command>,
    reports: Post<Report>,
    tally: Arc<Tally>,
}

impl Distributor {
    pub(crate) fn new(
        index: u32,
        pool: &FramePool,
        accounting: Accounting,
        hasher: FlowHasher,
        commands: Mailbox<Command>,
        reports: Post<Report>,
        tally: Arc<Tally>,
    ) -> Self {
        Self {
            index,
            pool: pool.clone(),
            table: LoanTable::new(pool, accounting),
            channels: (0..LoanTable::BORROWERS).map(|_| None).collect(),
            present: 0,
            touched: 0,
            unwoken: 0,
            calls: 0,
            calls_seen: 0,
            spread: Spread::new(),
            hasher,
            private: false,
            copies_out: 0,
            frozen: false,
            free: Vec::new(),
            commands,
            reports,
            tally,
        }
    }

    /// Lends packets, each to the borrower that has its flow, and to those that get everything, and
    /// wakes those of them who sleep; `packets` is empty after this. Frames that nobody gets go
    /// into the cache: those of packets for borrowers that have their quota, and all of them while
    /// nobody is there.
    ///
    /// A packet in several frames is lent whole or not at all. One whose last part is missing is
    /// not lent.
    ///
    /// # Panics
    /// If a packet is of another pool.
    pub fn lend(&mut self, packets: &mut Vec<Packet>, cache: &mut LaneCache) {
        self.lend_burst(packets, cache, false);
    }

    /// As [`lend`](Self::lend), and if `more` packets are known to wait for the next call, those who
    /// sleep are left asleep until then: for each batch that is handed to one that is awake, one
    /// that falls asleep and is woken again takes the time of a hundred packets
    /// (`cachelane bench lend --only idle`).
    ///
    /// They are woken with the last call of a burst, with the sixteenth at the latest, by the next
    /// [`collect`](Self::collect) if there was no call since the one before, and at once when a
    /// borrower has half of its quota.
    ///
    /// # Panics
    /// As [`lend`](Self::lend).
    pub fn lend_burst(&mut self, packets: &mut Vec<Packet>, cache: &mut LaneCache, more: bool) {
        self.lend_timed(packets, &[], cache, more);
    }

    /// As [`lend_burst`](Self::lend_burst), of packets that came at these times, in nanoseconds since 1970.
    /// Those without, and all if there are no times, came when the batch did: now.
    ///
    /// # Panics
    /// As [`lend`](Self::lend).
    pub fn lend_timed(
        &mut self,
        packets: &mut Vec<Packet>,
        times: &[Option<NonZeroU64>],
        cache: &mut LaneCache,
        more: bool,
    ) {
        self.calls += 1;
        if packets.is_empty() {
            return;
        }
        // Whoever joined before these packets came gets its share of them, however long this thread
        // was without a CPU since it last collected.
        self.obey_mail();
        if self.present == 0 || self.frozen {
            let whole = packets.iter().filter(|part| !part.more).count();
            self.tally.counts.unwanted.add(whole as u64);
            self.free.extend(packets.drain(..).map(|part| part.frame));
        } else {
            let (now, count) = (now(), packets.len());
            // Another CPU wrote them, and each one's headers say who gets it.
            for packet in packets.iter() {
                prefetch(packet.bytes(self.pool.area()));
            }
            let (mut parts, mut unstamped) = (packets.drain(..), 0);
            while let Some(first) = parts.next() {
                let stamp = times.get(count - 1 - parts.len()).copied().flatten();
                unstamped += u64::from(stamp.is_none());
                self.lend_one(first, &mut parts, When::of(stamp, now));
            }
            drop(parts);
            if !times.is_empty() {
                self.tally.counts.unstamped.add(unstamped);
            }
            self.publish();
            if !more || self.calls >= CALLS_ASLEEP {
                self.wake();
            }
        }
        cache.put_bulk(&mut self.free);
    }

    /// Does what the control thread wants, and takes back what borrowers have returned; how many
    /// tokens they have. To be called in each turn, before [`lend`](Self::lend). It costs a load
    /// for each borrower when there is nothing.
    pub fn collect(&mut self, cache: &mut LaneCache) -> usize {
        self.obey_mail();
        if self.unwoken != 0 && self.calls == self.calls_seen {
            self.wake();
        }
        self.calls_seen = self.calls;
        let returned = self.take_back();
        if !self.free.is_empty() {
            cache.put_bulk(&mut self.free);
        }
        returned
    }

    /// Whether there is somebody to lend to. While there is not, packets are better left to the
    /// kernel.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.present != 0
    }

    /// How many of the frames that it has lent have not come back; of borrowers with areas of their
    /// own, how many of the copies.
    #[inline]
    pub fn on_loan(&self) -> u32 {
        self.table.on_loan() + self.copies_out
    }

    #[inline]
    fn room(&self, slot: u8) -> u32 {
        match self.copies_of(slot) {
            Some(copies) => copies.room(),
            None => self.table.room(slot),
        }
    }

    #[inline]
    fn out(&self, slot: u8) -> u32 {
        match self.copies_of(slot) {
            Some(copies) => copies.out(),
            None => self.table.out(slot),
        }
    }

    #[inline]
    fn copies_of(&self, slot: u8) -> Option<&Copies> {
        // Nothing is looked up where all read the same area.
        let channel = self.private.then(|| self.channels[usize::from(slot)].as_ref()).flatten();
        channel.and_then(Channel::copies)
    }

    /// Counts the copies that are out again, after some came or went.
    fn count_copies(&mut self) {
        if self.private {
            self.copies_out = slots(self.present).map(|slot| self.out(slot)).sum();
        }
        self.tally.on_loan.set(self.on_loan().into());
    }

    /// Lends a packet, of which the other parts follow.
    #[inline]
    fn lend_one(&mut self, first: Packet, rest: &mut Drain<'_, Packet>, when: When) {
        let others = match first.more {
            false => Some(0),
            true => rest.as_slice().iter().position(|part| !part.more).map(|last| last + 1),
        };
        let Some(others) = others else {
            self.tally.counts.unwanted.add(1);
            self.free.push(first.frame);
            return self.free.extend(rest.map(|part| part.frame));
        };
        let hash = self.hasher.hash(first.bytes(self.pool.area()));
        let wanted = self.spread.takers(hash);
        let takers = self.with_room(wanted, 1 + others as u32);
        if takers == 0 {
            self.tally.counts.unwanted.add(u64::from(wanted == 0));
            self.free.push(first.frame);
            return self.free.extend(rest.take(others).map(|part| part.frame));
        }
        self.touched |= takers;
        self.lend_part(first, takers, hash, when);
        for part in rest.take(others) {
            self.lend_part(part, takers, hash, when);
        }
    }

    /// Which of them have room for so many loans; the others drop the packet.
    #[inline]
    fn with_room(&mut self, wanted: u64, loans: u32) -> u64 {
        let mut takers = wanted;
        for slot in slots(wanted) {
            if self.room(slot) < loans
                && let Some(channel) = &mut self.channels[usize::from(slot)]
            {
                channel.drop_one();
                takers &= !(1 << slot);
                self.touched |= 1 << slot;
            }
        }
        takers
    }

    /// Lends one frame to borrowers that have room for it.
    #[inline]
    fn lend_part(&mut self, part: Packet, takers: u64, hash: u32, when: When) {
        if self.private {
            return self.copy_part(part, takers, hash, when);
        }
        let When { time, flags } = when;
        let Packet { frame, offset, len, more } = part;
        let area = self.pool.area();
        let start = area.bytes(&frame).as_ptr().addr() - area.as_ptr().addr().get();
        let shared = takers & (takers - 1) != 0;
        let lent = match shared {
            false => self.table.lend(frame, takers.trailing_zeros() as u8),
            true => self.table.share(frame, takers),
        };
        let token = match lent {
            Ok(token) => token,
            // Only if accounts and channels disagreed: nothing is lent then.
            Err(frame) => {
                debug_assert!(false, "borrowers {takers:#x} have no room");
                return self.free.push(frame);
            }
        };
        let flags = flags | (u32::from(more) * LOAN_MORE) | (u32::from(shared) * LOAN_SHARED);
        let loan = Loan { addr: start as u64 + u64::from(offset), len, token, flags, hash, time };
        for slot in slots(takers) {
            if let Some(channel) = &mut self.channels[usize::from(slot)] {
                channel.push(loan);
            }
        }
    }

    /// Copies one frame for borrowers that have areas of their own, and room there; it is free then.
    fn copy_part(&mut self, part: Packet, takers: u64, hash: u32, When { time, flags }: When) {
        let bytes = part.bytes(self.pool.area());
        let flags = flags | (u32::from(part.more) * LOAN_MORE);
        let loan = Loan { len: part.len, flags, hash, time, ..Loan::default() };
        for slot in slots(takers) {
            if let Some(channel) = &mut self.channels[usize::from(slot)] {
                channel.push_copy(bytes, loan);
            }
        }
        self.free.push(part.frame);
    }

    /// Publishes what was lent, once for each borrower. Who has half of its quota is woken.
    fn publish(&mut self) {
        self.unwoken |= self.touched;
        for slot in slots(std::mem::take(&mut self.touched)) {
            let (out, room) = (self.out(slot), self.room(slot));
            let Some(channel) = &mut self.channels[usize::from(slot)] else { continue };
            channel.publish(out, &self.tally);
            if out >= room {
                channel.wake();
                self.unwoken &= !(1 << slot);
            }
        }
        self.count_copies();
    }

    /// Wakes those who sleep and were lent something.
    fn wake(&mut self) {
        (self.calls, self.calls_seen) = (0, 0);
        for slot in slots(std::mem::take(&mut self.unwoken)) {
            if let Some(channel) = &mut self.channels[usize::from(slot)] {
                channel.wake();
            }
        }
    }

    /// Takes the tokens that were returned; frames that nobody has any more are in `free` after
    /// this. Who offends too often is released.
    fn take_back(&mut self) -> usize {
        let mut returned = 0;
        for slot in slots(self.present) {
            let Some(channel) = &mut self.channels[usize::from(slot)] else { continue };
            let taken = channel.take_back(slot, &mut self.table, &mut self.free, &self.tally);
            if taken.tokens > 0 {
                returned += taken.tokens;
                let out = channel.copies().map_or(self.table.out(slot), Copies::out);
                channel.tell_out(out);
            }
            if taken.must_go {
                self.release(slot, Ending::Offence);
                // It fails only when the lender has ended.
                self.reports.send(Report::Offender { slot });
            }
        }
        if returned > 0 {
            self.count_copies();
        }
        returned
    }

    /// Ends all channels, because the lender ends.
    fn release_all(&mut self) {
        slots(self.present).for_each(|slot| self.release(slot, Ending::Lender));
    }

    /// Ends a channel, if it is there; what is on loan in it comes back.
    fn release(&mut self, slot: u8, why: Ending) {
        let out = self.out(slot);
        let Some(mut channel) = self.channels[usize::from(slot)].take() else { return };
        channel.close(why);
        self.tally.counts.reclaimed.add(out.into());
        let free = &mut self.free;
        self.table.release(slot, |frame| free.push(frame));
        self.present &= !(1 << slot);
        self.count_copies();
        self.spread.leave(slot);
    }
}

impl fmt::Debug for Distributor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Distributor");
        shown.field("index", &self.index).field("on_loan", &self.on_loan()).finish_non_exhaustive()
    }
}

impl AsFd for Distributor {
    /// Readable when the control thread wants something: a thread that sleeps waits for this
    /// beside its queues, and then calls [`collect`](Distributor::collect).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.commands.as_fd()
    }
}

impl Drop for Distributor {
    fn drop(&mut self) {
        // Before anybody learns of it.
        self.reports.send(Report::Ending { distributor: self.index });
        self.release_all();
        self.pool.send_home(self.free.drain(..));
        self.reports.send(Report::Gone { distributor: self.index });
    }
}

/// When a packet came, and what its loans' flags say of that.
#[derive(Clone, Copy)]
struct When {
    time: u64,
    flags: u32,
}

impl When {
    /// By its stamp, or else with its batch.
    #[inline]
    fn of(stamp: Option<NonZeroU64>, now: u64) -> Self {
        match stamp {
            Some(time) => Self { time: time.get(), flags: LOAN_STAMPED },
            None => Self { time: now, flags: 0 },
        }
    }
}

/// The numbers of the bits that are set.
#[inline]
fn slots(mut set: u64) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest as u8)
    })
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
