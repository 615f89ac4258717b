//! Lending to borrowers that behave.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use cachelane_lend::layout::{LOAN_MORE, LOAN_SHARED, LOAN_STAMPED, Loan};
use common::*;
use frames::Packet;

/// Of loans, the flow and the place of each.
fn read(borrower: &RawBorrower, loans: &[Loan]) -> Vec<(u16, u32)> {
    loans.iter().map(|loan| flow_and_place(&borrower.bytes(loan))).collect()
}

fn tokens(loans: &[Loan]) -> impl Iterator<Item = u32> {
    loans.iter().map(|loan| loan.token)
}

#[test]
fn a_packet_comes_as_it_was_received_and_its_frame_is_free_once_it_is_returned() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(256, 1, accounting, 64);
        assert!(!rig.distributors[0].is_wanted());
        let mut borrower = rig.connect("one", 0);
        assert_eq!((borrower.welcome.quota, borrower.welcome.slots), (64, 64));
        rig.collect();
        assert!(rig.distributors[0].is_wanted());
        let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        for round in 0..20 {
            rig.lend(0, 0..32);
            let loans = borrower.receive(0);
            assert_eq!(read(&borrower, &loans), (0..32).zip(0..).collect::<Vec<(u16, u32)>>());
            for loan in &loans {
                assert_eq!((loan.len, loan.flags), (60, 0), "round {round}");
                let start = start.as_nanos() as u64;
                assert!((start..start + 60_000_000_000).contains(&loan.time));
            }
            assert_eq!(rig.on_loan(), 32);
            // In any order.
            borrower.give_back(0, tokens(&loans).skip(16));
            assert_eq!((rig.collect(), rig.on_loan()), (16, 16));
            borrower.give_back(0, tokens(&loans[..16]));
            assert_eq!((rig.collect(), rig.on_loan()), (16, 0));
        }
        rig.close();
    }
}

/// By flow, who has it.
fn owners(rig: &mut Rig, borrowers: &mut [&mut RawBorrower]) -> BTreeMap<u16, usize> {
    let mut owners = BTreeMap::new();
    for flows in (0..2048).collect::<Vec<u16>>().chunks(32) {
        rig.lend(0, flows.iter().copied());
        for (at, borrower) in borrowers.iter_mut().enumerate() {
            let loans = borrower.receive(0);
            for (flow, _) in read(borrower, &loans) {
                assert_eq!(owners.insert(flow, at), None, "flow {flow} came twice");
            }
            borrower.give_back(0, tokens(&loans));
        }
        rig.collect();
    }
    assert_eq!(owners.len(), 2048, "a flow that nobody got");
    owners
}

#[test]
fn a_flow_stays_with_its_borrower_and_a_join_or_a_leave_moves_its_share_only() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(512, 1, accounting, 64);
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| rig.connect(name, 0));
        rig.collect();
        let three = owners(&mut rig, &mut [&mut a, &mut b, &mut c]);
        assert_eq!(owners(&mut rig, &mut [&mut a, &mut b, &mut c]), three);

        let mut d = rig.connect("d", 0);
        rig.collect();
        let four = owners(&mut rig, &mut [&mut a, &mut b, &mut c, &mut d]);
        let moved: Vec<u16> = (0..2048).filter(|flow| four[flow] != three[flow]).collect();
        assert!(moved.iter().all(|flow| four[flow] == 3), "a flow that moved between others");
        assert!((2048 / 6..2048 / 3).contains(&moved.len()), "{} of 2048 moved", moved.len());

        // The first leaves, with its share; what the others had they keep.
        drop(a);
        rig.until("it has left", |rig| rig.lender.borrowers().len() == 3);
        rig.until("its channel is gone", |rig| rig.distributors[0].on_loan() == 0);
        rig.collect();
        let rest = owners(&mut rig, &mut [&mut b, &mut c, &mut d]);
        for flow in 0..2048 {
            assert!(four[&flow] == 0 || rest[&flow] + 1 == four[&flow], "flow {flow}");
        }
        rig.close();
    }
}

