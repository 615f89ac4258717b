//! Who has which frame.

use super::{LoanTable, bits};

/// By frame, who has it: a bit for each borrower.
///
/// What one borrower has is found without a look at all frames: for each borrower and each block of
/// frames it stands whether any of them was ever lent to it. That is written and not read when a
/// frame is lent, and nothing waits for it (`cachelane bench lend --only accounting`).
#[derive(Debug)]
pub(super) struct LoanCounters {
    who: Box<[u64]>,
    /// By borrower and block, whether a frame of the block was lent to it.
    lent: Box<[bool]>,
    blocks: usize,
}

/// Frames of a block: as many as have their counters in one page.
const BLOCK: usize = 512;

impl LoanCounters {
    pub(super) fn new(frames: u32) -> Self {
        let frames = frames as usize;
        let blocks = frames.div_ceil(BLOCK);
        let lent = vec![false; blocks * LoanTable::BORROWERS].into();
        Self { who: vec![0; frames].into(), lent, blocks }
    }

    /// A borrower has this frame now, and nobody else.
    ///
    /// # Panics
    /// If there is no such frame or borrower, as below.
    #[inline(always)]
    pub(super) fn set(&mut self, index: u32, to: u8) {
        let index = index as usize;
        self.who[index] = 1 << to;
        self.lent[usize::from(to) * self.blocks + index / BLOCK] = true;
    }

    /// These borrowers have this frame now, a bit for each.
    #[inline]
    pub(super) fn set_all(&mut self, index: u32, to: u64) {
        let index = index as usize;
        self.who[index] = to;
        for borrower in bits(to) {
            self.lent[borrower * self.blocks + index / BLOCK] = true;
        }
    }

    #[inline(always)]
    pub(super) fn of(&mut self, index: u32) -> Option<&mut u64> {
        self.who.get_mut(index as usize)
    }

    /// A borrower that has `out` frames has none any more; `freed` gets those that nobody has now.
    pub(super) fn release(&mut self, borrower: u8, out: u32, mut freed: impl FnMut(u32)) {
        let bit = 1 << borrower;
        let blocks = &mut self.lent[usize::from(borrower) * self.blocks..][..self.blocks];
        let lent = blocks.iter_mut().zip(self.who.chunks_mut(BLOCK)).enumerate();
        let lent = lent.filter_map(|(at, (lent, block))| {
            std::mem::take(lent).then_some(block.iter_mut().zip(at * BLOCK..))
        });
        // To the last block, so that the next borrower of this number begins with none; in those
        // that follow the last of its frames there is nothing to be found.
        let mut left = out;
        for block in lent {
            if left == 0 {
                continue;
            }
            for (who, index) in block.filter(|(who, _)| **who & bit != 0) {
                *who &= !bit;
                left -= 1;
                if *who == 0 {
                    freed(index as u32);
                }
            }
        }
        debug_assert_eq!(left, 0, "loans that stand nowhere");
    }
}
