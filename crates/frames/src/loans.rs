//! Frames on loan: who has which, and what is owed.
//!
//! Made for one thread that lends frames to others who cannot be trusted, such as other processes:
//! whatever they give back, no frame is freed twice, none of another borrower's, and none is lost.
//! It knows nothing of how tokens travel. There are two ways of keeping account, with the same
//! guarantees:
//!
//! - [`Accounting::Counters`]: beside each frame stands who has it, a bit for each borrower. What
//!   is counted is the number of those bits: a loan adds one, a return takes one away, at zero the
//!   frame is free. A token is the frame's number. One frame can be with several borrowers.
//! - [`Accounting::Ledgers`]: each borrower has a ledger of what it owes. A token is a line of that
//!   ledger and the number of times it was used. Releasing a borrower reads its ledger and nothing
//!   else.

use crate::{Frame, FramePool};

mod counters;
mod ledger;
mod many;

use counters::LoanCounters;
use ledger::Ledger;

/// How it is kept account of frames on loan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// A counter beside each frame.
    #[default]
    Counters,
    /// A ledger for each borrower.
    Ledgers,
}

/// Why a token was not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefused {
    /// No loan can have this token.
    OutOfRange,
    /// Nobody has what it stands for: it was returned before, or never lent.
    NotOut,
    /// Others have what it stands for, and this borrower has not.
    NotItsOwn,
}

/// The frames that one thread has lent, and to whom.
///
/// When it is dropped, what is on loan goes home.
#[derive(Debug)]
pub struct LoanTable {
    pool: FramePool,
    /// The number of the pool's first frame, and how many there are.
    first: u32,
    frames: u32,
    borrowers: [Borrower; LoanTable::BORROWERS],
    /// Frames that somebody has.
    on_loan: u32,
    accounts: Accounts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Borrower {
    quota: u32,
    out: u32,
}

#[derive(Debug)]
enum Accounts {
    Counters(LoanCounters),
    /// By borrower; those that have not joined have an empty one.
    Ledgers(Box<[Ledger]>),
}

impl LoanTable {
    /// The most borrowers that there can be at a time; their numbers are below it.
    pub const BORROWERS: usize = 64;

    /// The largest quota.
    pub const QUOTA: u32 = ledger::LINES;

    /// A table for frames of this pool, with no borrowers.
    pub fn new(pool: &FramePool, accounting: Accounting) -> Self {
        let area = pool.area();
        let (first, frames) = (area.first(), area.frames());
        let borrowers = [Borrower::default(); Self::BORROWERS];
        let accounts = Accounts::new(accounting, frames, &borrowers);
        Self { pool: pool.clone(), first, frames, borrowers, on_loan: 0, accounts }
    }

    /// Admits a borrower under a number, with the most loans that it may have at a time.
    ///
    /// # Panics
    /// If the number is in use or too large, or the quota is 0 or more than
    /// [`QUOTA`](Self::QUOTA).
    pub fn join(&mut self, borrower: u8, quota: u32) {
        assert!((1..=Self::QUOTA).contains(&quota), "a quota of {quota}");
        let entry = &mut self.borrowers[usize::from(borrower)];
        assert!(entry.quota == 0, "borrower {borrower} is there already");
        *entry = Borrower { quota, out: 0 };
        if let Accounts::Ledgers(ledgers) = &mut self.accounts {
            ledgers[usize::from(borrower)] = Ledger::new(quota);
        }
    }

    /// How many more loans a borrower may have; 0 for one that has not joined.
    #[inline]
    pub fn room(&self, borrower: u8) -> u32 {
        let Borrower { quota, out } = self.borrowers[usize::from(borrower)];
        quota - out
    }

    /// How many loans a borrower has.
    #[inline]
    pub fn out(&self, borrower: u8) -> u32 {
        self.borrowers[usize::from(borrower)].out
    }

    /// How many frames somebody has.
    #[inline]
    pub fn on_loan(&self) -> u32 {
        self.on_loan
    }

    /// How account is kept.
    pub fn accounting(&self) -> Accounting {
        match &self.accounts {
            Accounts::Counters(_) => Accounting::Counters,
            Accounts::Ledgers(_) => Accounting::Ledgers,
        }
    }

    /// Changes how account is kept.
    ///
    /// # Errors
    /// While there are loans: how many frames somebody has. Nothing is changed then.
    pub fn set_accounting(&mut self, accounting: Accounting) -> Result<(), u32> {
        if self.on_loan > 0 {
            return Err(self.on_loan);
        }
        if accounting != self.accounting() {
            self.accounts = Accounts::new(accounting, self.frames, &self.borrowers);
        }
        Ok(())
    }

