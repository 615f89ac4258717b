//! Hostile borrowers without end, against a model: every token that is taken back is one that the
//! model says is out to that borrower, every offence has its reason, and no frame is lent while
//! somebody has it.

use cachelane_lend::fuzzing::Rings;
use frames::Accounting;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Drives all kinds of lenders until there were so many operations.
fn drive(operations: u64) {
    const KINDS: [(Accounting, u32); 4] = [
        (Accounting::Counters, 16),
        (Accounting::Ledgers, 16),
        (Accounting::Counters, u32::MAX),
        (Accounting::Ledgers, u32::MAX),
    ];
    let mut done = [0; 4];
    for ((accounting, forgiven), done) in KINDS.into_iter().zip(&mut done) {
        for seed in 0.. {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut rings = Rings::new(accounting, forgiven);
            for _ in 0..20_000 {
                rings.step(rng.random::<u64>().to_le_bytes());
            }
            *done += rings.operations();
            rings.end();
            if *done >= operations / KINDS.len() as u64 {
                break;
            }
        }
    }
    let all: u64 = done.iter().sum();
    eprintln!("{all} hostile operations: {done:?} of {KINDS:?}");
    assert!(all >= operations);
}

#[test]
fn a_million_hostile_operations_do_what_the_model_says() {
    drive(1_000_000);
}

#[test]
#[ignore = "slow: a minute or more"]
fn a_hundred_million_hostile_operations_do_what_the_model_says() {
    drive(100_000_000);
}
