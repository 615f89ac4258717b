//! The packet path on packets that are given to it.

use std::mem::offset_of;

use bpf::Packet;

use super::constants::{
    PORT_COPY, PORT_IN, PORT_OUT, PORT_REFRESH, PORT_STRAIGHT, STATION_SLOT_SHIFT,
};
use super::*;

mod vlans;

/// Tells the program this, which it believes for a while.
fn configure(program: &Program, settings: &Settings) {
    program.configure(settings).expect("it is written");
    let now = program.now().expect("it runs");
    program.renew(now, 1 << 20).expect("it runs");
}

/// What the kernel says of a packet, as the test run takes it: it is all numbers of 32 bits to us.
type Context = [u32; size_of::<SkBuff>() / 4];
type SkBuff = skel::types::__sk_buff;

/// Where a device is that has no rules.
fn device(program: &Program) -> u64 {
    program.device(LOOPBACK).expect("it is asked for").expect("it is there")
}

/// A packet of the loopback device, with these fields, by their offsets.
fn context<const N: usize>(fields: [(usize, u32); N]) -> Context {
    let mut context = [0; size_of::<SkBuff>() / 4];
    context[offset_of!(SkBuff, ifindex) / 4] = LOOPBACK;
    fields.into_iter().for_each(|(offset, value)| context[offset / 4] = value);
    context
}

/// What becomes of a frame that comes in at the loopback device.
fn verdict(program: &Program, frame: &[u8], context: Context) -> i32 {
    let mut packet = Packet { data: frame.to_vec(), context };
    program.program.run_on(&mut packet).expect("the program runs").cast_signed()
}

#[test]
fn root_an_unverified_gso_packet_takes_the_ports_queue() {
    if !lab::testing::root("root_an_unverified_gso_packet_takes_the_ports_queue") {
        return;
    }
    let (from, to) = (Mac([2, 0, 0, 0, 0, 7]), Mac([2, 0, 0, 0, 0, 8]));
    let program = Program::load(8, 8, Owner::default()).expect("it loads");
    let settings = Settings { active: 1, ..Settings::default() };
    configure(&program, &settings);
    let port = Port { index: LOOPBACK, flags: PORT_IN, ..Port::default() };
    program.set_port(1, &port).expect("it is written");
    let port = Port {
        index: LOOPBACK + 1,
        flags: PORT_OUT | PORT_STRAIGHT,
        max_len: 1514,
        gso_max_segs: 2,
        peer_key: number(to),
        gso_max_size: 201,
        gso_ipv4_max_size: 200,
        device: device(&program),
    };
    program.set_port(2, &port).expect("it is written");
    for (mac, place) in [(from, 1), (to, 2)] {
        assert!(program.set_station(mac, Station { place, unsettled: 0 }).expect("as above"));
    }
    const IPV4: [u8; 2] = [0x08, 0x00];
    const IPV6: [u8; 2] = [0x86, 0xdd];
    // A protocol, the size of a segment, their number, and whether it goes straight.
    for (protocol, gso_size, gso_segs, straight) in [
        (IPV4, 0, 0, true),
        (IPV6, 0, 0, true),
        (IPV6, 100, 1, true),
        (IPV6, 100, 2, true),
        (IPV6, 100, 3, false),
        (IPV6, 100, 0, false),
        (IPV4, 100, 2, false),
    ] {
        let mut frame = [&to.0[..], &from.0, &protocol].concat();
        frame.resize(200, 0);
        let before = program.counts().expect("they are read");
        let gso =
            [(offset_of!(SkBuff, gso_size), gso_size), (offset_of!(SkBuff, gso_segs), gso_segs)];
        verdict(&program, &frame, context(gso));
        let after = program.counts().expect("they are read");
        let grown = (after.straight - before.straight, after.redirected - before.redirected);
        let expected = if straight { (1, 0) } else { (0, 1) };
        assert_eq!(grown, expected, "{protocol:x?}: {gso_segs} of {gso_size} bytes: {after:?}");
    }
}

#[test]
fn root_a_copy_is_taken_only_of_a_station_that_is_where_it_was() {
    if !lab::testing::root("root_a_copy_is_taken_only_of_a_station") {
        return;
    }
    const NEXT: i32 = -1;
    const SHOT: i32 = 2;
    let program = Program::load(8, 8, Owner::default()).expect("it loads");
    let port = |index, flags| Port { index, flags, ..Port::default() };
    program.set_port(1, &port(LOOPBACK, PORT_COPY)).expect("it is written");
    program.set_port(2, &port(LOOPBACK + 1, PORT_COPY)).expect("it is written");
    let mac = Mac([2, 0, 0, 0, 0, 7]);
    let mut copy = [&[0x01, 0x80, 0xc2, 0, 0, 0x0e], &mac.0[..], &[0; 48]].concat();
    let marked = |mark| context([(offset_of!(SkBuff, mark), mark)]);
    let taken = |copy: &[u8]| verdict(&program, copy, marked(program.copy_mark));
    let group = || program.counts().expect("they are read").kernel[crate::Reason::Group as usize];
    assert_eq!(taken(&copy), SHOT, "of nobody");
    for (place, unsettled, expected) in
        [(1, 0, NEXT), (1, 1, SHOT), (2, 0, SHOT), (2, 1, SHOT), (3, 0, SHOT)]
    {
        let station = Station { place, unsettled };
        assert!(program.set_station(mac, station).expect("it is edited"));
        assert_eq!(taken(&copy), expected, "on {place}, unsettled {unsettled}");
        let found = program.unsettled(mac).expect("it is read");
        assert_eq!(found, Some(unsettled), "a copy is no sign of a move");
    }
    // Nor is one taken where the bridge would now forward it.
    assert!(program.set_station(mac, Station { place: 1, unsettled: 0 }).expect("as before"));
    assert_eq!(taken(&copy), NEXT);
    program.set_port(1, &port(LOOPBACK, PORT_REFRESH)).expect("it is written");
    assert_eq!(taken(&copy), SHOT, "copies do harm now");
    // What looks like a copy and is none is a frame like any other.
    assert!(program.set_station(mac, Station { place: 1, unsettled: 1 }).expect("as before"));
    let settings = Settings { active: 1, ..Settings::default() };
    configure(&program, &settings);
    let before = group();
    assert_eq!(verdict(&program, &copy, marked(0)), NEXT);
    assert_eq!(verdict(&program, &copy, marked(program.copy_mark.wrapping_add(1))), NEXT);
    copy[13] = 1;
    assert_eq!(taken(&copy), NEXT);
    copy[13] = 0;
    copy[5] = 0;
    assert_eq!(taken(&copy), NEXT);
    assert_eq!(group() - before, 4);
}

