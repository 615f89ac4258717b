//! What the exactness tests share: each scenario runs twice, in networks of its own, once with
//! the Linux bridge alone and once with the fast path, and must look the same from outside.

// Each test file uses a part of this.
#![allow(dead_code, unreachable_pub)]

use std::panic;
use std::sync::OnceLock;
use std::thread;

use lab::testing::{br_netfilter, root};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub mod frame;
pub mod net;
pub mod netlink;
pub mod outcome;
pub mod programs;
pub mod record;
pub mod traffic;
pub mod vlans;

#[allow(unused_imports)] // as above
pub use net::{Arm, Net, Reason, Setup};
use outcome::Starved;
use record::Record;

/// How often a scenario is tried on a machine that is too busy for it.
const TRIES: usize = 5;

/// The CPUs that the tests may use.
static CPUS: OnceLock<CpuSet> = OnceLock::new();

/// Lets the calling thread run on every CPU that the tests may use.
pub fn run_anywhere() {
    if let Some(cpus) = CPUS.get() {
        sched_setaffinity(None, cpus).unwrap();
    }
}

/// Runs a script in both arms and compares what was seen, step by step.
pub fn compare(test: &str, setup: &Setup, script: impl Fn(&mut Net) + Sync) {
    if !root(test) || setup.netfilter && !br_netfilter(test) {
        return;
    }
    CPUS.get_or_init(|| sched_getaffinity(None).unwrap());
    let run_both = || {
        thread::scope(|scope| {
            let script = &script;
            let arms =
                [Arm::Kernel, Arm::Fast].map(|arm| scope.spawn(move || run(arm, setup, script)));
            arms.map(|arm| arm.join())
        })
    };
    let mut tries = 1;
    let [kernel, fast] = loop {
        let runs = run_both();
        let starved = runs.iter().find_map(|run| run.as_ref().err()?.downcast_ref::<Starved>());
        match starved {
            Some(Starved(what)) if tries < TRIES => {
                eprintln!("{test}: the machine was too busy, and it is tried again: {what}");
                tries += 1;
            }
            Some(Starved(what)) => panic!("{test}: too busy {TRIES} times in a row: {what}"),
            None => break runs.map(|run| run.unwrap_or_else(|why| panic::resume_unwind(why))),
        }
    };
    assert!(!kernel.steps.is_empty(), "a scenario without steps");
    if let Some(difference) = kernel.difference("the kernel alone", &fast, "the fast path") {
        panic!("{test}: {difference}");
    }
}

/// Runs a script with the fast path alone, for what has no counterpart in the kernel.
pub fn with_fast_path(test: &str, setup: &Setup, script: impl FnOnce(&mut Net) + Send) {
    if root(test) {
        thread::scope(|scope| {
            let arm = scope.spawn(|| script(&mut Net::new(Arm::Fast, "bridge", setup)));
            arm.join().unwrap_or_else(|payload| panic::resume_unwind(payload));
        });
    }
}

/// Runs a script in one arm. All that it starts stays on one CPU: so the packets of a step pass
/// through one queue, in the order in which they were sent, and [`Net::step`] can tell when all
/// have passed.
fn run(arm: Arm, setup: &Setup, script: &(impl Fn(&mut Net) + Sync)) -> Record {
    let all = CPUS.get().expect("set by the caller");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(cpus[arm as usize % cpus.len()]);
    sched_setaffinity(None, &one).unwrap();
    let mut net = Net::new(arm, "bridge", setup);
    script(&mut net);
    net.into_record()
}
