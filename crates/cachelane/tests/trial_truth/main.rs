//! `cachelane trial` on real mechanisms under real traffic, with knobs whose effect the benches have
//! shown: it says the same, or leaves it open. What it must never say is something else, however busy
//! the machine is.

#[path = "../common/mod.rs"]
mod common;
mod rows;
mod setups;

use common::steer::two_cpus;
use lab::testing::root;
use rows::{ROWS, Row, is_busy};

/// Tries rows, prints what was said of each, and returns how many are right.
fn try_rows<'a>(rows: impl IntoIterator<Item = &'a Row>, blocks: u32) -> usize {
    let (mut right, mut wrong) = (0, Vec::new());
    for row in rows {
        if !row.can_be_seen() {
            continue;
        }
        let said = row.try_it(blocks);
        println!("{}: {said}", row.name);
        right += usize::from(row.is_right(&said));
        if row.is_wrong(&said) || row.is_certain() && !row.is_right(&said) {
            wrong.push(format!("{}: {said}", row.name));
        }
    }
    assert!(wrong.is_empty(), "not the truth: {wrong:#?}");
    right
}

#[test]
fn root_what_shows_on_any_machine_is_found() {
    let test = "root_what_shows_on_any_machine_is_found";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let certain = || ROWS.iter().filter(|row| row.is_certain());
    assert_eq!(try_rows(certain(), 8), certain().count());
}

/// About five minutes. On a machine without other load, most of the ten are found.
#[test]
#[ignore = "long: every mechanism in turn"]
fn root_no_trial_of_a_mechanism_says_what_is_not_so() {
    let test = "root_no_trial_of_a_mechanism_says_what_is_not_so";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let busy = is_busy();
    let right = try_rows(&ROWS, 12);
    let found_in_any_case = ROWS.iter().filter(|row| row.is_certain()).count();
    let least = if busy { found_in_any_case } else { 7 };
    assert!(right >= least, "{right} of {} were found, expected {least} at least", ROWS.len());
}
