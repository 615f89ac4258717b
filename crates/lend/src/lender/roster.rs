//! Who is there and what was done: written by the control thread, read by all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use frames::Accounting;
use parking_lot::{Mutex, MutexGuard};

use super::status::{BorrowerStatus, LenderCounters, Offences, Refusals};
use crate::distributor::JoinedBorrower;
use crate::tally::{ChannelTally, Tally, read};

/// What the control thread and those who ask have in common.
#[derive(Debug)]
pub(super) struct Roster {
    state: Mutex<State>,
    tallies: Vec<Arc<Tally>>,
}

/// What is under the lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) accounting: Accounting,
    pub(super) borrowers: BTreeMap<u8, BorrowerRecord>,
    pub(super) joined: u64,
    pub(super) left: u64,
    pub(super) disconnected: u64,
    pub(super) refused: Refusals,
    pub(super) messages: u64,
    pub(super) slow: u64,
    pub(super) paused: u64,
    pub(super) lingering: u64,
}

/// A borrower that has joined.
#[derive(Debug)]
pub(super) struct BorrowerRecord {
    pub(super) name: String,
    pub(super) pid: Option<u32>,
    pub(super) uid: u32,
    pub(super) mirror: bool,
    pub(super) quota: u32,
    pub(super) since: Instant,
    pub(super) borrower: Arc<JoinedBorrower>,
    /// By distributor.
    pub(super) channels: Vec<Arc<ChannelTally>>,
}

impl Roster {
    pub(super) fn new(accounting: Accounting, tallies: Vec<Arc<Tally>>) -> Self {
        let state = State {
            accounting,
            borrowers: BTreeMap::new(),
            joined: 0,
            left: 0,
            disconnected: 0,
            refused: Refusals::default(),
            messages: 0,
            slow: 0,
            paused: 0,
            lingering: 0,
        };
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
        self.state().borrowers.iter().map(|(slot, record)| record.status(*slot)).collect()
    }

    pub(super) fn counters(&self) -> LenderCounters {
        let sum = |of: fn(&Tally) -> &AtomicU64| self.tallies.iter().map(|t| read(of(t))).sum();
        let on_loan = self.tallies.iter().map(|t| u64::from(t.on_loan.load(Ordering::Relaxed)));
        let state = self.state();
        LenderCounters {
            joined: state.joined,
            left: state.left,
            disconnected: state.disconnected,
            refused: state.refused,
            offences: Offences {
                out_of_range: sum(|tally| &tally.offences.out_of_range),
                not_out: sum(|tally| &tally.offences.not_out),
                not_its_own: sum(|tally| &tally.offences.not_its_own),
                index: sum(|tally| &tally.offences.index),
                message: state.messages,
                slow: state.slow,
            },
            paused: state.paused,
            lent: sum(|tally| &tally.lent),
            returned: sum(|tally| &tally.returned),
            reclaimed: sum(|tally| &tally.reclaimed),
            dropped: sum(|tally| &tally.dropped),
            unwanted: sum(|tally| &tally.unwanted),
            on_loan: on_loan.sum(),
            lingering: state.lingering,
        }
    }
}

impl BorrowerRecord {
    fn status(&self, slot: u8) -> BorrowerStatus {
        let sum =
            |of: fn(&ChannelTally) -> &AtomicU64| self.channels.iter().map(|t| read(of(t))).sum();
        let out = self.channels.iter().map(|t| u64::from(t.out.load(Ordering::Relaxed))).sum();
        BorrowerStatus {
            slot,
            name: self.name.clone(),
            pid: self.pid,
            uid: self.uid,
            mirror: self.mirror,
            quota: self.quota,
            out,
            lent: sum(|tally| &tally.lent),
            returned: sum(|tally| &tally.returned),
            dropped: sum(|tally| &tally.dropped),
            offences: self.borrower.offences.load(Ordering::Relaxed).into(),
            since: self.since,
        }
    }
}
