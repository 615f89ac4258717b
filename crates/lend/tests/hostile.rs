//! Borrowers that do what no honest one does: refused, counted, disconnected; and nobody else
//! notices.

#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cachelane_lend::Offences;
use cachelane_lend::layout::Loan;
use common::*;
use frames::Accounting;
use lab::testing::End;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::net::RecvFlags;

/// A lender with a borrower that behaves, and one that will not.
struct Pair {
    rig: Rig,
    good: RawBorrower,
    bad: RawBorrower,
    /// Loans of the bad one.
    loans: Vec<Loan>,
    /// Packets lent so far.
    lent: u32,
    good_got: u32,
}

impl Pair {
    fn new(accounting: Accounting) -> Self {
        let mut rig = Rig::new(512, 1, |options| {
            (options.quota, options.accounting, options.offences) = (64, accounting, 16);
        });
        let (good, bad) = (rig.connect("good", 0), rig.connect("bad", 0));
        rig.collect();
        let mut pair = Self { rig, good, bad, loans: Vec::new(), lent: 0, good_got: 0 };
        pair.traffic();
        pair.loans = pair.bad.receive(0);
        assert!(pair.loans.len() > 4, "{} loans", pair.loans.len());
        pair
    }

    /// Packets for both; the good one gets all of its, in order, and gives them back.
    fn traffic(&mut self) {
        let flows: Vec<u16> = (0..64).collect();
        self.rig.lend(0, flows);
        self.lent += 64;
        let loans = self.good.receive(0);
        let places: Vec<_> =
            loans.iter().map(|loan| flow_and_place(&self.good.bytes(loan)).1).collect();
        assert!(places.is_sorted() && places.len() > 8, "{places:?}");
        assert_eq!(self.good.dropped(0), 0);
        self.good_got += loans.len() as u32;
        self.good.give_back(0, loans.iter().map(|loan| loan.token));
        self.rig.collect();
    }

    fn offences(&self) -> Offences {
        self.rig.lender.offences()
    }

    /// The bad one is out, the other one goes on, and no frame is missing.
    fn end(mut self, is_out: bool) {
        if is_out {
            self.rig.until("it is disconnected", |rig| rig.lender.borrowers().len() == 1);
            assert!(self.bad.is_hung_up_on());
            let counters = self.rig.lender.counters();
            assert_eq!((counters.disconnected, counters.left), (1, 0));
            self.rig.collect();
            assert_eq!(self.rig.on_loan(), 0);
            // Its flows are the other one's now.
            self.good_got = 0;
            self.traffic();
            assert_eq!(self.good_got, 64);
        }
        assert_eq!(self.rig.lender.borrowers()[0].name, "good");
        assert_eq!(self.rig.lender.borrowers()[0].offences, 0);
        self.rig.close();
    }
}

#[test]
fn tokens_that_are_not_out_to_a_borrower_are_refused_by_reason_and_forgiven_sixteen_times() {
    for accounting in BOTH {
        let mut pair = Pair::new(accounting);
        let out = pair.rig.lender.borrowers()[1].out;
        // The other's loans, while it has them.
        pair.rig.lend(0, 0..64);
        let others = pair.good.receive(0);
        pair.bad.give_back(0, others.iter().take(3).map(|loan| loan.token));
        pair.rig.collect();
        let first = pair.offences();
        match accounting {
            Accounting::Counters => assert_eq!(first.not_its_own, 3),
            // A token is of its own ledger: some may even be out to it, and are its own loans.
            Accounting::Ledgers => {
                let returned = pair.rig.lender.borrowers()[1].returned;
                assert_eq!(first.total() + returned, 3);
            }
        }
        pair.good.give_back(0, others.iter().map(|loan| loan.token));
        // Out of any range, and never lent.
        pair.bad.give_back(0, [u32::MAX, 1 << 31]);
        pair.rig.collect();
        let second = pair.offences();
        assert_eq!(second.total(), first.total() + 2);
        // Of a ledger every number is a line, or was one.
        let most = if accounting == Accounting::Counters { 2 } else { 1 };
        assert_eq!(second.out_of_range, most);
        assert!(pair.rig.lender.borrowers().len() == 2 && out > 0, "it is forgiven so far");
        assert_eq!(pair.rig.lender.borrowers()[1].offences, second.total());

        // Twice.
        let mine = pair.bad.receive(0);
        let token = mine[0].token;
        pair.bad.give_back(0, [token, token, token]);
        pair.rig.collect();
        assert_eq!(pair.offences().not_out, second.not_out + 2);
        // Up to the limit, and one more.
        let left = 16 - pair.offences().total() as usize;
        pair.bad.give_back(0, vec![token; left]);
        pair.rig.collect();
        assert_eq!((pair.offences().total(), pair.rig.lender.borrowers().len()), (16, 2));
        pair.bad.give_back(0, [token]);
        pair.rig.collect();
        pair.end(true);
    }
}

