//! The model on its own, and against the programs.

mod packets;
mod programs;
mod queues;
mod sockets;
mod steered;
mod steps;
mod tables;
mod threads;

use super::*;

/// Keys that are as good as any.
const KEYS: [u64; 5] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
];

const LIMITS: Limits = Limits { room: 6, stall: 2, away: 20, patience: 8, lease: 30 };

fn tuple(peer: &str, local: &str) -> Tuple {
    let parse = |address: &str| address.parse().expect("an address and a port");
    Tuple::of_socket(parse(peer), parse(local), Protocol::Tcp)
}

#[test]
fn flows_that_differ_anywhere_have_hashes_that_differ() {
    let one = tuple("10.0.0.1:1000", "10.0.0.2:80");
    let udp = Tuple { protocol: Protocol::Udp, ..one };
    let others = [
        udp,
        tuple("10.0.0.3:1000", "10.0.0.2:80"),
        tuple("10.0.0.1:1001", "10.0.0.2:80"),
        tuple("10.0.0.1:1000", "10.0.0.4:80"),
        tuple("10.0.0.1:1000", "10.0.0.2:81"),
        tuple("10.0.0.2:80", "10.0.0.1:1000"),
        tuple("[::1]:1000", "[::2]:80"),
    ];
    for other in others {
        assert_ne!(one.hash(&KEYS), other.hash(&KEYS), "{other:?}");
    }
}

#[test]
fn ipv4_in_ipv6_has_the_hash_of_ipv4() {
    let mapped = tuple("[::ffff:10.0.0.1]:1000", "[::ffff:10.0.0.2]:80");
    assert_eq!(mapped.hash(&KEYS), tuple("10.0.0.1:1000", "10.0.0.2:80").hash(&KEYS));
}

#[test]
fn hashes_of_neighbours_fill_the_table_as_random_ones_would() {
    let groups: std::collections::HashSet<u32> = (0..4096_u16)
        .map(|port| {
            let source = (std::net::Ipv4Addr::new(10, 0, 0, 1), 1024 + port).into();
            let destination = (std::net::Ipv4Addr::new(10, 0, 0, 2), 80).into();
            Tuple { source, destination, protocol: Protocol::Tcp }.hash(&KEYS) % 4096
        })
        .collect();
    // 1 - 1/e of them, give or take four standard deviations of 15.
    assert!((2529..=2649).contains(&groups.len()), "{} of 4096", groups.len());
}

#[test]
fn a_record_is_rewritten_only_when_the_consumer_is_somewhere_else_that_counts() {
    use RecordAction::{Right, SameLane, Write};
    let (here, lane, other) = (1, Some(1), Some(2));
    for (recorded, there, affinity, expected) in [
        (5, lane, true, Right),
        (5, None, true, Right),
        (4, lane, true, SameLane),
        (4, lane, false, Write),
        (4, other, true, Write),
        (4, other, false, Write),
        (4, None, true, Write),
    ] {
        let given = record_rule(recorded, there, 5, here, affinity);
        assert_eq!(given, expected, "{recorded} {there:?} {affinity}");
    }
}

#[test]
fn packets_are_delivered_after_72_more_or_when_their_thread_sleeps() {
    for start in [0, 1000, u32::MAX - 40] {
        let delivered = |since: i32, sleeps, short_ticks| {
            is_delivered(start.wrapping_add_signed(since), start, sleeps, short_ticks)
        };
        for short_ticks in [false, true] {
            assert!(!delivered(-1, true, short_ticks), "from {start}");
            assert!(delivered(0, true, short_ticks), "from {start}");
            assert!(!delivered(71, false, short_ticks), "from {start}");
            // GRO may have some of this tick's still.
            assert_eq!(delivered(72, false, short_ticks), !short_ticks, "from {start}");
        }
    }
}

/// A model of one queue with targets, each in a lane of its own.
fn model(cpus: u32) -> Model {
    let mut model = Model::new(Shape {
        records: 256,
        cpus,
        queues: 1,
        hash_keys: KEYS,
        keep_order: true,
        gro_outlasts_poll: true,
        limits: Limits { room: 1024, ..LIMITS },
    });
    for cpu in 0..cpus {
        model.set_target(cpu, Target { active: true, lane: cpu, entry: true, ..Target::default() });
    }
    model
}

