//! What the control thread knows of the borrowers that have slots.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::admission::Terms;
use super::users::{Charge, Peer};
use crate::layout::Layout;
use crate::memory::Memory;
use crate::reaper::Reaped;
use crate::waker::Waker;

/// A slot that somebody has.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) charge: Charge,
    /// Tells late reports of an earlier borrower in the same slot from those of this one.
    pub(super) generation: u64,
    pub(super) mirror: bool,
    pub(super) state: SlotState,
}

#[derive(Debug)]
pub(super) enum SlotState {
    /// It maps what it got; no distributor knows of it.
    Pending(Box<PendingBorrower>),
    Joined {
        socket: Arc<Reaped<OwnedFd>>,
        waker: Arc<Waker>,
    },
    /// These distributors have not said yet that it is gone.
    Leaving(BTreeSet<u32>),
}

/// What is kept for a borrower until it has mapped what it got.
#[derive(Debug)]
pub(super) struct PendingBorrower {
    pub(super) terms: Terms,
    pub(super) peer: Peer,
    pub(super) layout: Layout,
    pub(super) out: Arc<Memory>,
    pub(super) own_area: Option<Arc<Memory>>,
    pub(super) socket: Arc<Reaped<OwnedFd>>,
    pub(super) waker: Arc<Waker>,
}

impl Slot {
    /// On what terms a borrower that has not joined yet is to join.
    pub(super) fn pending(&self) -> Option<&Terms> {
        match &self.state {
            SlotState::Pending(pending) => Some(&pending.terms),
            SlotState::Joined { .. } | SlotState::Leaving(_) => None,
        }
    }
}
