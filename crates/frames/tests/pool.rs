//! What a pool promises, by one thread.

mod common;

use std::collections::HashSet;
use std::mem;

use cachelane_frames::{
    AlienFree, AreaOptions, Batch, ErrorKind, FrameArea, FramePool, PoolOptions, Refused,
};
use common::{address, get_all, pool, pool_with};

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn every_frame_is_got_once_and_can_be_written() {
    for frames in [1, 2, 63, 64, 127, 1000] {
        let pool = pool(frames, &[0], AlienFree::Auto);
        let mut cache = pool.cache(0).unwrap();
        let mut all = get_all(&mut cache);
        let places: HashSet<usize> = all.iter().map(|frame| address(&pool, frame)).collect();
        assert_eq!((all.len(), places.len()), (frames as usize, frames as usize));
        for (value, frame) in (0u32..).zip(&mut all) {
            pool.area().bytes_mut(frame)[..4].copy_from_slice(&value.to_ne_bytes());
        }
        for (value, frame) in (0u32..).zip(&all) {
            assert_eq!(pool.area().bytes(frame)[..4], value.to_ne_bytes());
        }
        assert_eq!(pool.census().held, u64::from(frames));
        cache.put_bulk(&mut all);
        drop(cache);
        assert_eq!(pool.census().held, 0);
        pool.close().unwrap();
    }
}