/// Has a packet of the flow at this CPU.
fn settle(model: &mut Model, flow: u32, cpu: u32) {
    model.record_hash(flow, cpu);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(cpu));
}

#[test]
fn a_flow_follows_its_consumer_when_nothing_can_be_overtaken() {
    let (mut model, flow) = (model(4), 77);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Unknown));
    model.record_hash(flow, 2);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Order));
    model.polled(0, Poll { work: 1, budget: 64, weight: 64 });
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2));
    model.record_hash(flow, 3);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2), "it has a packet there");
    for _ in 0..2 {
        model.taken(2, 0);
    }
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2), "taken is not delivered");
    model.taken(2, 0);
    model.set_target(2, Target { asleep: true, ..model.target(2) });
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(3));
    let counters = model.counters();
    assert_eq!((counters.steered, counters.moves, counters.held), (4, 2, 3));
}

#[test]
fn a_flow_whose_consumer_is_where_its_packets_arrive_is_left_there() {
    let (mut model, flow) = (model(4), 77);
    model.record_hash(flow, 0);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Here));
    assert_eq!(model.steer(flow, 0, 1), Verdict::Kernel(Reason::Order), "it may be in GRO");
    model.polled(1, Poll { work: 1, budget: 64, weight: 64 });
    assert_eq!(model.steer(flow, 0, 1), Verdict::Cpu(0), "they arrive elsewhere now");
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(0), "it has a packet in that queue");
    (0..2).for_each(|_| model.taken(0, 0));
    model.set_target(0, Target { asleep: true, ..model.target(0) });
    assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Here));
}

#[test]
fn a_cpu_that_is_no_target_any_more_holds_its_flows_until_its_thread_has_nothing() {
    for (thread, asleep, to) in [
        (true, false, Verdict::Cpu(2)),
        (true, true, Verdict::Kernel(Reason::Target)),
        (false, false, Verdict::Kernel(Reason::Target)),
    ] {
        let (mut model, flow) = (model(4), 77);
        settle(&mut model, flow, 2);
        model.taken(2, 0);
        model.set_target(2, Target { active: false, thread, asleep, ..model.target(2) });
        assert_eq!(model.steer(flow, 0, 0), to, "thread {thread}, asleep {asleep}");
    }
}

#[test]
fn packets_that_are_lost_after_one_do_not_count_as_it() {
    let (mut model, flow, other) = (model(4), 77, 78);
    settle(&mut model, other, 2);
    settle(&mut model, flow, 2);
    for _ in 0..99 {
        assert_eq!(model.steer(other, 0, 0), Verdict::Cpu(2));
    }
    model.lost(0, 2, 99);
    model.record_hash(flow, 3);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2), "it waits still");
    // And those that were lost are not waited for.
    (0..3).for_each(|_| model.taken(2, 0));
    model.set_target(2, Target { asleep: true, ..model.target(2) });
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(3));
}

#[test]
fn a_flow_stays_on_the_kernel_path_while_a_poll_may_have_left_its_packets_in_gro() {
    let (busy, full, done) = (
        Poll { work: 1, budget: 8, weight: 64 },
        Poll { work: 64, budget: 64, weight: 64 },
        Poll { work: 1, budget: 64, weight: 64 },
    );
    let (mut model, flow) = (model(2), 77);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Unknown));
    model.record_hash(flow, 1);
    for poll in [busy, full, done] {
        assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Order), "before {poll:?}");
        // What another CPU polls says nothing of this queue.
        model.polled(1, done);
        model.polled(0, poll);
    }
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(1));
}

