//! Every byte arrives, in order, or the reader sees that something is missing.
//!
//! Many connections at once, both directions busy, pieces of all sizes, pauses, half-closes;
//! then the same with ends that die at random moments. A stream's bytes follow from its seed and
//! the offset, so each read is checked where it lands. What a reader may see is: every byte and a
//! clean end, if its writer ended well; any prefix and an error; nothing else, and nothing never.
//!
//! `RELAY_INTEGRITY_GB` sets how much is sent (default 2, over all tests of this file), and
//! `RELAY_INTEGRITY_SEED` repeats a run whose seed was printed.

mod common;
#[allow(unreachable_pub)]
mod endpoint;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cachelane_relay::Engine;
use common::pattern::Rng;
use common::{Pair, Rig, may_use};
use endpoint::{Endpoint, Plan, judge, seed};

/// Connections at a time.
const CROWD: usize = 6;

/// The sum of what the tests here send by default.
const DEFAULT_GB: f64 = 2.0;

fn gigabytes(share: f64) -> u64 {
    let gb = std::env::var("RELAY_INTEGRITY_GB").map_or(DEFAULT_GB, |v| v.parse().unwrap());
    (gb * share * 1e9) as u64
}

/// What one test sends and how.
#[derive(Clone, Copy)]
struct Load {
    engine: Engine,
    /// Change the engine for new connections all the time.
    flips: bool,
    /// Ends die at random moments.
    kills: bool,
    budget: usize,
    bytes: u64,
}

const LOAD: Load =
    Load { engine: Engine::Copy, flips: false, kills: false, budget: 1 << 20, bytes: 0 };

fn all_of_every_stream_arrives(engine: Engine) {
    run(Load { engine, bytes: gigabytes(0.18), ..LOAD });
    run(Load { engine, bytes: gigabytes(0.18), budget: 8 << 20, ..LOAD });
}

fn no_stream_ends_well_that_is_not_whole(engine: Engine) {
    run(Load { engine, bytes: gigabytes(0.06), kills: true, ..LOAD });
}

on_every_engine! { all_of_every_stream_arrives, no_stream_ends_well_that_is_not_whole, }

#[test]
fn streams_are_whole_while_engines_are_flipped() {
    run(Load { flips: true, bytes: gigabytes(0.16), ..LOAD });
    run(Load { flips: true, kills: true, bytes: gigabytes(0.16), ..LOAD });
}

#[test]
#[ignore = "slow: sends tens of gigabytes"]
fn everything_at_length() {
    let total = gigabytes(10.0);
    for engine in Engine::ALL.into_iter().filter(|&e| may_use(e, "everything_at_length")) {
        run(Load { engine, bytes: total / 8, budget: 8 << 20, ..LOAD });
        run(Load { engine, bytes: total / 16, kills: true, ..LOAD });
    }
    run(Load { flips: true, bytes: total / 8, ..LOAD });
    run(Load { flips: true, kills: true, bytes: total / 8, budget: 8 << 20, ..LOAD });
}

/// Sends `load.bytes` over connections of all kinds, and checks every one.
fn run(load: Load) {
    let seed = seed();
    let rig = Rig::with(load.engine, |config| config.budget = load.budget);
    let sent = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    // The ends of a connection find each other because only one is opened at a time.
    let opening = Mutex::new(0u64);
    std::thread::scope(|scope| {
        if load.flips {
            scope.spawn(|| flip(&rig, &done, seed));
        }
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                scope.spawn(|| {
                    while sent.load(Relaxed) < load.bytes {
                        let (number, pair) = {
                            let mut opening = opening.lock().unwrap();
                            *opening += 1;
                            (*opening, rig.pair())
                        };
                        let bytes = converse(&rig, load, seed, number, pair);
                        sent.fetch_add(bytes, Relaxed);
                    }
                })
            })
            .collect();
        let fine = crowd.into_iter().map(|t| t.join()).all(|r| r.is_ok());
        done.store(true, Relaxed);
        assert!(fine, "seed {seed}");
    });
    rig.await_empty();
    let stats = rig.relay.stats();
    println!("seed {seed}: {stats:?}");
    if load.engine == Engine::Sockmap {
        assert!(stats.bytes_redirected > 0, "the engine was never used: {stats:?}");
    }
    if !load.kills {
        assert_eq!(stats.reset, 0, "seed {seed}: {stats:?}");
    }
}

/// Sets one engine after another until the others are done.
fn flip(rig: &Rig, done: &AtomicBool, seed: u64) {
    let mut rng = Rng::new(seed);
    let root = rustix::process::geteuid().is_root();
    let engines: Vec<_> =
        Engine::ALL.into_iter().filter(|&e| root || e != Engine::Sockmap).collect();
    while !done.load(Relaxed) {
        rig.relay.set_engine(engines[rng.below(engines.len() as u64) as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// One connection from beginning to end. Returns the bytes that arrived.
fn converse(rig: &Rig, load: Load, seed: u64, number: u64, pair: Pair) -> u64 {
    let mut rng = Rng::new(seed ^ number << 32);
    let plans = [Plan::new(&mut rng, load.kills), Plan::new(&mut rng, load.kills)];
    let (up, down) = (rng.next(), rng.next());
    let [client_plan, backend_plan] = plans;
    let name = |end: &str| format!("seed {seed}, connection {number}, {end}");
    let stats = || format!("{:?}", rig.relay.stats());
    let (client, backend) = std::thread::scope(|scope| {
        let backend = Endpoint::new(pair.backend, name("backend"), backend_plan, down, up);
        let backend = scope.spawn(|| backend.run(&stats));
        let client = Endpoint::new(pair.client, name("client"), client_plan, up, down);
        (client.run(&stats), backend.join().unwrap_or_else(|_| panic!("seed {seed}")))
    });
    let may_reset = plans.iter().any(Plan::dies);
    judge(&client, &backend, may_reset, &name("client to backend"));
    judge(&backend, &client, may_reset, &name("backend to client"));
    client.received + backend.received
}
