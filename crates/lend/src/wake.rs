//! When a borrower that sleeps is woken, and by what.
//!
//! # Protocol
//!
//! The borrower's word `asleep` is even while it is awake. Before it sleeps it makes the word odd,
//! looks at all rings once more, and only then sleeps; when it goes on it makes the word even
//! again, a number that it has not had before. The lender publishes what it lends, and looks at
//! the word:
//!
//! - S0, the borrower stores an odd number, then fences, then reads the rings' indices (S1);
//! - L0, the lender stores a ring's index, then fences, then reads the word (L1).
//!
//! Of the two fences one is first in the order of sequential consistency: either S1 sees what L0
//! published, or L1 sees what S0 stored. Without either fence both could miss, and a borrower
//! would sleep on a loan. The lender wakes once for each odd number, so that a borrower that is
//! slow to get up costs one system call.

use crate::sync::{AtomicU32, Ordering, fence};

/// What the lender's side of a channel remembers.
#[derive(Debug, Default)]
pub(crate) struct WakeOnce {
    /// The odd number for which the borrower was last woken; 0 for none.
    woken: u32,
}

impl WakeOnce {
    /// Whether the borrower is to be woken, after its ring's index was stored (L0).
    #[inline]
    pub(crate) fn must_wake(&mut self, asleep: &AtomicU32) -> bool {
        // Between L0 and L1; the partner is that of `Sleeper::lie_down`.
        fence(Ordering::SeqCst);
        // L1. Relaxed: the fence orders it, and it guards no memory.
        let asleep = asleep.load(Ordering::Relaxed);
        if asleep.is_multiple_of(2) || asleep == self.woken {
            return false;
        }
        self.woken = asleep;
        true
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    /// What its word is while it is awake.
    awake: u32,
}

impl Sleeper {
    /// Says that the borrower is about to sleep. After this it looks at its rings once more.
    pub(crate) fn lie_down(&mut self, asleep: &AtomicU32) {
        // S0. Relaxed: the fence orders it.
        asleep.store(self.awake.wrapping_add(1), Ordering::Relaxed);
        // Between S0 and S1; the partner is that of `WakeOnce::must_wake`.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn get_up(&mut self, asleep: &AtomicU32) {
        self.awake = self.awake.wrapping_add(2);
        // Relaxed: one that is read too late costs a wake-up for nothing.
        asleep.store(self.awake, Ordering::Relaxed);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p cachelane-lend --release --lib loom`
#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    /// A borrower that finds nothing sleeps until it is woken: never with a loan in its ring, nor
    /// when it is the second time that it sleeps.
    #[test]
    fn nobody_sleeps_on_a_loan() {
        loom::model(|| {
            let (index, asleep) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let lender = {
                let (index, asleep) = (Arc::clone(&index), Arc::clone(&asleep));
                loom::thread::spawn(move || {
                    let mut wake_once = WakeOnce::default();
                    for loans in 1..=2 {
                        // L0, as `LoanWriter::publish` does.
                        index.store(loans, Ordering::Release);
                        wake_once.must_wake(&asleep);
                    }
                    wake_once.woken
                })
            };
            let mut sleeper = Sleeper::default();
            sleeper.lie_down(&asleep);
            sleeper.get_up(&asleep);
            sleeper.lie_down(&asleep);
            // S1.
            let sleeps = index.load(Ordering::Acquire) < 2;
            let woken = lender.join().expect("the lender");
            assert!(!sleeps || woken == 3, "asleep with a loan in the ring");
        });
    }
}
