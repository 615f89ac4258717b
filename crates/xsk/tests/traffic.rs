//! One sender, one receiver, over a veth pair.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use cachelane_xsk::{Attach, BusyPoll, ErrorKind, Filter, Mode, Outstanding, ProgramOptions};
use common::{PATIENCE, all_home, gather, numbered, pack, settle, small, transfer, two, umem};
use lab::LinkOptions;
use lab::testing::{comes_true, root};

#[test]
fn root_packets_arrive_in_order_and_whole() {
    if !root("root_packets_arrive_in_order_and_whole") {
        return;
    }
    let two = two(LinkOptions::default());
    let (a, b) = (two.a.mac, two.b.mac);
    for attach in [Attach::Native, Attach::Generic] {
        let mut program = two.b.attach(ProgramOptions::default().attach(attach));
        assert_eq!(program.attached(), attach);
        for need_wakeup in [true, false] {
            let umem = umem(512, 2048);
            let mut cache = umem.pool().cache(0).expect("a cache");
            let options = small().need_wakeup(need_wakeup);
            let mut sender = two.a.bind(&umem, 0, &options);
            let mut receiver = two.b.bind(&umem, 0, &options);
            assert!(!receiver.in_force().zero_copy, "veth copies");
            assert_eq!(receiver.in_force().need_wakeup, need_wakeup);
            program.insert(&receiver).expect("inserted");
            for len in [60, 64, 1514] {
                let (from, to) = ((&mut sender, a), (&mut receiver, b));
                transfer(from, to, &mut cache, (2_000, len, 48));
            }
            settle(&mut sender, &mut cache);
            let statistics = receiver.statistics().expect("statistics");
            assert_eq!((statistics.rx_dropped, statistics.rx_ring_full), (0, 0));
            drop((sender, receiver));
            all_home(&umem, cache);
        }
        assert_eq!(program.counters().expect("counters").redirected, 12_000);
    }
}

#[test]
fn root_a_send_budget_takes_a_full_ring_in_one_call_where_the_kernel_has_it() {
    if !root("root_a_send_budget_takes_a_full_ring_in_one_call_where_the_kernel_has_it") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    for asked in [None, Some(64)] {
        let mut sender = two.a.bind(&umem, 0, &small().tx_budget(asked));
        let budget = sender.in_force().tx_budget;
        assert!(budget == asked.unwrap_or(32) || budget == 32, "{budget}");
        let mut packets = Vec::new();
        for number in 0..64 {
            let bytes = numbered(two.a.mac, two.b.mac, number, 64);
            pack(&bytes, 2048, &mut cache, &mut packets);
        }
        assert_eq!(sender.send(&mut packets), 64);
        assert_eq!(sender.outstanding(), Outstanding { tx: 64, ..Outstanding::default() });
        sender.kick().expect("sent");
        // What is beyond the budget has not been looked at, and so has no completion.
        let out = sender.outstanding();
        assert_eq!(out.tx + out.completed, 64);
        assert!(out.completed <= budget, "{out:?}");
        assert_eq!(out.tx, 64 - out.completed);
        settle(&mut sender, &mut cache);
    }
    all_home(&umem, cache);
}

#[test]
fn root_busy_polling_is_taken_and_packets_arrive() {
    if !root("root_busy_polling_is_taken_and_packets_arrive") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let busy_poll = Some(BusyPoll { microseconds: 20, budget: 64 });
    let options = small().busy_poll(busy_poll);
    let mut program = two.b.attach(ProgramOptions::default());
    let mut sender = two.a.bind(&umem, 0, &options);
    let mut receiver = two.b.bind(&umem, 0, &options);
    assert_eq!(receiver.in_force().busy_poll, busy_poll);
    program.insert(&receiver).expect("inserted");
    let (from, to) = ((&mut sender, two.a.mac), (&mut receiver, two.b.mac));
    transfer(from, to, &mut cache, (2_000, 64, 48));
    drop((sender, receiver));
    all_home(&umem, cache);
}

