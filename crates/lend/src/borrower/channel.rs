//! A borrower's end of a channel: what it is lent is checked before it is believed.

use std::sync::Arc;

use super::Loan;
use crate::layout::{self, LOAN_MORE, Layout};
use crate::memory::Memory;
use crate::ring::{LoanReader, OutOfStep, TokenWriter};
use crate::{Error, ErrorKind, Result};

/// Where loans can lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) frame_size: u32,
    pub(super) frames: u32,
    /// Whose loans they are.
    pub(super) borrower: u32,
}

/// How many loans to take from a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// After so many it is another one's turn, but for the rest of a packet.
    pub(super) share: usize,
    /// There is no room for more.
    pub(super) room: usize,
    /// For the first packet there is, whatever its size.
    pub(super) first_whole: bool,
}

/// The rings of a channel, and what is out in it.
#[derive(Debug)]
pub(super) struct Channel {
    number: u16,
    pub(super) loans: LoanReader,
    tokens: TokenWriter,
    /// Loans that were received and not given back.
    pub(super) out: u32,
    /// Tokens are in the ring that were not published.
    unpublished: bool,
}

impl Channel {
    pub(super) fn new(
        out: &Arc<Memory>,
        back: &Arc<Memory>,
        layout: Layout,
        number: u16,
    ) -> Channel {
        let loans = LoanReader::new(out, layout, number.into());
        let tokens = TokenWriter::new(back, layout, number.into());
        Channel { number, loans, tokens, out: 0, unpublished: false }
    }

    /// Appends whole packets, as many as the limits let.
    #[inline]
    pub(super) fn receive(
        &mut self,
        area: &Area,
        into: &mut Vec<Loan>,
        limits: Limits,
    ) -> Result<()> {
        let Limits { share, room, first_whole } = limits;
        let ready = self.loans.ready().map_err(out_of_step)?;
        let before = into.len();
        // Up to the end of the last packet that is there with all its parts.
        let mut taken = 0;
        for at in 0..ready {
            let is_too_much = at as usize >= room && (taken > 0 || !first_whole);
            if is_too_much || taken as usize >= share {
                break;
            }
            let loan = self.loans.peek(at);
            if let Err(what) = area.check(&loan) {
                into.truncate(before);
                return Err(Error::new(ErrorKind::Protocol, what));
            }
            into.push(self.of(&loan, area.borrower));
            if loan.flags & LOAN_MORE == 0 {
                taken = at + 1;
            }
        }
        into.truncate(before + taken as usize);
        self.loans.advance(taken);
        self.out += taken;
        Ok(())
    }

    #[inline]
    pub(super) fn give_back(&mut self, token: u32) {
        self.tokens.push(token);
        self.out -= 1;
        self.unpublished = true;
    }

    /// Shows the lender what was put in. Nothing is written where nothing was: the lender reads
    /// that cache line all the time.
    #[inline]
    pub(super) fn publish(&mut self) {
        if std::mem::take(&mut self.unpublished) {
            self.tokens.publish();
        }
    }

    #[inline]
    pub(super) fn is_ready(&self) -> Result<bool> {
        self.loans.ready().map(|ready| ready > 0).map_err(out_of_step)
    }

    #[inline]
    fn of(&self, loan: &layout::Loan, borrower: u32) -> Loan {
        let &layout::Loan { addr, len, token, flags, hash, time } = loan;
        Loan { addr, time, len, token, hash, channel: self.number, flags: flags as u16, borrower }
    }
}

impl Area {
    #[inline]
    fn check(&self, loan: &layout::Loan) -> Result<(), String> {
        let Area { frame_size, frames, .. } = *self;
        let offset = loan.addr & u64::from(frame_size - 1);
        let is_in_area = loan.addr < u64::from(frames) * u64::from(frame_size);
        let is_in_frame = offset + u64::from(loan.len) <= u64::from(frame_size);
        if is_in_area && is_in_frame && loan.len > 0 {
            return Ok(());
        }
        Err(format!(
            "the lender lent {} bytes at {}, which is not in one of {frames} frames of \
             {frame_size} bytes",
            loan.len, loan.addr
        ))
    }
}

#[cold]
fn out_of_step(OutOfStep { from, to }: OutOfStep) -> Error {
    let what = format!("the lender's ring index went from {from} to {to}, more than its slots");
    Error::new(ErrorKind::Protocol, what)
}