#[test]
fn root_copies_that_can_wait_are_few_and_urgent_ones_are_made() {
    if !lab::testing::root("root_copies_that_can_wait_are_few") {
        return;
    }
    const STATIONS: u32 = 200;
    const COPIES: u32 = 2;
    let program = Program::load(STATIONS + 1, 8, Owner::default()).expect("it loads");
    let address = |number: u32| Mac([2, 0, 0, 0, 1, number as u8]);
    let to = Mac([2, 0, 0, 0, 0, 8]);
    let flags = PORT_IN | PORT_REFRESH | PORT_COPY;
    let port = Port { index: LOOPBACK, flags, ..Port::default() };
    program.set_port(1, &port).expect("it is written");
    let port = Port {
        index: LOOPBACK + 1,
        flags: PORT_OUT,
        max_len: 1514,
        device: device(&program),
        ..Port::default()
    };
    program.set_port(2, &port).expect("it is written");
    let write = |mac, place| program.set_station(mac, Station { place, unsettled: 0 });
    assert!(write(to, 2 | STATIONS << STATION_SLOT_SHIFT).expect("it is edited"));
    for number in 0..STATIONS {
        let place = 1 | number << STATION_SLOT_SHIFT;
        assert!(write(address(number), place).expect("it is edited"));
    }
    // A frame of each; how many copies were made, and how many jiffies passed at most.
    let round = |refresh_every: u32| {
        let settings = Settings { active: 1, refresh_every, copies: COPIES, ..Settings::default() };
        configure(&program, &settings);
        let before = program.counts().expect("they are read").copies;
        let begin = std::time::Instant::now();
        for number in 0..STATIONS {
            let mut frame = [&to.0[..], &address(number).0, &[0x88, 0xb5]].concat();
            frame.resize(60, 0);
            verdict(&program, &frame, context([]));
        }
        let passed = begin.elapsed().as_millis() as u64 + 1;
        (program.counts().expect("they are read").copies - before, passed)
    };
    assert_eq!(round(1).0, u64::from(STATIONS), "never shown to the kernel");
    let (copies, passed) = round(1 << 30);
    // Each CPU that the test ran on has its own share, and a jiffy may be a millisecond.
    let cpus = std::thread::available_parallelism().expect("CPUs").get() as u64;
    let most = u64::from(COPIES) * (passed + 1) * cpus;
    assert!((1..=most).contains(&copies), "{copies} copies in {passed} ms");
}

#[test]
fn root_nobody_has_address_zero() {
    if !lab::testing::root("root_nobody_has_address_zero") {
        return;
    }
    let program = Program::load(8, 8, Owner::default()).expect("it loads");
    let nobody = Mac([0; 6]);
    let station = Station { place: 1, unsettled: 1 };
    assert_eq!(program.unsettled(nobody).expect("it is read"), None);
    assert!(!program.set_station(nobody, station).expect("it is edited"));
    assert!(!program.settle(nobody, 0).expect("it is edited"));
}

/// Addresses as makers and programs give them out: one after another, in any of the bytes.
#[test]
fn root_addresses_in_a_row_find_room() {
    if !lab::testing::root("root_addresses_in_a_row_find_room") {
        return;
    }
    const STATIONS: u32 = 8192;
    for byte in 0..=4 {
        for _ in 0..8 {
            let program = Program::load(STATIONS, 8, Owner::default()).expect("it loads");
            let address = |number: u32| {
                let mut mac = [2, 0x63, 0, 0, 0, 0];
                mac[byte..byte + 2].copy_from_slice(&(number as u16).to_be_bytes());
                Mac(mac)
            };
            let mut left_out = 0;
            for number in 1..=STATIONS {
                let station = Station { place: number, unsettled: 1 };
                let written = program.set_station(address(number), station);
                left_out += u32::from(!written.expect("it is edited"));
            }
            // Half full as it then is, a few find their eight lines full.
            assert!(left_out <= STATIONS / 200, "{left_out} counting in byte {byte}");
            let found = (1..=STATIONS).filter(|number| {
                program.unsettled(address(*number)).expect("it is read").is_some()
            });
            assert_eq!(found.count() as u32, STATIONS - left_out);
        }
    }
}
