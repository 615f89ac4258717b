//! Borrowers that are killed with loans out, and lenders that are killed while they lend: real
//! processes, which are this test program run again to play a part.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cachelane_lend::{Borrower, BorrowerOptions, ErrorKind, Lender, LenderOptions, Loan, Wait};
use common::part::{Part, playing, ready_for_ever};
use common::*;
use frames::{Accounting, Packet};

/// Not a test: what the processes do that the others start.
#[test]
fn play_a_part() {
    let Some((part, socket)) = playing() else { return };
    let socket = &*socket;
    match &*part {
        "silent" => {
            let _socket = dial(socket).unwrap();
            ready_for_ever()
        }
        "lender, counters" => lend_for_ever(socket, Accounting::Counters),
        "lender, ledgers" => lend_for_ever(socket, Accounting::Ledgers),
        part => borrow_for_ever(socket, part),
    }
}

fn borrow_for_ever(socket: &Path, part: &str) -> ! {
    let options = BorrowerOptions::default()
        .name(part.into())
        .mirror(part == "mirror")
        .timeout(Duration::from_secs(20));
    let mut borrower = Borrower::connect(socket, &options).unwrap();
    let mut loans: Vec<Loan> = Vec::new();
    while loans.len() < 4 {
        assert_eq!(borrower.wait(Some(Duration::from_secs(20))).unwrap(), Wait::Ready);
        borrower.receive(&mut loans, 8).unwrap();
    }
    if part != "churner" {
        // With the loans, asleep.
        ready_for_ever();
    }
    eprintln!("ready");
    loop {
        borrower.receive(&mut loans, 8).unwrap();
        // All but some.
        let some = loans.len() / 4;
        borrower.give_back(loans.drain(some..));
    }
}

/// Lends as fast as it can.
fn lend_for_ever(socket: &Path, accounting: Accounting) -> ! {
    let pool = pool(1024);
    let options = LenderOptions::new(socket).accounting(accounting).quota(128);
    let (_lender, mut distributors) = Lender::open(&pool, 1, &options).unwrap();
    let mut cache = pool.cache(0).unwrap();
    let (mut packets, mut sent) = (Vec::new(), 0_u32);
    eprintln!("ready");
    loop {
        distributors[0].collect(&mut cache);
        for _ in 0..32 {
            let Some(mut frame) = cache.get() else { break };
            let bytes = udp(sent as u16, sent);
            pool.area().bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(&bytes);
            packets.push(Packet::new(frame, bytes.len() as u32));
            sent = sent.wrapping_add(1);
        }
        distributors[0].lend(&mut packets, &mut cache);
        std::thread::yield_now();
    }
}

/// Kills so many borrowers with loans out, eight at a time, while one that is not killed is lent
/// to; and a quarter as many that have not said hello.
fn kill_borrowers(accounting: Accounting, count: u32) {
    let all = count + count / 4;
    const PARTS: [&str; 5] = ["hoarder", "churner", "hoarder", "silent", "mirror"];
    let mut rig = Rig::new(2048, 1, |options| {
        (options.accounting, options.quota, options.reserve) = (accounting, 64, 256);
    });
    let mut good = rig.connect("good", 0);
    rig.collect();
    let (path, started) = (rig.socket.clone(), AtomicU32::new(0));
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let killers: Vec<_> = (0..8)
            .map(|_| {
                let (socket, started) = (&path, &started);
                scope.spawn(move || {
                    loop {
                        let number = started.fetch_add(1, Ordering::Relaxed);
                        if number >= all {
                            return;
                        }
                        let part = match PARTS[number as usize % PARTS.len()] {
                            "mirror" if accounting == Accounting::Ledgers => "hoarder",
                            part => part,
                        };
                        drop(Part::play(part, socket));
                    }
                })
            })
            .collect();
        let mut last = None;
        while !killers.iter().all(|killer| killer.is_finished()) {
            rig.lend(0, 0..64);
            let loans = good.receive(0);
            let places = loans.iter().map(|loan| flow_and_place(&good.bytes(loan)));
            assert!(places.is_sorted_by_key(|(_, place)| place));
            last = last.max(loans.last().map(|loan| loan.time));
            good.give_back(0, loans.iter().map(|loan| loan.token));
            rig.collect();
            most.fetch_max(rig.on_loan().into(), Ordering::Relaxed);
            std::thread::yield_now();
        }
        assert!(last.is_some() && good.dropped(0) == 0);
    });
    rig.until("all have left", |rig| {
        let refused = rig.lender.refusals();
        let silent = refused.gone + refused.late == u64::from(all - count);
        rig.lender.borrowers().len() == 1 && rig.on_loan() == 0 && silent
    });
    let counters = rig.lender.counters();
    let most = most.into_inner();
    eprintln!(
        "{count} killed with loans, {} without, at most {most} frames on loan at a time: {counters:?}",
        all - count
    );
    assert_eq!((counters.left, counters.joined), (count.into(), u64::from(count) + 1));
    assert_eq!((counters.disconnected, rig.lender.offences().total()), (0, 0));
    assert!(most >= 4);
    rig.close();
}