#[test]
fn an_index_that_jumps_or_goes_back_disconnects_at_once() {
    for accounting in BOTH {
        for jump in [65_u32, 1 << 31, u32::MAX, 0_u32.wrapping_sub(64)] {
            let mut pair = Pair::new(accounting);
            let index = pair.bad.returned[0];
            pair.bad.set_index(0, index.wrapping_add(jump));
            pair.rig.collect();
            assert_eq!((pair.offences().index, pair.offences().total()), (1, 1), "{jump}");
            assert!(pair.bad.is_closed(0));
            pair.end(true);
        }
        // As many as there are slots may be new: wrong tokens, and many of them.
        let mut pair = Pair::new(accounting);
        pair.bad.set_index(0, 64);
        pair.rig.collect();
        assert_eq!(pair.offences().index, 0);
        // The zeros in the ring are a token that is perhaps its own, once.
        assert!((63..=64).contains(&pair.offences().total()));
        pair.end(true);
    }
}

#[test]
fn a_borrower_that_never_returns_gets_no_more_than_its_quota() {
    for accounting in BOTH {
        let mut pair = Pair::new(accounting);
        let start = pair.loans.len() as u64;
        for _ in 0..50 {
            pair.traffic();
        }
        let status = &pair.rig.lender.borrowers()[1];
        assert_eq!((status.out, status.lent, status.returned), (64, 64, 0));
        assert_eq!(status.dropped, 51 * start - 64);
        assert_eq!(pair.rig.on_loan(), 64);
        assert_eq!(pair.offences().total(), 0);
        pair.end(false);
    }
}

#[test]
fn whoever_speaks_after_the_hello_is_disconnected() {
    for bytes in [&b"x"[..], &[0; 64], &[7; 4096]] {
        let pair = Pair::new(Accounting::Counters);
        say(&pair.bad.socket, bytes).unwrap();
        let Pair { mut rig, good, mut bad, loans, lent, good_got } = pair;
        rig.until("it is noticed", |rig| rig.lender.offences().message == 1);
        rig.until("it is gone", |rig| rig.lender.borrowers().len() == 1);
        // What it had been sent before is no longer of interest, and may be reset.
        bad.returned[0] = 0;
        Pair { rig, good, bad, loans, lent, good_got }.end(true);
    }
}