#[test]
fn root_packets_larger_than_a_frame_travel_in_several() {
    if !root("root_packets_larger_than_a_frame_travel_in_several") {
        return;
    }
    let two = two(LinkOptions { mtu: 9000, ..LinkOptions::default() });
    let options = small().multi_buffer(true);
    for attach in [Attach::Native, Attach::Generic] {
        let umem = umem(512, 4096);
        let mut cache = umem.pool().cache(0).expect("a cache");
        let with = ProgramOptions::default().attach(attach).multi_buffer(true);
        let (mut on_a, mut on_b) = (two.a.attach(with.clone()), two.b.attach(with));
        let mut at_a = two.a.bind(&umem, 0, &options);
        let mut at_b = two.b.bind(&umem, 0, &options);
        on_a.insert(&at_a).expect("inserted");
        on_b.insert(&at_b).expect("inserted");
        let (a, b) = (two.a.mac, two.b.mac);
        // A frame, a bit more than one, a bit more than two.
        for len in [64, 3840, 4000, 4097, 9014] {
            transfer((&mut at_a, a), (&mut at_b, b), &mut cache, (300, len, 8));
            transfer((&mut at_b, b), (&mut at_a, a), &mut cache, (300, len, 8));
        }
        drop((at_a, at_b));
        all_home(&umem, cache);
    }
}

#[test]
fn root_a_packet_in_several_frames_is_posted_and_received_whole_or_not_at_all() {
    if !root("root_a_packet_in_several_frames_is_posted_and_received_whole_or_not_at_all") {
        return;
    }
    let two = two(LinkOptions { mtu: 9000, ..LinkOptions::default() });
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let options = small().multi_buffer(true).tx_size(8);
    let with = ProgramOptions::default().multi_buffer(true);
    let mut program = two.b.attach(with);
    let mut sender = two.a.bind(&umem, 0, &options);
    let mut receiver = two.b.bind(&umem, 0, &options);
    program.insert(&receiver).expect("inserted");
    receiver.fill(&mut cache, 64);
    let mut packets = Vec::new();
    for number in 0..2 {
        // Five frames each, and eight have room.
        let bytes = numbered(two.a.mac, two.b.mac, number, 9000);
        pack(&bytes, 2048, &mut cache, &mut packets);
    }
    assert_eq!(packets.len(), 10);
    assert_eq!((sender.send(&mut packets), packets.len()), (5, 5));
    sender.kick().expect("sent");
    assert_eq!((sender.send(&mut packets), packets.len()), (5, 0));
    sender.kick().expect("sent");
    let mut received = Vec::new();
    while received.is_empty() {
        assert!(receiver.wait(Some(PATIENCE)).expect("waited"), "nothing arrived");
        // One descriptor is less than a packet, which comes whole all the same.
        receiver.receive(&mut received, 1);
    }
    assert!(received.len() > 1 && !received.last().expect("some").more);
    assert!(received[..received.len() - 1].iter().all(|part| part.more));
    received.drain(..).for_each(|part| cache.put(part.frame));
    drop((sender, receiver));
    all_home(&umem, cache);
}

#[test]
fn root_a_socket_that_is_closed_sends_what_is_posted_and_gives_everything_back() {
    if !root("root_a_socket_that_is_closed_sends_what_is_posted_and_gives_everything_back") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut program = two.b.attach(ProgramOptions::default());
    for round in 0..3 {
        // The queue is free again each time, though the kernel takes a while.
        let mut sender = two.a.bind(&umem, 0, &small());
        let mut receiver = two.b.bind(&umem, 0, &small());
        program.insert(&receiver).expect("inserted");
        receiver.fill(&mut cache, 60);
        sender.fill(&mut cache, 17);
        let mut packets = Vec::new();
        for number in 0..50 {
            pack(&numbered(two.a.mac, two.b.mac, number, 64), 2048, &mut cache, &mut packets);
        }
        assert_eq!(sender.send(&mut packets), 50);
        // Nobody has told the kernel to send.
        assert_eq!(sender.outstanding(), Outstanding { tx: 50, fill: 17, ..Default::default() });
        drop(sender);
        let received = gather(&mut receiver, &mut cache, 20);
        received.into_iter().for_each(|packet| cache.put(packet.frame));
        let redirected = || program.counters().expect("counters").redirected;
        assert!(comes_true(|| redirected() == 50 * (round + 1)), "every posted packet is sent");
        // Some are received and not taken, some posted and not received into.
        let out = receiver.outstanding();
        assert!(out.fill + out.rx > 0, "{out:?}");
        assert_eq!(umem.pool().census().released, u64::from(out.fill + out.rx));
        drop(receiver);
        assert_eq!(umem.pool().census().released, 0);
    }
    all_home(&umem, cache);
}

