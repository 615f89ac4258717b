//! Packets of a flow arrive in order, whatever its consumer, the knob, the CPUs and the queues do;
//! and without what keeps them in order they do not, so that these tests can fail.
//!
//! Each scenario runs for more than a second and until enough flows have moved. For ten minutes, or
//! `CACHELANE_ORDER_SECONDS`, the slow test gives all of them their turns.

mod tcp;
mod udp;
mod world;

use std::time::{Duration, Instant};

use cachelane_steer::Counters;
use parking_lot::Mutex;
use world::{Meanwhile, PLAIN, Scenario, World};

/// How long each scenario runs at least.
const SHORT: Duration = Duration::from_millis(1300);
/// How long anything may take before it is called stuck.
const PATIENCE: Duration = Duration::from_secs(40);
/// Flows' moves without which a run shows nothing.
const MOVES: u64 = 100;
/// A shorter queue is full at once.
const SHORT_QUEUE: u32 = 64;

const V6: Scenario = Scenario { v6: true, ..PLAIN };
/// Flows take the kernel path while their consumer is on another CPU than the one target, which
/// holds its packets in GRO until the poll is over.
const ONE_TARGET: Scenario = Scenario { one_target: true, gro: true, ..PLAIN };
const TWO_QUEUES: Scenario = Scenario { queues: 2, flows: 16, gro: true, ..PLAIN };
const FLIPS: Scenario = Scenario { one_lane: true, meanwhile: Meanwhile::Flip, ..PLAIN };
/// Few packets: what keeps up a backlog for a tenth of a second may be overtaken here.
const COME_AND_GO: Scenario =
    Scenario { pause: Duration::from_millis(2), meanwhile: Meanwhile::Follow, ..PLAIN };
/// More than the CPUs can take: whole queues are lost.
const FLOOD: Scenario = Scenario { pause: Duration::from_micros(20), queue_size: 128, ..PLAIN };
const TINY_QUEUE: Scenario = Scenario { queue_size: 8, ..FLOOD };
const TINIEST_QUEUES: Scenario = Scenario { queue_size: 1, queues: 2, flows: 16, ..FLOOD };
/// More flows than there is room for, which displace each other.
const CROWD: Scenario = Scenario { flows: 200, records: 256, ..PLAIN };
const TCP: Scenario = Scenario { tcp: true, gro: true, ..PLAIN };
const TCP_V6: Scenario = Scenario { v6: true, ..TCP };
const TCP_ONE_TARGET: Scenario = Scenario { one_target: true, ..TCP };

const ALL: [(&str, Scenario); 13] = [
    ("IPv4", PLAIN),
    ("IPv6", V6),
    ("one target", ONE_TARGET),
    ("two queues", TWO_QUEUES),
    ("the knob flips", FLIPS),
    ("CPUs come and go", COME_AND_GO),
    ("a flood", FLOOD),
    ("a queue of 8", TINY_QUEUE),
    ("queues of 1", TINIEST_QUEUES),
    ("a crowd", CROWD),
    ("TCP, GRO", TCP),
    ("TCP, GRO, IPv6", TCP_V6),
    ("TCP, GRO, one target", TCP_ONE_TARGET),
];

/// What a consumer saw.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Datagrams, or reads of a stream.
    received: u64,
    /// Of them, those that came after one that was sent later.
    overtaken: u64,
    /// Times that the consumer went to another CPU.
    hops: u64,
}

macro_rules! in_order {
    ($($name:ident: $scenario:expr;)*) => {$(
        #[test]
        fn $name() {
            alone(stringify!($name), || stays_in_order(stringify!($name), &$scenario, SHORT, |_| true));
        }
    )*};
}

in_order! {
    root_packets_stay_in_order_while_their_consumer_hops: PLAIN;
    root_ipv6_packets_stay_in_order_while_their_consumer_hops: V6;
    root_packets_stay_in_order_between_the_kernel_path_and_a_cpu: ONE_TARGET;
    root_packets_stay_in_order_with_several_queues: TWO_QUEUES;
    root_packets_stay_in_order_while_the_knob_flips: FLIPS;
    root_packets_stay_in_order_while_cpus_come_and_go: COME_AND_GO;
    root_packets_of_flows_that_displace_each_other_stay_in_order: CROWD;
    root_segments_stay_in_order_through_gro: TCP;
    root_ipv6_segments_stay_in_order_through_gro: TCP_V6;
    root_segments_stay_in_order_between_the_kernel_path_and_a_cpu: TCP_ONE_TARGET;
}