#[test]
fn memories_cannot_be_written_resized_or_made_unreadable_where_they_should_not() {
    let mut pair = Pair::new(Accounting::Counters);
    let [area, out, back] = &pair.bad.memories;
    let welcome = pair.bad.welcome;
    for (name, fd, len) in [("area", area, welcome.area_len), ("out", out, welcome.out_len)] {
        assert_eq!(Map::new(fd, len, true).err(), Some(Errno::PERM), "{name} mapped to be written");
        assert_eq!(rustix::io::pwrite(fd, &[1], 0), Err(Errno::PERM), "{name} written");
        assert_eq!(fallocate(fd, HOLE, 0, 4096), Err(Errno::PERM), "a hole in {name}");
        // Opened anew, with all rights that its mode gives.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
        let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(Map::new(&again, len, true).err(), Some(Errno::PERM), "{name} opened again");
    }
    for fd in [area, out, back] {
        for len in [0, 1 << 30] {
            assert_eq!(ftruncate(fd, len), Err(Errno::PERM));
        }
    }
    pair.traffic();
    pair.end(false);
}

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// While a hole is made, whoever reads there waits in the kernel, and many mappings make that long.
#[test]
fn nobody_makes_holes_in_what_it_writes_however_often_it_has_mapped_that() {
    const MAPPINGS: usize = 20_000;
    for accounting in BOTH {
        let mut pair = Pair::new(accounting);
        let pending = RawBorrower::pending(&pair.rig.socket, &hello("mapper", 8, false)).unwrap();
        let [_, _, back] = &pending.memories;
        let len = pending.welcome.back_len;
        let maps: Vec<Map> = (0..MAPPINGS).map(|_| Map::new(back, len, true).unwrap()).collect();
        // All it wants: nobody reads it yet.
        let before = Instant::now();
        fallocate(back, HOLE, 0, len).unwrap();
        eprintln!("a hole takes {:?}", before.elapsed());
        std::thread::scope(|scope| {
            let punching = scope.spawn(|| while fallocate(back, HOLE, 0, len).is_ok() {});
            for _ in 0..10 {
                pair.traffic();
            }
            // The lender's part waits for the hole that is being made, and nobody else does.
            let joining = scope.spawn(|| pending.say_mapped());
            while !joining.is_finished() {
                pair.traffic();
            }
            assert!(joining.join().unwrap());
            punching.join().unwrap();
        });
        assert_eq!(fallocate(back, HOLE, 0, 1), Err(Errno::PERM));
        let page = maps[0].word(0).as_ptr().cast();
        // SAFETY: a whole page of a mapping that nobody else knows of.
        let removed = unsafe { madvise(page, 4096, Advice::LinuxRemove) };
        assert_eq!(removed, Err(Errno::PERM));
        pair.traffic();
        drop((pending, maps));
        pair.rig.until("it is gone", |rig| rig.lender.borrowers().len() == 2);
        pair.end(false);
    }
}

/// What a borrower that has not mapped writes is not read, whatever it is; and it costs nobody
/// anything but its slot, for a while.
#[test]
fn who_does_not_say_that_it_has_mapped_is_lent_nothing_and_nothing_of_it_is_read() {
    let mut pair = Pair::new(Accounting::Counters);
    let mut silent = RawBorrower::pending(&pair.rig.socket, &hello("silent", 8, false)).unwrap();
    let odd = RawBorrower::pending(&pair.rig.socket, &hello("odd", 8, false)).unwrap();
    let sealed = RawBorrower::pending(&pair.rig.socket, &hello("sealed", 8, false)).unwrap();
    let gone = RawBorrower::pending(&pair.rig.socket, &hello("gone", 8, false)).unwrap();
    // An offence, were it read.
    silent.back.word(silent.layout.back_channel(0)).store(1 << 30, Ordering::Release);
    for _ in 0..10 {
        pair.traffic();
    }
    assert_eq!((silent.receive(0).len(), silent.take_wakes()), (0, 0));
    assert_eq!(pair.rig.lender.borrowers().len(), 2);
    drop(gone);
    say(&odd.socket, &[0; 4]).unwrap();
    fcntl_add_seals(&sealed.memories[2], SealFlags::SEAL).unwrap();
    assert!(!sealed.say_mapped());
    assert!(odd.is_hung_up_on());
    let refused = |pair: &Pair| pair.rig.lender.refusals();
    let is_counted = |pair: &Pair| (refused(pair).invalid, refused(pair).gone) == (2, 1);
    let end = Instant::now() + Duration::from_secs(20);
    while !is_counted(&pair) && Instant::now() < end {
        pair.traffic();
    }
    assert!(is_counted(&pair), "{:?}", refused(&pair));
    // Its time is over.
    assert!(!silent.is_disconnected());
    assert!(silent.is_hung_up_on());
    let lender = &pair.rig.lender;
    let (joined, offences) = (lender.counters().joined, lender.offences().total());
    assert_eq!((lender.refusals().late, joined, offences), (1, 2, 0));
    pair.end(false);
}

