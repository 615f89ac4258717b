//! Borrowers that write anything into the memory that they share with the lender, at any time: it
//! takes back what a model says is out to them and nothing else, no frame is lent while somebody
//! has it, and at the end none is missing.

#![no_main]

use frames::Accounting;
use lend::fuzzing::Rings;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, steps)) = bytes.split_first() else { return };
    let accounting = if kind & 1 == 0 { Accounting::Counters } else { Accounting::Ledgers };
    let forgiven = if kind & 2 == 0 { 16 } else { u32::MAX };
    let mut rings = Rings::new(accounting, forgiven);
    for step in steps.as_chunks().0 {
        rings.step(*step);
    }
    rings.end();
});
