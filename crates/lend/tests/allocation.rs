//! A borrower that is connected allocates nothing, and nor does a lender that lends.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use cachelane_lend::{Borrower, BorrowerOptions, Wait};
use common::{BOTH, Rig};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[allow(unsafe_code)]
// SAFETY: the system's allocator, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn receiving_giving_back_and_waiting_allocate_nothing() {
    let mut rig = Rig::new(256, 2, |options| options.quota = 64);
    let mut borrower = Borrower::connect(&rig.socket, &BorrowerOptions::default()).expect("one");
    rig.until("it has joined", |rig| rig.distributors.iter().all(|each| each.is_wanted()));
    let mut loans = Vec::with_capacity(64);
    for round in 0..20 {
        rig.lend(round % 2, 0..30);
        let before = ALLOCATIONS.get();
        assert_eq!(borrower.wait(None).expect("in step"), Wait::Ready);
        assert_eq!(borrower.receive(&mut loans, 64).expect("in step"), 30);
        assert!(loans.iter().all(|loan| borrower.bytes(loan).len() == 60));
        borrower.give_back(loans.drain(..));
        let soon = Some(Duration::from_micros(10));
        assert_eq!(borrower.wait(soon).expect("in step"), Wait::TimedOut);
        assert_eq!(ALLOCATIONS.get(), before, "round {round}");
        rig.collect();
    }
    rig.close();
}

#[test]
fn lending_and_collecting_allocate_nothing_in_a_steady_state() {
    for accounting in BOTH {
        let mut rig = Rig::keeping(1024, 1, accounting, 64);
        // One that takes, and one that does not: what is meant for it is dropped after a while.
        let (mut raw, _full) = (rig.connect("one", 0), rig.connect("full", 0));
        rig.until("they are there", |rig| rig.distributors[0].is_wanted());
        for round in 0..100 {
            let mut packets = rig.packets(0..60);
            let before = ALLOCATIONS.get();
            rig.distributors[0].lend(&mut packets, &mut rig.cache);
            let lent = ALLOCATIONS.get();
            let loans = raw.receive(0);
            raw.give_back(0, loans.iter().map(|loan| loan.token));
            let again = ALLOCATIONS.get();
            assert_eq!(rig.distributors[0].collect(&mut rig.cache), loans.len());
            let all = lent - before + ALLOCATIONS.get() - again;
            assert!(round < 20 || all == 0, "{all} allocations in round {round}");
        }
        assert!(rig.lender.counters().dropped > 0);
        rig.close();
    }
}
