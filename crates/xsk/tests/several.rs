//! Several sockets on one area: two queues, two devices, two sockets on one queue.

mod common;

use std::time::{Duration, Instant};

use cachelane_xsk::{Attach, Packet, ProgramOptions, Socket};
use common::{
    PATIENCE, Side, all_home, gather, number, numbered, pack, settle, small, transfer, two, umem,
    unpack,
};
use frames::LaneCache;
use lab::testing::{comes_true, root};
use lab::{Lab, LinkOptions};

#[test]
fn root_two_queues_on_one_area_each_get_their_own() {
    if !root("root_two_queues_on_one_area_each_get_their_own") {
        return;
    }
    let two = two(LinkOptions { queues: 2, ..LinkOptions::default() });
    // Native: on veth the generic hook sees all packets on queue 0.
    let with = ProgramOptions::default().attach(Attach::Native);
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut program = two.b.attach(with);
    let mut senders = [0, 1].map(|queue| two.a.bind(&umem, queue, &small()));
    let mut receivers = [0, 1].map(|queue| two.b.bind(&umem, queue, &small()));
    for receiver in &mut receivers {
        program.insert(receiver).expect("inserted");
        receiver.fill(&mut cache, 64);
    }
    for (queue, sender) in (0..).zip(&mut senders) {
        let mut packets = Vec::new();
        for n in (0..20).map(|n| n * 2 + queue) {
            let bytes = numbered(two.a.mac, two.b.mac, n, 64);
            pack(&bytes, 2048, &mut cache, &mut packets);
        }
        assert_eq!(sender.send(&mut packets), 20);
        settle(sender, &mut cache);
    }
    for (queue, receiver) in (0..).zip(&mut receivers) {
        let packets = unpack(&mut gather(receiver, &mut cache, 20), &mut cache);
        let numbers = packets.iter().map(|packet| number(packet));
        assert!(numbers.eq((0..20).map(|n| n * 2 + queue)));
    }
    drop((senders, receivers));
    all_home(&umem, cache);
}

/// A middle host with a device to each of two others.
struct Between {
    a: Side,
    left: Side,
    right: Side,
    b: Side,
    _lab: Lab,
}

fn between() -> Between {
    let lab = Lab::new("xsk").expect("a lab");
    let [a, m, b] = ["a", "m", "b"].map(|name| lab.host(name).expect("a host"));
    let left = lab.link(&a, &m, LinkOptions::default()).expect("a link");
    let right = lab.link(&m, &b, LinkOptions::default()).expect("a link");
    Between {
        a: Side::new(&left.a),
        left: Side::new(&left.b),
        right: Side::new(&right.a),
        b: Side::new(&right.b),
        _lab: lab,
    }
}

#[test]
fn root_a_frame_is_forwarded_from_device_to_device_without_copying() {
    if !root("root_a_frame_is_forwarded_from_device_to_device_without_copying") {
        return;
    }
    let net = between();
    let outside = umem(512, 2048);
    let inside = umem(256, 2048);
    let mut ends = outside.pool().cache(0).expect("a cache");
    let mut middle = inside.pool().cache(0).expect("a cache");
    let mut on_left = net.left.attach(ProgramOptions::default());
    let mut on_b = net.b.attach(ProgramOptions::default());
    let mut source = net.a.bind(&outside, 0, &small());
    let mut sink = net.b.bind(&outside, 0, &small());
    let mut from = net.left.bind(&inside, 0, &small());
    let mut to = net.right.bind(&inside, 0, &small());
    on_left.insert(&from).expect("inserted");
    on_b.insert(&sink).expect("inserted");
    let (mut sent, mut seen, mut forwarded) = (0_u64, 0_u64, 0);
    let (mut outgoing, mut passing, mut incoming) = (Vec::new(), Vec::new(), Vec::new());
    let until = Instant::now() + PATIENCE;
    while seen < 3_000 {
        assert!(Instant::now() < until, "{sent} sent, {forwarded} forwarded, {seen} seen");
        while sent - seen < 32 && sent < 3_000 {
            let bytes = numbered(net.a.mac, net.b.mac, sent, 100);
            pack(&bytes, 2048, &mut ends, &mut outgoing);
            sent += 1;
        }
        from.fill(&mut middle, 64);
        sink.fill(&mut ends, 64);
        source.send(&mut outgoing);
        source.kick().expect("sent");
        source.complete(&mut ends, 64);
        // The middle: what was received is sent, as it lies in its frame.
        from.wait(Some(Duration::from_millis(1))).expect("waited");
        let before = inside.pool().census();
        from.receive(&mut passing, 64);
        let held =
            passing.iter().map(|p| p.bytes(inside.pool().area()).as_ptr()).collect::<Vec<_>>();
        assert!(held.iter().all(|at| area_has(&inside, *at)));
        assert_eq!(inside.pool().census().released + passing.len() as u64, before.released);
        forwarded += to.send(&mut passing);
        to.kick().expect("sent");
        to.complete(&mut middle, 64);
        sink.wait(Some(Duration::from_millis(1))).expect("waited");
        sink.receive(&mut incoming, 64);
        for packet in unpack(&mut incoming, &mut ends) {
            assert_eq!(number(&packet), seen);
            seen += 1;
        }
    }
    assert_eq!(forwarded, 3_000);
    drop((source, sink, from, to));
    all_home(&outside, ends);
    all_home(&inside, middle);
}

fn area_has(umem: &cachelane_xsk::Umem, at: *const u8) -> bool {
    let area = umem.pool().area();
    let start = area.as_ptr().as_ptr().cast_const();
    (start..start.wrapping_add(area.len())).contains(&at)
}