#[test]
fn a_borrower_that_is_always_asleep_and_reads_no_wake_up_delays_nobody() {
    let mut pair = Pair::new(Accounting::Counters);
    // Asleep for ever, by a new number each time: a wake-up for each batch, none of which it reads.
    for round in 0..2000_u32 {
        pair.bad.asleep().store(2 * round + 1, Ordering::SeqCst);
        if pair.rig.on_loan() >= 64 {
            let loans = pair.bad.receive(0);
            pair.bad.give_back(0, loans.iter().map(|loan| loan.token));
        }
        pair.traffic();
    }
    // What it has not read is little, and then it is woken again.
    let unread = pair.bad.take_wakes();
    assert!((1..100).contains(&unread), "{unread} wake-ups");
    pair.bad.asleep().store(1 << 20 | 1, Ordering::SeqCst);
    let loans = pair.bad.receive(0);
    pair.bad.give_back(0, loans.iter().map(|loan| loan.token));
    pair.traffic();
    pair.traffic();
    let mut byte = [0; 1];
    assert_eq!(rustix::net::recv(&pair.bad.socket, &mut byte, RecvFlags::empty()).unwrap().1, 1);
    pair.end(false);
}

#[test]
fn garbage_all_over_what_a_borrower_can_write_is_noticed_by_nobody_else() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(1024, 1, accounting, 64);
        let mut good = rig.connect("good", 0);
        rig.collect();
        let over = AtomicBool::new(false);
        let writes = std::thread::scope(|scope| {
            let over = &over;
            let path = rig.socket.clone();
            // It joins again as often as it is disconnected.
            let garbage = scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(1);
                let mut writes = 0_u64;
                let (mut lives, mut refusals) = (0_u32, 0_u32);
                while !over.load(Ordering::Relaxed) {
                    let Ok(bad) = RawBorrower::connect(&path, &hello("bad", 0, false)) else {
                        refusals += 1;
                        continue;
                    };
                    lives += 1;
                    while !bad.is_disconnected() && !over.load(Ordering::Relaxed) {
                        // Every other life with an index that could be.
                        let index = (lives % 2 == 0).then_some(bad.layout.back_channel(0) / 4);
                        for (at, word) in bad.back.words().iter().enumerate() {
                            match Some(at) == index {
                                true => {
                                    // Seldom: the lender may not look for a while.
                                    let more = u32::from(rng.random_ratio(1, 1 << 12));
                                    word.fetch_add(more, Ordering::Relaxed);
                                }
                                false => word.store(rng.random(), Ordering::Relaxed),
                            }
                        }
                        writes += bad.back.words().len() as u64;
                    }
                }
                assert!(lives > 1, "{lives} lives, {refusals} refusals");
                writes
            });
            let end = End(over);
            let start = Instant::now();
            let mut last = None;
            // A second, and on a busy machine until both kinds of garbage were noticed.
            let is_enough = |rig: &Rig| {
                let counters = rig.lender.counters();
                let offences = rig.lender.offences();
                let both = offences.index > 0 && offences.total() > offences.index;
                let seconds = start.elapsed().as_secs();
                seconds >= 1 && (counters.disconnected > 1 && both || seconds >= 20)
            };
            while !is_enough(&rig) {
                let flows: Vec<u16> = (0..32).collect();
                rig.lend(0, flows);
                let loans = good.receive(0);
                let places: Vec<u32> =
                    loans.iter().map(|loan| flow_and_place(&good.bytes(loan)).1).collect();
                assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
                last = last.max(places.last().copied());
                good.give_back(0, loans.iter().map(|loan| loan.token));
                rig.collect();
                assert_eq!(good.dropped(0), 0);
            }
            drop(end);
            // One more turn, so that whoever waits for a slot gets it.
            while !garbage.is_finished() {
                rig.collect();
            }
            garbage.join().unwrap()
        });
        let counters = rig.lender.counters();
        eprintln!("{writes} words of garbage, {counters:?}");
        assert!(counters.disconnected > 1, "{counters:?}");
        let offences = rig.lender.offences();
        assert!(offences.index > 0 && offences.total() > offences.index, "{offences:?}");
        assert_eq!(rig.lender.borrowers().iter().map(|each| each.offences).min(), Some(0));
        rig.close();
    }
}
