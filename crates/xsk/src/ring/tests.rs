//! The rings over plain memory: no kernel, no privileges.

#[cfg(not(loom))]
use std::time::{Duration, Instant};

use super::*;

/// A ring in memory, its indices starting at `start`.
struct Plain {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: Box<[UnsafeCell<u64>]>,
}

// SAFETY: the slots are reached through a `Producer` and a `Consumer` only.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

fn plain(size: u32, start: u32) -> Arc<Plain> {
    Arc::new(Plain {
        producer: AtomicU32::new(start),
        consumer: AtomicU32::new(start),
        flags: AtomicU32::new(0),
        slots: (0..size).map(|_| UnsafeCell::new(u64::MAX)).collect(),
    })
}

fn memory(ring: &Arc<Plain>) -> Memory<u64> {
    let parts = Parts {
        producer: NonNull::from(&ring.producer),
        consumer: NonNull::from(&ring.consumer),
        flags: NonNull::from(&ring.flags),
        slots: NonNull::new(ring.slots.as_ptr().cast_mut()).expect("a box is not null"),
    };
    // SAFETY: the parts lie in the owner, and the tests make one producer and one consumer.
    unsafe { Memory::new(parts, ring.slots.len() as u32, Arc::clone(ring) as _) }
}

fn sides(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>, Arc<Plain>) {
    let ring = plain(size, start);
    (Producer::new(memory(&ring)), Consumer::new(memory(&ring)), ring)
}

/// Pushes `n` numbers from `*next` on; what does not fit is not taken.
fn push(producer: &mut Producer<u64>, n: u32, next: &mut u64) -> u32 {
    producer.push(n, || {
        *next += 1;
        Some(*next - 1)
    })
}

#[cfg(not(loom))]
mod single {
    use proptest::prelude::*;

    use super::*;

    /// Starts from which a handful of descriptors wraps the indices.
    const STARTS: [u32; 5] = [0, 7, u32::MAX, u32::MAX - 3, u32::MAX / 2];

