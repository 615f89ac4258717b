//! The borrower against the real lender.

mod common;

use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::Duration;

use cachelane_lend::{Borrower, BorrowerOptions, Distributor, ErrorKind, Wait};
use common::{BOTH, Rig, flow_and_place};
use frames::Accounting;

fn options(name: &str, quota: u32) -> BorrowerOptions {
    BorrowerOptions::default().name(name.into()).quota(quota)
}

fn connect(rig: &Rig, name: &str, quota: u32) -> Borrower {
    Borrower::connect(&rig.socket, &options(name, quota)).expect("welcome")
}

/// Receives to the end: the flow and the place of each packet, by channel as they came.
fn consume(mut borrower: Borrower) -> JoinHandle<Vec<(u16, u32)>> {
    std::thread::spawn(move || {
        let (mut loans, mut seen) = (Vec::new(), Vec::new());
        while borrower.wait(None).expect("in step") == Wait::Ready {
            borrower.receive(&mut loans, 16).expect("in step");
            seen.extend(loans.iter().map(|loan| flow_and_place(borrower.bytes(loan))));
            borrower.give_back(loans.drain(..));
        }
        assert_eq!(borrower.out(), 0);
        seen
    })
}

#[test]
fn every_packet_reaches_one_borrower_and_a_flow_stays_with_one_and_in_order() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(1024, 2, accounting, 64);
        let borrowers: Vec<_> = ["a", "b", "c"].map(|name| connect(&rig, name, 0)).into();
        assert_eq!((borrowers[0].channels(), borrowers[0].quota()), (2, 64));
        let borrowers: Vec<_> = borrowers.into_iter().map(consume).collect();
        rig.until("all have joined", |rig| {
            rig.lender.borrowers().len() == 3 && rig.distributors.iter().all(Distributor::is_wanted)
        });
        // A flow comes through one queue.
        const ROUNDS: u32 = 200;
        for _ in 0..ROUNDS {
            rig.lend(0, 0..20);
            rig.lend(1, 20..40);
            rig.until("all came back", |rig| rig.on_loan() == 0);
        }
        assert_eq!(rig.lender.counters().dropped, 0);
        rig.close();
        let mut owner = HashMap::new();
        for (number, borrower) in borrowers.into_iter().enumerate() {
            let seen = borrower.join().expect("it checks nothing that fails");
            assert!(!seen.is_empty(), "40 flows, three borrowers");
            for (flow, _) in seen {
                let (whose, count) = owner.entry(flow).or_insert((number, 0));
                assert_eq!(*whose, number, "flow {flow}");
                *count += 1;
            }
        }
        assert_eq!(owner.len(), 40);
        assert!(owner.values().all(|&(_, count)| count == ROUNDS));
    }
}

#[test]
fn packets_in_several_frames_come_whole() {
    let mut rig = Rig::new(256, 1, |options| options.quota = 64);
    let mut borrower = connect(&rig, "parts", 0);
    rig.until("it has joined", |rig| rig.distributors[0].is_wanted());
    let mut packets = rig.packets([1, 1, 1, 2, 3, 3]);
    for at in [0, 1, 4] {
        packets[at].more = true;
    }
    rig.distributors[0].lend(&mut packets, &mut rig.cache);
    let mut loans = Vec::new();
    for expected in [&[(1, 0), (1, 1), (1, 2)][..], &[(2, 3)], &[(3, 4), (3, 5)]] {
        borrower.receive(&mut loans, 1).expect("in step");
        let seen: Vec<_> = loans.iter().map(|loan| flow_and_place(borrower.bytes(loan))).collect();
        assert_eq!(seen, expected);
        let more: Vec<bool> = loans.iter().map(|loan| loan.more()).collect();
        assert_eq!(more.iter().filter(|&&more| !more).count(), 1);
        assert_eq!(more.last(), Some(&false));
        borrower.give_back(loans.drain(..));
    }
    drop(borrower);
    rig.close();
}

#[test]
fn what_is_kept_counts_against_its_keeper_only_and_comes_back_when_it_ends() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(256, 1, accounting, 64);
        let mut miser = connect(&rig, "miser", 4);
        rig.until("it has joined", |rig| rig.distributors[0].is_wanted());
        rig.lend(0, 0..10);
        let mut kept = Vec::new();
        assert_eq!(miser.receive(&mut kept, 64).expect("in step"), 4);
        assert_eq!((miser.out(), miser.quota(), miser.dropped()), (4, 4, 6));
        miser.give_back(kept.drain(..1));
        rig.until("one came back", |rig| rig.on_loan() == 3);
        rig.lend(0, 0..2);
        assert_eq!(miser.receive(&mut kept, 64).expect("in step"), 1);
        assert_eq!(miser.dropped(), 7);
        assert_eq!(flow_and_place(miser.bytes(&kept[3])), (0, 0));
        drop(miser);
        rig.until("everything came back", |rig| rig.on_loan() == 0);
        drop(kept);
        rig.close();
    }
}

#[test]
fn a_mirror_gets_every_packet_beside_its_owner_and_ledgers_have_none() {
    let mirror = options("mirror", 0).mirror(true);
    let mut rig = Rig::new(256, 1, |options| options.quota = 32);
    let mut borrower = connect(&rig, "owner", 0);
    let mut beside = Borrower::connect(&rig.socket, &mirror).expect("welcome");
    assert!(beside.is_mirror() && !borrower.is_mirror());
    rig.until("both have joined", |rig| rig.lender.borrowers().len() == 2);
    rig.collect();
    rig.lend(0, 0..8);
    for borrower in [&mut borrower, &mut beside] {
        let mut loans = Vec::new();
        assert_eq!(borrower.receive(&mut loans, 64).expect("in step"), 8);
        assert!(loans.iter().all(|loan| loan.shared()));
        let seen: Vec<_> =
            loans.iter().map(|loan| flow_and_place(borrower.bytes(loan)).0).collect();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
        borrower.give_back(loans);
    }
    rig.until("all came back", |rig| rig.on_loan() == 0);
    rig.close();
    assert_eq!(beside.wait(None).expect("in step"), Wait::Closed);

    let rig = Rig::keeping(64, 1, Accounting::Ledgers, 32);
    let refused = Borrower::connect(&rig.socket, &mirror).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains("the lender refuses: "), "{refused}");
    rig.close();
}

#[test]
fn one_that_sleeps_is_woken_by_each_of_the_lenders_threads() {
    let mut rig = Rig::new(256, 2, |options| options.quota = 32);
    let mut borrower = connect(&rig, "sleeper", 0);
    rig.until("it has joined", |rig| rig.distributors.iter().all(Distributor::is_wanted));
    let (tell, told) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        let mut loans = Vec::new();
        loop {
            match borrower.wait(Some(Duration::from_secs(60))).expect("in step") {
                Wait::Ready => {}
                other => return other,
            }
            borrower.receive(&mut loans, 64).expect("in step");
            loans.iter().for_each(|loan| tell.send(flow_and_place(borrower.bytes(loan))).unwrap());
            borrower.give_back(loans.drain(..));
        }
    });
    for round in 0..500_u16 {
        rig.lend(usize::from(round % 2), [round]);
        let got = told.recv_timeout(Duration::from_secs(20));
        assert_eq!(got.expect("it was woken").0, round);
        rig.collect();
    }
    rig.close();
    assert_eq!(sleeper.join().expect("it ends"), Wait::Closed);
}
