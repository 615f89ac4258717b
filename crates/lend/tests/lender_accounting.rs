//! How account is kept, changed while the lender runs; and how a lender ends.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cachelane_lend::{Borrower, BorrowerOptions, Distributor, ErrorKind, Wait};
use common::*;
use frames::{Accounting, LaneCache, Packet};

#[test]
fn the_accounting_is_changed_while_nothing_is_on_loan_and_refused_by_name_else() {
    let mut rig = Rig::new(512, 2, |options| options.quota = 64);
    let (mut web, mut tap) = (rig.connect("web", 0), rig.mirror("tap", 0));
    rig.collect();
    let kind = |result: cachelane_lend::Result<()>| result.map_err(|e| (e.kind(), e.to_string()));
    // Mirrors first: nobody has to give anything back for that to be said.
    rig.lend(1, 0..7);
    let said = "tap: no ledger can be kept of frames that others have too";
    let refused = Err((ErrorKind::Invalid, said.to_owned()));
    assert_eq!(kind(rig.set_accounting(Accounting::Ledgers)), refused);
    assert_eq!(rig.set_accounting(Accounting::Counters).map_err(|e| e.kind()), Ok(()));
    let _ = tap.receive(1);
    drop(tap);
    rig.until("the mirror has left", |rig| rig.lender.borrowers().len() == 1);

    let mut dns = rig.connect("dns", 0);
    rig.collect();
    rig.lend(0, 0..30);
    let counts = [&mut web, &mut dns]
        .map(|raw| (0..2).map(|channel| raw.receive(channel).len()).sum::<usize>());
    assert_eq!(counts[0] + counts[1], 37);
    let said = format!("2 borrowers hold 37 frames (web {}, dns {})", counts[0], counts[1]);
    let refused = Err((ErrorKind::OnLoan, said));
    assert_eq!(kind(rig.set_accounting(Accounting::Ledgers)), refused);
    assert_eq!(rig.lender.accounting(), Accounting::Counters);
    // And nothing has stopped.
    let unwanted = rig.lender.counters().unwanted;
    rig.lend(0, 0..1);
    rig.lend(1, 0..1);
    assert_eq!((rig.on_loan(), rig.lender.counters().unwanted), (39, unwanted));
    drop((web, dns));
    rig.until("all have left", |rig| {
        rig.lender.borrowers().is_empty() && rig.distributors.iter().all(|each| !each.is_wanted())
    });

    let mut one = rig.connect("one", 0);
    rig.collect();
    for (to, frames) in [(Accounting::Ledgers, 1), (Accounting::Counters, 3)] {
        rig.set_accounting(to).unwrap();
        assert_eq!(rig.lender.accounting(), to);
        rig.lend(1, 0..frames);
        let loans = one.receive(1);
        assert_eq!(loans.len(), usize::from(frames), "a borrower stays through the change");
        let s = if frames == 1 { "" } else { "s" };
        let said = format!("1 borrower holds {frames} frame{s} (one {frames})");
        let back = if to == Accounting::Ledgers { BOTH[0] } else { BOTH[1] };
        assert_eq!(kind(rig.set_accounting(back)), Err((ErrorKind::OnLoan, said)));
        // Given back and not looked at yet is not on loan.
        one.give_back(1, loans.iter().map(|loan| loan.token));
    }
    rig.set_accounting(Accounting::Ledgers).unwrap();
    rig.close();
}

