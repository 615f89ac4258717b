//! The borrower against the real lender.

mod common;

use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// The flows of what it has received and given back, until so many came.
fn flows(rig: &mut Rig, borrower: &mut Borrower, count: usize) -> Vec<u16> {
    let (mut loans, mut flows) = (Vec::new(), Vec::new());
    rig.until("all were received", |_| {
        borrower.receive(&mut loans, 64).expect("in step");
        flows.extend(loans.iter().map(|loan| flow_and_place(borrower.bytes(loan)).0));
        borrower.give_back(loans.drain(..));
        flows.len() >= count
    });
    flows
}

#[test]
fn each_group_gets_every_packet_once_and_ledgers_have_none() {
    const FLOWS: u16 = 64;
    let in_group = |name: &str, group| options(name, 128).group(group);
    let mut rig = Rig::new(1024, 1, |options| options.quota = 128);
    let asked = [("web", 0), ("one", 7), ("two", 7), ("late", u16::MAX)];
    let mut borrowers = asked.map(|(name, group)| {
        Borrower::connect(&rig.socket, &in_group(name, group)).expect("welcome")
    });
    for (borrower, (_, group)) in borrowers.iter().zip(asked) {
        assert_eq!(borrower.group(), group);
    }
    let mut tap =
        Borrower::connect(&rig.socket, &options("tap", 128).mirror(true)).expect("welcome");
    rig.until("all have joined", |rig| rig.lender.borrowers().len() == 5);
    let mut groups: Vec<_> = rig.lender.borrowers().iter().map(|one| one.group).collect();
    groups.sort_unstable();
    assert_eq!(groups, [0, 0, 7, 7, u16::MAX]);
    rig.collect();
    rig.lend(0, 0..FLOWS);
    let all: Vec<u16> = (0..FLOWS).collect();
    let [web, one, two, late] = &mut borrowers;
    for borrower in [web, late, &mut tap] {
        assert_eq!(flows(&mut rig, borrower, all.len()), all);
    }
    let mut of_two: Vec<u16> = Vec::new();
    for borrower in [one, two] {
        let mut loans = Vec::new();
        assert!(borrower.receive(&mut loans, 128).expect("in step") > 0, "each has a share");
        of_two.extend(loans.iter().map(|loan| flow_and_place(borrower.bytes(loan)).0));
        borrower.give_back(loans);
    }
    of_two.sort_unstable();
    assert_eq!(of_two, all, "each packet is with one of a group");
    rig.until("all came back", |rig| rig.on_loan() == 0);
    // Who is alone in a group has what both had.
    let [_web, one, two, _late] = borrowers;
    drop(one);
    rig.until("one has left", |rig| rig.lender.borrowers().len() == 4);
    let mut two = two;
    rig.lend(0, 0..FLOWS);
    assert_eq!(flows(&mut rig, &mut two, all.len()), all);
    // Ledgers know of one borrower for each frame.
    let error = rig.set_accounting(Accounting::Ledgers).unwrap_err();
    assert!(error.to_string().contains("late, tap: no ledger"), "{error}");
    drop((_web, two, _late, tap));
    rig.close_empty();

    let rig = Rig::keeping(64, 1, Accounting::Ledgers, 32);
    let refused = Borrower::connect(&rig.socket, &in_group("seven", 7)).unwrap_err();
    assert!(refused.to_string().contains("no groups but 0"), "{refused}");
    let both = in_group("both", 7).mirror(true);
    assert_eq!(Borrower::connect(&rig.socket, &both).unwrap_err().kind(), ErrorKind::Invalid);
    rig.close();
}

#[test]
fn who_has_its_quota_and_returns_nothing_is_evicted_and_others_get_its_flows() {
    const AFTER: Duration = Duration::from_millis(400);
    let mut rig = Rig::new(1024, 2, |options| {
        (options.quota, options.evict_after) = (32, Some(AFTER));
    });
    let mut stuck = connect(&rig, "stuck", 0);
    let mut other = connect(&rig, "other", 0);
    let mut tap = Borrower::connect(&rig.socket, &options("tap", 0).mirror(true)).expect("welcome");
    rig.until("all have joined", |rig| rig.lender.borrowers().len() == 3);
    let (mut kept, mut begin) = (Vec::new(), None);
    let all: Vec<u16> = (0..64).collect();
    // A stopped mirror takes nothing from others: only the worker goes.
    let end = Instant::now() + Duration::from_secs(20);
    while rig.lender.counters().evicted == 0 {
        assert!(Instant::now() < end, "{:?}", rig.lender.counters());
        rig.lend(0, all.iter().copied());
        begin = begin.or((stuck.dropped() > 0).then(Instant::now));
        let _ = stuck.receive(&mut kept, 64);
        let mut loans = Vec::new();
        other.receive(&mut loans, 64).expect("in step");
        other.give_back(loans);
        rig.collect();
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = begin.expect("it dropped").elapsed();
    assert!(after >= AFTER * 7 / 8, "{after:?}");
    kept.clear();
    rig.until("it learns that", |_| {
        let there = stuck.wait(Some(Duration::ZERO)).map_err(|error| error.kind());
        let _ = stuck.receive(&mut kept, 64);
        there == Err(ErrorKind::Evicted)
    });
    rig.until("its loans are back", |rig| {
        let mut loans = Vec::new();
        other.receive(&mut loans, 64).expect("in step");
        other.give_back(loans);
        rig.lender.borrowers().len() == 2 && rig.on_loan() == 32
    });
    let mut loans = Vec::new();
    assert_eq!(tap.receive(&mut loans, 64).expect("in step"), 32);
    tap.give_back(loans);
    rig.until("the mirror's too", |rig| rig.on_loan() == 0);
    for some in all.chunks(16) {
        rig.lend(0, some.iter().copied());
        assert_eq!(flows(&mut rig, &mut other, some.len()), some);
        rig.collect();
    }
    assert_eq!(rig.lender.counters().evicted, 1);
    drop((other, tap, stuck));
    rig.close_empty();
}

#[test]
fn a_borrower_learns_why_nothing_more_comes() {
    let mut rig = Rig::new(256, 2, |options| (options.quota, options.offences) = (32, 0));
    let mut borrower = connect(&rig, "good", 0);
    let mut raw = rig.connect("bad", 0);
    raw.give_back(0, [12_345]);
    rig.until("it is disconnected", |rig| rig.lender.counters().disconnected == 1);
    assert_eq!(raw.ended(), 2, "for an offence");
    let now = Some(Duration::ZERO);
    assert_eq!(borrower.wait(now).expect("in step"), Wait::TimedOut);
    // The socket ends before the threads that receive have looked.
    let Rig { lender, distributors, pool, cache, .. } = rig;
    lender.close();
    let long = Some(Duration::from_secs(20));
    assert_eq!(borrower.wait(long).expect("in step"), Wait::Closed);
    drop((distributors, cache));
    pool.close().expect("every frame came back");
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
