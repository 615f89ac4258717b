//! A slow reader does not make the relay hold more than its budget, whatever the sender offers:
//! neither as bytes on their way nor as memory of the host.

mod common;

use std::time::Duration;

use cachelane_relay::Engine;
use common::race::BULK;
use common::*;

/// Long enough for every queue to fill up.
const SHORT: Duration = Duration::from_millis(1500);

on_every_engine! {
    a_slow_reader_costs_no_more_than_the_budget,
    a_slow_reader_of_small_writes_costs_no_more_than_the_budget,
}

fn a_slow_reader_costs_no_more_than_the_budget(engine: Engine) {
    offer(engine, 1 << 20, Warmth::Down, BULK, SHORT);
    offer(engine, 8 << 20, Warmth::Up, BULK, SHORT);
}

/// A packet of one byte takes hundreds of times as much memory.
fn a_slow_reader_of_small_writes_costs_no_more_than_the_budget(engine: Engine) {
    offer(engine, 8 << 20, Warmth::Down, 1, SHORT);
}

#[test]
#[ignore = "slow: a minute for each case"]
fn a_slow_reader_costs_no_more_after_a_minute() {
    let test = "a_slow_reader_costs_no_more_after_a_minute";
    for engine in Engine::ALL.into_iter().filter(|&engine| may_use(engine, test)) {
        for (budget, warmth) in [(1 << 20, Warmth::Up), (8 << 20, Warmth::Down)] {
            offer(engine, budget, warmth, BULK, Duration::from_secs(60));
        }
    }
}

/// Checks what is held while the sender offers all it can, in pieces of `piece` bytes, to a
/// slow reader, for `time`.
fn offer(engine: Engine, budget: usize, warmth: Warmth, piece: usize, time: Duration) {
    let rig = Rig::with(engine, |config| config.budget = budget);
    let name = format!("{engine}, budget {budget}, {warmth:?}, pieces of {piece}");
    let ends = || {
        let Pair { client, backend } = rig.warm_pair(warmth);
        if warmth == Warmth::Up { (client, backend) } else { (backend, client) }
    };
    race::expect_bound(&name, budget, piece, time, ends, &rig.relay);
}