/// The thread with the queue may have looked for commands just before, and been without a CPU since.
#[test]
fn who_is_connected_has_a_share_of_the_packets_that_come_after_that() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(256, 1, accounting, 64);
        rig.collect();
        let mut one = rig.connect("one", 0);
        rig.lend(0, 0..32);
        let mut two = rig.connect("two", 0);
        rig.lend(0, 32..64);
        assert_eq!(one.receive(0).len() + two.receive(0).len(), 64);
        assert!(two.read[0] > 0, "all of them went to the first");
        rig.close();
    }
}

#[test]
fn what_is_over_the_quota_is_dropped_and_counted_at_that_borrower_alone() {
    for accounting in BOTH {
        let mut rig = Rig::new(512, 1, |options| options.accounting = accounting);
        let (mut slow, mut quick) = (rig.connect("slow", 8), rig.connect("quick", 128));
        rig.collect();
        let mut quicks = 0;
        for _ in 0..10 {
            rig.lend(0, 0..64);
            let loans = quick.receive(0);
            quicks += loans.len() as u64;
            quick.give_back(0, tokens(&loans));
            rig.collect();
        }
        let slows = slow.receive(0);
        assert_eq!(slows.len(), 8);
        let dropped = 640 - quicks - 8;
        assert_eq!((u64::from(slow.dropped(0)), quick.dropped(0)), (dropped, 0));
        let status = rig.lender.borrowers();
        let status: Vec<_> =
            status.iter().map(|s| (&*s.name, s.out, s.lent, s.returned, s.dropped)).collect();
        assert_eq!(status, [("slow", 8, 8, 0, dropped), ("quick", 0, quicks, quicks, 0)]);
        let counters = rig.lender.counters();
        assert_eq!((counters.lent, counters.dropped), (quicks + 8, dropped));
        assert_eq!(
            (counters.returned, rig.lender.standing().on_loan, counters.unwanted),
            (quicks, 8, 0)
        );
        // It goes on where it was.
        slow.give_back(0, tokens(&slows));
        rig.collect();
        rig.lend(0, 0..64);
        assert_eq!(slow.receive(0).len(), 8);
        rig.close();
    }
}

#[test]
fn a_packet_that_came_at_a_time_says_so_and_others_have_that_of_their_batch() {
    for private in [false, true] {
        let mut rig = Rig::new(512, 1, |options| options.private = private);
        let mut one = rig.connect("one", 64);
        rig.collect();
        let mut packets = rig.packets(0..6);
        // Of two parts: they have the time of the first.
        packets[2].more = true;
        let times = [Some(1000), None, Some(3000), None, Some(5000)];
        let times = times.map(|time| time.and_then(NonZeroU64::new));
        let Rig { distributors, cache, .. } = &mut rig;
        distributors[0].lend_timed(&mut packets, &times, cache, false);
        let loans = one.receive(0);
        let batch = loans[1].time;
        let said: Vec<_> =
            loans.iter().map(|loan| (loan.time, loan.flags & LOAN_STAMPED != 0)).collect();
        let expected = [
            (1000, true),
            (batch, false),
            (3000, true),
            (3000, true),
            (5000, true),
            (batch, false),
        ];
        assert_eq!((said.as_slice(), rig.lender.counters().unstamped), (&expected[..], 2));
        one.give_back(0, tokens(&loans));
        rig.collect();
        // Where none has one, none is missed.
        rig.lend(0, 0..6);
        assert!(one.receive(0).iter().all(|loan| loan.time > batch));
        assert_eq!(rig.lender.counters().unstamped, 2);
        drop(one);
        rig.close();
    }
}

