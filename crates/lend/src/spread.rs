//! Who gets which flows.
//!
//! Flows fall into buckets by their hash. Each bucket is with the user of the highest weight, a
//! number that follows from bucket and user (rendezvous hashing, Thaler and Ravishankar 1998), and
//! of that user's borrowers with the one of the highest weight. So users have about the same share
//! each, however many borrowers they have, and a user's borrowers have about the same share of its
//! flows. A borrower that joins takes from its user's others, and the first one of a user from all
//! users; when one leaves, its share goes back to them. No other flow moves. Each group of borrowers
//! shares out all flows so, and mirrors get them all beside that.

use std::collections::BTreeMap;

/// As many as a packet's hash chooses from by its upper bits. With 64 borrowers each has 16 on
/// average.
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 10;

/// What a borrower gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Every packet.
    All,
    /// What is its share, as one of this user's borrowers, of all flows: each group shares them out anew.
    Flows { group: u16, user: u32 },
}

/// By user, the slots of a group's borrowers.
type Group = BTreeMap<u32, Vec<u8>>;

/// Which borrowers get a packet.
#[derive(Debug)]
pub(crate) struct Spread {
    /// By bucket, who gets its packets: a bit for each slot.
    buckets: Box<[u64; BUCKETS]>,
    /// By slot.
    shares: BTreeMap<u8, Share>,
}

impl Spread {
    /// Among nobody.
    pub(crate) fn new() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), shares: BTreeMap::new() }
    }

    pub(crate) fn join(&mut self, slot: u8, share: Share) {
        self.shares.insert(slot, share);
        self.share_out();
    }

    pub(crate) fn leave(&mut self, slot: u8) {
        self.shares.remove(&slot);
        self.share_out();
    }

    fn share_out(&mut self) {
        let mut mirrors = 0;
        let mut groups: BTreeMap<u16, Group> = BTreeMap::new();
        for (slot, share) in &self.shares {
            match *share {
                Share::All => mirrors |= 1 << slot,
                Share::Flows { group, user } => {
                    groups.entry(group).or_default().entry(user).or_default().push(*slot);
                }
            }
        }
        for (bucket, takers) in self.buckets.iter_mut().enumerate() {
            *takers = groups.values().fold(mirrors, |all, group| all | owner(bucket, group));
        }
    }

    /// Who gets a flow's packets: a bit for each slot.
    #[inline]
    pub(crate) fn takers(&self, hash: u32) -> u64 {
        self.buckets[(hash >> (u32::BITS - BUCKET_BITS)) as usize]
    }
}

/// Whose a bucket is in a group: the bit of a slot.
fn owner(bucket: usize, group: &Group) -> u64 {
    let user = group.iter().max_by_key(|(user, _)| weight(bucket, USER | u64::from(**user)));
    let slots = user.into_iter().flat_map(|(_, slots)| slots);
    slots.max_by_key(|slot| weight(bucket, u64::from(**slot))).map_or(0, |slot| 1 << slot)
}

/// Beside a user's number, which has 32 bits: it is no slot's.
const USER: u64 = 1 << 32;

/// The output function of SplitMix64 (Steele, Lea and Flood 2014): differs by every bit.
fn weight(bucket: usize, of: u64) -> u64 {
    let mut mix = ((bucket as u64) << 33 | of).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ mix >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ mix >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ mix >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(borrowers: u64) -> Vec<u64> {
        owners_of(borrowers, &[1000; 64])
    }

    fn owners_of(borrowers: u64, users: &[u32; 64]) -> Vec<u64> {
        let mut spread = Spread::new();
        for slot in (0..64).filter(|slot| borrowers & 1 << slot != 0) {
            spread.join(slot, Share::Flows { group: 0, user: users[usize::from(slot)] });
        }
        takers(&spread)
    }

    fn takers(spread: &Spread) -> Vec<u64> {
        (0..BUCKETS as u32).map(|bucket| spread.takers(bucket << (32 - BUCKET_BITS) | 7)).collect()
    }

    #[test]
    fn each_group_shares_out_all_flows_and_mirrors_get_them_beside_that() {
        let mut spread = Spread::new();
        let share = |group| Share::Flows { group, user: 1000 };
        for slot in 0..4 {
            spread.join(slot, share(0));
        }
        let alone = takers(&spread);
        for (slot, group) in [(4, 7), (5, 7), (6, u16::MAX)] {
            spread.join(slot, share(group));
        }
        spread.join(63, Share::All);
        let mut of_group = [0; 2];
        for (before, after) in alone.iter().zip(takers(&spread)) {
            assert_eq!(after & 0xf, *before, "the first group has what it had");
            assert_eq!(after & !0x3f, 1 << 63 | 1 << 6, "who is alone, and who is a mirror");
            match after & 0x30 {
                0x10 => of_group[0] += 1,
                0x20 => of_group[1] += 1,
                both => panic!("{both:#x} of the second group"),
            }
        }
        assert!(of_group.iter().all(|has| (BUCKETS / 4..).contains(has)), "{of_group:?}");
        for slot in [4, 5, 6, 63] {
            spread.leave(slot);
        }
        assert_eq!(takers(&spread), alone);
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

    /// The first user has slots 0 to 15, the next one 16 to 31, and so on.
    fn of_four() -> [u32; 64] {
        std::array::from_fn(|slot| [0, 1000, 1001, u32::MAX][slot / 16])
    }

    #[test]
    fn users_have_the_same_share_however_many_borrowers_they_have() {
        for borrowers in [0xffff_0001, 0xffff_0000_0001_u64, 0x1_0003_00ff_ffff] {
            let owners = owners_of(borrowers, &of_four());
            let group = |user: usize| 0xffff_u64 << (16 * user);
            let users = (0..4).filter(|user| borrowers & group(*user) != 0);
            let share = BUCKETS / users.clone().count();
            for user in users {
                let of = |slots: u64| owners.iter().filter(|owner| *owner & slots != 0).count();
                let has = of(group(user));
                let what = format!("user {user} of {borrowers:#x}: {has} of {share}");
                assert!((share * 4 / 5..=share * 6 / 5).contains(&has), "{what}");
                // And so have its borrowers of what it has.
                let its = borrowers & group(user);
                let one = has / its.count_ones() as usize;
                for slot in (0..64).filter(|slot| its & 1 << slot != 0) {
                    let few = one / 3..=one * 3;
                    assert!(few.contains(&of(1 << slot)), "slot {slot} of {borrowers:#x}");
                }
            }
        }
    }

    #[test]
    fn one_more_borrower_of_a_user_takes_nothing_from_other_users() {
        let users = of_four();
        let before = owners_of(0b1 << 32 | 0b1 << 16 | 0b11, &users);
        let after = owners_of(0b1 << 32 | 0b1 << 16 | 0b111, &users);
        let mut moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        let count = moved.clone().count();
        assert!(count > 0 && moved.all(|(before, after)| *before < 4 && *after == 4), "{count}");
        // The first of a user takes from all.
        let after = owners_of(0b1 << 48 | 0b1 << 32 | 0b1 << 16 | 0b11, &users);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(_, after)| *after == 1 << 48));
        let losers: std::collections::BTreeSet<_> = moved.map(|(before, _)| *before).collect();
        assert_eq!(losers.len(), 4);
    }
}
