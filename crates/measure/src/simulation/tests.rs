//! The simulation against what can be counted or computed without it.

use std::collections::HashMap;

use super::*;

/// Without collisions to speak of.
const RECORDS: u32 = 1 << 24;

fn simulation(
    machine: &str,
    threads: u32,
    connections: u32,
    moves: f64,
    in_lane: f64,
) -> Simulation {
    Simulation {
        machine: machine.parse().expect("a machine"),
        threads: Threads { threads, connections, moves, in_lane },
        records: RECORDS,
        queues: 1,
    }
}

/// The share of receives after which a record is written, with `llc_affinity` off and on, if every
/// thread has the same number of connections and none displaces another.
///
/// Each receive of a thread is of one of its k connections by chance, so m receives lie between two
/// of the same one with the probability (1/k)(1 - 1/k)^(m-1). In m steps the chains of lanes and of
/// CPUs lose what they know of where they were by the powers of their second eigenvalues.
fn expected(simulation: &Simulation) -> (f64, f64) {
    let Simulation { machine, threads, .. } = simulation;
    let (cpus, lanes) = (f64::from(machine.cpus()), f64::from(machine.lanes()));
    let (size, p, q) = (f64::from(machine.cpus_of_lane()), threads.moves, threads.in_lane);
    let k = f64::from(threads.connections / threads.threads);
    let mean_power = |eigenvalue: f64| eigenvalue / k / (1.0 - (1.0 - 1.0 / k) * eigenvalue);
    let lane = mean_power(1.0 - p + p * (q - (1.0 - q) / (lanes - 1.0)));
    let cpu = mean_power(1.0 - p - p * q / (size - 1.0));
    let same_lane = 1.0 / lanes + (1.0 - 1.0 / lanes) * lane;
    let same_cpu = 1.0 / cpus + (1.0 / size - 1.0 / cpus) * lane + (1.0 - 1.0 / size) * cpu;
    (1.0 - same_cpu, 1.0 - same_lane)
}

#[test]
fn without_collisions_it_gives_what_the_markov_chain_does() {
    const RECEIVES: u64 = 400_000;
    for (machine, threads, connections, moves, in_lane) in [
        ("2x128/16", 256, 256, 0.1, 0.8),
        ("2x128/16", 256, 1024, 0.1, 0.8),
        ("1x8/4", 16, 160, 0.5, 0.5),
        ("1x8/4", 4, 4, 1.0, 0.0),
        ("4x2/2", 64, 512, 0.02, 0.9),
    ] {
        let simulation = simulation(machine, threads, connections, moves, in_lane);
        let (off, on) = expected(&simulation);
        for (llc_affinity, expected) in [(false, off), (true, on)] {
            let outcome = simulation.run(llc_affinity, 5, RECEIVES).expect("it runs");
            let what = format!("{simulation:?}, {llc_affinity}, {outcome:?}");
            near(outcome.written, RECEIVES, expected, &what);
            // Where a packet went is where the record said, so it misses the lane as often as the
            // thread has left it.
            near(RECEIVES - outcome.in_lane, RECEIVES, on, &what);
        }
    }
}

/// Receives of a thread depend on each other: six times the deviation if they did not.
fn near(count: u64, of: u64, expected: f64, what: &str) {
    let share = count as f64 / of as f64;
    let margin = 6.0 * (expected * (1.0 - expected) / of as f64).sqrt();
    assert!((share - expected).abs() <= margin, "{share}, expected {expected}: {what}");
}

/// Who receives where: what [`Run`] draws, without tables.
fn trace(simulation: &Simulation, seed: u64, receives: u64) -> Vec<(u32, u32)> {
    let mut run = Run::new(simulation, false, seed);
    let all = WARM_UP * u64::from(simulation.threads.connections) + receives;
    let draw = |_| {
        let Simulation { machine, threads, .. } = simulation;
        let connection = run.rng.random_range(0..threads.connections);
        let place = &mut run.places[(connection % threads.threads) as usize];
        *place = threads.moved(machine, *place, &mut run.rng);
        (connection, *place)
    };
    (0..all).map(draw).collect()
}

#[test]
fn it_counts_what_a_table_without_a_size_would() {
    const RECEIVES: u64 = 50_000;
    let simulation = simulation("2x8/4", 30, 100, 0.3, 0.6);
    for llc_affinity in [false, true] {
        let outcome = simulation.run(llc_affinity, 9, RECEIVES).expect("it runs");
        let mut records = HashMap::new();
        let mut counted = Outcome { receives: RECEIVES, ..Outcome::default() };
        let trace = trace(&simulation, 9, RECEIVES);
        for (at, (connection, cpu)) in (0_u64..).zip(trace) {
            let counts = u64::from(at >= WARM_UP * 100);
            let lane = |cpu: u32| cpu / 4;
            let recorded: u32 = *records.entry(connection).or_insert(cpu);
            counted.in_lane += counts * u64::from(lane(recorded) == lane(cpu));
            if recorded == cpu {
                continue;
            }
            if llc_affinity && lane(recorded) == lane(cpu) {
                counted.filtered += counts;
                continue;
            }
            records.insert(connection, cpu);
            counted.written += counts;
        }
        // A write moves the next packet; those at the two ends of the count may differ.
        assert!(outcome.moves.abs_diff(outcome.written) <= 100, "{outcome:?}");
        assert_eq!(Outcome { moves: 0, ..outcome }, counted, "llc_affinity {llc_affinity}");
    }
}