#[test]
fn the_frame_put_last_is_got_first() {
    let pool = pool(256, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let frames = [cache.get().unwrap(), cache.get().unwrap()];
    let places = frames.each_ref().map(|frame| address(&pool, frame));
    frames.into_iter().for_each(|frame| cache.put(frame));
    let again = [cache.get().unwrap(), cache.get().unwrap()];
    assert_eq!(again.each_ref().map(|frame| address(&pool, frame)), [places[1], places[0]]);
}

#[test]
fn bulk_takes_what_there_is_and_no_more_than_wanted() {
    let pool = pool(100, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let mut frames = Vec::new();
    assert_eq!(cache.get_bulk(30, &mut frames), 30);
    assert_eq!(cache.get_bulk(0, &mut frames), 0);
    assert_eq!(cache.get_bulk(1000, &mut frames), 70);
    assert_eq!(cache.get_bulk(1, &mut frames), 0);
    assert_eq!((frames.len(), pool.counters().starved), (100, 2));
    let places: HashSet<usize> = frames.iter().map(|frame| address(&pool, frame)).collect();
    assert_eq!(places.len(), 100);
    cache.put_bulk(&mut frames);
    assert!(frames.is_empty());
    assert_eq!(get_all(&mut cache).len(), 100);
}

#[test]
fn an_array_is_whole_or_not_there() {
    for mode in AlienFree::ALL {
        let pool = pool(100, &[0, 1], mode);
        let (mut one, mut other) = (pool.cache(0).unwrap(), pool.cache(1).unwrap());
        let mut out: Vec<[cachelane_frames::Frame; 32]> =
            std::iter::from_fn(|| one.get_array()).collect();
        assert_eq!((out.len(), one.len()), (3, 4), "{mode}: 96 of 100, and 4 that are too few");
        let places: HashSet<usize> = out.iter().flatten().map(|f| address(&pool, f)).collect();
        assert_eq!(places.len(), 96);
        other.put_array(out.pop().unwrap());
        one.put_array(out.pop().unwrap());
        drop(out);
        drop((one, other));
        assert_eq!(pool.counters().dropped, 32, "{mode}");
        pool.close().unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn a_cache_keeps_no_more_than_its_capacity() {
    let pool = pool(4096, &[0], AlienFree::Recycle);
    let mut cache = pool.cache(0).unwrap();
    assert_eq!(cache.capacity(), 384);
    let mut all = get_all(&mut cache);
    while let Some(frame) = all.pop() {
        cache.put(frame);
        assert!(cache.len() <= cache.capacity());
    }
    assert!(pool.census().depot >= 4096 - 384);
}

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn a_cache_that_only_frees_keeps_one_magazine() {
    let pool = pool(4096, &[0, 0], AlienFree::Recycle);
    let (mut getter, mut freer) = (pool.cache(0).unwrap(), pool.cache(1).unwrap());
    for frame in get_all(&mut getter) {
        freer.put(frame);
    }
    assert!(freer.len() <= freer.capacity() / 2, "{} frames", freer.len());
}

/// Where 1000 frames of home 0 end that are freed at home 1: in the depot, or at home.
#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn frames_freed_away_from_home_go_where_the_knob_says() {
    const MANY: usize = 1000;
    for (lanes, mode, goes_home) in [
        ([0, 0], AlienFree::Recycle, false),
        ([0, 1], AlienFree::Recycle, false),
        ([0, 0], AlienFree::Defer, true),
        ([0, 1], AlienFree::Defer, true),
        ([0, 0], AlienFree::Auto, false),
        ([0, 1], AlienFree::Auto, true),
    ] {
        let pool = pool(4096, &lanes, mode);
        let (mut home, mut away) = (pool.cache(0).unwrap(), pool.cache(1).unwrap());
        let mut frames = Vec::new();
        assert_eq!(home.get_bulk(MANY, &mut frames), MANY);
        home.park();
        let before = pool.census();
        away.put_bulk(&mut frames);
        let kept = away.len();
        let after = pool.census();
        let case = format!("{lanes:?} {mode}: {before:?} {after:?}");
        let (to_home, to_depot) = (after.inboxes - before.inboxes, after.depot - before.depot);
        let moved = to_home + to_depot;
        assert!(moved as usize + kept <= MANY && moved > 600, "{case}");
        assert_eq!((to_home, to_depot), if goes_home { (moved, 0) } else { (0, moved) }, "{case}");
        // What is sent home is not kept here first, except by auto.
        assert_eq!(kept > 0, mode != AlienFree::Defer, "{case}");
        assert_eq!(pool.counters().sent_home, if goes_home { moved } else { 0 });
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn a_surplus_of_several_homes_is_sorted_out_by_auto() {
    let pool = pool(4096, &[0, 0, 1, 1], AlienFree::Auto);
    let mut caches = [0, 1, 2, 3].map(|home| pool.cache(home).unwrap());
    let mut frames = Vec::new();
    for cache in &mut caches {
        assert_eq!(cache.get_bulk(500, &mut frames), 500);
        cache.park();
    }
    // Mixed: 500 of each home, taken by turns.
    let mut mixed: Vec<_> = frames.into_iter().map(Some).collect();
    let turns = (0..500).flat_map(|i| (0..4).map(move |home| home * 500 + i));
    turns.for_each(|i| caches[0].put(mixed[i].take().unwrap()));
    let sent = pool.counters().sent_home;
    assert!((500..=1000).contains(&sent), "half of what was no room for: {sent} of 2000");
    drop(caches);
    // Every home finds its own again, of those in the other lane.
    for home in [2, 3] {
        let mut cache = pool.cache(home).unwrap();
        let mut own = Vec::new();
        cache.get_bulk(900, &mut own);
        let range = usize::from(home) * 1024 * 64..(usize::from(home) + 1) * 1024 * 64;
        let strangers = own.iter().filter(|f| !range.contains(&address(&pool, f))).count();
        assert_eq!(strangers, 0, "home {home}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn no_more_wait_in_an_inbox_than_it_is_allowed() {
    for mode in [AlienFree::Defer, AlienFree::Auto] {
        let options = PoolOptions::default().homes(vec![0, 1]).inbox(Some(300)).alien_free(mode);
        let pool = pool_with(4096, &options);
        let (mut home, mut away) = (pool.cache(0).unwrap(), pool.cache(1).unwrap());
        let mut frames = Vec::new();
        home.get_bulk(2048, &mut frames);
        let others = pool.census().inboxes;
        away.put_bulk(&mut frames);
        away.park();
        let census = pool.census();
        assert!(census.inboxes - others <= 300, "{mode}: {census:?}");
        assert!(pool.counters().inbox_full > 0);
        // The rest is not lost to the home.
        assert_eq!(get_all(&mut home).len(), 4096, "{mode}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn the_knob_can_be_flipped_at_any_frame() {
    let pool = pool(1024, &[0, 1, 2], AlienFree::Auto);
    let mut caches = [0, 1, 2].map(|home| pool.cache(home).unwrap());
    for round in 0..300 {
        let mut frames = Vec::new();
        caches[round % 3].get_bulk(50 + round, &mut frames);
        for (number, frame) in frames.into_iter().enumerate() {
            pool.set_alien_free(AlienFree::ALL[(round + number) % 3]);
            caches[(round + number) % 3].put(frame);
        }
    }
    drop(caches);
    pool.close().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn a_cache_that_is_not_asked_any_more_gives_back() {
    let pool = pool(512, &[0, 0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let frame = cache.get().unwrap();
    cache.put(frame);
    assert!(!cache.is_empty());
    (0..3000).for_each(|_| cache.maintain());
    assert!(cache.is_empty());
    assert_eq!(pool.census().held + pool.census().cached, 0);
}

#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn what_is_wanted_elsewhere_is_given_back_at_once() {
    for mode in AlienFree::ALL {
        let pool = pool(512, &[0, 1], mode);
        let (mut greedy, mut starved) = (pool.cache(0).unwrap(), pool.cache(1).unwrap());
        let all = get_all(&mut greedy);
        assert!(starved.get().is_none(), "all are out");
        all.into_iter().for_each(|frame| greedy.put(frame));
        let (mut got, mut turns) = (Vec::new(), 0);
        while got.len() < 512 && turns < 4 {
            starved.get_bulk(512, &mut got);
            greedy.maintain();
            turns += 1;
        }
        assert_eq!(got.len(), 512, "{mode} after {turns} turns");
    }
}

#[test]
fn an_address_comes_back_once_and_from_whom_has_it() {
    let pool = pool(64, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let (kernel, other) = (pool.holder().unwrap(), pool.holder().unwrap());
    let address = pool.release(cache.get().unwrap(), &kernel);
    assert_eq!((kernel.frames(), other.frames(), pool.census().released), (1, 0, 1));
    assert_eq!(pool.claim(address, &other), Err(Refused::NotOut { address }));
    let frame = pool.claim(address + 63, &kernel).unwrap();
    assert_eq!(pool.claim(address, &kernel), Err(Refused::NotOut { address }));
    for address in [64 * 64, u64::MAX] {
        assert_eq!(pool.claim(address, &kernel), Err(Refused::Foreign { address }));
    }
    assert_eq!(pool.counters().refused, 4);
    cache.put(frame);
}

#[test]
fn what_a_holder_has_that_is_gone_is_taken_back() {
    let pool = pool(300, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let (gone, other) = (pool.holder().unwrap(), pool.holder().unwrap());
    let mut frames = get_all(&mut cache);
    let others = pool.release(frames.pop().unwrap(), &other);
    for frame in frames.drain(..) {
        let _address = pool.release(frame, &gone);
    }
    let mut back = pool.reclaim(&gone);
    assert_eq!((back.len(), gone.frames()), (299, 0));
    cache.put_bulk(&mut back.split_off(100));
    pool.send_home(back);
    assert_eq!(pool.counters().dropped, 0);
    cache.put(pool.claim(others, &other).unwrap());
    drop(cache);
    pool.close().unwrap();
}

#[test]
fn a_dropped_frame_goes_home() {
    let pool = pool(128, &[0, 1], AlienFree::Auto);
    let mut cache = pool.cache(1).unwrap();
    let frame = cache.get().unwrap();
    drop(frame);
    drop(cache);
    assert_eq!((pool.counters().dropped, pool.census().inboxes), (1, 128));
    pool.close().unwrap();
}

#[test]
fn a_frame_of_another_pool_goes_to_its_own() {
    let (one, two) = (pool(64, &[0], AlienFree::Auto), pool(64, &[0], AlienFree::Defer));
    let mut caches = (one.cache(0).unwrap(), two.cache(0).unwrap());
    caches.1.put(caches.0.get().unwrap());
    let mut some = vec![caches.0.get().unwrap(), caches.1.get().unwrap()];
    caches.1.put_bulk(&mut some);
    let mixed = [caches.1.get().unwrap(), caches.0.get().unwrap()];
    caches.1.put_array(mixed);
    assert_eq!((one.counters().foreign, two.counters().foreign), (0, 3));
    drop(caches);
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
fn a_frame_that_is_forgotten_is_missed_at_the_end() {
    let pool = pool(64, &[0], AlienFree::Auto);
    let mut cache = pool.cache(0).unwrap();
    let holder = pool.holder().unwrap();
    mem::forget(cache.get());
    let _address = pool.release(cache.get().unwrap(), &holder);
    let leak = pool.clone().close().unwrap_err();
    assert_eq!((leak.released, leak.twice, leak.caches), (1, 0, 1));
    drop(cache);
    let leak = pool.close().unwrap_err();
    assert_eq!((leak.frames, leak.released, leak.twice, leak.caches), (2, 1, 0, 0));
    assert!(leak.to_string().starts_with("2 frames did not come back (1 of them with holders"));
}

/// In debug builds what goes wrong is fatal, and the message says what happened to the frame.
#[cfg(debug_assertions)]
mod fatal {
    use super::*;

    fn fatal_pool() -> FramePool {
        pool_with(64, &PoolOptions::default())
    }

    #[test]
    #[should_panic(expected = "is not with this holder; got by cache 0 (event 1), released to \
                               holder 1 (event 2), claimed from holder 1 (event 3)")]
    fn a_double_free() {
        let pool = fatal_pool();
        let mut cache = pool.cache(0).unwrap();
        let holder = pool.holder().unwrap();
        let address = pool.release(cache.get().unwrap(), &holder);
        let _frame = pool.claim(address, &holder);
        let _again = pool.claim(address, &holder);
    }

    #[test]
    #[should_panic(expected = "outside the area")]
    fn a_foreign_address() {
        let pool = fatal_pool();
        let _refused = pool.claim(1 << 40, &pool.holder().unwrap());
    }

    #[test]
    #[should_panic(expected = "put into a pool that it is not of")]
    fn a_foreign_frame() {
        let pools = [fatal_pool(), fatal_pool()];
        let frame = pools[0].cache(0).unwrap().get().unwrap();
        pools[1].cache(0).unwrap().put(frame);
    }

    #[test]
    #[should_panic(expected = "did not come back (0 of them with holders, 0 caches still there)\n\
                               frame 63: got by cache 0")]
    fn a_leak() {
        let pool = fatal_pool();
        mem::forget(pool.cache(0).unwrap().get());
        let _leak = pool.close();
    }
}

#[test]
fn what_cannot_be_made_is_refused_with_the_value() {
    let area = |frames, frame_size| {
        FrameArea::new(&AreaOptions::default().frames(frames).frame_size(frame_size))
    };
    for (frames, size, named) in [
        (0, 2048, "0 frames"),
        (u32::MAX, 64, "4294967295 frames"),
        (8, 3000, "3000 bytes"),
        (8, 32, "32 bytes"),
    ] {
        let error = area(frames, size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(named), "{error}");
    }
    let default = PoolOptions::default;
    for (options, named) in [
        (default().homes(vec![]), "0 homes for 8 frames"),
        (default().homes(vec![0; 9]), "9 homes for 8 frames"),
        (default().cache(1), "a cache of 1 frames"),
        (default().caches(0), "0 caches"),
    ] {
        let error = FramePool::new(area(8, 64).unwrap(), &options).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
    let pool = pool_with(8, &default().caches(1));
    let cache = pool.cache(0).unwrap();
    assert!(pool.cache(0).unwrap_err().to_string().contains("all 1 caches"));
    assert!(pool.cache(1).unwrap_err().to_string().contains("home 1: the pool has homes 0 to 0"));
    drop(cache);
    pool.cache(0).unwrap();
    assert!("frugal".parse::<AlienFree>().unwrap_err().to_string().contains("frugal"));
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not map memory")]
fn a_shared_area_is_a_memfd_that_others_can_neither_resize_nor_write() {
    let options = AreaOptions::default().shared(true).frames(16);
    let area = FrameArea::new(&options).unwrap();
    let memfd = area.memfd().unwrap();
    assert_eq!(rustix::fs::fstat(memfd).unwrap().st_size as usize % area.len(), 0);
    for size in [0, 1 << 30] {
        assert_eq!(rustix::fs::ftruncate(memfd, size), Err(rustix::io::Errno::PERM));
    }
    assert_eq!(rustix::io::pwrite(memfd, b"forged", 0), Err(rustix::io::Errno::PERM));
    let pool = FramePool::new(area, &PoolOptions::default()).unwrap();
    let mut cache = pool.cache(0).unwrap();
    let mut frame = cache.get().unwrap();
    pool.area().bytes_mut(&mut frame)[0] = 7;
    cache.put(frame);
}

/// A step of one of three threads' caches, with what it works on.
#[derive(Clone, Debug)]
enum Step {
    Get(usize, usize),
    Put(usize, usize),
    Park(usize),
    Maintain(usize),
    Reborn(usize),
    Flip(AlienFree),
    Release(usize),
    Claim(usize),
    /// Gets a batch, or puts one that is out.
    Batch(usize, bool),
    /// Frames that are out become a batch, or the other way round.
    Pack(usize, bool),
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::*;
    let step = prop_oneof![
        4 => (0..3usize, 1..60usize).prop_map(|(cache, n)| Step::Get(cache, n)),
        4 => (0..3usize, 1..60usize).prop_map(|(cache, n)| Step::Put(cache, n)),
        1 => (0..3usize).prop_map(Step::Park),
        1 => (0..3usize).prop_map(Step::Maintain),
        1 => (0..3usize).prop_map(Step::Reborn),
        1 => proptest::sample::select(AlienFree::ALL.to_vec()).prop_map(Step::Flip),
        1 => (1..20usize).prop_map(Step::Release),
        1 => (1..20usize).prop_map(Step::Claim),
        3 => (0..3usize, any::<bool>()).prop_map(|(cache, gets)| Step::Batch(cache, gets)),
        2 => (0..3usize, any::<bool>()).prop_map(|(cache, packs)| Step::Pack(cache, packs)),
    ];
    prop::collection::vec(step, 1..80)
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config {
        cases: if cfg!(miri) { 2 } else { 300 },
        failure_persistence: None,
        ..Default::default()
    })]

    /// The model: frames that are out, and nothing else is needed. A frame that is got is not out
    /// already, and as many as are not out can be got.
    #[test]
    #[cfg_attr(miri, ignore = "proptest asks the system for too much")]
    fn every_sequence_of_steps_keeps_every_frame_once(
        lanes in proptest::sample::select(vec![[0, 0, 0], [0, 0, 1], [0, 1, 2]]),
        steps in steps(),
    ) {
        const FRAMES: usize = 200;
        let pool = pool(FRAMES as u32, &lanes, AlienFree::Auto);
        let holder = pool.holder().unwrap();
        let mut caches = [0, 1, 2].map(|home| pool.cache(home).unwrap());
        let (mut out, mut released, mut batches) = (Vec::new(), Vec::new(), Vec::new());
        let of = |batch: &Batch, index: usize| {
            let start = pool.area().as_ptr().as_ptr().addr();
            pool.batch_bytes(batch, index).as_ptr().addr() - start
        };
        let whole = caches[0].batch_len();
        let mut places = HashSet::new();
        for step in steps {
            match step {
                Step::Get(cache, n) => {
                    let before = out.len();
                    caches[cache].get_bulk(n, &mut out);
                    for frame in &out[before..] {
                        proptest::prop_assert!(places.insert(address(&pool, frame)), "twice");
                    }
                }
                Step::Put(cache, n) => {
                    let mut some = out.split_off(out.len().saturating_sub(n));
                    some.iter().for_each(|frame| assert!(places.remove(&address(&pool, frame))));
                    caches[cache].put_bulk(&mut some);
                }
                Step::Park(cache) => caches[cache].park(),
                Step::Maintain(cache) => caches[cache].maintain(),
                Step::Reborn(cache) => caches[cache] = pool.cache(cache as u16).unwrap(),
                Step::Flip(mode) => pool.set_alien_free(mode),
                Step::Release(n) => {
                    let some = out.split_off(out.len().saturating_sub(n));
                    released.extend(some.into_iter().map(|frame| pool.release(frame, &holder)));
                }
                Step::Claim(n) => {
                    let some = released.split_off(released.len().saturating_sub(n));
                    out.extend(some.into_iter().map(|at| pool.claim(at, &holder).unwrap()));
                }
                Step::Batch(cache, true) => {
                    if let Some(batch) = caches[cache].get_batch() {
                        for index in 0..whole {
                            proptest::prop_assert!(places.insert(of(&batch, index)), "twice");
                        }
                        batches.push(batch);
                    }
                }
                Step::Batch(cache, false) => {
                    if let Some(batch) = batches.pop() {
                        (0..whole).for_each(|index| assert!(places.remove(&of(&batch, index))));
                        caches[cache].put_batch(batch);
                    }
                }
                Step::Pack(cache, true) => batches.extend(caches[cache].pack(&mut out)),
                Step::Pack(cache, false) => {
                    if let Some(batch) = batches.pop() {
                        caches[cache].unpack(batch, &mut out);
                    }
                }
            }
            for cache in &caches {
                proptest::prop_assert!(cache.len() <= cache.capacity());
            }
        }
        caches.iter_mut().for_each(|cache| cache.park());
        let census = pool.census();
        proptest::prop_assert_eq!(census.released as usize, released.len());
        let held = out.len() + batches.len() * whole;
        proptest::prop_assert_eq!(census.held as usize, held);
        let rest = get_all(&mut caches[0]);
        proptest::prop_assert_eq!(rest.len() + held + released.len(), FRAMES);
        drop((rest, out, batches, caches));
        drop(pool.reclaim(&holder));
        proptest::prop_assert!(pool.close().is_ok());
    }
}

/// Empty magazines stay where full ones were taken; every cache still has its own two.
#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn there_is_room_for_every_cache_while_all_frames_are_out() {
    let options = PoolOptions::default().caches(4);
    let pool = pool_with(8192, &options);
    let mut first = pool.cache(0).unwrap();
    let mut out = get_all(&mut first);
    for _ in 0..3 {
        first.put_bulk(&mut out);
        out = get_all(&mut first);
        assert_eq!(out.len(), 8192);
    }
    let mut others: Vec<_> = (1..4).map(|_| pool.cache(0).unwrap()).collect();
    let error = pool.cache(0).expect_err("a fifth");
    assert!(error.to_string().contains("all 4 caches"), "{error}");
    for cache in &mut others {
        cache.put_bulk(&mut out.split_off(out.len() - 2048));
        assert!(cache.get().map(|frame| cache.put(frame)).is_some());
    }
    first.put_bulk(&mut out);
    drop((first, others));
    pool.close().unwrap();
}