#[test]
fn a_mirror_gets_every_packet_and_a_frame_is_free_when_the_last_has_returned_it() {
    let mut rig = Rig::new(512, 1, |_| {});
    let [mut a, mut b] = ["a", "b"].map(|name| rig.connect(name, 64));
    let (mut tap, mut small) = (rig.mirror("tap", 64), rig.mirror("small", 10));
    rig.collect();
    rig.lend(0, 0..32);
    let [at_a, at_b, at_tap] = [&mut a, &mut b, &mut tap].map(|borrower| borrower.receive(0));
    assert_eq!(read(&tap, &at_tap), (0..32).zip(0..).collect::<Vec<(u16, u32)>>());
    assert_eq!(at_a.len() + at_b.len(), 32);
    assert!(at_tap.iter().all(|loan| loan.flags == LOAN_SHARED));
    assert!(at_a.iter().chain(&at_b).all(|loan| loan.flags == LOAN_SHARED));
    let flows = |loans: &[(u16, u32)]| loans.iter().map(|(flow, _)| *flow).collect::<BTreeSet<_>>();
    assert!(flows(&read(&a, &at_a)).is_disjoint(&flows(&read(&b, &at_b))));
    // A mirror with its quota used up misses packets; nobody else does.
    assert_eq!((small.receive(0).len(), small.dropped(0)), (10, 22));
    assert_eq!([&a, &b, &tap].map(|borrower| borrower.dropped(0)), [0; 3]);

    tap.give_back(0, tokens(&at_tap));
    rig.collect();
    assert_eq!(rig.on_loan(), 32, "others still have them");
    a.give_back(0, tokens(&at_a));
    b.give_back(0, tokens(&at_b));
    rig.collect();
    assert_eq!(rig.on_loan(), 10, "one mirror has its own still");
    assert_eq!(rig.lender.borrowers().iter().filter(|each| each.mirror).count(), 2);
    // Mirrors alone: they get everything, and are wanted.
    drop((a, b));
    rig.until("two have left", |rig| rig.lender.borrowers().len() == 2);
    rig.collect();
    rig.lend(0, 0..8);
    let loans = tap.receive(0);
    assert_eq!(loans.len(), 8);
    assert!(loans.iter().all(|loan| loan.flags == 0), "nobody else has it");
    rig.close();
}

/// A packet in so many frames, and one in a single one after it.
fn in_parts(rig: &mut Rig, parts: usize) -> Vec<Packet> {
    let mut packets = rig.packets(vec![7; parts + 1]);
    packets[..parts - 1].iter_mut().for_each(|part| part.more = true);
    packets
}

#[test]
fn a_packet_in_several_frames_comes_whole_or_not_at_all() {
    for accounting in BOTH {
        let mut rig = Rig::new(256, 1, |options| options.accounting = accounting);
        let mut borrower = rig.connect("one", 8);
        rig.collect();
        for (parts, lent, dropped) in [(3, 4, 0), (4, 5, 0), (8, 1, 1), (9, 1, 1), (1, 2, 0)] {
            let mut packets = in_parts(&mut rig, parts);
            let before = borrower.dropped(0);
            rig.distributors[0].lend(&mut packets, &mut rig.cache);
            let loans = borrower.receive(0);
            if parts == 8 {
                // Whole, and no room for the one after it.
                assert_eq!(loans.len(), 8);
            } else {
                assert_eq!(loans.len(), lent, "{parts} parts");
            }
            assert_eq!(borrower.dropped(0) - before, dropped, "packets, of {parts} parts");
            let more: Vec<bool> = loans.iter().map(|loan| loan.flags & LOAN_MORE != 0).collect();
            let whole = if loans.len() >= parts { parts } else { 1 };
            let expected: Vec<bool> = (0..loans.len()).map(|at| at + 1 < whole).collect();
            assert_eq!(more, expected);
            assert!(loans.iter().all(|loan| loan.hash == loans[0].hash));
            borrower.give_back(0, tokens(&loans));
            rig.collect();
        }
        // One whose end is missing is not lent.
        let mut packets = in_parts(&mut rig, 3);
        packets.truncate(2);
        let before = rig.lender.counters().unwanted;
        rig.distributors[0].lend(&mut packets, &mut rig.cache);
        assert_eq!((borrower.receive(0).len(), rig.on_loan()), (0, 0));
        assert_eq!(rig.lender.counters().unwanted, before + 1);
        rig.close();
    }
}

