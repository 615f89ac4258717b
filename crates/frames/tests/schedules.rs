//! The whole pool under random schedules, every atomic step a place to switch threads:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p cachelane-frames --release --test schedules`.
//! A schedule that fails is printed, and repeated by `shuttle::replay`.

#![cfg(shuttle)]

mod common;

use cachelane_frames::{AlienFree, Batch, Frame};
use common::{get_all, pool};
use shuttle::sync::mpsc;
use shuttle::thread;

/// Schedules of each test. Pct finds what needs few, well-placed switches; random the rest.
fn explore(test: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(test, 1500);
    shuttle::check_pct(test, 1500, 3);
}

#[test]
fn frames_pass_from_thread_to_thread_and_none_is_lost() {
    for mode in AlienFree::ALL {
        explore(move || {
            let pool = pool(12, &[0, 1], mode);
            let (to, from) = mpsc::channel::<Frame>();
            let getter = thread::spawn({
                let mut cache = pool.cache(0).unwrap();
                move || {
                    for _ in 0..10 {
                        cache.get().into_iter().for_each(|frame| to.send(frame).unwrap());
                        cache.maintain();
                    }
                }
            });
            let freer = thread::spawn({
                let mut cache = pool.cache(1).unwrap();
                move || {
                    while let Ok(frame) = from.recv() {
                        cache.put(frame);
                        cache.maintain();
                    }
                }
            });
            getter.join().unwrap();
            freer.join().unwrap();
            pool.close().unwrap();
        });
    }
}

#[test]
fn batches_pass_from_thread_to_thread_and_none_is_lost() {
    for mode in AlienFree::ALL {
        explore(move || {
            let pool = pool(24, &[0, 1], mode);
            let (to, from) = mpsc::channel::<Batch>();
            let getter = thread::spawn({
                let mut cache = pool.cache(0).unwrap();
                move || {
                    for _ in 0..6 {
                        cache.get_batch().into_iter().for_each(|batch| to.send(batch).unwrap());
                        cache.maintain();
                    }
                }
            });
            let freer = thread::spawn({
                let mut cache = pool.cache(1).unwrap();
                move || {
                    let mut frames = Vec::new();
                    for turn in 0.. {
                        let Ok(batch) = from.recv() else { break };
                        match turn % 3 {
                            0 => cache.unpack(batch, &mut frames),
                            _ => cache.put_batch(batch),
                        }
                        cache.put_bulk(&mut frames);
                        cache.maintain();
                    }
                }
            });
            getter.join().unwrap();
            freer.join().unwrap();
            pool.close().unwrap();
        });
    }
}

#[test]
fn threads_that_take_from_each_other_end_with_every_frame() {
    explore(|| {
        let pool = pool(10, &[0, 1, 1], AlienFree::Auto);
        let threads: Vec<_> = (0..3)
            .map(|home| {
                let pool = pool.clone();
                thread::spawn(move || {
                    for round in 0..3 {
                        let mut cache = pool.cache(home).unwrap();
                        let mut mine = Vec::new();
                        cache.get_bulk(3 + round, &mut mine);
                        pool.set_alien_free(AlienFree::ALL[(usize::from(home) + round) % 3]);
                        cache.put_bulk(&mut mine);
                        if round == 1 {
                            cache.park();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let mut cache = pool.cache(0).unwrap();
        let all = get_all(&mut cache);
        assert_eq!(all.len(), 10);
        all.into_iter().for_each(|frame| cache.put(frame));
        drop(cache);
        pool.close().unwrap();
    });
}

#[test]
fn a_starved_thread_is_heard() {
    for mode in AlienFree::ALL {
        explore(move || {
            let pool = pool(8, &[0, 1], mode);
            let (full, is_full) = mpsc::channel();
            let (done, is_done) = mpsc::channel::<()>();
            let greedy = thread::spawn({
                let mut cache = pool.cache(0).unwrap();
                move || {
                    get_all(&mut cache).into_iter().for_each(|frame| cache.put(frame));
                    full.send(()).unwrap();
                    while is_done.try_recv().is_err() {
                        cache.maintain();
                        thread::yield_now();
                    }
                }
            });
            let mut cache = pool.cache(1).unwrap();
            is_full.recv().unwrap();
            let mut mine = Vec::new();
            while mine.len() < 8 {
                cache.get_bulk(8, &mut mine);
                thread::yield_now();
            }
            done.send(()).unwrap();
            greedy.join().unwrap();
            cache.put_bulk(&mut mine);
            drop(cache);
            pool.close().unwrap();
        });
    }
}
