//! Who is there and what was done: written by the control thread, read by all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use frames::Accounting;
use parking_lot::{Mutex, MutexGuard};

use super::status::{BorrowerStatus, LenderCounters, Offences};
use crate::distributor::JoinedBorrower;
use crate::tally::{ChannelTally, Tally, read};

/// What the control thread and those who ask have in common.
#[derive(Debug)]
pub(super) struct Roster {
    state: Mutex<State>,
    tallies: Vec<Arc<Tally>>,
}

/// What is under the lock.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) accounting: Accounting,
    /// By slot.
    pub(super) borrowers: BTreeMap<u8, BorrowerRecord>,
    /// Without what distributors count.
    pub(super) counters: LenderCounters,
}

/// A borrower that has joined.
#[derive(Debug)]
pub(super) struct BorrowerRecord {
    /// As it was when it joined.
    pub(super) status: BorrowerStatus,
    pub(super) borrower: Arc<JoinedBorrower>,
    /// By distributor.
    pub(super) channels: Vec<Arc<ChannelTally>>,
}

impl Roster {
    pub(super) fn new(accounting: Accounting, tallies: Vec<Arc<Tally>>) -> Self {
        let state = State { accounting, ..State::default() };
        Self { state: Mutex::new(state), tallies }
    }

    /// What is under the lock; held for moments only.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn accounting(&self) -> Accounting {
        self.state().accounting
    }

    pub(super) fn borrowers(&self) -> Vec<BorrowerStatus> {
        self.state().borrowers.values().map(BorrowerRecord::status).collect()
    }

    pub(super) fn counters(&self) -> LenderCounters {
        let sum = |of: fn(&Tally) -> &AtomicU64| self.tallies.iter().map(|t| read(of(t))).sum();
        let on_loan = self.tallies.iter().map(|t| u64::from(t.on_loan.load(Ordering::Relaxed)));
        let counters = self.state().counters.clone();
        LenderCounters {
            offences: Offences {
                out_of_range: sum(|tally| &tally.offences.out_of_range),
                not_out: sum(|tally| &tally.offences.not_out),
                not_its_own: sum(|tally| &tally.offences.not_its_own),
                index: sum(|tally| &tally.offences.index),
                ..counters.offences
            },
            lent: sum(|tally| &tally.lent),
            returned: sum(|tally| &tally.returned),
            reclaimed: sum(|tally| &tally.reclaimed),
            dropped: sum(|tally| &tally.dropped),
            unwanted: sum(|tally| &tally.unwanted),
            on_loan: on_loan.sum(),
            ..counters
        }
    }
}

impl BorrowerRecord {
    fn status(&self) -> BorrowerStatus {
        let sum =
            |of: fn(&ChannelTally) -> &AtomicU64| self.channels.iter().map(|t| read(of(t))).sum();
        let out = self.channels.iter().map(|t| u64::from(t.out.load(Ordering::Relaxed))).sum();
        BorrowerStatus {
            out,
            lent: sum(|tally| &tally.lent),
            returned: sum(|tally| &tally.returned),
            dropped: sum(|tally| &tally.dropped),
            offences: self.borrower.offences.load(Ordering::Relaxed).into(),
            ..self.status.clone()
        }
    }
}
