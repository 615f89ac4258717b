//! For this crate's tests and fuzz targets, and no part of its interface: a distributor whose
//! borrowers' memories are written by whoever drives it, beside a model that is too simple to be
//! wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use frames::{
    Accounting, AreaOptions, FrameArea, FramePool, HugePages, LaneCache, Packet, PoolOptions,
};
use kit::Count;

use crate::distributor::{Channel, Command, Distributor, JoinedBorrower, Report};
use crate::hash::FlowHasher;
use crate::layout::{Ending, LINE, LOAN_MORE, LOAN_SHARED, Layout};
use crate::lender::{ChannelTally, Tally};
use crate::mailbox::{Mailbox, Post, mailbox};
use crate::memory::Memory;
use crate::ring::LoanReader;
use crate::spread::Share;
use crate::waker::Waker;

mod handshake;
mod model;

pub use handshake::handshake;

use model::Model;

const FRAMES: u32 = 160;
const FRAME_SIZE: u32 = 64;
const QUOTA: u32 = 24;
const LAYOUT: Layout = Layout { channels: 1, slots: 32 };

/// The slot of the borrower that behaves; the others do not. With counters the last is a mirror.
const HONEST: u8 = 0;
const BORROWERS: u8 = 4;

/// A distributor, three hostile borrowers and one that is not.
pub struct Rings {
    pool: FramePool,
    /// As borrowers have it.
    area: Memory,
    cache: LaneCache,
    distributor: Distributor,
    commands: Post<Command>,
    reports: Mailbox<Report>,
    tally: Arc<Tally>,
    accounting: Accounting,
    forgiven: u32,
    peers: Vec<Peer>,
    model: Model,
    /// What the next packet is marked with.
    next: u32,
    operations: u64,
}

/// A borrower's memories, and what it has of them.
struct Peer {
    out: Arc<Memory>,
    borrower: Arc<JoinedBorrower>,
    /// What the lender has of it, as the borrower has it.
    back: Memory,
    loans: LoanReader,
    tally: Arc<ChannelTally>,
    /// What it put into its ring, when it did so in order.
    next: u32,
    /// Tokens that it gave back once.
    old: [u32; 8],
    /// Of the one that behaves: what it has, with the mark of each.
    held: Vec<(u32, u32)>,
}

impl Rings {
    /// With so many offences forgiven.
    pub fn new(accounting: Accounting, forgiven: u32) -> Self {
        let area = FrameArea::new(
            &AreaOptions::default()
                .frames(FRAMES)
                .frame_size(FRAME_SIZE)
                .huge_pages(HugePages::Never)
                .shared(true),
        );
        let options = PoolOptions::default().fatal(true);
        let pool = FramePool::new(area.expect("an area"), &options).expect("a pool");
        let (commands, orders) = mailbox().expect("a mailbox");
        let (answers, reports) = mailbox().expect("a mailbox");
        let tally = Arc::<Tally>::default();
        let hasher = FlowHasher::default();
        let (book, count) = (accounting, Arc::clone(&tally));
        let distributor = Distributor::new(0, &pool, book, hasher, orders, answers, count);
        let cache = pool.cache(0).expect("a cache");
        let model = Model::new(accounting, FRAMES, QUOTA, BORROWERS);
        let memfd = pool.area().memfd().expect("a shared area");
        let area = Memory::of_other(memfd, pool.area().len(), false).expect("a mapping");
        let peers = (0..BORROWERS).map(|_| Peer::new(forgiven)).collect();
        let mut rings = Self {
            pool,
            area,
            cache,
            distributor,
            commands,
            reports,
            tally,
            accounting,
            forgiven,
            peers,
            model,
            next: 0,
            operations: 0,
        };
        (0..BORROWERS).for_each(|slot| rings.join(slot));
        rings
    }

    /// How many things of hostile borrowers the lender has looked at: tokens, and indices out of
    /// step.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Does something: `what` chooses.
    ///
    /// # Panics
    /// If anything is as it must not be.
    pub fn step(&mut self, what: [u8; 8]) {
        let [kind, who, a, b, value @ ..] = what;
        let value = u32::from_le_bytes(value);
        let who = 1 + who % (BORROWERS - 1);
        match kind % 12 {
            0 | 1 => self.lend(1 + a % 24, b),
            // As many tokens as there are slots, from wherever they may come.
            2..=4 => {
                for at in 0..LAYOUT.slots {
                    let mix = value.wrapping_mul(at.wrapping_mul(2).wrapping_add(0x9e37_79b1));
                    let token = self.token(who, a.wrapping_add((mix >> 27) as u8), mix);
                    self.offer(who, token);
                }
                self.publish(who);
                self.collect();
            }
            5 => {
                let token = self.token(who, a, value);
                self.offer(who, token);
                self.publish(who);
            }
            // An honest turn of a hostile borrower.
            6 => {
                for at in 0..u32::from(a % 24) {
                    let token = self.model.held_by(who, at);
                    self.offer(who, token.unwrap_or(value));
                }
                self.publish(who);
                self.collect();
            }
            7 => {
                let peer = &mut self.peers[usize::from(who)];
                peer.next = match a % 4 {
                    0 => value,
                    1 => peer.next.wrapping_add(value % 40),
                    2 => peer.next.wrapping_sub(value % 40),
                    _ => peer.next.wrapping_add(LAYOUT.slots + value % 2),
                };
                self.publish(who);
            }
            8 => {
                let word = value as usize % (LAYOUT.back_len() / 4) * 4;
                let garbage = u32::from_le_bytes([a, b, who, kind]);
                self.peers[usize::from(who)].back.word(word).store(garbage, Ordering::Relaxed);
            }
            9 if a.is_multiple_of(16) => self.leave(who),
            9 | 10 => self.honest(a),
            _ => self.collect(),
        }
    }