#[test]
fn frames_of_200_killed_borrowers_are_all_there_again_with_counters() {
    kill_borrowers(Accounting::Counters, 200);
}

#[test]
fn frames_of_200_killed_borrowers_are_all_there_again_with_ledgers() {
    kill_borrowers(Accounting::Ledgers, 200);
}

#[test]
#[ignore = "slow: minutes"]
fn frames_of_10_000_killed_borrowers_are_all_there_again_with_counters() {
    kill_borrowers(Accounting::Counters, 10_000);
}

#[test]
#[ignore = "slow: minutes"]
fn frames_of_10_000_killed_borrowers_are_all_there_again_with_ledgers() {
    kill_borrowers(Accounting::Ledgers, 10_000);
}

/// Borrows until the end: how many loans there were.
fn borrow_to_the_end(socket: &Path, spins: bool, got: &AtomicU64) -> u64 {
    let mut borrower = Borrower::connect(socket, &BorrowerOptions::default()).unwrap();
    let (mut loans, mut kept, mut count) = (Vec::new(), Vec::new(), 0);
    let timeout = if spins { Duration::ZERO } else { Duration::from_secs(20) };
    loop {
        match borrower.wait(Some(timeout)).map_err(|error| error.kind()) {
            Ok(Wait::Ready) => {}
            Ok(Wait::TimedOut) => {
                assert!(spins, "nothing in 20 s");
                continue;
            }
            Err(ErrorKind::Died) => break,
            other => panic!("{other:?}"),
        }
        count += borrower.receive(&mut loans, 64).unwrap() as u64;
        for loan in &loans {
            let bytes = borrower.bytes(loan);
            let (flow, place) = flow_and_place(bytes);
            assert_eq!(flow, place as u16, "a packet that is not what was sent");
        }
        if kept.len() < 8 {
            kept.extend(loans.pop());
        }
        borrower.give_back(loans.drain(..));
        got.fetch_max(count, Ordering::Relaxed);
    }
    // What it has can still be read and given back; nobody is there to care.
    for loan in &kept {
        let (flow, place) = flow_and_place(borrower.bytes(loan));
        assert_eq!(flow, place as u16);
    }
    borrower.give_back(kept);
    assert_eq!(borrower.wait(None).unwrap_err().kind(), ErrorKind::Died);
    count
}

#[test]
fn borrowers_of_a_lender_that_is_killed_learn_that_and_have_lost_nothing_that_they_were_lent() {
    for part in ["lender, counters", "lender, ledgers"] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("lend");
        for _ in 0..3 {
            // The second one takes the place of the first.
            let lender = Part::play(part, &socket);
            let got = [const { AtomicU64::new(0) }; 3];
            std::thread::scope(|scope| {
                let socket = &socket;
                let spawn = |got, spins| scope.spawn(move || borrow_to_the_end(socket, spins, got));
                let [a, b, c] = &got;
                let borrowers = [spawn(a, false), spawn(b, true), spawn(c, false)];
                let end = Instant::now() + Duration::from_secs(20);
                while got.iter().any(|got| got.load(Ordering::Relaxed) < 10_000) {
                    assert!(Instant::now() < end, "no traffic: {got:?}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(lender);
                for borrower in borrowers {
                    assert!(borrower.join().unwrap() >= 10_000);
                }
            });
            let error = Borrower::connect(&socket, &BorrowerOptions::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoLender, "{error}");
        }
    }
}