    /// Lends a frame to a borrower; the token that it is to give back.
    ///
    /// # Errors
    /// The frame, if the borrower has its quota, or has not joined.
    ///
    /// # Panics
    /// If the frame is of another pool.
    #[inline]
    pub fn lend(&mut self, frame: Frame, to: u8) -> Result<u32, Frame> {
        let borrower = &mut self.borrowers[usize::from(to)];
        if borrower.out == borrower.quota {
            return Err(frame);
        }
        let index = frame.number().wrapping_sub(self.first);
        assert!(index < self.frames, "a frame of another pool");
        borrower.out += 1;
        self.on_loan += 1;
        let number = frame.into_number();
        match &mut self.accounts {
            Accounts::Counters(counters) => {
                counters.set(index, to);
                Ok(index)
            }
            Accounts::Ledgers(ledgers) => Ok(ledgers[usize::from(to)].enter(number)),
        }
    }

    /// Lends a frame to several borrowers, a bit for each; the token that each is to give back.
    ///
    /// # Errors
    /// The frame, if it is for nobody, if one of them has its quota, or if there are ledgers, which
    /// know a frame with one borrower only.
    ///
    /// # Panics
    /// If the frame is of another pool.
    #[inline]
    pub fn share(&mut self, frame: Frame, to: u64) -> Result<u32, Frame> {
        let Accounts::Counters(counters) = &mut self.accounts else { return Err(frame) };
        if to == 0 || bits(to).any(|at| self.borrowers[at].out == self.borrowers[at].quota) {
            return Err(frame);
        }
        let index = frame.number().wrapping_sub(self.first);
        assert!(index < self.frames, "a frame of another pool");
        bits(to).for_each(|at| self.borrowers[at].out += 1);
        self.on_loan += 1;
        // The handle is kept as the number that it is made from again.
        let _ = frame.into_number();
        counters.set_all(index, to);
        Ok(index)
    }

    /// Takes a token back from a borrower; the frame, if nobody has it any more.
    ///
    /// # Errors
    /// A token that is not out to this borrower. Nothing is changed then.
    #[inline]
    pub fn give_back(&mut self, token: u32, from: u8) -> Result<Option<Frame>, TokenRefused> {
        let free = match &mut self.accounts {
            Accounts::Counters(counters) => {
                let who = counters.of(token).ok_or(TokenRefused::OutOfRange)?;
                let bit = 1 << from;
                if *who & bit == 0 {
                    return Err(match *who {
                        0 => TokenRefused::NotOut,
                        _ => TokenRefused::NotItsOwn,
                    });
                }
                *who &= !bit;
                (*who == 0).then_some(self.first + token)
            }
            Accounts::Ledgers(ledgers) => Some(ledgers[usize::from(from)].strike(token)?),
        };
        self.borrowers[usize::from(from)].out -= 1;
        self.on_loan -= u32::from(free.is_some());
        Ok(free.map(Frame::from_number))
    }

    /// Takes everything back from a borrower, which is not one any more; `freed` gets each frame
    /// that nobody has any more. How many loans it had.
    pub fn release(&mut self, borrower: u8, mut freed: impl FnMut(Frame)) -> u32 {
        let Borrower { out, .. } = std::mem::take(&mut self.borrowers[usize::from(borrower)]);
        let on_loan = &mut self.on_loan;
        let mut free = |number| {
            *on_loan -= 1;
            freed(Frame::from_number(number));
        };
        match &mut self.accounts {
            Accounts::Counters(counters) => {
                counters.release(borrower, out, |index| free(self.first + index));
            }
            Accounts::Ledgers(ledgers) => {
                let ledger = std::mem::take(&mut ledgers[usize::from(borrower)]);
                ledger.into_frames().for_each(&mut free);
            }
        }
        out
    }
}

impl Drop for LoanTable {
    fn drop(&mut self) {
        for borrower in 0..Self::BORROWERS as u8 {
            let mut frames = Vec::new();
            self.release(borrower, |frame| frames.push(frame));
            self.pool.send_home(frames);
        }
        debug_assert_eq!(self.on_loan, 0);
    }
}

impl Accounts {
    fn new(accounting: Accounting, frames: u32, borrowers: &[Borrower]) -> Self {
        match accounting {
            Accounting::Counters => Accounts::Counters(LoanCounters::new(frames)),
            Accounting::Ledgers => {
                Accounts::Ledgers(borrowers.iter().map(|each| Ledger::new(each.quota)).collect())
            }
        }
    }
}

/// The numbers of the bits that are set.
#[inline]
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest as usize)
    })
}
