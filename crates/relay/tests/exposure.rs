//! Which share of the work runs under the knobs' present values: what a trial of them goes by.

mod common;

use std::cell::Cell;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cachelane_relay::{Engine, Relay, Stats, register};
use common::*;
use knobs::{Exposure, KnobInfo, Registry};
use lanes::{CpuSet, LaneMap};
use rustix::thread::Pid;

/// Bytes that each connection sends to be counted: more than a request, less than bulk.
const AMOUNT: usize = 300_000;

on_every_engine! {
    connections_count_under_their_own_engine_alone,
    what_flows_without_a_pause_counts_while_it_flows,
}

fn connections_count_under_their_own_engine_alone(engine: Engine) {
    let differ = |other| match (engine, other) {
        // These two copy alike until a flow is bulk, which is a matter of time.
        (Engine::Copy, Engine::Auto) | (Engine::Auto, Engine::Copy) => false,
        _ => engine != other && may_use(other, "engines in turn"),
    };
    for other in Engine::ALL.into_iter().filter(|other| differ(*other)) {
        let meter = Meter::new(Rig::new(engine));
        let old = [meter.pair(Warmth::Up)];
        assert_eq!(meter.engine(&old), 1.0, "{engine}");
        meter.rig.relay.set_engine(other).unwrap();
        assert_eq!(meter.engine(&old), 0.0, "{engine}, then {other}");
        let new = [meter.pair(Warmth::Up)];
        assert_eq!(meter.engine(&new), 1.0, "{engine}, then {other}");
        let [old, new] = [old, new].map(|[pair]| pair);
        let both = [old, new];
        assert_eq!(meter.engine(&both), 0.5, "{engine}, then {other}");
        meter.rig.relay.set_engine(engine).unwrap();
        assert_eq!(meter.engine(&both[..1]), 1.0, "{engine} again, after {other}");
        assert_eq!(meter.engine(&both[1..]), 0.0, "{engine} again, after {other}");
    }
}

fn what_flows_without_a_pause_counts_while_it_flows(engine: Engine) {
    // So much that one turn which began before the knob was set is a small part of it.
    const LONG: u64 = 64 << 20;
    let other = if engine == Engine::Splice { Engine::Copy } else { Engine::Splice };
    let rig = Rig::new(engine);
    let pair = rig.warm_pair(Warmth::Up);
    let relay = &rig.relay;
    let share = || {
        let before = relay.stats();
        await_that("bytes flow", || relay.stats().bytes - before.bytes >= LONG);
        growths(&before, &relay.stats())[0]
    };
    flowing(&pair, || {
        let first = share();
        assert!(first > 0.8, "{first}");
        relay.set_engine(other).unwrap();
        let second = share();
        assert!(second < 0.2, "{second}");
        relay.set_engine(engine).unwrap();
        let third = share();
        assert!(third > 0.8, "{third}");
    });
}

#[test]
fn what_all_but_splice_copy_counts_under_all_but_splice() {
    for engine in [Engine::Copy, Engine::Auto] {
        let meter = Meter::new(Rig::new(engine));
        let pair = meter.pair(Warmth::Cold);
        for (other, expected) in [(Engine::Copy, 1.0), (Engine::Splice, 0.0), (Engine::Auto, 1.0)] {
            meter.rig.relay.set_engine(other).unwrap();
            let [share, _] = meter.shares(16, || converse(&pair));
            assert_eq!(share, expected, "{engine}, then {other}");
        }
    }
}

#[test]
fn connections_count_where_the_cpus_in_force_have_them() {
    let cpus = own_cpus();
    let [first, second] = match cpus[..] {
        [first, second, ..] => [first, second],
        _ => {
            eprintln!(
                "skipped: connections_count_where_the_cpus_in_force_have_them: needs two CPUs"
            );
            return;
        }
    };
    let meter = Meter::new(Rig::with(Engine::Copy, |config| config.cpus = set(&[first])));
    let two = || [meter.pair(Warmth::Cold), meter.pair(Warmth::Cold)];
    let run_on = |cpus: &[usize]| meter.rig.relay.set_cpus(&set(cpus)).unwrap();
    let old = two();
    assert_eq!(meter.cpus(&old), 1.0);
    run_on(&[second]);
    assert_eq!(meter.cpus(&old), 1.0, "they move with their worker");
    run_on(&[first, second]);
    assert_eq!(meter.cpus(&old), 0.0, "they stay with the one worker that there was");
    let new = two();
    assert_eq!(meter.cpus(&new), 1.0);
    run_on(&[first]);
    assert_eq!([meter.cpus(&old), meter.cpus(&new)], [1.0, 1.0]);
    run_on(&[second, first]);
    assert_eq!([meter.cpus(&old), meter.cpus(&new)], [0.0, 1.0]);

    // As when a CPU goes offline, or is taken from the process.
    run_on(&[first]);
    for thread in meter.rig.relay.worker_threads() {
        lanes::pin_thread(Pid::from_raw(thread as i32).unwrap(), second).unwrap();
    }
    assert_eq!([meter.cpus(&old), meter.cpus(&new)], [0.0, 0.0]);
    run_on(&[first]);
    assert_eq!([meter.cpus(&old), meter.cpus(&new)], [1.0, 1.0]);
}

