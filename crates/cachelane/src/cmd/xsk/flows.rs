//! Which flow each packet belongs to: what varies in packets, and in which order.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::probe::FLOWS;
use super::turns::Turns;

/// In which order flows get packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    /// One after the other, over and over
    Counting,
    /// Each packet's drawn at random, all with the same chance
    Random,
}

/// Which of so many flows a packet is of, where they are drawn: sender and receiver come to the same.
pub(super) fn drawn(number: u64, seed: u32, flows: u32) -> u32 {
    // As splitmix64 makes numbers: https://prng.di.unimi.it/splitmix64.c
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(seed) << 32);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    // The upper half of it, as a share of the flows.
    let share = ((mixed ^ mixed >> 31) >> 32) * u64::from(flows);
    (share >> 32) as u32
}

/// The flows of packets. One is a number for each thing that varies, from 0 to below its count; the
/// first of them changes fastest.
#[derive(Clone, Debug)]
pub(super) struct Flows {
    counts: Vec<u64>,
    now: Vec<u64>,
    next: Vec<u64>,
    /// How many flows there are, if that is below all that there could be.
    limit: Option<u64>,
    /// Which one `next` is in turn, where there is a limit.
    at: u64,
    /// Where they are drawn: by the packet's number and this seed, or each thing by itself where there are
    /// too many to be told apart.
    seed: Option<u32>,
    number: u64,
    random: SmallRng,
    /// How many are told apart.
    known: u32,
    /// What replaces the first number, if anything.
    turns: Option<Arc<Turns>>,
}

impl Flows {
    /// All combinations of so many values each, or the first `limit` of them.
    pub(super) fn new(counts: &[u64], limit: Option<u64>, order: Order) -> Flows {
        let zeros = vec![0; counts.len()];
        let mut flows = Flows {
            counts: counts.to_vec(),
            now: zeros.clone(),
            next: zeros,
            limit: None,
            at: 0,
            seed: None,
            number: 0,
            random: SmallRng::seed_from_u64(1),
            known: 1,
            turns: None,
        };
        flows.limit = limit.filter(|limit| u128::from(*limit) < flows.all());
        if flows.count() <= u128::from(FLOWS) {
            flows.known = flows.count() as u32;
        }
        if order == Order::Random && flows.vary() {
            flows.seed = Some(0);
        }
        flows
    }

    /// The same, of which the first number is a source port that is taken in its turn.
    pub(super) fn with_turns(mut self, turns: &Option<Arc<Turns>>) -> Flows {
        self.turns.clone_from(turns);
        self
    }

    pub(super) fn turns(&self) -> Option<&Turns> {
        self.turns.as_deref()
    }

    /// How many there could be.
    fn all(&self) -> u128 {
        self.counts.iter().fold(1, |all: u128, count| all.saturating_mul(u128::from(*count)))
    }

