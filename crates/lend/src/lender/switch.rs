//! The accounting is changed: in all distributors, or in none.
//!
//! Account is kept in as many places as there are distributors, and can be changed in one only
//! while nothing of it is on loan. So there are three rounds, in each of which all answer: who has
//! what (if anybody has anything, that is the answer, and nobody has noticed); once more, and lend
//! nothing until you hear again, unless somebody has something by now; and then, lend again, in the
//! new way if all have stopped, else in the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use frames::Accounting;

use super::control::{ControlThread, Slot};
use crate::distributor::{Command, Report};
use crate::{Error, ErrorKind, Result};

/// How long the distributors have for an answer, all together.
const PATIENCE: Duration = Duration::from_secs(2);

impl ControlThread {
    pub(super) fn set_accounting(&mut self, to: Accounting) -> Result<()> {
        if to == self.accounting {
            return Ok(());
        }
        self.refuse_shared(to)?;
        self.count_loans(false)?;
        let stopped = self.count_loans(true);
        if stopped.is_ok() {
            self.accounting = to;
            self.roster.state().accounting = to;
        }
        for post in self.distributors.iter().flatten() {
            post.send(Command::Resume(self.accounting));
        }
        stopped
    }

    fn refuse_shared(&self, to: Accounting) -> Result<()> {
        let state = self.roster.state();
        let joined = state.borrowers.values().map(|record| &record.terms);
        let pending = self.slots.values().filter_map(Slot::pending);
        let shared = joined.chain(pending).filter(|terms| terms.shares_frames());
        let names: Vec<&str> = shared.map(|terms| terms.name.as_str()).collect();
        if to == Accounting::Counters || names.is_empty() {
            return Ok(());
        }
        let names = names.join(", ");
        let message = format!("{names}: no ledger can be kept of frames that others have too");
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Asks all distributors what is on loan: an error, by name, if anything is.
    fn count_loans(&mut self, freeze: bool) -> Result<()> {
        self.round += 1;
        let (round, mut waiting) = (self.round, BTreeSet::new());
        for (index, post) in (0..).zip(&self.distributors) {
            if post.as_ref().is_some_and(|post| post.send(Command::Count { round, freeze })) {
                waiting.insert(index);
            }
        }
        let mut loans = BTreeMap::<u8, u64>::new();
        let until = Instant::now() + PATIENCE;
        while !waiting.is_empty() {
            match self.reports.wait(until.saturating_duration_since(Instant::now())) {
                Some(Report::Holdings { distributor, round: answered, loans: has })
                    if answered == round =>
                {
                    waiting.remove(&distributor);
                    for (slot, count) in has {
                        *loans.entry(slot).or_default() += u64::from(count);
                    }
                }
                Some(other) => {
                    if let Report::Gone { distributor } = other {
                        waiting.remove(&distributor);
                    }
                    self.note(other);
                }
                None => {
                    let count = waiting.len();
                    let message = format!("{count} of the lender's threads did not answer");
                    return Err(Error::new(ErrorKind::TimedOut, message));
                }
            }
        }
        self.refuse_loans(&loans)
    }

    fn refuse_loans(&self, loans: &BTreeMap<u8, u64>) -> Result<()> {
        if loans.is_empty() {
            return Ok(());
        }
        let state = self.roster.state();
        let name =
            |slot| state.borrowers.get(slot).map_or("one that is leaving", |it| &it.terms.name);
        let each: Vec<_> = loans.iter().map(|(slot, n)| format!("{} {n}", name(slot))).collect();
        let (borrowers, frames) = (loans.len(), loans.values().sum::<u64>());
        let message = format!(
            "{borrowers} borrower{} hold{} {frames} frame{} ({})",
            if borrowers == 1 { "" } else { "s" },
            if borrowers == 1 { "s" } else { "" },
            if frames == 1 { "" } else { "s" },
            each.join(", ")
        );
        Err(Error::new(ErrorKind::OnLoan, message))
    }
}