#[test]
fn root_sockets_with_other_options_share_the_area_all_the_same() {
    if !root("root_sockets_with_other_options_share_the_area_all_the_same") {
        return;
    }
    let net = between();
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let first = net.left.bind(&umem, 0, &small());
    let options = small().need_wakeup(false).multi_buffer(true);
    let mut sender = net.right.bind(&umem, 0, &options);
    let in_force = sender.in_force();
    assert!(!in_force.need_wakeup && in_force.multi_buffer);
    // The first is gone, and a third one finds somebody to join.
    drop(first);
    let mut receiver = net.b.bind(&umem, 0, &options);
    let mut program = net.b.attach(ProgramOptions::default().multi_buffer(true));
    program.insert(&receiver).expect("inserted");
    let (from, to) = ((&mut sender, net.right.mac), (&mut receiver, net.b.mac));
    transfer(from, to, &mut cache, (500, 64, 32));
    drop((sender, receiver));
    // All are gone, and a new one registers anew.
    drop(net.left.bind(&umem, 0, &small()));
    all_home(&umem, cache);
}

fn post(n: u64, sender: &mut Socket, side: (&Side, &Side), cache: &mut LaneCache) {
    let mut packets = Vec::new();
    for n in 0..n {
        let bytes = numbered(side.0.mac, side.1.mac, n, 64);
        pack(&bytes, 2048, cache, &mut packets);
    }
    assert_eq!(sender.send(&mut packets) as u64, n);
    sender.kick().expect("sent");
}

fn put(packets: Vec<Packet>, cache: &mut LaneCache) {
    packets.into_iter().for_each(|packet| cache.put(packet.frame));
}

#[test]
fn root_a_second_socket_on_a_queue_shares_its_fill_and_completion_rings() {
    if !root("root_a_second_socket_on_a_queue_shares_its_fill_and_completion_rings") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut program = two.b.attach(ProgramOptions::default());
    let mut first = two.b.bind(&umem, 0, &small());
    let beside = |first: &mut Socket| {
        let bound = two.b.host.run(|| Socket::bind_beside(first, &small()));
        bound.expect("the host").expect("a socket")
    };
    let mut second = beside(&mut first);
    let mut third = beside(&mut first);
    let mut peer = two.a.bind(&umem, 0, &small());
    let (a, b) = (&two.a, &two.b);

    // The first posts frames; the program's choice of socket receives into them.
    assert_eq!(first.fill(&mut cache, 60), 60);
    assert_eq!((first.outstanding().fill, second.outstanding().fill), (60, 60));
    for socket in [&mut first, &mut second, &mut third] {
        program.insert(socket).expect("inserted");
        post(20, &mut peer, (a, b), &mut cache);
        settle(&mut peer, &mut cache);
        put(gather(socket, &mut cache, 20), &mut cache);
    }
    // Both send; either takes back.
    post(10, &mut first, (b, a), &mut cache);
    post(10, &mut second, (b, a), &mut cache);
    let until = Instant::now() + PATIENCE;
    let mut completed = 0;
    while completed < 20 {
        assert!(Instant::now() < until, "{completed} of 20");
        completed += third.complete(&mut cache, 64);
    }
    assert_eq!(first.outstanding().tx, 0);

    // The one that the rings were made for goes; the others carry on, and the kernel no longer
    // sends packets to it.
    program.insert(&first).expect("inserted");
    drop(first);
    // A process that another test starts has what this one has open, until it becomes the program
    // that it is to run: the first is closed once that is over.
    let (until, mut posted) = (Instant::now() + PATIENCE, 0);
    let counters = || program.counters().expect("counters");
    let before = counters();
    while counters().no_socket == 0 {
        assert!(Instant::now() < until, "{:?}", counters());
        post(1, &mut peer, (a, b), &mut cache);
        settle(&mut peer, &mut cache);
        posted += 1;
        let arrived = || {
            let now = counters();
            now.no_socket + now.redirected - before.redirected == posted
        };
        assert!(comes_true(arrived), "a packet that was sent");
    }
    program.insert(&second).expect("inserted");
    transfer((&mut peer, a.mac), (&mut second, b.mac), &mut cache, (500, 64, 32));
    drop(second);
    program.insert(&third).expect("inserted");
    transfer((&mut peer, a.mac), (&mut third, b.mac), &mut cache, (500, 64, 32));
    assert!(umem.pool().census().released > 0, "frames wait in the fill ring");
    drop((third, peer));
    all_home(&umem, cache);
}

#[test]
fn root_sockets_on_threads_share_an_area_and_lose_nothing() {
    if !root("root_sockets_on_threads_share_an_area_and_lose_nothing") {
        return;
    }
    let two = two(LinkOptions { queues: 2, ..LinkOptions::default() });
    let umem = umem(1024, 2048);
    let mut program = two.b.attach(ProgramOptions::default());
    let pairs = [0, 1].map(|queue| {
        let receiver = two.b.bind(&umem, queue, &small());
        program.insert(&receiver).expect("inserted");
        (two.a.bind(&umem, queue, &small()), receiver)
    });
    let (a, b) = (two.a.mac, two.b.mac);
    std::thread::scope(|scope| {
        for (home, (mut sender, mut receiver)) in pairs.into_iter().enumerate() {
            let mut cache = umem.pool().cache(home as u16).expect("a cache");
            scope.spawn(move || {
                transfer((&mut sender, a), (&mut receiver, b), &mut cache, (5_000, 64, 48));
            });
        }
    });
    all_home(&umem, umem.pool().cache(0).expect("a cache"));
}
