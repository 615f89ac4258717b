//! What the control thread wants of distributors, and what they answer.

use frames::Accounting;

use super::{Channel, Distributor, slots};
use crate::layout::Ending;
use crate::memory::Memory;
use crate::spread::Share;

#[derive(Debug)]
pub(crate) enum Command {
    /// Lend to this one too.
    Join {
        /// A slot that nobody has.
        slot: u8,
        quota: u32,
        share: Share,
        channel: Box<Channel>,
    },
    /// Take everything back from it. Answered by [`Report::Left`].
    Leave { slot: u8, why: Ending },
    /// Say who has what. Answered by [`Report::Holdings`].
    Count {
        /// Which time it is, for the answer.
        round: u64,
        /// And lend nothing until the next [`Command::Resume`], if nobody has anything.
        freeze: bool,
    },
    /// Lend again, keeping account this way: as before, unless nobody has anything.
    Resume(Accounting),
    /// Take everything back from everybody.
    Close,
}

/// What a distributor answers, or says by itself.
#[derive(Debug)]
pub(crate) enum Report {
    /// Nothing of this borrower's is left.
    Left { distributor: u32, slot: u8 },
    /// Who has what: by slot, how many loans, without those that have none.
    Holdings { distributor: u32, round: u64, loans: Vec<(u8, u32)> },
    /// This borrower was released: it offended too often.
    Offender { slot: u8 },
    /// This borrower has its welcome and has mapped what came with it, and so have we what it
    /// writes; or why not.
    Mapped { slot: u8, generation: u64, back: rustix::io::Result<Memory> },
    /// To wake this borrower takes too long.
    Slow { slot: u8, generation: u64 },
    /// The distributor was dropped, and is about to close its channels.
    Ending { distributor: u32 },
    /// It has done that, and there will be no answers any more.
    Gone { distributor: u32 },
}

impl Distributor {
    /// Does what is wanted, if anything is: a load if not.
    #[inline]
    pub(super) fn obey_mail(&mut self) {
        if self.commands.has_mail() {
            self.obey();
        }
    }

    #[cold]
    fn obey(&mut self) {
        // All at once: what is done with one may take long.
        for command in self.commands.take().collect::<Vec<_>>() {
            match command {
                Command::Join { slot, quota, share, channel } => {
                    self.table.join(slot, quota);
                    self.channels[usize::from(slot)] = Some(*channel);
                    self.present |= 1 << slot;
                    self.spread.join(slot, share);
                }
                Command::Leave { slot, why } => {
                    self.release(slot, why);
                    self.reports.send(Report::Left { distributor: self.index, slot });
                }
                Command::Count { round, freeze } => self.count(round, freeze),
                Command::Resume(accounting) => {
                    // Refused only if it lends already, and then the change was given up.
                    let _ = self.table.set_accounting(accounting);
                    self.frozen = false;
                }
                Command::Close => self.release_all(),
            }
        }
    }

    fn count(&mut self, round: u64, freeze: bool) {
        // What was returned is not on loan, whenever this thread last looked.
        self.take_back();
        let with_loans = slots(self.present).map(|slot| (slot, self.out(slot)));
        let loans: Vec<_> = with_loans.filter(|(_, out)| *out > 0).collect();
        self.frozen |= freeze && loans.is_empty();
        self.reports.send(Report::Holdings { distributor: self.index, round, loans });
    }
}
