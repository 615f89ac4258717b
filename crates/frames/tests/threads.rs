//! A pool under several threads: nothing is lost, nothing is there twice, nobody goes without for
//! long.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use cachelane_frames::{AlienFree, Frame, FramePool, LaneCache};
use common::{get_all, pool};

/// Fewer under Miri, which is slow, and enough there to switch threads everywhere.
const ROUNDS: usize = if cfg!(miri) { 60 } else { 20_000 };
const MANY: u32 = if cfg!(miri) { 100 } else { 2048 };

/// A fixed, different sequence for each seed (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Marks a frame as this thread's, and sees whether it stays so.
fn stamp(pool: &FramePool, frame: &mut Frame, value: u64) {
    pool.area().bytes_mut(frame)[..8].copy_from_slice(&value.to_ne_bytes());
}

fn stamped(pool: &FramePool, frame: &Frame) -> u64 {
    let bytes = pool.area().bytes(frame)[..8].try_into().unwrap();
    u64::from_ne_bytes(bytes)
}

/// Gets, writes, passes on, frees, at random; caches are born and end, the knob is flipped.
fn mingle(
    pool: &FramePool,
    seed: u64,
    to: &mpsc::SyncSender<Vec<Frame>>,
    from: &mpsc::Receiver<Vec<Frame>>,
) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let homes = 3;
    let mut cache: LaneCache = pool.cache(random.below(homes) as u16).unwrap();
    let mut mine: Vec<Frame> = Vec::new();
    for round in 0..ROUNDS {
        match random.below(12) {
            0..4 => {
                let before = mine.len();
                cache.get_bulk(random.below(40), &mut mine);
                mine[before..].iter_mut().for_each(|frame| stamp(pool, frame, seed));
            }
            4..6 => mine.extend(cache.get().map(|mut frame| {
                stamp(pool, &mut frame, seed);
                frame
            })),
            6..8 => {
                assert!(mine.iter().all(|frame| stamped(pool, frame) == seed), "shared frame");
                let keep = random.below(mine.len() + 1);
                let mut some = mine.split_off(keep);
                if random.below(2) == 0 {
                    cache.put_bulk(&mut some);
                } else {
                    some.into_iter().for_each(|frame| cache.put(frame));
                }
            }
            8 => {
                let keep = random.below(mine.len() + 1);
                if let Err(refused) = to.try_send(mine.split_off(keep)) {
                    match refused {
                        mpsc::TrySendError::Full(mut some) => cache.put_bulk(&mut some),
                        mpsc::TrySendError::Disconnected(_) => {}
                    }
                }
            }
            9 => {
                if let Ok(mut some) = from.try_recv() {
                    cache.put_bulk(&mut some);
                }
            }
            10 => cache.maintain(),
            _ if round % 7 == 0 => {
                pool.set_alien_free(AlienFree::ALL[random.below(3)]);
                cache = pool.cache(random.below(homes) as u16).unwrap();
            }
            _ => cache.park(),
        }
    }
    cache.put_bulk(&mut mine);
}

#[test]
fn nothing_is_lost_or_there_twice_whatever_threads_do() {
    let pool = pool(MANY / 2, &[0, 0, 1], AlienFree::Auto);
    let threads = 4;
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..threads).map(|_| mpsc::sync_channel::<Vec<Frame>>(8)).unzip();
    thread::scope(|scope| {
        let mut senders = senders;
        // Each thread passes on to the next one.
        senders.rotate_left(1);
        for (seed, (to, from)) in (1u64..).zip(senders.into_iter().zip(receivers)) {
            let pool = &pool;
            // What is left in a channel at its end is dropped, and goes home by itself.
            scope.spawn(move || mingle(pool, seed, &to, &from));
        }
    });
    pool.close().unwrap();
}

#[test]
fn a_thread_that_panics_loses_no_frame() {
    let pool = pool(256, &[0, 1], AlienFree::Auto);
    let ended = thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let mut cache = pool.cache(0).unwrap();
            let _held = [cache.get(), cache.get(), cache.get()];
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        panics.join()
    });
    assert!(ended.is_err());
    assert_eq!(pool.counters().dropped, 3);
    pool.close().unwrap();
}

/// One thread frees everything and then only polls; another one needs it all.
#[test]
fn a_starved_thread_gets_what_a_greedy_one_has() {
    for mode in AlienFree::ALL {
        let pool = pool(MANY, &[0, 1], mode);
        let done = AtomicBool::new(false);
        let greedy_has_all = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut cache = pool.cache(0).unwrap();
                let mut all = get_all(&mut cache);
                cache.put_bulk(&mut all);
                greedy_has_all.store(true, Ordering::Release);
                while !done.load(Ordering::Acquire) {
                    cache.maintain();
                    thread::yield_now();
                }
            });
            scope.spawn(|| {
                let mut cache = pool.cache(1).unwrap();
                while !greedy_has_all.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                let mut got = Vec::new();
                while got.len() < MANY as usize {
                    cache.get_bulk(MANY as usize, &mut got);
                    thread::yield_now();
                }
                done.store(true, Ordering::Release);
                cache.put_bulk(&mut got);
            });
        });
        pool.close().unwrap();
    }
}

/// Frames go round: got here, freed there, for far more frames than the pool has.
#[test]
fn frames_come_back_from_a_thread_that_only_frees() {
    let total = if cfg!(miri) { 200 } else { 300_000 };
    for mode in AlienFree::ALL {
        for lanes in [[0, 0], [0, 1]] {
            let pool = pool(MANY / 4, &lanes, mode);
            let (to, from) = mpsc::sync_channel::<Frame>(64);
            let freed = AtomicUsize::new(0);
            thread::scope(|scope| {
                let (pool, freed) = (&pool, &freed);
                scope.spawn(move || {
                    let mut cache = pool.cache(0).unwrap();
                    let mut sent = 0;
                    while sent < total {
                        match cache.get() {
                            Some(frame) => {
                                to.send(frame).unwrap();
                                sent += 1;
                            }
                            None => thread::yield_now(),
                        }
                    }
                });
                scope.spawn(move || {
                    let mut cache = pool.cache(1).unwrap();
                    loop {
                        match from.try_recv() {
                            Ok(frame) => {
                                cache.put(frame);
                                freed.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(mpsc::TryRecvError::Empty) => thread::yield_now(),
                            Err(mpsc::TryRecvError::Disconnected) => break,
                        }
                        cache.maintain();
                    }
                });
            });
            assert_eq!(freed.load(Ordering::Relaxed), total, "{mode} {lanes:?}");
            pool.close().unwrap();
        }
    }
}

/// Two threads are told to claim the same address: one of them gets the frame.
#[test]
fn of_two_claims_of_a_frame_one_is_refused() {
    let pool = pool(64, &[0], AlienFree::Auto);
    let holder = pool.holder().unwrap();
    for _ in 0..ROUNDS / 10 {
        let frame = pool.cache(0).unwrap().get().unwrap();
        let address = pool.release(frame, &holder);
        let claim = || pool.claim(address, &holder).is_ok();
        let won: usize = thread::scope(|scope| {
            let other = scope.spawn(claim);
            usize::from(claim()) + usize::from(other.join().unwrap())
        });
        assert_eq!(won, 1);
    }
    pool.close().unwrap();
}