    /// Ends it: every frame came back.
    pub fn end(mut self) {
        self.collect();
        for slot in 0..BORROWERS {
            self.leave(slot);
        }
        assert_eq!(self.distributor.on_loan() as usize, self.model.on_loan());
        let Self { pool, cache, distributor, .. } = self;
        drop((distributor, cache));
        pool.close().expect("every frame came back");
    }

    /// A borrower joins in a slot, with the memories of the one before, as if they were new: to make
    /// them takes longer than a life.
    fn join(&mut self, slot: u8) {
        let peer = &mut self.peers[usize::from(slot)];
        peer.out.word(LAYOUT.out_channel(0)).store(0, Ordering::Relaxed);
        for word in 0..LAYOUT.back_len() / 4 {
            peer.back.word(word * 4).store(0, Ordering::Relaxed);
        }
        peer.borrower.offences.store(0, Ordering::Relaxed);
        peer.loans = LoanReader::new(&peer.out, LAYOUT, 0);
        (peer.next, peer.old) = (0, [0; 8]);
        peer.held.clear();
        peer.tally = Arc::default();
        let (borrower, tally) = (Arc::clone(&peer.borrower), Arc::clone(&peer.tally));
        let channel = Box::new(Channel::new(LAYOUT, 0, borrower, tally, None));
        let share = match self.accounting {
            Accounting::Counters if slot == BORROWERS - 1 => Share::All,
            _ => Share::Flows { group: 0, user: u32::from(slot % 2) },
        };
        assert!(self.commands.send(Command::Join { slot, quota: QUOTA, share, channel }));
        self.distributor.collect(&mut self.cache);
        self.model.joined(slot);
    }

    /// A borrower leaves, with all that it has, and another one joins.
    fn leave(&mut self, slot: u8) {
        self.collect();
        assert!(self.commands.send(Command::Leave { slot, why: Ending::Unsaid }));
        self.model.release(slot);
        self.distributor.collect(&mut self.cache);
        let left = self.reports.take().any(|report| matches!(report, Report::Left { .. }));
        assert!(left, "borrower {slot} never left");
        self.join(slot);
        self.check();
    }

    /// A token, or something that looks like one.
    fn token(&self, who: u8, kind: u8, value: u32) -> u32 {
        let peer = &self.peers[usize::from(who)];
        match kind % 8 {
            0 | 1 => self.model.held_by(who, value).unwrap_or(value),
            2 => self.model.held_by(value as u8 % BORROWERS, value >> 8).unwrap_or(value),
            3 => peer.old[value as usize % peer.old.len()],
            4 => value % (FRAMES + 4),
            // A line of a ledger, and how often it was used.
            5 => (value % (QUOTA + 2)) | (((value >> 8) % 64) << 16),
            6 => [FRAMES, FRAMES - 1, QUOTA, QUOTA - 1, u32::MAX, 1 << 16, 0][value as usize % 7],
            _ => value,
        }
    }

    fn offer(&mut self, who: u8, token: u32) {
        let peer = &mut self.peers[usize::from(who)];
        let slot = peer.next % LAYOUT.slots;
        let at = LAYOUT.back_channel(0) + LINE + slot as usize * 4;
        peer.back.word(at).store(token, Ordering::Relaxed);
        peer.old[token as usize % peer.old.len()] = token;
        peer.next = peer.next.wrapping_add(1);
    }

    fn publish(&self, who: u8) {
        let peer = &self.peers[usize::from(who)];
        peer.back.word(LAYOUT.back_channel(0)).store(peer.next, Ordering::Release);
    }

    /// Lends packets, one of them in as many frames as wanted.
    fn lend(&mut self, packets: u8, more: u8) {
        let mut batch = Vec::new();
        for at in 0..packets {
            let Some(mut frame) = self.cache.get() else { break };
            let bytes = self.pool.area().bytes_mut(&mut frame);
            // MAC addresses, of which the hash is made; the mark after them.
            bytes[..14].fill(at.wrapping_mul(more | 1));
            bytes[16..20].copy_from_slice(&self.next.to_ne_bytes());
            self.next = self.next.wrapping_add(1);
            let goes_on = at < more % 4 && at + 1 < packets;
            batch.push(Packet { frame, offset: 0, len: 60, more: goes_on });
        }
        self.distributor.lend(&mut batch, &mut self.cache);
        assert!(batch.is_empty());
        for slot in 0..BORROWERS {
            self.read(slot);
        }
        self.model.settle();
        self.check();
    }