#[test]
fn a_flow_without_a_place_in_its_set_stays_on_the_kernel_path() {
    let mut model = model(2);
    let sets = 256 / WAYS as u32;
    let flows: Vec<u32> = (1..10).map(|number| 7 + 4 * number * sets).collect();
    let (others, [last]) = flows.split_at(8) else { panic!("nine flows") };
    for flow in others {
        settle(&mut model, *flow, 1);
    }
    model.record_hash(*last, 1);
    assert_eq!(model.steer(*last, 0, 0), Verdict::Kernel(Reason::Order), "theirs are underway");
    model.polled(0, Poll { work: 1, budget: 64, weight: 64 });
    for _ in 0..8 {
        model.taken(1, 0);
    }
    model.set_target(1, Target { asleep: true, ..model.target(1) });
    assert_eq!(model.steer(*last, 0, 0), Verdict::Cpu(1));
}

#[test]
fn a_flow_that_takes_the_kernel_path_leaves_no_hole_among_the_others() {
    let mut model = model(2);
    let sets = 256 / WAYS as u32;
    let flows: Vec<u32> = (1..4).map(|number| 7 + 4 * number * sets).collect();
    for flow in &flows {
        settle(&mut model, *flow, 1);
    }
    (0..3).for_each(|_| model.taken(1, 0));
    model.set_target(1, Target { asleep: true, ..model.target(1) });
    model.record_hash(flows[0], 0);
    assert_eq!(model.steer(flows[0], 0, 0), Verdict::Kernel(Reason::Here));
    let FlowSet { words, tails } = model.flows(7, 0);
    assert_eq!(words.map(|word| word != 0), [true, true, false, false, false, false, false, false]);
    assert_eq!(tails[..2], [3, 2]);
    assert_eq!(model.steer(flows[2], 0, 0), Verdict::Cpu(1));
}

#[test]
fn a_cpu_that_takes_nothing_is_no_target_until_it_has_and_a_while_has_passed() {
    let mut model = model(4);
    let (flow, other) = (77, 78);
    settle(&mut model, flow, 2);
    model.record_hash(other, 2);
    model.set_time(1);
    assert_eq!(model.steer(other, 0, 0), Verdict::Cpu(2), "not for long");
    model.set_time(2);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2), "it would overtake what it has there");
    assert_eq!(model.counters().stalls, 1);
    model.record_hash(79, 2);
    assert_eq!(model.steer(79, 0, 0), Verdict::Kernel(Reason::Busy));
    // It takes all of them.
    (0..3).for_each(|_| model.taken(2, 0));
    model.set_target(2, Target { asleep: true, ..model.target(2) });
    model.set_time(3);
    assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Busy), "it left in order");
    model.polled(0, Poll { work: 1, budget: 64, weight: 64 });
    model.set_time(2 + u64::from(LIMITS.away));
    model.renew();
    assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2));
    let counters = model.counters();
    assert_eq!((counters.stalls, counters.held, counters.released), (1, 1, 0));
}

#[test]
fn flows_wait_for_a_cpu_that_takes_nothing_only_for_so_long() {
    let (mut model, flow) = (model(4), 77);
    settle(&mut model, flow, 2);
    for now in 0..u64::from(LIMITS.patience) {
        model.set_time(now);
        assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2), "at {now}");
    }
    model.set_time(LIMITS.patience.into());
    assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Busy));
    assert_eq!(model.counters().released, 1);
}

#[test]
fn flows_come_to_a_cpu_while_there_is_room_for_half_of_what_may_wait() {
    let mut model = model(4);
    settle(&mut model, 77, 2);
    (1..512).for_each(|_| assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2)));
    model.record_hash(78, 2);
    assert_eq!(model.steer(78, 0, 0), Verdict::Kernel(Reason::Busy));
    assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2));
    // Not yet delivered.
    (0..10).for_each(|_| model.taken(2, 0));
    model.polled(0, Poll { work: 1, budget: 64, weight: 64 });
    assert_eq!(model.steer(78, 0, 0), Verdict::Cpu(2));
    assert_eq!(model.counters().stalls, 0);
}

#[test]
fn a_cpu_whose_thread_sleeps_waits_for_nothing() {
    let mut model = model(4);
    settle(&mut model, 77, 2);
    // What was sent is nowhere.
    model.set_target(2, Target { asleep: true, ..model.target(2) });
    for now in 1..20 {
        model.set_time(now);
        assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2));
    }
    assert_eq!(model.counters().stalls, 0);
}

