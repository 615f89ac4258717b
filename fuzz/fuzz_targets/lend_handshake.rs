//! Any bytes as the first message of a borrower are refused with a reason, or get terms that the
//! lender can keep.

#![no_main]

use lend::fuzzing::handshake;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| handshake(bytes));