#[test]
fn flows_of_a_full_set_displace_each_other_whatever_the_knob_is() {
    // As many connections as records.
    let crowded = Simulation { records: 1 << 12, ..simulation("1x8/4", 64, 1 << 12, 0.0, 0.0) };
    let on = crowded.run(true, 3, 200_000).expect("it runs");
    assert_eq!(crowded.run(false, 3, 200_000).expect("it runs"), on, "nobody moves");
    assert_eq!(on.written, on.evicted);
    // Of a set's n connections 8 have a record, whoever makes room, and n - 8 of n receives find
    // none. With n distributed as Poisson's with mean 8, sets weighing as many receives as they
    // have connections, that is the sum of P(n) (n - 8) / 8 over n from 9.
    let poisson = |n: i32| (1..=n).fold((-8.0_f64).exp(), |p, i| p * 8.0 / f64::from(i));
    let expected: f64 = (9..40).map(|n| poisson(n) * f64::from(n - 8) / 8.0).sum();
    let share = on.evicted as f64 / on.receives as f64;
    assert!((share - expected).abs() < 0.02, "{share}, expected {expected}");
}

#[test]
fn a_seed_says_what_comes_out() {
    let simulation = Simulation { queues: 4, ..simulation("2x16/4", 64, 500, 0.2, 0.5) };
    let run = |seed| simulation.run(true, seed, 10_000).expect("it runs");
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn threads_move_only_where_they_may() {
    for (machine, in_lane) in [("2x8/4", 1.0), ("2x8/4", 0.0), ("1x8/8", 0.0), ("4x1/1", 1.0)] {
        let machine: Machine = machine.parse().expect("a machine");
        let threads = Threads { threads: 1, connections: 1, moves: 1.0, in_lane };
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let to = threads.moved(&machine, 2, &mut rng);
            assert!(to < machine.cpus(), "{machine}: {to}");
            let same = machine.lane_of(to) == machine.lane_of(2);
            assert_eq!(same, in_lane == 1.0 || machine.lanes() == 1, "{machine}: {to}");
            seen.insert(to);
        }
        let size = machine.cpus_of_lane() as usize;
        let stays = in_lane == 1.0 || machine.lanes() == 1;
        let possible = match stays {
            true => (size - 1).max(1),
            false => machine.cpus() as usize - size,
        };
        assert_eq!(seen.len(), possible, "{machine}, {in_lane}");
    }
}

#[test]
fn moves_inside_the_lane_are_the_share_of_its_scheduling_domain() {
    for (machine, expected) in [
        ("2x128/16", (1.0 / 16.0) / (1.0 / 16.0 + 1.0 / 128.0 + 1.0 / 256.0)),
        ("1x128/16", (1.0 / 16.0) / (1.0 / 16.0 + 1.0 / 128.0)),
        ("2x64/64", (1.0 / 64.0) / (1.0 / 64.0 + 1.0 / 128.0)),
        ("1x8/8", 1.0),
        ("1x8/1", 0.0),
        ("1x1/1", 1.0),
    ] {
        let machine: Machine = machine.parse().expect("a machine");
        assert!((machine.balanced_in_lane() - expected).abs() < 1e-12, "{machine}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_was_expected() {
    for (machine, expected) in [
        ("2x128", "expected SOCKETSxCPUS/LANE"),
        ("2x128/16/4", "expected SOCKETSxCPUS/LANE"),
        ("x8/4", "expected SOCKETSxCPUS/LANE"),
        ("-1x8/4", "expected SOCKETSxCPUS/LANE"),
        ("2x10/4", "machine 2x10/4: 10 CPUs of a socket do not divide into lanes of 4"),
        ("2x4/8", "do not divide into lanes of 8"),
        ("0x8/4", "expected at least 1 of each"),
        ("2x8/0", "expected at least 1 of each"),
        ("9x128/16", "expected at most 1024 CPUs"),
        ("4294967295x2/1", "expected at most 1024 CPUs"),
    ] {
        let error = machine.parse::<Machine>().expect_err(machine).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let good = simulation("1x8/4", 8, 8, 0.1, 0.5);
    let threads = good.threads;
    let with = |threads| Simulation { threads, ..good.clone() };
    for (simulation, expected) in [
        (Simulation { records: 1000, ..good.clone() }, "1000 records: expected a power of two"),
        (Simulation { records: 128, ..good.clone() }, "128 records"),
        (Simulation { queues: 0, ..good.clone() }, "0 queues: expected 1 to 8"),
        (Simulation { queues: 9, ..good.clone() }, "9 queues: expected 1 to 8"),
        (with(Threads { threads: 0, ..threads }), "0 threads"),
        (with(Threads { connections: 7, ..threads }), "one for each of 8 threads"),
        (with(Threads { moves: 1.5, ..threads }), "moves 1.5: expected 0 to 1"),
        (with(Threads { in_lane: f64::NAN, ..threads }), "in_lane NaN: expected 0 to 1"),
    ] {
        let error = simulation.run(true, 1, 1).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    good.check().expect("it can be");
}
