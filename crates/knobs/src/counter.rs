//! One worker's counter.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one worker counts up and anybody may read, on cache lines of its own.
///
/// Give each worker its own and add them up with [`Counter::sum`] when somebody asks: workers that
/// shared one would pull its line from each other on every packet.
///
/// It is aligned to 128 bytes because x86-64's prefetcher pulls lines in pairs.
///
/// All accesses are `Relaxed`. A counter says how often something happened and never that
/// something else is ready: no reader draws a conclusion from it about other memory, so there is
/// nothing to order. What `Relaxed` still gives is what counting needs: no increment is lost
/// however many threads count, and a reader never sees a counter run backwards. A sum over several
/// counters is not a snapshot: it lies between the true sums at the start and the end of the
/// reading.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counter(AtomicU64);

const _: () = assert!(size_of::<Counter>() == 128 && align_of::<Counter>() == 128);

impl Counter {
    /// A counter at 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts one more.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `n` more; wraps past `u64::MAX`.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: see the type.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count so far.
    #[inline]
    pub fn value(&self) -> u64 {
        // Relaxed: see the type.
        self.0.load(Ordering::Relaxed)
    }

    /// The sum of several workers' counters; wraps past `u64::MAX`.
    pub fn sum<'a>(counters: impl IntoIterator<Item = &'a Counter>) -> u64 {
        counters.into_iter().fold(0, |sum, counter| sum.wrapping_add(counter.value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_between_threads() {
        let counters: Vec<Counter> = (0..3).map(|_| Counter::new()).collect();
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let counter = &counters[worker % 3];
                scope.spawn(move || (0..1000).for_each(|_| counter.increment()));
            }
        });
        assert_eq!(counters[0].value(), 2000);
        assert_eq!(Counter::sum(&counters), 6000);
    }

    #[test]
    fn a_sum_wraps() {
        let (a, b) = (Counter::new(), Counter::new());
        a.add(u64::MAX);
        b.add(3);
        assert_eq!(Counter::sum([&a, &b]), 2);
    }
}
