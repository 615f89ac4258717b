//! Batches: magazines that change hands as a whole.

mod common;

use std::collections::HashSet;
use std::thread;

use cachelane_frames::{AlienFree, Batch, Frame, FramePool, LaneCache, PoolOptions};
use common::{address, get_all, pool, pool_with};

/// All batches within a cache's reach.
fn get_batches(cache: &mut LaneCache) -> Vec<Batch> {
    std::iter::from_fn(|| cache.get_batch()).collect()
}

/// Where the frames of a batch are.
fn places(pool: &FramePool, cache: &LaneCache, batch: &Batch) -> Vec<usize> {
    let start = pool.area().as_ptr().as_ptr().addr();
    (0..cache.batch_len())
        .map(|index| pool.batch_bytes(batch, index).as_ptr().addr() - start)
        .collect()
}

#[test]
fn every_frame_is_in_one_batch_and_can_be_written() {
    for mode in AlienFree::ALL {
        let pool = pool(512, &[0, 1], mode);
        let mut cache = pool.cache(0).unwrap();
        let whole = cache.batch_len();
        let mut batches = get_batches(&mut cache);
        let all: HashSet<usize> =
            batches.iter().flat_map(|batch| places(&pool, &cache, batch)).collect();
        assert_eq!((all.len(), batches.len() * whole), (512, 512), "{mode}");
        assert_eq!((pool.census().held, pool.counters().gets), (512, 512), "{mode}");
        for (value, batch) in (0_u8..).zip(&mut batches) {
            (0..whole).for_each(|index| pool.batch_bytes_mut(batch, index)[0] = value);
        }
        for (value, batch) in (0_u8..).zip(&batches) {
            assert!((0..whole).all(|index| pool.batch_bytes(batch, index)[0] == value), "{mode}");
        }
        batches.into_iter().for_each(|batch| cache.put_batch(batch));
        assert_eq!(get_all(&mut cache).len(), 512, "{mode}: they come one by one as well");
        drop(cache);
        assert_eq!(pool.counters().dropped, 512);
        pool.close().unwrap();
    }
}