#[test]
fn counts_that_do_not_fit_are_mended() {
    let mut model = model(4);
    settle(&mut model, 77, 2);
    // The thread that the CPU had before takes something too.
    (0..3).for_each(|_| model.taken(2, 0));
    model.set_time(1);
    assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2));
    assert_eq!(model.count(2, 0), Count { sent: 4, taken: 3 });
    // All that may wait there never arrives.
    (1..1024).for_each(|_| assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2)));
    assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2), "it would overtake");
    model.set_target(2, Target { asleep: true, ..model.target(2) });
    model.set_time(1 + u64::from(LIMITS.stall));
    assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2));
    assert_eq!(model.count(2, 0), Count { sent: 4, taken: 3 });
    assert_eq!(model.counters().stalls, 0);
}

#[test]
fn flows_do_not_wait_at_a_cpu_that_takes_nothing_and_has_no_room() {
    let mut model = model(4);
    settle(&mut model, 77, 2);
    (1..1024).for_each(|_| assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2)));
    model.set_time(u64::from(LIMITS.stall) - 1);
    assert_eq!(model.steer(77, 0, 0), Verdict::Cpu(2), "it may only be slow");
    model.set_time(LIMITS.stall.into());
    assert_eq!(model.steer(77, 0, 0), Verdict::Kernel(Reason::Busy));
    assert_eq!(model.counters().released, 1);
}

#[test]
fn a_cpu_that_works_for_another_queue_does_not_stall() {
    let shape = Shape { queues: 2, ..model(4).shape().clone() };
    let mut model = Model::new(shape);
    model.set_target(2, Target { active: true, entry: true, ..Target::default() });
    model.record_hash(77, 2);
    assert_eq!(model.steer(77, 1, 0), Verdict::Cpu(2));
    for now in 1..20 {
        model.set_time(now);
        model.taken(2, 0);
        assert_eq!(model.steer(77, 1, 0), Verdict::Cpu(2));
    }
    assert_eq!(model.counters().stalls, 0);
    model.set_time(20 + u64::from(LIMITS.stall));
    assert_eq!(model.steer(77, 1, 0), Verdict::Cpu(2));
    assert_eq!(model.counters().stalls, 1);
}

#[test]
fn what_flows_leave_at_a_cpu_that_is_given_up_is_counted() {
    for taken in [false, true] {
        let (mut model, flow) = (model(4), 77);
        settle(&mut model, flow, 2);
        (0..u32::from(taken)).for_each(|_| model.taken(2, 0));
        model.set_target(2, Target { active: false, thread: false, ..model.target(2) });
        assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Target));
        assert_eq!(model.counters().released, u64::from(!taken));
    }
}

#[test]
fn without_a_lease_flows_take_the_kernel_path_once_they_are_delivered_or_have_waited() {
    let over = u64::from(LIMITS.lease);
    for delivered in [true, false] {
        let (mut model, flow) = (model(4), 77);
        settle(&mut model, flow, 2);
        model.set_time(over - 1);
        model.taken(2, 0);
        assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2));
        model.set_time(over);
        assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2), "it has a packet there");
        model.set_time(over + u64::from(LIMITS.patience) - 1);
        // It takes some, but not all of them.
        model.taken(2, 0);
        assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2));
        if delivered {
            (0..2).for_each(|_| model.taken(2, 0));
            model.set_target(2, Target { asleep: true, ..model.target(2) });
        } else {
            model.set_time(over + u64::from(LIMITS.patience));
        }
        assert_eq!(model.steer(flow, 0, 0), Verdict::Kernel(Reason::Lease));
        assert_eq!(model.counters().released, u64::from(!delivered));
        // It goes on when somebody looks after it.
        model.renew();
        (model.count(2, 0).taken..model.count(2, 0).sent).for_each(|_| model.taken(2, 0));
        model.polled(0, Poll { work: 1, budget: 64, weight: 64 });
        assert_eq!(model.steer(flow, 0, 0), Verdict::Cpu(2));
    }
}