    /// How many values each thing has.
    pub(super) fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub(super) fn is_random(&self) -> bool {
        self.seed.is_some()
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// How many there are.
    pub(super) fn count(&self) -> u128 {
        self.limit.map_or_else(|| self.all(), u128::from)
    }

    /// How many are told apart: one, if they are more than [`FLOWS`].
    pub(super) fn known(&self) -> u32 {
        self.known
    }

    /// Whether there is more than one, or one that is not the first.
    #[inline]
    pub(super) fn vary(&self) -> bool {
        (self.limit != Some(1) || self.turns.is_some())
            && self.counts.iter().any(|count| *count > 1)
    }

    /// Those of one of so many threads, which begins with another one than the others, or draws them by
    /// this seed.
    pub(super) fn of_thread(mut self, thread: usize, threads: usize, seed: u32) -> Flows {
        if self.seed.is_some() {
            self.seed = Some(seed);
            self.random = SmallRng::seed_from_u64(seed.into());
        } else {
            // Below 2^127, as there are at most 65,536 threads; more flows than that would take
            // longer than anybody waits.
            let first = self.count().min(1 << 100) * thread as u128 / threads as u128;
            self.set(first);
            self.at = first as u64;
        }
        self
    }

    /// The next one.
    #[inline]
    pub(super) fn next(&mut self) -> &[u64] {
        if let Some(seed) = self.seed {
            self.draw(seed);
            self.number += 1;
            return in_turn(self.turns.as_deref(), &mut self.next);
        }
        self.now.copy_from_slice(&self.next);
        self.count_on();
        in_turn(self.turns.as_deref(), &mut self.now)
    }

    fn count_on(&mut self) {
        if let Some(limit) = self.limit {
            self.at += 1;
            if self.at == limit {
                self.at = 0;
                return self.next.fill(0);
            }
        }
        for (digit, count) in self.next.iter_mut().zip(&self.counts) {
            *digit += 1;
            if *digit < *count {
                return;
            }
            *digit = 0;
        }
    }

    fn draw(&mut self, seed: u32) {
        if self.known > 1 {
            let drawn = drawn(self.number, seed, self.known);
            return self.set(drawn.into());
        }
        if let Some(limit) = self.limit {
            let drawn = self.random.random_range(0..limit);
            return self.set(drawn.into());
        }
        for (digit, count) in self.next.iter_mut().zip(&self.counts) {
            *digit = self.random.random_range(0..*count);
        }
    }

    /// The next one is the one of this number.
    fn set(&mut self, mut number: u128) {
        for (digit, count) in self.next.iter_mut().zip(&self.counts) {
            // Below the count.
            *digit = (number % u128::from(*count)) as u64;
            number /= u128::from(*count);
        }
    }
}

#[inline]
fn in_turn<'a>(turns: Option<&Turns>, digits: &'a mut [u64]) -> &'a [u64] {
    if let Some(turns) = turns {
        turns.take(digits);
    }
    digits
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::super::probe::Stream;
    use super::*;

    fn take(flows: &mut Flows, many: usize) -> Vec<Vec<u64>> {
        (0..many).map(|_| flows.next().to_vec()).collect()
    }

    #[test]
    fn all_combinations_come_in_turn() {
        let mut flows = Flows::new(&[3, 1, 2], None, Order::Counting);
        assert_eq!((flows.count(), flows.vary()), (6, true));
        let all = [[0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 0, 1], [1, 0, 1], [2, 0, 1]];
        assert_eq!(take(&mut flows.clone(), 6), all);
        let again = take(&mut flows, 14);
        assert_eq!(again[6..12], all);
        for thread in 0..3 {
            let mut flows = Flows::new(&[3, 1, 2], None, Order::Counting).of_thread(thread, 3, 0);
            assert_eq!(flows.next(), all[2 * thread], "{thread}");
        }
        assert!(!Flows::new(&[1, 1], None, Order::Random).vary());
    }

    #[test]
    fn a_limit_leaves_the_first_ones() {
        let mut flows = Flows::new(&[3, 2], Some(4), Order::Counting);
        let first = [[0, 0], [1, 0], [2, 0], [0, 1]];
        assert_eq!(flows.count(), 4);
        assert_eq!(take(&mut flows, 8), [first, first].concat());
        let mut second = Flows::new(&[3, 2], Some(4), Order::Counting).of_thread(1, 2, 0);
        assert_eq!(take(&mut second, 3), [[2, 0], [0, 1], [0, 0]]);
        // More than there are.
        assert_eq!(Flows::new(&[3, 2], Some(7), Order::Counting).count(), 6);
    }

    #[test]
    fn random_ones_are_all_there_and_none_beside() {
        for limit in [None, Some(50)] {
            let mut flows = Flows::new(&[10, 10], limit, Order::Random);
            let seen = take(&mut flows, 5000);
            assert_ne!(seen[..20], take(&mut flows, 20));
            let kinds: HashSet<Vec<u64>> = seen.into_iter().collect();
            assert_eq!(kinds.len() as u128, flows.count());
            assert!(limit.is_none() || kinds.iter().all(|flow| flow[1] < 5));
        }
        let one = take(&mut Flows::new(&[1 << 32, 1 << 32], None, Order::Random), 100);
        assert_eq!(one.iter().collect::<HashSet<_>>().len(), 100);
    }

    /// The number of a packet says which flow it is of, whichever thread sends it and in which order.
    #[test]
    fn a_stream_knows_the_flow_of_each_number() {
        for (limit, order) in [
            (None, Order::Counting),
            (Some(7), Order::Counting),
            (None, Order::Random),
            (Some(7), Order::Random),
        ] {
            for thread in 0..2 {
                let flows = Flows::new(&[3, 4], limit, order);
                let stream = Stream::new(77 + thread, flows.known(), flows.is_random());
                let mut flows = flows.of_thread(thread as usize, 2, stream.id());
                let mut seen: HashMap<Vec<u64>, u32> = HashMap::new();
                for number in 0..1000 {
                    let flow = *seen.entry(flows.next().to_vec()).or_insert(stream.flow(number));
                    assert_eq!(flow, stream.flow(number), "{limit:?} {order:?} {number}");
                }
                let positions: HashSet<u32> = seen.values().copied().collect();
                assert_eq!((positions.len(), seen.len()), (seen.len(), flows.known() as usize));
            }
        }
        // Too many are one.
        assert_eq!(Flows::new(&[1 << 20, 2], None, Order::Counting).known(), 1);
        assert_eq!(Flows::new(&[1 << 20], None, Order::Counting).known(), FLOWS);
    }
}
