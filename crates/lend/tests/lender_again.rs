//! Whoever joins right after another has left, or was killed, gets what that one had.

#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cachelane_lend::LenderOptions;
use cachelane_lend::layout::Status;
use common::part::{Part, playing, ready_for_ever};
use common::*;
use zerocopy::IntoBytes as _;

const USER: u32 = 65_533;

/// Not a test: what the processes do that the others start.
#[test]
fn play_a_part() {
    let Some((part, socket)) = playing() else { return };
    if part.starts_with("user") {
        // SAFETY: it takes a number; the C library changes all threads.
        assert_eq!(unsafe { libc::setuid(USER) }, 0);
    }
    if part.ends_with("again and again") {
        join_again_and_again(&socket, 20);
    }
    std::mem::forget(join(&socket, "part"));
    ready_for_ever()
}

fn join_again_and_again(socket: &std::path::Path, rounds: u32) {
    (0..rounds).for_each(|round| drop(join(socket, &format!("round {round}"))));
}

/// Joins. Where the threads of the test have no CPU for long, nobody can say that another has ended:
/// whoever has waited for that for a second is told so, and comes again.
fn join(socket: &std::path::Path, name: &str) -> RawBorrower {
    for _ in 0..20 {
        let start = Instant::now();
        let refusal = match RawBorrower::pending(socket, &hello(name, 0, false)) {
            Ok(borrower) if borrower.say_mapped() => return borrower,
            // It had ten seconds to map what it got.
            Ok(_) => {
                assert!(start.elapsed() >= Duration::from_secs(10), "{name} was not taken in");
                continue;
            }
            Err(refusal) => refusal,
        };
        let (said, waited) = (reason(&refusal), start.elapsed());
        let is_later = refusal.status == Status::Busy as u16 && said.ends_with("that left: later");
        assert!(is_later && waited >= Duration::from_secs(1), "{name}, after {waited:?}: {said}");
    }
    panic!("{name} was told to come later for ever")
}

/// One test at a time: a process that another one starts has what we have open, until it runs its
/// program, and so a borrower's socket is open although the borrower has closed it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lender whose one borrower has all that there is to lend.
fn full(set: impl FnOnce(&mut LenderOptions)) -> Rig {
    Rig::new(64, 2, |options| {
        options.quota = 32;
        set(options);
    })
}

/// Has the distributors looked into, and packets lent, while another thread does this.
fn beside(rig: &mut Rig, run: impl FnOnce(&std::path::Path) + Send) {
    let socket = rig.socket.clone();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (over, socket) = (&over, &socket);
        let thread = scope.spawn(move || {
            struct Over<'a>(&'a AtomicBool);
            impl Drop for Over<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            // Also when it panics.
            let _over = Over(over);
            run(socket);
        });
        while !over.load(Ordering::Relaxed) {
            rig.collect();
            rig.lend(0, 0..1);
            std::thread::yield_now();
        }
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn whoever_joins_after_another_has_left_gets_the_loans_that_one_had() {
    let _alone = alone();
    let mut rig = full(|_| {});
    beside(&mut rig, |socket| join_again_and_again(socket, 60));
    assert_eq!((rig.lender.refusals().quota, rig.lender.refusals().full), (0, 0));
    rig.close_empty();
}

#[test]
fn whoever_joins_after_another_hung_up_before_it_had_mapped_gets_what_was_made_for_that_one() {
    let _alone = alone();
    let mut rig = full(|_| {});
    beside(&mut rig, |socket| {
        for _ in 0..20 {
            drop(RawBorrower::pending(socket, &hello("pending", 0, false)).map_err(|e| reason(&e)));
            join_again_and_again(socket, 1);
        }
    });
    assert_eq!(rig.lender.refusals().quota, 0);
    rig.close_empty();
}

#[test]
fn whoever_joins_after_another_was_killed_gets_the_loans_that_one_had() {
    let _alone = alone();
    let mut rig = full(|_| {});
    beside(&mut rig, |socket| {
        for _ in 0..3 {
            drop(Part::play("is killed", socket));
            join_again_and_again(socket, 1);
        }
    });
    assert_eq!((rig.lender.refusals().quota, rig.lender.refusals().full), (0, 0));
    rig.close_empty();
}

#[test]
fn root_a_user_whose_borrower_left_or_was_killed_has_its_share_again() {
    if !lab::testing::root("root_a_user_whose_borrower_left") {
        return;
    }
    let _alone = alone();
    for private in [false, true] {
        let mut rig = full(|options| {
            (options.mode, options.user_share, options.private) = (0o666, 100, private);
        });
        let dir = rig.socket.parent().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir, mode).unwrap();
        beside(&mut rig, |socket| {
            for _ in 0..3 {
                drop(Part::play("user: again and again", socket));
            }
        });
        assert_eq!((rig.lender.refusals().quota, rig.lender.refusals().full), (0, 0));
        rig.close_empty();
    }
}

#[test]
fn while_what_another_had_is_not_free_nobody_but_who_needs_it_waits_and_is_told_in_the_end() {
    let _alone = alone();
    let mut rig = Rig::new(64, 1, |options| options.quota = 60);
    let first = rig.connect("first", 60);
    rig.collect();
    drop(first);
    // Nobody looks into the distributor, which has to say that it is gone.
    let second = dial(&rig.socket).unwrap();
    say(&second, hello("second", 60, false).as_bytes()).unwrap();
    drop(rig.connect("small", 1));
    let most = rig.refusal(&hello("greedy", 60, true));
    let (welcome, _) = answer(&second).unwrap().expect("an answer");
    for refused in [&welcome, &*most] {
        assert_eq!(refused.status, Status::Busy as u16, "{}", reason(refused));
        assert!(reason(refused).starts_with("what was asked for is still with "));
        assert!(reason(refused).ends_with(" that left: later"));
    }
    // It comes while somebody waits.
    beside(&mut rig, |socket| drop(join(socket, "third")));
    rig.close_empty();
}

#[test]
fn whoever_waits_when_the_lender_ends_is_told_so() {
    let _alone = alone();
    let ends = || {
        let mut rig = Rig::new(64, 1, |options| options.quota = 60);
        let first = rig.connect("first", 60);
        rig.collect();
        drop(first);
        let (second, start) = (dial(&rig.socket).unwrap(), Instant::now());
        say(&second, hello("second", 60, false).as_bytes()).unwrap();
        // It is in the row when somebody who came later has joined.
        drop(rig.connect("small", 1));
        rig.close();
        (answer(&second).unwrap().expect("an answer").0, start.elapsed())
    };
    // Nobody waits for longer than a second, which a machine without a CPU for us may take.
    let in_time = (0..20).map(|_| ends()).find(|(_, took)| *took < Duration::from_secs(1));
    let (welcome, _) = in_time.expect("one in twenty is in time");
    assert_eq!(welcome.status, Status::Closing as u16, "{}", reason(&welcome));
}

#[test]
fn others_who_join_and_leave_all_the_time_keep_nobody_out() {
    let _alone = alone();
    let mut rig = Rig::new(64, 2, |options| options.quota = 16);
    let over = AtomicBool::new(false);
    beside(&mut rig, |socket| {
        std::thread::scope(|scope| {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // It may be refused; that is its business.
                    let joined = RawBorrower::pending(socket, &hello("restless", 0, false));
                    let _ = joined.map(|borrower| borrower.say_mapped());
                }
            });
            let joined = std::panic::catch_unwind(|| join_again_and_again(socket, 60));
            over.store(true, Ordering::Relaxed);
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
    rig.close_empty();
}
