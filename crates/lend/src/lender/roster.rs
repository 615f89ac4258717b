//! Who is there and what was done: written by the control thread, read by all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use frames::Accounting;
use kit::Count;
use parking_lot::{Mutex, MutexGuard};

use super::admission::Terms;
use super::status::{
    BorrowerStatus, ChannelTally, LenderCounters, Offences, RefusalCounts, Standing, Tally,
};
use super::users::Peer;
use crate::distributor::JoinedBorrower;

/// What the control thread and those who ask have in common.
#[derive(Debug)]
pub(super) struct Roster {
    state: Mutex<State>,
    /// The control thread's, as the two below.
    pub(super) own: Tally,
    pub(super) refusals: RefusalCounts,
    pub(super) lingering: Count,
    /// By distributor.
    tallies: Vec<Arc<Tally>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) accounting: Accounting,
    /// By slot.
    pub(super) borrowers: BTreeMap<u8, BorrowerRecord>,
}

#[derive(Debug)]
pub(super) struct BorrowerRecord {
    pub(super) terms: Terms,
    pub(super) peer: Peer,
    pub(super) since: Instant,
    pub(super) borrower: Arc<JoinedBorrower>,
    /// By distributor.
    pub(super) channels: Vec<Arc<ChannelTally>>,
}

impl Roster {
    pub(super) fn new(accounting: Accounting, tallies: Vec<Arc<Tally>>) -> Self {
        let state = Mutex::new(State { accounting, ..State::default() });
        let (own, refusals, lingering) = Default::default();
        Self { state, own, refusals, lingering, tallies }
    }

    /// What is under the lock; held for moments only.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn borrowers(&self) -> Vec<BorrowerStatus> {
        self.state().borrowers.values().map(BorrowerRecord::status).collect()
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            on_loan: self.tallies().map(|tally| tally.on_loan.get()).sum(),
            borrowers: self.state().borrowers.len() as u64,
            lingering: self.lingering.get(),
        }
    }

    pub(super) fn counters(&self) -> LenderCounters {
        let mut sum = LenderCounters::default();
        self.tallies().for_each(|tally| sum.add(&LenderCounters::from(&tally.counts)));
        sum
    }

    pub(super) fn offences(&self) -> Offences {
        let mut sum = Offences::default();
        self.tallies().for_each(|tally| sum.add(&Offences::from(&tally.offences)));
        sum
    }

    fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.tallies.iter().map(|tally| &**tally).chain([&self.own])
    }
}

impl BorrowerRecord {
    fn status(&self) -> BorrowerStatus {
        let sum = |of: fn(&ChannelTally) -> &Count| {
            self.channels.iter().map(|tally| of(tally).get()).sum()
        };
        let Self { terms, peer, since, .. } = self;
        BorrowerStatus {
            slot: terms.slot,
            name: terms.name.clone(),
            pid: peer.pid,
            uid: peer.uid,
            mirror: terms.mirror,
            group: terms.group,
            quota: terms.quota,
            out: sum(|tally| &tally.out),
            lent: sum(|tally| &tally.lent),
            returned: sum(|tally| &tally.returned),
            dropped: sum(|tally| &tally.dropped),
            offences: self.borrower.offences.load(Ordering::Relaxed).into(),
            since: *since,
        }
    }
}
