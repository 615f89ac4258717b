//! When those who sleep are woken while a burst of packets is lent.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Whether the borrower is woken: by a thread of its own, which has some time for it.
fn woken(borrower: &RawBorrower, within: Duration) -> bool {
    let within = Timespec::try_from(within).unwrap();
    let mut polled = [PollFd::new(&borrower.socket, PollFlags::IN)];
    let woken = poll(&mut polled, Some(&within)).unwrap() == 1;
    assert_eq!(borrower.take_wakes(), u32::from(woken));
    woken
}

fn is_woken(borrower: &RawBorrower) -> bool {
    woken(borrower, Duration::from_secs(20))
}

fn is_left_asleep(borrower: &RawBorrower) -> bool {
    !woken(borrower, Duration::from_millis(30))
}

/// A lender with a borrower of 128 loans, who sleeps, for the first time.
fn sleeping() -> (Rig, RawBorrower) {
    let mut rig = Rig::new(1024, 1, |options| options.quota = 128);
    let borrower = rig.connect("sleeper", 0);
    rig.collect();
    borrower.asleep().store(1, Ordering::SeqCst);
    (rig, borrower)
}

fn lend(rig: &mut Rig, packets: u16, more: bool) {
    let mut packets = rig.packets(0..packets);
    rig.distributors[0].lend_burst(&mut packets, &mut rig.cache, more);
}

#[test]
fn the_last_call_of_a_burst_wakes_and_those_before_do_not() {
    let (mut rig, borrower) = sleeping();
    for _ in 0..3 {
        lend(&mut rig, 4, true);
        rig.collect();
        assert!(is_left_asleep(&borrower));
    }
    lend(&mut rig, 4, false);
    assert!(is_woken(&borrower));
    // Once for each time that it fell asleep.
    lend(&mut rig, 4, false);
    assert!(is_left_asleep(&borrower));
    borrower.asleep().store(3, Ordering::SeqCst);
    lend(&mut rig, 4, false);
    assert!(is_woken(&borrower));
    drop(borrower);
    rig.until("it has left", |rig| {
        rig.collect();
        rig.on_loan() == 0
    });
    rig.close();
}

#[test]
fn a_burst_that_does_not_go_on_as_said_is_over_with_the_second_turn() {
    let (mut rig, borrower) = sleeping();
    lend(&mut rig, 4, true);
    rig.collect();
    assert!(is_left_asleep(&borrower), "the turn that lent");
    rig.collect();
    assert!(is_woken(&borrower), "a turn in which nothing was lent");
}

#[test]
fn a_burst_without_end_wakes_with_the_sixteenth_call() {
    let (mut rig, borrower) = sleeping();
    for call in 1..16 {
        lend(&mut rig, 1, true);
        rig.collect();
        assert!(is_left_asleep(&borrower), "call {call}");
    }
    lend(&mut rig, 1, true);
    assert!(is_woken(&borrower));
}

#[test]
fn half_of_the_quota_wakes_at_once() {
    let (mut rig, borrower) = sleeping();
    lend(&mut rig, 63, true);
    assert!(is_left_asleep(&borrower));
    lend(&mut rig, 1, true);
    assert!(is_woken(&borrower));
}
