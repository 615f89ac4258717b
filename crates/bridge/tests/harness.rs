//! The harness itself: it finds what differs, and says where.

mod common;

use common::frame::{Arrival, Sent, station};
use common::record::{Record, Step};
use common::{Setup, compare};
use lab::traffic::{Frame, FrameTarget};

/// A record of one step, in which these frames arrived at the second of two members.
fn record(ids: &[u32]) -> Record {
    let sent = Sent::new(station(1), station(2));
    let arrival = |id: &u32| {
        let frame = Frame { bytes: sent.bytes(*id), to: FrameTarget::Other };
        Arrival::of(&frame).expect("it is one of ours")
    };
    let arrived = vec![Vec::new(), ids.iter().map(arrival).collect()];
    let table = vec!["02:00:00:00:57:01 p1 br0".to_owned()];
    let step = Step { name: "only".into(), arrived, table, notes: Vec::new() };
    Record { steps: vec![step], frames: vec![sent.to_string(); 4] }
}

/// Says in what two records differ.
fn difference(a: &Record, b: &Record) -> Option<String> {
    a.difference("the kernel alone", b, "the fast path")
}

#[test]
fn equal_records_do_not_differ() {
    assert_eq!(difference(&record(&[1, 2, 2]), &record(&[1, 2, 2])), None);
}

#[test]
fn frames_that_are_missing_or_too_many_are_named() {
    let cases = [
        (&[1, 2][..], &[1][..], "member 1: missing: frame 2 as Other, 60 bytes"),
        (&[1], &[1, 3], "member 1: extra: frame 3 as Other, 60 bytes"),
        (&[1], &[1, 1], "(1 times, then 2)"),
        (&[], &[2], "02:00:00:00:57:02 > 02:00:00:00:57:01, protocol 88b5, 60 bytes"),
    ];
    for (a, b, expected) in cases {
        let text = difference(&record(a), &record(b)).expect("they differ");
        assert!(text.contains("step 1 (only)") && text.contains(expected), "{text}");
    }
}

#[test]
fn a_changed_byte_or_packet_type_is_a_difference() {
    let (mut hash, mut to) = (record(&[1]), record(&[1]));
    hash.steps[0].arrived[1][0].hash ^= 1;
    to.steps[0].arrived[1][0].to = FrameTarget::Host;
    for other in [hash, to] {
        let text = difference(&record(&[1]), &other).expect("they differ");
        assert!(text.contains("missing: frame 1") && text.contains("extra: frame 1"), "{text}");
    }
}

#[test]
fn tables_and_notes_and_missing_steps_are_compared() {
    let (mut table, mut note, mut steps) = (record(&[]), record(&[]), record(&[]));
    table.steps[0].table[0] = "02:00:00:00:57:01 p0 br0".into();
    note.steps[0].notes.push("drops 3".into());
    steps.steps.clear();
    for (other, expected) in [
        (table, "table: missing: 02:00:00:00:57:01 p1 br0"),
        (note, "note: extra: drops 3"),
        (steps, "1 steps in the kernel alone, 0 in the fast path"),
    ] {
        let text = difference(&record(&[]), &other).expect("they differ");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
#[should_panic(expected = "member 1: extra: frame 0")]
fn root_a_frame_that_one_arm_alone_sees_fails_the_comparison() {
    let setup = Setup { members: 2, ..Default::default() };
    if !lab::testing::root("root_a_frame_that_one_arm_alone_sees_fails_the_comparison") {
        panic!("member 1: extra: frame 0");
    }
    compare("differs", &setup, |net| {
        if net.arm == common::Arm::Fast {
            net.send(0, net.mac(1), net.mac(0));
        }
        net.step("one-sided");
    });
}
