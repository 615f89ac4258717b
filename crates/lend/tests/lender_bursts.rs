//! When those who sleep are woken while a burst of packets is lent.

mod common;

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use common::*;
use rustix::event::{Timespec, epoll};

/// Whether the borrower was woken since it was last asked.
fn woken(client: &Client) -> bool {
    let mut space = [MaybeUninit::<epoll::Event>::uninit(); 1];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (events, _) = epoll::wait(&client.wake, &mut space, Some(&now)).unwrap();
    !events.is_empty()
}

/// A lender with a borrower of 128 loans, who sleeps, for the first time.
fn sleeping() -> (Rig, Client) {
    let mut rig = Rig::new(1024, 1, |options| options.quota = 128);
    let client = rig.connect("sleeper", 0);
    rig.collect();
    client.asleep().store(1, Ordering::SeqCst);
    (rig, client)
}

fn lend(rig: &mut Rig, packets: u16, more: bool) {
    let mut packets = rig.packets(0..packets);
    rig.distributors[0].lend_burst(&mut packets, &mut rig.cache, more);
}

#[test]
fn the_last_call_of_a_burst_wakes_and_those_before_do_not() {
    let (mut rig, client) = sleeping();
    for _ in 0..3 {
        lend(&mut rig, 4, true);
        rig.collect();
        assert!(!woken(&client));
    }
    lend(&mut rig, 4, false);
    assert!(woken(&client));
    // Once for each time that it fell asleep.
    lend(&mut rig, 4, false);
    assert!(!woken(&client));
    client.asleep().store(3, Ordering::SeqCst);
    lend(&mut rig, 4, false);
    assert!(woken(&client));
    drop(client);
    rig.until("it has left", |rig| {
        rig.collect();
        rig.on_loan() == 0
    });
    rig.close();
}

#[test]
fn a_burst_that_does_not_go_on_as_said_is_over_with_the_second_turn() {
    let (mut rig, client) = sleeping();
    lend(&mut rig, 4, true);
    rig.collect();
    assert!(!woken(&client), "the turn that lent");
    rig.collect();
    assert!(woken(&client), "a turn in which nothing was lent");
}

#[test]
fn a_burst_without_end_wakes_with_the_sixteenth_call() {
    let (mut rig, client) = sleeping();
    for call in 1..16 {
        lend(&mut rig, 1, true);
        rig.collect();
        assert!(!woken(&client), "call {call}");
    }
    lend(&mut rig, 1, true);
    assert!(woken(&client));
}

#[test]
fn half_of_the_quota_wakes_at_once() {
    let (mut rig, client) = sleeping();
    lend(&mut rig, 63, true);
    assert!(!woken(&client));
    lend(&mut rig, 1, true);
    assert!(woken(&client));
}