#[test]
fn a_batch_is_whole_or_not_there_and_what_is_left_stays() {
    let pool = pool(100, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let whole = cache.batch_len();
    let mut some = Vec::new();
    cache.get_bulk(100 - whole + 1, &mut some);
    assert!(cache.get_batch().is_none(), "one too few is left");
    assert_eq!(pool.counters().starved, 1);
    // One by one they make a batch again.
    cache.put(some.pop().unwrap());
    let batch = cache.get_batch().unwrap();
    assert!(cache.get().is_none());
    cache.put_batch(batch);
    cache.put_bulk(&mut some);
    drop(cache);
    pool.close().unwrap();
}

#[test]
fn frames_are_packed_and_unpacked() {
    let pool = pool(200, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let whole = cache.batch_len();
    let mut frames: Vec<Frame> = Vec::new();
    cache.get_bulk(whole + 3, &mut frames);
    let packed: Vec<usize> = frames[3..].iter().map(|frame| address(&pool, frame)).collect();
    let batch = cache.pack(&mut frames).unwrap();
    assert_eq!((frames.len(), places(&pool, &cache, &batch)), (3, packed.clone()));
    assert!(cache.pack(&mut frames).is_none(), "three are too few");
    cache.unpack(batch, &mut frames);
    let unpacked: Vec<usize> = frames[3..].iter().map(|frame| address(&pool, frame)).collect();
    assert_eq!(unpacked, packed);
    cache.put_bulk(&mut frames);
    drop(cache);
    pool.close().unwrap();
}

/// Where the frames of home 0 are after all were taken there, put by the cache of home 1, and both
/// caches have given back what they had.
fn census_after_alien_puts(lanes: &[u16], mode: AlienFree) -> (u64, u64, u64) {
    let pool = pool(1024, lanes, mode);
    let (mut own, mut alien) = (pool.cache(0).unwrap(), pool.cache(1).unwrap());
    let half = 512 / own.batch_len();
    let batches: Vec<Batch> = (0..half).filter_map(|_| own.get_batch()).collect();
    batches.into_iter().for_each(|batch| alien.put_batch(batch));
    let (census, counters) = (pool.census(), pool.counters());
    drop((own, alien));
    pool.close().unwrap();
    (census.depot, census.inboxes - 512, counters.sent_home)
}

#[test]
fn a_batch_goes_where_its_frames_would_go() {
    // One that only frees keeps nothing.
    assert_eq!(census_after_alien_puts(&[0, 1], AlienFree::Recycle), (512, 0, 0));
    assert_eq!(census_after_alien_puts(&[0, 1], AlienFree::Defer), (0, 512, 512));
    assert_eq!(census_after_alien_puts(&[0, 1], AlienFree::Auto), (0, 512, 512));
    assert_eq!(census_after_alien_puts(&[0, 0], AlienFree::Auto), (512, 0, 0));
}

#[test]
fn a_mixed_batch_is_taken_apart_where_frames_are_to_go_home() {
    let pool = pool(512, &[0, 1], AlienFree::Defer);
    let mut caches = [0, 1].map(|home| pool.cache(home).unwrap());
    let whole = caches[0].batch_len();
    let mut mixed: Vec<Frame> = Vec::new();
    for cache in &mut caches {
        cache.get_bulk(whole / 2, &mut mixed);
    }
    let batch = caches[0].pack(&mut mixed).unwrap();
    let before = caches[0].len();
    caches[0].put_batch(batch);
    assert_eq!(caches[0].len() - before, whole / 2, "what is at home here stays here");
    caches.iter_mut().for_each(LaneCache::park);
    assert_eq!(pool.counters().sent_home as usize, whole / 2);
    let is_of_first = |frame: &Frame| address(&pool, frame) < 256 * 64;
    let mut all: Vec<Frame> = Vec::new();
    caches[0].get_bulk(256, &mut all);
    assert!(all.len() == 256 && all.iter().all(is_of_first));
    caches[0].put_bulk(&mut all);
    drop(caches);
    pool.close().unwrap();
}

#[test]
fn a_batch_that_is_dropped_goes_home_by_itself_also_after_its_pool() {
    let pool = pool(256, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let whole = cache.batch_len();
    let (dropped, late) = (cache.get_batch(), cache.get_batch());
    drop(dropped);
    assert_eq!(pool.counters().dropped as usize, whole);
    drop((cache, pool));
    drop(late);
}

#[test]
fn a_batch_of_another_pool_goes_to_that_one() {
    let [ours, theirs] = [(); 2].map(|()| pool(256, &[0], AlienFree::Auto));
    let (mut here, mut there) = (ours.cache(0).unwrap(), theirs.cache(0).unwrap());
    let whole = there.batch_len();
    here.put_batch(there.get_batch().unwrap());
    let mut none: Vec<Frame> = Vec::new();
    here.unpack(there.get_batch().unwrap(), &mut none);
    assert!(none.is_empty());
    let mut foreign: Vec<Frame> = Vec::new();
    there.get_bulk(whole, &mut foreign);
    assert!(here.pack(&mut foreign).is_none() && foreign.len() == whole);
    there.put_bulk(&mut foreign);
    drop((here, there));
    assert_eq!(ours.counters().foreign as usize, 2 * whole);
    ours.close().unwrap();
    theirs.close().unwrap();
}

#[test]
#[should_panic(expected = "another pool")]
fn the_bytes_of_another_pools_batch_are_not_shown() {
    let [ours, theirs] = [(); 2].map(|()| pool(64, &[0], AlienFree::Auto));
    let batch = theirs.cache(0).unwrap().get_batch().unwrap();
    ours.batch_bytes(&batch, 0);
}

/// However batches and single frames take turns, there is a magazine for whoever needs one.
#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn batches_and_frames_take_turns_for_long() {
    for mode in AlienFree::ALL {
        let options = PoolOptions::default().homes(vec![0, 1]).caches(2).alien_free(mode);
        let pool = pool_with(8192, &options);
        let (mut one, mut other) = (pool.cache(0).unwrap(), pool.cache(1).unwrap());
        let whole = one.batch_len();
        for round in 0..200 {
            let batches = get_batches(&mut one);
            // What lies in the other cache is not within reach.
            assert!(batches.len() * whole + 3 * whole > 8192, "{mode}: {}", batches.len());
            let mut frames = Vec::new();
            for (number, batch) in batches.into_iter().enumerate() {
                match (number + round) % 3 {
                    0 => one.put_batch(batch),
                    1 => other.put_batch(batch),
                    _ => other.unpack(batch, &mut frames),
                }
            }
            other.put_bulk(&mut frames);
            let mut all = get_all(&mut other);
            while let Some(batch) = one.pack(&mut all) {
                other.put_batch(batch);
            }
            one.put_bulk(&mut all);
            other.park();
        }
        drop((one, other));
        pool.close().unwrap();
    }
}

/// A getter and a putter on two threads, as an application with a ring between them.
#[test]
fn batches_pass_from_thread_to_thread_and_none_is_lost() {
    const ROUNDS: usize = if cfg!(miri) { 40 } else { 20_000 };
    for mode in AlienFree::ALL {
        let pool = pool(2048, &[0, 1], mode);
        let (to, from) = std::sync::mpsc::sync_channel::<Batch>(4);
        thread::scope(|scope| {
            let pool = &pool;
            scope.spawn(move || {
                let mut cache = pool.cache(0).unwrap();
                for round in 0..ROUNDS {
                    if let Some(mut batch) = cache.get_batch() {
                        pool.batch_bytes_mut(&mut batch, 0)[0] = round as u8;
                        to.send(batch).unwrap();
                    }
                    cache.maintain();
                }
            });
            scope.spawn(move || {
                let mut cache = pool.cache(1).unwrap();
                while let Ok(batch) = from.recv() {
                    cache.put_batch(batch);
                    cache.maintain();
                }
            });
        });
        assert!(pool.counters().gets > 0);
        pool.close().unwrap();
    }
}