#[test]
#[should_panic(expected = "not inside a frame")]
fn root_a_packet_that_is_not_in_its_frame_is_not_posted() {
    if !root("root_a_packet_that_is_not_in_its_frame_is_not_posted") {
        panic!("not inside a frame: not tried");
    }
    let two = two(LinkOptions::default());
    let umem = umem(64, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut sender = two.a.bind(&umem, 0, &small());
    let frame = cache.get().expect("a frame");
    let mut packet = cachelane_xsk::Packet::new(frame, 64);
    packet.offset = 2000;
    sender.send(&mut vec![packet]);
}

#[test]
fn root_what_is_not_chosen_reaches_the_kernel() {
    if !root("root_what_is_not_chosen_reaches_the_kernel") {
        return;
    }
    let two = two(LinkOptions::default());
    for attach in [Attach::Native, Attach::Generic] {
        let umem = umem(256, 2048);
        let mut cache = umem.pool().cache(0).expect("a cache");
        let filter = Filter::UdpPorts(vec![9000, 9002]);
        let with = ProgramOptions::default().attach(attach).filters(vec![filter]);
        let mut program = two.b.try_attach(&with).expect("a program");
        let mut socket = two.b.bind(&umem, 0, &small());
        socket.fill(&mut cache, 64);
        let open = |address| UdpSocket::bind(address).expect("a socket");
        let kernel = two.b.host.run(|| open(two.b.end.socket(9001))).expect("the host");
        let chosen = two.b.host.run(|| open(two.b.end.socket(9000))).expect("the host");
        let client = two.a.host.run(|| open(two.a.end.socket(0))).expect("the host");
        kernel.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        chosen.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut buffer = [0; 64];
        // No socket in the program yet: the kernel gets all of it.
        client.send_to(b"early", two.b.end.socket(9000)).expect("sent");
        assert_eq!(chosen.recv(&mut buffer).expect("received"), 5);
        program.insert(&socket).expect("inserted");
        for (port, text) in [(9000, "chosen"), (9001, "kernel"), (9002, "chosen too")] {
            client.send_to(text.as_bytes(), two.b.end.socket(port)).expect("sent");
        }
        let received = kernel.recv(&mut buffer).expect("received");
        assert_eq!(&buffer[..received], b"kernel");
        let packets = gather(&mut socket, &mut cache, 2);
        for (packet, text) in packets.iter().zip(["chosen", "chosen too"]) {
            // Ethernet, IPv4 and UDP headers.
            assert_eq!(&packet.bytes(umem.pool().area())[42..], text.as_bytes());
        }
        packets.into_iter().for_each(|packet| cache.put(packet.frame));
        let counters = program.counters().expect("counters");
        assert_eq!((counters.redirected, counters.no_socket), (2, 1));
        assert!(counters.not_chosen >= 1, "{counters:?}");
        // Out of the program: the kernel again.
        program.remove(0).expect("removed");
        client.send_to(b"late", two.b.end.socket(9000)).expect("sent");
        assert_eq!(chosen.recv(&mut buffer).expect("received"), 4);
        program.remove(0).expect("removing nothing is fine");
        let error = program.remove(u32::MAX).expect_err("no such queue");
        assert_eq!(error.kind(), ErrorKind::NoQueue);
        drop(socket);
        all_home(&umem, cache);
    }
}

#[test]
fn root_packets_without_a_frame_are_dropped_and_counted() {
    if !root("root_packets_without_a_frame_are_dropped_and_counted") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(256, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut program = two.b.attach(ProgramOptions::default());
    let mut sender = two.a.bind(&umem, 0, &small());
    let mut receiver = two.b.bind(&umem, 0, &small().mode(Mode::Copy));
    program.insert(&receiver).expect("inserted");
    // Room for three of twenty.
    assert_eq!(receiver.fill(&mut cache, 3), 3);
    assert_eq!(receiver.outstanding().fill, 3);
    let mut packets = Vec::new();
    for number in 0..20 {
        let bytes = numbered(two.a.mac, two.b.mac, number, 64);
        pack(&bytes, 2048, &mut cache, &mut packets);
    }
    sender.send(&mut packets);
    settle(&mut sender, &mut cache);
    let redirected = || program.counters().expect("counters").redirected;
    assert!(comes_true(|| redirected() == 20), "twenty redirected packets");
    let mut received = Vec::new();
    receiver.wait(Some(PATIENCE)).expect("waited");
    assert_eq!(receiver.outstanding(), Outstanding { rx: 3, ..Outstanding::default() });
    assert_eq!(receiver.receive(&mut received, 64), 3);
    assert!(!receiver.wait(Some(Duration::from_millis(10))).expect("waited"));
    let statistics = receiver.statistics().expect("statistics");
    assert_eq!(statistics.rx_dropped, 17, "{statistics:?}");
    assert!(statistics.fill_ring_empty > 0, "{statistics:?}");
    assert_eq!(umem.pool().census().released, 0);
    received.drain(..).for_each(|packet| cache.put(packet.frame));
    drop((sender, receiver));
    all_home(&umem, cache);
}
