//! Who gets which flows.
//!
//! Flows fall into buckets by their hash, and each bucket is with the borrower of the highest
//! weight, a number that follows from bucket and borrower (rendezvous hashing, Thaler and
//! Ravishankar 1998). When a borrower joins, it takes from each of the others about the same share;
//! when one leaves, its share goes to the others. No other flow moves.

/// As many as a packet's hash chooses from by its upper bits. With 64 borrowers each has 16 on
/// average.
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 10;

/// In a bucket: nobody has it.
const NOBODY: u8 = u64::BITS as u8;

/// By bucket, the borrower's slot.
#[derive(Debug)]
pub(crate) struct Spread(Box<[u8; BUCKETS]>);

impl Spread {
    /// Among nobody.
    pub(crate) fn new() -> Self {
        Self(Box::new([NOBODY; BUCKETS]))
    }

    /// Among these, a bit for each slot.
    pub(crate) fn among(&mut self, borrowers: u64) {
        let slots: Vec<u8> = (0..NOBODY).filter(|slot| borrowers & 1 << slot != 0).collect();
        for (bucket, owner) in self.0.iter_mut().enumerate() {
            let heaviest = slots.iter().max_by_key(|slot| weight(bucket, **slot));
            *owner = heaviest.copied().unwrap_or(NOBODY);
        }
    }

    /// Whose a flow is: the bit of its slot, or 0.
    #[inline]
    pub(crate) fn owner(&self, hash: u32) -> u64 {
        let owner = self.0[(hash >> (u32::BITS - BUCKET_BITS)) as usize];
        1_u64.checked_shl(owner.into()).unwrap_or(0)
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014): differs by every bit.
fn weight(bucket: usize, slot: u8) -> u64 {
    let mut mix = ((bucket as u64) << 8 | u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ mix >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ mix >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ mix >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(borrowers: u64) -> Vec<u64> {
        let mut spread = Spread::new();
        spread.among(borrowers);
        (0..BUCKETS as u32).map(|bucket| spread.owner(bucket << (32 - BUCKET_BITS) | 7)).collect()
    }

    #[test]
    fn nobody_has_what_there_is_nobody_for() {
        assert!(owners(0).iter().all(|owner| *owner == 0));
    }

    #[test]
    fn every_borrower_has_about_the_same_share() {
        for borrowers in [0b1, 0b1001, 0b1111, 0xff << 56] {
            let (owners, share) = (owners(borrowers), BUCKETS as u32 / borrowers.count_ones());
            for slot in 0..64 {
                let has = owners.iter().filter(|owner| **owner == 1 << slot).count() as u32;
                match borrowers & 1 << slot {
                    0 => assert_eq!(has, 0, "slot {slot} of {borrowers:#x}"),
                    _ => assert!(
                        (share * 3 / 4..=share * 5 / 4).contains(&has),
                        "slot {slot} of {borrowers:#x}: {has} of {share}"
                    ),
                }
            }
        }
    }

    #[test]
    fn a_join_and_a_leave_move_the_share_of_that_borrower_and_nothing_else() {
        for before in [0b1_u64, 0b111, 0xffff] {
            let after = before | 1 << 40;
            let (before, after) = (owners(before), owners(after));
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
            assert!(moved.clone().count() > 0);
            for (_, after) in moved {
                assert_eq!(*after, 1 << 40);
            }
        }
    }
}
