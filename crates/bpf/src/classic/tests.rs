//! Programs of filters against what libpcap and the kernel's own classic BPF say of the same packets.

mod expressions;
mod packets;
mod rig;
mod steps;

use std::cell::Cell;

use libc::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Refused, translate};
use packets::{noise, packets};
use rig::{Next, agree, is_match};
use steps::{filters, step};

fn cases(number: u32) -> TestRunner {
    TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(number) })
}

#[test]
fn root_programs_do_as_filters_do() {
    if !lab::testing::root("root_programs_do_as_filters_do") {
        return;
    }
    let nexts = [false, true].map(Next::new);
    for tame in [false, true] {
        let packets = prop::collection::vec(prop_oneof![packets(), noise()], 12);
        let (looks, matches) = (Cell::new(0), Cell::new(0));
        let result = cases(2000).run(&(filters(tame), packets), |(steps, packets)| {
            looks.set(looks.get() + packets.len());
            matches.set(matches.get() + agree(&nexts, &steps, &packets, tame)?);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
        let share = matches.get() as f64 / looks.get() as f64;
        assert!((0.05..0.95).contains(&share), "{share}: hardly a filter tells packets apart");
    }
}

/// Whoever looks beyond the first buffer finds nothing there; the length is that of the whole.
#[test]
fn root_of_a_packet_in_several_buffers_the_first_is_seen_and_the_length_is_known() {
    if !lab::testing::root(
        "root_of_a_packet_in_several_buffers_the_first_is_seen_and_the_length_is_known",
    ) {
        return;
    }
    let next = Next::new(true);
    let packet: Vec<u8> = (0..9000_u32).map(|at| (at % 251) as u8).collect();
    let answer = [step(BPF_RET | BPF_K, 0, 0, 1), step(BPF_RET | BPF_K, 0, 0, 0)];
    let is =
        |load, k| [vec![load], vec![step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, k)], answer.to_vec()];
    for (load, k, expected) in [
        (step(BPF_LD | BPF_LEN, 0, 0, 0), 9000, true),
        (step(BPF_LD | BPF_ABS | BPF_B, 0, 0, 1000), 1000 % 251, true),
        (step(BPF_LD | BPF_ABS | BPF_B, 0, 0, 8000), 8000 % 251, false),
    ] {
        let program = next.program(&is(load, k).concat());
        assert_eq!(is_match(&program, &packet), expected, "{load:?} {k}");
    }
}

#[test]
fn what_no_program_can_do_is_refused_by_name() {
    let map = std::fs::File::open("/dev/null").expect("a descriptor");
    let refused = |steps: &[sock_filter]| {
        let translated = translate(steps, std::os::fd::AsFd::as_fd(&map));
        translated.expect_err("it cannot be done").to_string()
    };
    let end = step(BPF_RET | BPF_K, 0, 0, 1);
    let extension = |number: c_int| (SKF_AD_OFF + number).cast_unsigned();
    for (first, says) in [
        (step(BPF_LD | BPF_ABS | BPF_W, 0, 0, extension(0)), "the packet's protocol (0xfffff000)"),
        (step(BPF_LD | BPF_ABS | BPF_B, 0, 0, extension(4)), "the packet's type"),
        (step(BPF_LD | BPF_ABS | BPF_H, 0, 0, extension(48)), "whether there is a VLAN tag"),
        (step(BPF_LD | BPF_ABS | BPF_W, 0, 0, extension(900)), "something that is not known"),
        (step(BPF_LDX | BPF_MSH | BPF_B, 0, 0, SKF_NET_OFF.cast_unsigned()), "network header"),
        (step(BPF_LD | BPF_ABS | BPF_W, 0, 0, SKF_LL_OFF.cast_unsigned()), "link layer's header"),
        (step(BPF_LD | BPF_MEM, 0, 0, 16), "no word 16 of memory: expected 0 to 15"),
        (step(BPF_ST, 0, 0, 99), "no word 99"),
        (step(BPF_LD | BPF_ABS | 0x18, 0, 0, 0), "code 0x38"),
        (step(BPF_LDX | BPF_ABS, 0, 0, 0), "code 0x21"),
        (step(BPF_RET | BPF_X, 0, 0, 0), "code 0xe"),
        (step(BPF_ALU | 0xb0, 0, 0, 0), "code 0xb4"),
        (step(BPF_JMP | 0x50, 0, 0, 0), "code 0x55"),
        (step(BPF_MISC | 0x40, 0, 0, 0), "code 0x47"),
        (step(0x100 | BPF_LD, 0, 0, 0), "code 0x100"),
        (step(BPF_JMP | BPF_JA, 0, 0, 1), "leads beyond the last one"),
        (step(BPF_JMP | BPF_JEQ | BPF_K, 0, 9, 0), "leads beyond the last one"),
    ] {
        let said = refused(&[first, end]);
        assert!(said.contains("step 0 of the filter") && said.contains(says), "{says}: {said}");
    }
    assert!(refused(&[step(BPF_LD, 0, 0, 1)]).contains("leads beyond"), "a filter without an end");
    let mut long = vec![step(BPF_LD | BPF_IND | BPF_W, 0, 0, 0); 5000];
    long.push(end);
    let said = translate(&long, std::os::fd::AsFd::as_fd(&map)).expect_err("jumps are short");
    assert_eq!(said, Refused::TooLong { steps: 5001 });
}

/// What no way leads to is left out, which the kernel would refuse.
#[test]
fn root_steps_that_are_never_reached_do_no_harm() {
    if !lab::testing::root("root_steps_that_are_never_reached_do_no_harm") {
        return;
    }
    let next = Next::new(false);
    let ret = |k| step(BPF_RET | BPF_K, 0, 0, k);
    let load = |k| step(BPF_LD | BPF_ABS | BPF_W, 0, 0, k);
    let divide = step(BPF_ALU | BPF_DIV | BPF_K, 0, 0, 0);
    for (steps, expected) in [
        (vec![ret(1)], true),
        (vec![ret(0), ret(1)], false),
        (vec![step(BPF_JMP | BPF_JA, 0, 0, 1), ret(0), ret(7)], true),
        (vec![load(0x7fff_ffff), ret(1)], false),
        (vec![load(65_532), ret(1)], false),
        (vec![load(40_000), ret(1)], false),
        (vec![divide, ret(1)], false),
        (vec![step(BPF_JMP | BPF_JEQ | BPF_K, 1, 1, 0), ret(0), divide], false),
    ] {
        assert_eq!(is_match(&next.program(&steps), &[0; 64]), expected, "{steps:?}");
    }
}