#[test]
fn a_thread_that_does_not_answer_leaves_the_accounting_as_it_is() {
    let mut rig = Rig::new(64, 2, |options| options.quota = 16);
    let mut raw = rig.connect("one", 0);
    rig.collect();
    // One distributor only is looked into.
    let error = std::thread::scope(|scope| {
        let change = scope.spawn(|| rig.lender.set_accounting(Accounting::Ledgers));
        while !change.is_finished() {
            rig.distributors[0].collect(&mut rig.cache);
            std::thread::yield_now();
        }
        change.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "1 of the lender's threads did not answer");
    for channel in 0..2 {
        rig.collect();
        rig.lend(channel, 0..4);
        assert_eq!(raw.receive(channel as u32).len(), 4);
    }
    // The late answer to the first question is none to the second.
    drop(raw);
    rig.until("it has left", |rig| rig.on_loan() == 0);
    rig.set_accounting(Accounting::Ledgers).unwrap();
    // Who was dropped is not waited for.
    rig.distributors.pop();
    rig.set_accounting(Accounting::Counters).unwrap();
    rig.close();
}

#[test]
fn a_change_of_the_accounting_waits_for_a_moment_in_which_nothing_is_on_loan() {
    let mut rig = Rig::new(64, 1, |options| options.quota = 16);
    let mut raw = rig.connect("one", 0);
    rig.collect();
    // A machine that is busy for longer than the change waits is tried again.
    let changed = (0..10).any(|_| {
        rig.lend(0, 0..4);
        let loans = raw.receive(0);
        assert_eq!(loans.len(), 4);
        std::thread::scope(|scope| {
            let change = scope.spawn(|| rig.lender.set_accounting(Accounting::Ledgers));
            for _ in 0..2000 {
                rig.distributors[0].collect(&mut rig.cache);
                std::thread::yield_now();
            }
            let waited = !change.is_finished();
            raw.give_back(0, loans.iter().map(|loan| loan.token));
            while !change.is_finished() {
                rig.distributors[0].collect(&mut rig.cache);
                std::thread::yield_now();
            }
            change.join().unwrap().is_ok() && waited
        })
    });
    assert!(changed);
    rig.close();
}

/// Lends what it takes from the pool, as fast as it can, until it is over.
fn traffic(distributor: &mut Distributor, cache: &mut LaneCache, over: &AtomicBool) -> u64 {
    let mut sent = 0;
    let mut packets = Vec::new();
    while !over.load(Ordering::Relaxed) {
        distributor.collect(cache);
        for _ in 0..16 {
            let Some(mut frame) = cache.get() else { break };
            let bytes = udp(sent as u16, sent as u32);
            let area = cache.pool().area();
            area.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(&bytes);
            packets.push(Packet::new(frame, bytes.len() as u32));
            sent += 1;
        }
        distributor.lend(&mut packets, cache);
        cache.maintain();
        std::thread::yield_now();
    }
    sent
}

#[test]
fn the_accounting_is_changed_back_and_forth_under_traffic_and_no_frame_is_lost() {
    let mut rig = Rig::new(1024, 2, |options| options.quota = 128);
    let over = AtomicBool::new(false);
    let mut changes = [0_u32; 2];
    std::thread::scope(|scope| {
        let pool = &rig.pool;
        for distributor in &mut rig.distributors {
            let over = &over;
            scope.spawn(move || traffic(distributor, &mut pool.cache(0).unwrap(), over));
        }
        let options = BorrowerOptions::default().name("busy".into());
        let path = rig.socket.clone();
        let over = &over;
        let borrower = scope.spawn(move || {
            let mut borrower = Borrower::connect(&path, &options).unwrap();
            let mut loans = Vec::new();
            let mut got = 0_u64;
            while !over.load(Ordering::Relaxed) {
                got += borrower.receive(&mut loans, 64).unwrap() as u64;
                borrower.give_back(loans.drain(..));
                if got % 4096 < 64 {
                    // Now and then it has nothing, and a change goes through.
                    borrower.wait(Some(Duration::ZERO)).unwrap();
                }
            }
            got
        });
        let end = std::time::Instant::now() + Duration::from_secs(1);
        while std::time::Instant::now() < end {
            let to = BOTH[(changes[0] % 2) as usize ^ 1];
            match rig.lender.set_accounting(to) {
                Ok(()) => changes[0] += 1,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::OnLoan, "{e}");
                    changes[1] += 1;
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(borrower.join().unwrap() > 0);
    });
    eprintln!("{} changes, {} refused", changes[0], changes[1]);
    assert_eq!(rig.lender.offences().total(), 0);
    rig.close();
}

#[test]
fn a_lender_that_ends_says_so_in_every_channel_and_on_the_socket() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(256, 2, accounting, 64);
        let mut raw = rig.connect("one", 0);
        let options = BorrowerOptions::default();
        let mut borrower = Borrower::connect(&rig.socket, &options).unwrap();
        rig.collect();
        rig.lend(0, 0..32);
        assert!(!raw.is_closed(0) && !raw.is_disconnected());
        let Rig { pool, mut cache, lender, mut distributors, socket, .. } = rig;
        lender.close();
        assert!(!socket.exists() && raw.is_hung_up_on());
        distributors.iter_mut().for_each(|each| assert_eq!(each.collect(&mut cache), 0));
        assert!(raw.is_closed(0) && raw.is_closed(1));
        assert!(distributors.iter().all(|each| !each.is_wanted() && each.on_loan() == 0));
        // What was lent before can still be read.
        let mut loans = Vec::new();
        assert_eq!(borrower.wait(None).unwrap(), Wait::Ready);
        borrower.receive(&mut loans, 64).unwrap();
        assert_eq!(loans.len() + raw.receive(0).len(), 32);
        borrower.give_back(loans.drain(..));
        assert_eq!(borrower.wait(None).unwrap(), Wait::Closed);
        // A thread that goes on receiving harms nobody.
        let mut packets = vec![Packet::new(cache.get().unwrap(), 60)];
        distributors[0].lend(&mut packets, &mut cache);
        assert_eq!((raw.receive(0).len(), distributors[0].on_loan()), (0, 0));
        drop((cache, distributors));
        pool.close().unwrap();
    }
}

#[test]
fn distributors_and_lender_end_in_any_order() {
    for accounting in BOTH {
        for first in ["lender", "distributors", "one distributor"] {
            let mut rig = Rig::keeping(256, 2, accounting, 64);
            let mut raw = rig.connect("one", 0);
            rig.collect();
            rig.lend(0, 0..10);
            rig.lend(1, 0..10);
            let _ = raw.receive(0);
            let Rig { pool, mut cache, lender, mut distributors, .. } = rig;
            match first {
                "lender" => drop(lender),
                "distributors" => {
                    distributors.clear();
                    assert!(raw.is_closed(0) && raw.is_closed(1));
                    assert!(!raw.is_disconnected());
                    drop(lender);
                }
                _ => {
                    distributors.remove(0);
                    assert!(raw.is_closed(0) && !raw.is_closed(1));
                    assert_eq!(distributors[0].on_loan(), 10);
                    drop(raw);
                    // The one that is left is enough to let go of a borrower.
                    while distributors[0].on_loan() > 0 || !lender.borrowers().is_empty() {
                        distributors[0].collect(&mut cache);
                        std::thread::yield_now();
                    }
                    drop(lender);
                }
            }
            drop((distributors, cache));
            pool.close().unwrap();
        }
    }
}