#[test]
fn where_a_packet_lies_in_its_frame_is_told() {
    let mut rig = Rig::new(64, 1, |options| options.quota = 32);
    let mut borrower = rig.connect("one", 0);
    rig.collect();
    let mut packets = rig.packets([1, 2]);
    (packets[1].offset, packets[1].len) = (14, 20);
    rig.distributors[0].lend(&mut packets, &mut rig.cache);
    let loans = borrower.receive(0);
    assert_eq!((loans[1].addr % 2048, loans[1].len), (14, 20));
    assert_eq!(borrower.bytes(&loans[1]), udp(2, 1)[14..34]);
    rig.close();
}

#[test]
fn a_token_goes_back_in_the_channel_that_it_came_from() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(512, 3, accounting, 32);
        let mut borrower = rig.connect("one", 0);
        assert_eq!(borrower.welcome.channels, 3);
        rig.collect();
        for distributor in 0..3 {
            rig.lend(distributor, 0..10 * (1 + distributor as u16));
        }
        let loans = [0, 1, 2].map(|channel| borrower.receive(channel));
        assert_eq!(loans.each_ref().map(Vec::len), [10, 20, 30]);
        for (channel, loans) in (0..).zip(&loans) {
            borrower.give_back(channel, tokens(loans));
        }
        assert_eq!(rig.collect(), 60);
        assert_eq!(rig.on_loan(), 0);
        assert_eq!(rig.lender.offences().total(), 0);
        rig.close();
    }
}

#[test]
fn without_borrowers_packets_are_unwanted_and_their_frames_free() {
    let mut rig = Rig::new(64, 1, |options| options.quota = 16);
    rig.lend(0, 0..20);
    assert_eq!((rig.lender.counters().unwanted, rig.on_loan()), (20, 0));
    let borrower = rig.connect("one", 0);
    rig.collect();
    assert!(rig.distributors[0].is_wanted());
    drop(borrower);
    rig.until("nobody is wanted", |rig| !rig.distributors[0].is_wanted());
    rig.lend(0, 0..20);
    assert_eq!(rig.lender.counters().unwanted, 40);
    let counters = rig.lender.counters();
    assert_eq!((counters.joined, counters.left, counters.disconnected), (1, 1, 0));
    rig.close();
}

#[test]
fn a_slot_is_free_again_when_every_thread_has_let_go_of_it() {
    let mut rig = Rig::new(128, 2, |options| (options.quota, options.borrowers) = (32, 1));
    let first = rig.connect("first", 0);
    rig.collect();
    rig.lend(0, 0..10);
    drop(first);
    // Without looking into any distributor.
    while !rig.lender.borrowers().is_empty() {
        std::thread::yield_now();
    }
    let hello = hello("second", 0, false);
    let said = "what was asked for is still with 1 that left: later";
    assert_eq!(reason(&rig.refusal(&hello)), said);
    rig.distributors[1].collect(&mut rig.cache);
    assert_eq!(reason(&rig.refusal(&hello)), said);
    rig.distributors[0].collect(&mut rig.cache);
    assert_eq!(rig.on_loan(), 0);
    let mut second = None;
    rig.until("the slot is free", |rig| {
        second = RawBorrower::connect(&rig.socket, &hello).ok();
        second.is_some()
    });
    assert_eq!(rig.lender.borrowers()[0].slot, 0);
    rig.close();
}

#[test]
fn what_is_known_of_a_borrower() {
    let mut rig = Rig::new(256, 1, |_| {});
    let borrower = rig.connect("web", 100);
    rig.collect();
    let status = &rig.lender.borrowers()[0];
    assert_eq!((status.slot, &*status.name, status.quota), (0, "web", 100));
    assert_eq!(status.pid, Some(std::process::id()));
    assert_eq!(status.uid, rustix::process::getuid().as_raw());
    assert_eq!((status.mirror, status.offences), (false, 0));
    assert!(status.since.elapsed().as_secs() < 60);
    drop(borrower);
    rig.close();
}
