//! What a pool with many homes costs one thread, against the same with few: memory only.
//!
//! Each step should cost the same whatever the number of homes. Every home has as many frames in
//! all cases, and so magazines of the same size.

use std::hint::black_box;
use std::time::{Duration, Instant};

use frames::{
    AlienFree, AreaOptions, Frame, FrameArea, FramePool, HugePages, LaneCache, PoolOptions,
};
use trial::bench::Bar;

use super::Ground;
use super::pools::BATCH;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};

const HOMES: [u16; 5] = [2, 8, 32, 128, 256];
const FRAMES_PER_HOME: u32 = 1024;
/// Objects or turns between two looks at the clock.
const BLOCK: usize = 8192;

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One frame at a time, of all other homes by turns, into one cache, with `defer`.
    PutAway,
    /// A get while every frame is in use.
    GetInVain,
    /// A batch put and got in a turn of its own, while another cache finds nothing in each turn.
    /// The get in vain is in it.
    BesideNeed,
}

const KINDS: [(Kind, &str); 3] = [
    (Kind::PutAway, "put away from home"),
    (Kind::GetInVain, "get in vain"),
    (Kind::BesideNeed, "turn beside one in need"),
];

pub(super) fn part() -> Part<Ground> {
    let [few, .., many] = HOMES;
    let claim = |(_, kind): (Kind, &str)| {
        let [of, to] = [many, few].map(|homes| format!("{kind}, {homes} homes"));
        Claim::ratio(format!("many homes: {many} / {few}, {kind}"), of, to).bar(Bar::AtMost(1.5))
    };
    let time = Time { once: 0.0, steps: HOMES.len() * KINDS.len(), windows: 1.0, more: 0.05 };
    let about = "The pool with many homes against the pool with few, memory only";
    Part::new("homes", about, time).claims(KINDS.map(claim)).stage(|_, _| {
        let cases = KINDS.into_iter().flat_map(|kind| HOMES.map(|homes| (kind, homes)));
        let step = |((_, kind), homes): &((Kind, &str), u16)| {
            Step::of(format!("{kind}, {homes} homes"), "s")
        };
        Ok(Measure::new(cases, step, |((kind, _), homes), now| {
            let (pool, window) = (pool(*homes)?, now.window);
            Ok(vec![match kind {
                Kind::PutAway => put_away(&pool, *homes, window)?,
                Kind::GetInVain => get_in_vain(&pool, window)?,
                Kind::BesideNeed => beside_need(&pool, window)?,
            }])
        }))
    })
}

fn pool(homes: u16) -> anyhow::Result<FramePool> {
    let area = FrameArea::new(
        &AreaOptions::default()
            .frames(FRAMES_PER_HOME * u32::from(homes))
            .frame_size(64)
            .huge_pages(HugePages::Never),
    )?;
    let options = PoolOptions::default()
        .homes(vec![0; usize::from(homes)])
        .caches(homes + 1)
        .alien_free(AlienFree::Defer);
    Ok(FramePool::new(area, &options)?)
}

fn put_away(pool: &FramePool, homes: u16, window: Duration) -> anyhow::Result<f64> {
    let mut putter = pool.cache(0)?;
    let mut getters =
        (1..homes).map(|home| pool.cache(home)).collect::<Result<Vec<LaneCache>, _>>()?;
    let each = (BLOCK / getters.len()).min(FRAMES_PER_HOME as usize / 2);
    let mut block: Vec<Frame> = Vec::with_capacity(BLOCK);
    per_object(window, || {
        for _ in 0..each {
            block.extend(getters.iter_mut().filter_map(LaneCache::get));
        }
        let (count, begun) = (block.len(), Instant::now());
        block.drain(..).for_each(|frame| putter.put(frame));
        (begun.elapsed(), count)
    })
}

fn get_in_vain(pool: &FramePool, window: Duration) -> anyhow::Result<f64> {
    let mut cache = pool.cache(0)?;
    let all: Vec<Frame> = std::iter::from_fn(|| cache.get()).collect();
    let measured = per_object(window, || {
        let begun = Instant::now();
        let found = (0..BLOCK).filter(|_| black_box(cache.get()).is_some()).count();
        (begun.elapsed(), BLOCK - found)
    });
    pool.send_home(all);
    measured
}

fn beside_need(pool: &FramePool, window: Duration) -> anyhow::Result<f64> {
    let (mut worker, mut needy) = (pool.cache(0)?, pool.cache(1)?);
    let mut all: Vec<Frame> = std::iter::from_fn(|| worker.get()).collect();
    let mut batch = all.split_off(all.len() - BATCH);
    let measured = per_object(window, || {
        let begun = Instant::now();
        for _ in 0..BLOCK {
            all.extend(black_box(needy.get()));
            worker.put_bulk(&mut batch);
            worker.maintain();
            worker.get_bulk(BATCH, &mut batch);
        }
        (begun.elapsed(), BLOCK)
    });
    pool.send_home(all.into_iter().chain(batch));
    measured
}

/// Seconds an object, of blocks that say how long they took for how many.
fn per_object(
    window: Duration,
    mut block: impl FnMut() -> (Duration, usize),
) -> anyhow::Result<f64> {
    let (begun, mut took, mut count) = (Instant::now(), Duration::ZERO, 0);
    while begun.elapsed() < window {
        let (of_block, in_block) = block();
        took += of_block;
        count += in_block;
    }
    anyhow::ensure!(count > 0, Absent("nothing was done".into()));
    Ok(took.as_secs_f64() / count as f64)
}