#[test]
fn knobs_name_the_counters_that_tell_their_exposure() {
    let (listener, addr) = backend();
    let relay = Arc::new(Relay::start(config(Engine::Copy, &[addr])).unwrap());
    let registry = Registry::new("relay");
    register(&relay, LaneMap::detect().unwrap(), &registry).unwrap();
    let open = || Pair { client: connect(relay.addrs()[0]), backend: accept(&listener) };
    let old = open();
    let mut counted = 0;
    let mut share = |knob: &str, pair: &Pair| {
        let Exposure { under, of } = exposure(&registry, knob);
        let before = [&under, &of].map(|name| reading(&registry, name));
        assert_eq!(before[1], counted);
        converse(pair);
        counted += 16;
        await_that("all is counted", || reading(&registry, &of) == counted);
        reading(&registry, &under) - before[0]
    };
    for knob in ["relay.engine", "relay.cpus"] {
        assert_eq!(share(knob, &old), 16, "{knob}");
    }
    registry.set("relay.engine", "splice").unwrap();
    assert_eq!(share("relay.engine", &old), 0);
    assert_eq!(share("relay.cpus", &old), 16);
    assert_eq!(share("relay.engine", &open()), 16);
}

fn exposure(registry: &Registry, knob: &str) -> Exposure {
    let is_it = |info: &KnobInfo| info.name == knob;
    registry.list().into_iter().find(is_it).and_then(|info| info.exposure).expect(knob)
}

fn reading(registry: &Registry, name: &str) -> u64 {
    let reading = registry.readings().into_iter().find(|reading| reading.name == name);
    *reading.expect(name).value.value().expect(name)
}

fn set(cpus: &[usize]) -> CpuSet {
    cpus.iter().copied().collect()
}

/// Runs `during` while one end sends to the other without a pause.
fn flowing(pair: &Pair, during: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = vec![7; 256 << 10];
            while !over.load(Relaxed) {
                send_all(&pair.client, &bytes);
            }
            pair.client.shutdown(std::net::Shutdown::Write).unwrap();
        });
        scope.spawn(|| std::io::copy(&mut &pair.backend, &mut std::io::sink()).unwrap());
        // Also if it panics, or the threads would go on for ever.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        over.store(true, Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// The shares of the work between two readings that ran under each knob's present value:
/// `relay.engine`'s and `relay.cpus`'s.
fn growths(before: &Stats, after: &Stats) -> [f64; 2] {
    let growths = [
        after.bytes_under_engine - before.bytes_under_engine,
        after.bytes_under_cpus - before.bytes_under_cpus,
    ];
    growths.map(|under| under as f64 / (after.bytes - before.bytes) as f64)
}

/// A relay, and how many bytes it has been given: all are counted before the next ones are.
struct Meter {
    rig: Rig,
    given: Cell<u64>,
}

impl Meter {
    fn new(rig: Rig) -> Meter {
        Meter { rig, given: Cell::new(0) }
    }

    fn pair(&self, warmth: Warmth) -> Pair {
        let pair = self.rig.warm_pair(warmth);
        let bulk = if warmth == Warmth::Cold { 0 } else { BULK };
        self.given.set(self.given.get() + bulk as u64);
        pair
    }

    /// The share of what these send now that runs under the engine's present value.
    fn engine(&self, pairs: &[Pair]) -> f64 {
        self.shares((pairs.len() * AMOUNT) as u64, || send_each(pairs))[0]
    }

    /// The same of the CPUs.
    fn cpus(&self, pairs: &[Pair]) -> f64 {
        self.shares((pairs.len() * AMOUNT) as u64, || send_each(pairs))[1]
    }

    /// The [`growths`] while `work` gives the relay so many `bytes`.
    fn shares(&self, bytes: u64, work: impl FnOnce()) -> [f64; 2] {
        let before = self.counted();
        work();
        self.given.set(self.given.get() + bytes);
        growths(&before, &self.counted())
    }

    fn counted(&self) -> Stats {
        await_that("all is counted", || self.rig.relay.stats().bytes >= self.given.get());
        let stats = self.rig.relay.stats();
        assert_eq!(stats.bytes, self.given.get());
        assert_eq!(stats.bytes, stats.bytes_up + stats.bytes_down);
        stats
    }
}

fn send_each(pairs: &[Pair]) {
    let bytes = vec![7; AMOUNT];
    let send = |mut to: &TcpStream| to.write_all(&bytes).unwrap();
    for Pair { client, backend } in pairs {
        std::thread::scope(|scope| {
            scope.spawn(|| send(client));
            assert!(receive(backend, AMOUNT) == bytes);
        });
    }
}
