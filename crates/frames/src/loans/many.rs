//! Many loans at a time. What is counted for a borrower is counted once for all of them: a count
//! that is read right after it was written waits for the write, which is most of what a single
//! loan costs (`cachelane bench lend --only accounting`). For the same reason both are always
//! inlined: what the caller's closures count stays in registers.

use super::{Accounts, LoanTable, TokenRefused};
use crate::Frame;

impl LoanTable {
    /// Lends frames to a borrower; `each` gets the token for each of them, in order.
    ///
    /// # Panics
    /// If there are more than the borrower has [`room`](Self::room) for, or a frame is of another
    /// pool.
    #[inline(always)]
    pub fn lend_many(
        &mut self,
        frames: impl ExactSizeIterator<Item = Frame>,
        to: u8,
        mut each: impl FnMut(u32),
    ) {
        let count = frames.len() as u32;
        assert!(count <= self.room(to), "{count} loans, and room for {}", self.room(to));
        // Before the first: what was lent is in the accounts if a later frame turns out foreign.
        self.borrowers[usize::from(to)].out += count;
        self.on_loan += count;
        let (first, most) = (self.first, self.frames);
        match &mut self.accounts {
            Accounts::Counters(counters) => {
                for frame in frames {
                    let index = frame.number().wrapping_sub(first);
                    assert!(index < most, "a frame of another pool");
                    let _ = frame.into_number();
                    counters.set(index, to);
                    each(index);
                }
            }
            Accounts::Ledgers(ledgers) => {
                let ledger = &mut ledgers[usize::from(to)];
                for frame in frames {
                    assert!(frame.number().wrapping_sub(first) < most, "a frame of another pool");
                    each(ledger.enter(frame.into_number()));
                }
            }
        }
    }

    /// Takes tokens back from a borrower; `freed` gets each frame that nobody has any more, and
    /// `refused` why a token was not taken, which changes nothing.
    #[inline(always)]
    pub fn give_back_many(
        &mut self,
        tokens: impl ExactSizeIterator<Item = u32>,
        from: u8,
        mut freed: impl FnMut(Frame),
        mut refused: impl FnMut(TokenRefused),
    ) {
        // Loans that are over, and those of them whose frames others have.
        let (mut returned, mut kept) = (tokens.len() as u32, 0);
        let first = self.first;
        match &mut self.accounts {
            Accounts::Counters(counters) => {
                let bit = 1 << from;
                for token in tokens {
                    match counters.of(token) {
                        Some(who) if *who == bit => {
                            *who = 0;
                            freed(Frame::from_number(first + token));
                        }
                        who => match not_the_last(who, bit) {
                            Ok(()) => kept += 1,
                            Err(why) => {
                                returned -= 1;
                                refused(why);
                            }
                        },
                    }
                }
            }
            Accounts::Ledgers(ledgers) => {
                let ledger = &mut ledgers[usize::from(from)];
                for token in tokens {
                    match ledger.strike(token) {
                        Ok(number) => freed(Frame::from_number(number)),
                        Err(why) => {
                            returned -= 1;
                            refused(why);
                        }
                    }
                }
            }
        }
        self.borrowers[usize::from(from)].out -= returned;
        self.on_loan -= returned - kept;
    }
}

/// Clears a borrower's bit where it is not the only one, if it is there at all.
#[cold]
fn not_the_last(who: Option<&mut u64>, bit: u64) -> Result<(), TokenRefused> {
    match who {
        None => Err(TokenRefused::OutOfRange),
        Some(0) => Err(TokenRefused::NotOut),
        Some(who) if *who & bit == 0 => Err(TokenRefused::NotItsOwn),
        Some(who) => {
            *who &= !bit;
            Ok(())
        }
    }
}
