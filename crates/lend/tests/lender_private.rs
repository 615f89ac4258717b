//! Borrowers that must not see each other's packets: each has an area of its own.

mod common;

use std::collections::BTreeSet;

use cachelane_lend::LenderOptions;
use cachelane_lend::layout::{LOAN_MORE, Loan};
use common::*;
use frames::Packet;
use rustix::io::Errno;

fn private(frames: u32, distributors: u32, set: impl FnOnce(&mut LenderOptions)) -> Rig {
    Rig::new(frames, distributors, |options| {
        options.private = true;
        set(options);
    })
}

/// All packets that stand anywhere in a borrower's area: the flow and the place of each.
fn area(borrower: &RawBorrower) -> BTreeSet<(u16, u32)> {
    let frame = borrower.welcome.frame_size;
    let frames = (0..borrower.welcome.frames).map(|at| u64::from(at) * u64::from(frame));
    let bytes = frames.map(|addr| borrower.area.bytes(addr, frame));
    bytes.filter(|bytes| bytes.iter().any(|byte| *byte != 0)).map(|b| flow_and_place(&b)).collect()
}

fn read(borrower: &RawBorrower, loans: &[Loan]) -> BTreeSet<(u16, u32)> {
    loans.iter().map(|loan| flow_and_place(&borrower.bytes(loan))).collect()
}

fn tokens(loans: &[Loan]) -> impl Iterator<Item = u32> {
    loans.iter().map(|loan| loan.token)
}

#[test]
fn what_a_borrower_can_read_is_what_it_was_lent() {
    for accounting in BOTH {
        let mut rig =
            private(512, 1, |options| (options.quota, options.accounting) = (64, accounting));
        let mut both = ["one", "two"].map(|name| rig.connect(name, 0));
        rig.collect();
        rig.lend(0, 0..64);
        let mut all = BTreeSet::new();
        for borrower in &mut both {
            let loans = borrower.receive(0);
            let got = read(borrower, &loans);
            assert!(got.len() > 8 && area(borrower) == got, "{got:?}");
            assert_eq!(borrower.welcome.frames, 64);
            all.extend(got);
            let [area, ..] = &borrower.memories;
            let error = Map::new(area, borrower.welcome.area_len, true).err();
            assert_eq!(error, Some(Errno::PERM), "its area mapped to be written");
            borrower.give_back(0, tokens(&loans));
        }
        assert_eq!(all, (0..64).zip(0..).collect());
        rig.until("all is back", |rig| rig.on_loan() == 0);

        // What comes next in its slot finds nothing of it.
        let [one, two] = both;
        drop(one);
        rig.until("it has left", |rig| rig.lender.borrowers().len() == 1);
        let mut third = None;
        rig.until("its slot is free", |rig| {
            third = Some(rig.connect("three", 0));
            rig.lender.borrowers()[0].name == "three"
        });
        let third = third.unwrap();
        rig.collect();
        assert_eq!(area(&third), BTreeSet::new());
        drop((two, third));
        rig.close();
    }
}

#[test]
fn a_mirror_has_copies_of_its_own_and_a_packet_in_parts_comes_whole() {
    let mut rig = private(512, 2, |options| options.quota = 32);
    let mut one = rig.connect("one", 0);
    let mut mirror = rig.mirror("mirror", 0);
    rig.collect();
    for round in 0..40 {
        for distributor in 0..2 {
            let mut packets: Vec<Packet> = rig.packets(0..8);
            packets[3].more = true;
            rig.distributors[distributor].lend(&mut packets, &mut rig.cache);
        }
        for borrower in [&mut one, &mut mirror] {
            for channel in 0..2 {
                let loans = borrower.receive(channel);
                assert_eq!(read(borrower, &loans), (0..8).zip(0..).collect(), "round {round}");
                let flags: Vec<u32> = loans.iter().map(|loan| loan.flags).collect();
                assert_eq!(flags, [0, 0, 0, LOAN_MORE, 0, 0, 0, 0], "copies are not shared");
                borrower.give_back(channel, tokens(&loans));
            }
        }
        rig.until("all is back", |rig| rig.on_loan() == 0);
    }
    let counters = rig.lender.counters();
    assert_eq!((counters.lent, counters.returned, counters.dropped), (1280, 1280, 0));
    rig.close();
}

#[test]
fn who_keeps_everything_has_its_quota_and_no_frame_of_the_lenders() {
    let mut rig = private(64, 1, |options| options.quota = 8);
    let mut borrower = rig.connect("hoarder", 0);
    rig.collect();
    for _ in 0..5 {
        rig.lend(0, 0..16);
    }
    let loans = borrower.receive(0);
    assert_eq!((loans.len(), rig.on_loan(), borrower.dropped(0)), (8, 8, 72));
    let counters = rig.lender.counters();
    assert_eq!((counters.lent, counters.dropped, rig.lender.standing().on_loan), (8, 72, 8));
    let mut all = drain(&mut rig.cache);
    assert_eq!(all.len(), 64, "every frame is there to receive into");
    rig.cache.put_bulk(&mut all);
    // Areas have no more frames in all than the lender has itself.
    let others: Vec<RawBorrower> = (0..7).map(|_| rig.connect("other", 8)).collect();
    let refusal = rig.refusal(&hello("one too many", 8, false));
    assert!(reason(&refusal).starts_with("asked for 8 loans, 0 are left"), "{}", reason(&refusal));
    drop(others);
    drop(borrower);
    rig.until("what it had is back", |rig| rig.on_loan() == 0);
    let counters = rig.lender.counters();
    assert_eq!((counters.lent, counters.reclaimed, rig.lender.standing().on_loan), (8, 8, 0));
    rig.close();
}

#[test]
fn tokens_that_are_not_out_are_refused_and_too_many_of_them_disconnect() {
    let mut rig = private(512, 2, |options| (options.quota, options.offences) = (32, 4));
    let mut good = rig.connect("good", 0);
    let mut bad = rig.connect("bad", 0);
    rig.collect();
    for distributor in 0..2 {
        rig.lend(distributor, 0..32);
    }
    let mine = bad.receive(0);
    let other = bad.receive(1);
    assert!(mine.len() > 4 && other.len() > 4);
    // Of another channel, of nobody, twice: the area is its own, and so is no other's token.
    bad.give_back(0, [other[0].token, u32::MAX, mine[0].token, mine[0].token]);
    rig.collect();
    let offences = rig.lender.offences();
    assert_eq!((offences.out_of_range, offences.not_out, offences.total()), (2, 1, 3));
    bad.give_back(1, [other[0].token]);
    rig.collect();
    assert_eq!(rig.lender.borrowers()[1].returned, 2);
    bad.give_back(0, [mine[0].token; 2]);
    rig.until("it is disconnected", |rig| rig.lender.borrowers().len() == 1);
    rig.until("its socket is closed", |_| bad.is_disconnected());
    let (mine, others) = (good.receive(0), good.receive(1));
    good.give_back(0, tokens(&mine));
    good.give_back(1, tokens(&others));
    rig.until("all is back", |rig| rig.on_loan() == 0);
    assert_eq!(rig.lender.borrowers()[0].offences, 0);
    rig.close();
}
