//! Which flow each packet belongs to: what varies in packets, and in which order.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// In which order flows get packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    /// One after the other, over and over
    Counting,
    /// Each packet's drawn at random, all with the same chance
    Random,
}

/// The flow of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow<'a> {
    /// A number for each thing that varies.
    pub(super) digits: &'a [u64],
    /// Which flow it is.
    pub(super) position: u32,
    /// Which packet of that flow it is.
    pub(super) number: u64,
}

/// More flows than this are not told apart: all are flow 0.
const KNOWN: u128 = 1 << 20;

/// The flows of packets. One is a number for each thing that varies, from 0 to below its count; the
/// first of them changes fastest.
#[derive(Clone, Debug)]
pub(super) struct Flows {
    counts: Vec<u64>,
    now: Vec<u64>,
    next: Vec<u64>,
    /// How many flows there are, if that is below all that there could be.
    limit: Option<u64>,
    /// Which one `next` is, and how often all flows have had a packet.
    at: u64,
    round: u64,
    random: Option<SmallRng>,
    /// How many are told apart, and how many packets each has had, where they are drawn.
    known: u32,
    drawn: Vec<u32>,
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
            round: 0,
            random: None,
            known: 1,
            drawn: Vec::new(),
        };
        flows.limit = limit.filter(|limit| u128::from(*limit) < flows.all());
        if flows.count() <= KNOWN {
            flows.known = flows.count() as u32;
        }
        if order == Order::Random && flows.vary() {
            flows.random = Some(SmallRng::seed_from_u64(1));
            flows.drawn = vec![0; flows.known as usize];
            flows.draw();
        }
        flows
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
        self.random.is_some()
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// How many there are.
    pub(super) fn count(&self) -> u128 {
        self.limit.map_or_else(|| self.all(), u128::from)
    }

    /// Whether there is more than one.
    #[inline]
    pub(super) fn vary(&self) -> bool {
        self.limit != Some(1) && self.counts.iter().any(|count| *count > 1)
    }

    /// Those of one of so many threads: from another one on than those of the others.
    pub(super) fn of_thread(mut self, thread: usize, threads: usize) -> Flows {
        if self.random.is_some() {
            self.random = Some(SmallRng::seed_from_u64(1 + thread as u64));
            self.draw();
        } else {
            // Below 2^127, as there are at most 65,536 threads; more flows than that would take
            // longer than anybody waits.
            let first = self.count().min(1 << 100) * thread as u128 / threads as u128;
            self.set(first);
            self.at = first as u64;
        }
        self
    }

    /// How many are told apart.
    pub(super) fn known(&self) -> u32 {
        self.known
    }

    /// The next one.
    #[inline]
    pub(super) fn next(&mut self) -> Flow<'_> {
        self.now.copy_from_slice(&self.next);
        let (at, round) = (self.at, self.round);
        if self.random.is_some() {
            self.draw();
        } else {
            self.count_on();
        }
        let (position, number) = match self.known {
            1 => {
                self.round = round + 1;
                (0, round)
            }
            _ if self.random.is_some() => {
                let number = &mut self.drawn[at as usize];
                *number += 1;
                (at as u32, u64::from(*number) - 1)
            }
            _ => (at as u32, round),
        };
        Flow { digits: &self.now, position, number }
    }

    fn count_on(&mut self) {
        self.at += 1;
        if self.limit == Some(self.at) {
            (self.at, self.round) = (0, self.round + 1);
            return self.next.fill(0);
        }
        for (digit, count) in self.next.iter_mut().zip(&self.counts) {
            *digit += 1;
            if *digit < *count {
                return;
            }
            *digit = 0;
        }
        (self.at, self.round) = (0, self.round + 1);
    }

    fn draw(&mut self) {
        let Some(random) = &mut self.random else { return };
        if let Some(limit) = self.limit {
            self.at = random.random_range(0..limit);
            return self.set(self.at.into());
        }
        let mut each = 1_u64;
        self.at = 0;
        for (digit, count) in self.next.iter_mut().zip(&self.counts) {
            *digit = random.random_range(0..*count);
            // Too large a number is not used: so many flows are not told apart.
            self.at = self.at.wrapping_add(digit.wrapping_mul(each));
            each = each.wrapping_mul(*count);
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

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn take(flows: &mut Flows, many: usize) -> Vec<Vec<u64>> {
        (0..many).map(|_| flows.next().digits.to_vec()).collect()
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
            let mut flows = Flows::new(&[3, 1, 2], None, Order::Counting).of_thread(thread, 3);
            assert_eq!(flows.next().digits, all[2 * thread], "{thread}");
        }
        assert!(!Flows::new(&[1, 1], None, Order::Random).vary());
    }

    #[test]
    fn a_limit_leaves_the_first_ones() {
        let mut flows = Flows::new(&[3, 2], Some(4), Order::Counting);
        let first = [[0, 0], [1, 0], [2, 0], [0, 1]];
        assert_eq!(flows.count(), 4);
        assert_eq!(take(&mut flows, 8), [first, first].concat());
        let mut second = Flows::new(&[3, 2], Some(4), Order::Counting).of_thread(1, 2);
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

    /// A flow has one position, and its packets count up from 0, or from 1 where its thread began behind
    /// it.
    #[test]
    fn packets_are_numbered_by_flow() {
        for (limit, order) in [
            (None, Order::Counting),
            (Some(7), Order::Counting),
            (None, Order::Random),
            (Some(7), Order::Random),
        ] {
            for thread in 0..2 {
                let mut flows = Flows::new(&[3, 4], limit, order).of_thread(thread, 2);
                let mut seen: HashMap<Vec<u64>, (u32, u64)> = HashMap::new();
                for _ in 0..1000 {
                    let Flow { digits, position, number } = flows.next();
                    let (digits, next) = (digits.to_vec(), number + 1);
                    match seen.insert(digits, (position, next)) {
                        None => assert!(number == 0 || (number == 1 && thread == 1), "{number}"),
                        Some(before) => assert_eq!(before, (position, number)),
                    }
                }
                let positions: HashSet<u32> =
                    seen.values().map(|(position, _)| *position).collect();
                assert_eq!((positions.len(), seen.len()), (seen.len(), flows.known() as usize));
            }
        }
        // One flow, and too many, are numbered as they come.
        for counts in [&[1, 1], &[1 << 20, 1 << 20]] {
            let mut flows = Flows::new(counts, None, Order::Counting);
            for expected in 0..5 {
                let Flow { position, number, .. } = flows.next();
                assert_eq!((position, number), (0, expected));
            }
        }
    }
}