#[test]
fn root_packets_that_a_full_queue_loses_keep_no_flow_where_it_is() {
    let name = "root_packets_that_a_full_queue_loses_keep_no_flow_where_it_is";
    alone(name, || {
        for scenario in [FLOOD, TINY_QUEUE, TINIEST_QUEUES] {
            // Moves are counted from when the first packets have been lost. A sender that waits for
            // a CPU itself may never fill the longest queue.
            let started = Instant::now();
            let may_fill = || scenario.queue_size < SHORT_QUEUE || started.elapsed() < PATIENCE / 4;
            let lossy = |world: &World| world.counters().overflows >= 100 || !may_fill();
            stays_in_order(name, &scenario, SHORT, lossy);
        }
    });
}

#[test]
fn root_without_the_guarantee_packets_overtake_each_other() {
    alone("root_without_the_guarantee_packets_overtake_each_other", || {
        for scenario in [PLAIN, V6, TCP] {
            overtakes(&Scenario { keep_order: false, ..scenario });
        }
    });
}

#[test]
#[ignore = "ten minutes, or CACHELANE_ORDER_SECONDS"]
fn root_packets_stay_in_order_for_ten_minutes() {
    let name = "root_packets_stay_in_order_for_ten_minutes";
    let seconds = match std::env::var("CACHELANE_ORDER_SECONDS") {
        Ok(value) => value.parse().unwrap_or_else(|_| {
            panic!("CACHELANE_ORDER_SECONDS='{value}': expected a number of seconds")
        }),
        Err(_) => 600,
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    alone(name, || {
        while Instant::now() < end {
            ALL.iter().for_each(|(name, scenario)| {
                stays_in_order(name, scenario, Duration::from_secs(6), |_| true);
            });
        }
    });
}

/// Runs one test at a time: what another one does with the CPUs would slow its moves. Skips it
/// where it cannot run.
fn alone(test: &str, work: impl FnOnce()) {
    static TURN: Mutex<()> = Mutex::new(());
    if !lab::testing::root(test) {
        return;
    }
    if world::cpus().len() < 2 {
        eprintln!("skipped: {test}: needs two CPUs");
        return;
    }
    let _turn = TURN.lock();
    work();
}

/// Runs a scenario, in which nothing is overtaken. A CPU that the machine below takes away for long
/// enough holds its flows no longer, which is counted: then it shows nothing, and is run again.
fn stays_in_order(
    name: &str,
    scenario: &Scenario,
    length: Duration,
    ready: impl Fn(&World) -> bool + Copy,
) {
    const TIMES: u32 = 5;

    for _ in 0..TIMES {
        let (seen, counters) = run(scenario, length, ready);
        let Seen { received, overtaken, hops } = seen;
        eprintln!("{name}: {received} received, {overtaken} overtaken, {hops} hops, {counters:?}");
        assert!(counters.released > 0 || overtaken == 0, "{name}: {scenario:?}: {counters:?}");
        // What one leaves behind is no more than may wait, and is overtaken once.
        let most = counters.released * u64::from(scenario.queue_size);
        assert!(overtaken <= most, "{name}: {scenario:?}: {seen:?} {counters:?}");
        if counters.released == 0 {
            return;
        }
    }
    // So short a queue is full at once, and flows do not wait for a full one that stands still for two
    // ticks, as where the machine below takes a CPU away: each time some may have left it.
    assert!(
        scenario.queue_size < SHORT_QUEUE,
        "{name}: {scenario:?}: each of {TIMES} times a CPU took nothing for too long"
    );
}

/// Runs a scenario for `length` at least and until, once `ready`, enough flows have moved.
fn run(scenario: &Scenario, length: Duration, ready: impl Fn(&World) -> bool) -> (Seen, Counters) {
    let world = World::new(scenario);
    let started = Instant::now();
    let mut moves_before = None;
    let seen = world.exchange(|seen| {
        let moves = world.counters().moves;
        if moves_before.is_none() && ready(&world) {
            moves_before = Some(moves);
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{scenario:?}: it moves too few flows: {seen:?} {:?}",
            world.counters()
        );
        let enough = moves_before.is_some_and(|before| moves - before >= MOVES);
        started.elapsed() >= length && enough
    });
    if seen.overtaken > 0 && scenario.keep_order {
        // What comes after a lost segment is out of order as well: who lost one.
        eprintln!("{}", world.counted_by_the_kernel());
    }
    world.check();
    (seen, world.counters())
}

/// Runs a scenario until packets overtake each other.
fn overtakes(scenario: &Scenario) {
    let world = World::new(scenario);
    let started = Instant::now();
    let seen = world.exchange(|seen| seen.overtaken > 0 || started.elapsed() >= PATIENCE);
    let Seen { received, overtaken, .. } = seen;
    eprintln!("{scenario:?}: {overtaken} of {received} after {:?}", started.elapsed());
    assert!(seen.overtaken > 0, "{scenario:?}: {seen:?} {:?}", world.counters());
}