    #[test]
    fn what_goes_in_comes_out_in_order_across_the_end_of_the_indices() {
        for start in STARTS {
            let (mut producer, mut consumer, ring) = sides(4, start);
            let (mut sent, mut seen) = (0, 0);
            for _ in 0..10 {
                assert_eq!(push(&mut producer, 3, &mut sent), 3);
                assert_eq!((producer.pending(), consumer.pending()), (3, 3));
                let taken = consumer.pop(9, |value| {
                    assert_eq!(value, seen);
                    seen += 1;
                });
                assert_eq!(taken, 3);
            }
            let index = |index: &AtomicU32| index.load(Ordering::Relaxed);
            assert_eq!(index(&ring.producer), start.wrapping_add(30));
            assert_eq!(index(&ring.consumer), start.wrapping_add(30));
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_and_asks_for_no_more() {
        for start in STARTS {
            let (mut producer, mut consumer, _) = sides(4, start);
            let mut next = 0;
            assert_eq!(push(&mut producer, 9, &mut next), 4);
            assert_eq!(next, 4, "what does not fit is not asked for");
            assert_eq!((producer.room(1), push(&mut producer, 1, &mut next)), (0, 0));
            assert_eq!(consumer.pop(1, |value| assert_eq!(value, 0)), 1);
            assert_eq!(producer.room(9), 1);
        }
    }

    #[test]
    fn a_producer_with_nothing_to_say_publishes_nothing() {
        let (mut producer, mut consumer, _) = sides(4, u32::MAX);
        assert_eq!(producer.push(4, || None), 0);
        assert_eq!(consumer.ready(4), 0);
        assert_eq!(consumer.pop(4, |_| panic!("there is none")), 0);
    }

    #[test]
    fn what_is_peeked_at_stays_and_keeps_its_slot() {
        let (mut producer, mut consumer, _) = sides(2, u32::MAX);
        let mut next = 5;
        push(&mut producer, 2, &mut next);
        assert_eq!(consumer.ready(2), 2);
        assert_eq!((consumer.peek(0), consumer.peek(1), consumer.peek(0)), (5, 6, 5));
        assert_eq!(producer.room(1), 0);
    }

    #[test]
    #[should_panic(expected = "descriptor 1 is not there")]
    fn peeking_past_what_is_ready_panics() {
        let (mut producer, mut consumer, _) = sides(4, 0);
        push(&mut producer, 1, &mut 0);
        consumer.ready(4);
        consumer.peek(1);
    }

    #[test]
    fn sides_that_are_made_later_go_on_where_the_ring_is() {
        let ring = plain(4, u32::MAX - 1);
        let mut next = 0;
        push(&mut Producer::new(memory(&ring)), 3, &mut next);
        assert_eq!(push(&mut Producer::new(memory(&ring)), 3, &mut next), 1);
        let mut seen = Vec::new();
        Consumer::new(memory(&ring)).pop(2, |value| seen.push(value));
        Consumer::new(memory(&ring)).pop(9, |value| seen.push(value));
        assert_eq!(seen, [0, 1, 2, 3]);
    }

    #[test]
    fn need_wakeup_is_the_kernels_flag() {
        let (producer, _, ring) = sides(4, 0);
        assert!(!producer.needs_wakeup());
        ring.flags.store(NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

        /// Against a queue: any mixture of batches, any size, any start.
        #[test]
        fn behaves_as_a_bounded_queue(
            log_size in 0_u32..6,
            start in prop_oneof![Just(0), Just(u32::MAX), (u32::MAX - 40..=u32::MAX), any::<u32>()],
            steps in prop::collection::vec((any::<bool>(), 0_u32..40), 1..60),
        ) {
            let size = 1 << log_size;
            let (mut producer, mut consumer, _) = sides(size, start);
            let mut model = std::collections::VecDeque::new();
            let mut next = 0;
            for (pushes, n) in steps {
                if pushes {
                    let expected = n.min(size - model.len() as u32);
                    let first = next;
                    prop_assert_eq!(push(&mut producer, n, &mut next), expected);
                    model.extend(first..next);
                } else {
                    let mut seen = Vec::new();
                    consumer.pop(n, |value| seen.push(value));
                    let expected = model.len().min(n as usize);
                    prop_assert_eq!(seen, model.drain(..expected).collect::<Vec<_>>());
                }
                prop_assert_eq!(consumer.pending() as usize, model.len());
            }
        }
    }

    #[test]
    fn two_threads_lose_and_double_nothing_across_the_end_of_the_indices() {
        let (most, before_end) = if cfg!(miri) { (300, 150) } else { (1_000_000, 1000) };
        for (size, batch) in [(1, 1), (4, 3), (64, 32), (64, 64)] {
            let (mut producer, mut consumer, _) = sides(size, 0_u32.wrapping_sub(before_end));
            // Beside busy programs each turn can take some milliseconds.
            let late = Instant::now() + Duration::from_secs(2);
            std::thread::scope(|scope| {
                let producer = scope.spawn(move || {
                    let mut next = 0;
                    while next < most && (next < 2 * u64::from(before_end) || Instant::now() < late)
                    {
                        let left = u32::try_from(most - next).unwrap_or(u32::MAX);
                        if push(&mut producer, left.min(batch), &mut next) == 0 {
                            std::thread::yield_now();
                        }
                    }
                    next
                });
                let mut seen = 0;
                loop {
                    let over = producer.is_finished();
                    let taken = consumer.pop(batch, |value| {
                        assert_eq!(value, seen);
                        seen += 1;
                    });
                    if taken == 0 && over {
                        break;
                    } else if taken == 0 {
                        std::thread::yield_now();
                    }
                }
                assert_eq!((producer.join().unwrap(), consumer.ready(1)), (seen, 0));
            });
        }
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p cachelane-xsk --release --lib loom`
#[cfg(loom)]
mod loom_tests {
    use super::*;

    #[test]
    fn every_interleaving_hands_over_what_was_written_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer, _ring) = sides(2, u32::MAX);
            let thread = loom::thread::spawn(move || {
                let mut next = 0;
                for batch in [2, 1, 1] {
                    push(&mut producer, batch, &mut next);
                }
                next
            });
            let mut seen = 0;
            let mut take = |consumer: &mut Consumer<u64>| {
                consumer.pop(2, |value| {
                    assert_eq!(value, seen);
                    seen += 1;
                });
            };
            take(&mut consumer);
            take(&mut consumer);
            let sent = thread.join().expect("the producer");
            take(&mut consumer);
            take(&mut consumer);
            assert_eq!(seen, sent);
        });
    }
}