    /// Reads what a borrower was lent, and books it.
    fn read(&mut self, slot: u8) {
        let peer = &mut self.peers[usize::from(slot)];
        let ready = peer.loans.ready().expect("an index in step");
        assert!(ready <= QUOTA, "{ready} loans at once");
        let mut goes_on = false;
        for at in 0..ready {
            let loan = peer.loans.peek(at);
            assert!(loan.len == 60 && loan.addr.is_multiple_of(FRAME_SIZE.into()), "{loan:?}");
            assert_eq!(loan.flags & !(LOAN_MORE | LOAN_SHARED), 0, "it has no times");
            goes_on = loan.flags & LOAN_MORE != 0;
            let frame = (loan.addr / u64::from(FRAME_SIZE)) as u32;
            assert!(frame < FRAMES);
            self.model.lent(slot, loan.token, frame, loan.flags & LOAN_SHARED != 0);
            if slot == HONEST {
                peer.held.push((loan.token, mark(&self.area, frame)));
            }
        }
        assert!(!goes_on, "a packet without its end");
        peer.loans.advance(ready);
    }

    /// The borrower that behaves gives some back: nobody has touched them.
    fn honest(&mut self, count: u8) {
        let peer = &mut self.peers[usize::from(HONEST)];
        let count = usize::from(count % 24).min(peer.held.len());
        let some: Vec<_> = peer.held.drain(..count).collect();
        for (token, seen) in some {
            let frame = self.model.frame(HONEST, token).expect("a loan of the honest one");
            assert_eq!(mark(&self.area, frame), seen, "a frame was used while it was on loan");
            self.offer(HONEST, token);
        }
        self.publish(HONEST);
        self.collect();
    }

    /// Lets the distributor collect, and compares with what the model says.
    fn collect(&mut self) {
        let mut gone = Vec::new();
        for slot in 0..BORROWERS {
            let peer = &self.peers[usize::from(slot)];
            let looked = self.model.look(slot, &peer.back, LAYOUT);
            assert!(slot != HONEST || looked.offences == 0);
            if slot != HONEST {
                self.operations += looked.tokens + u64::from(looked.is_out_of_step);
            }
            if looked.is_out_of_step || self.model.offences(slot) > u64::from(self.forgiven) {
                // At once, as the distributor does: it is before others' turn.
                self.model.release(slot);
                gone.push(slot);
            }
        }
        self.distributor.collect(&mut self.cache);
        self.check_offences();
        let mut said: Vec<u8> = Vec::new();
        for report in self.reports.take() {
            match report {
                Report::Offender { slot } => said.push(slot),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(said, gone, "who had to go");
        for slot in gone {
            assert!(self.commands.send(Command::Leave { slot, why: Ending::Unsaid }));
            self.distributor.collect(&mut self.cache);
            self.reports.take().for_each(drop);
            self.join(slot);
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.distributor.on_loan() as usize, self.model.on_loan());
        for (slot, peer) in (0..).zip(&self.peers) {
            assert_eq!(
                peer.tally.out.get() as usize,
                self.model.out(slot),
                "loans of borrower {slot}"
            );
        }
    }

    fn check_offences(&self) {
        let seen = &self.tally.offences;
        let seen = [&seen.out_of_range, &seen.not_out, &seen.not_its_own, &seen.index];
        assert_eq!(seen.map(Count::get), self.model.by_reason, "offences by reason");
        assert_eq!(self.tally.counts.returned.get(), self.model.returned);
    }
}

impl Peer {
    fn new(forgiven: u32) -> Self {
        let out = Arc::new(Memory::ours(c"fuzz-out", LAYOUT.out_len()).expect("memory").0);
        let theirs = Memory::for_other(c"fuzz-back", LAYOUT.back_len()).expect("memory");
        let back = Memory::of_other(&theirs, LAYOUT.back_len(), true).expect("a mapping");
        let ours = Memory::theirs(&theirs, LAYOUT.back_len()).expect("a mapping");
        let borrower = Arc::new(JoinedBorrower {
            out: Arc::clone(&out),
            back: Arc::new(ours),
            waker: Arc::new(Waker::new().expect("a waker")),
            offences: AtomicU32::new(0),
            forgiven,
        });
        let loans = LoanReader::new(&out, LAYOUT, 0);
        let tally = Arc::default();
        Self { out, borrower, back, loans, tally, next: 0, old: [0; 8], held: Vec::new() }
    }
}

fn mark(area: &Memory, frame: u32) -> u32 {
    area.word(frame as usize * FRAME_SIZE as usize + 16).load(Ordering::Relaxed)
}
