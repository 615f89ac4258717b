//! What a pool with many homes costs one thread, against the same with few: memory only.
//!
//! Each step should cost the same whatever the number of homes. Every home has as many frames in
//! all cases, and so magazines of the same size.

use std::hint::black_box;
use std::time::{Duration, Instant};

use frames::{
    AlienFree, AreaOptions, Frame, FrameArea, FramePool, HugePages, LaneCache, PoolOptions,
};
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::patterns::BATCH;

const HOMES: [u16; 5] = [2, 8, 32, 128, 256];
const FRAMES_PER_HOME: u32 = 1024;
/// Objects or turns between two looks at the clock.
const BLOCK: usize = 8192;
/// Measurements of a round.
pub(super) const STEPS: usize = HOMES.len() * Step::ALL.len();

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// One frame at a time, of all other homes by turns, into one cache, with `defer`.
    PutAway,
    /// A get while every frame is in use.
    GetInVain,
    /// A batch put and got in a turn of its own, while another cache finds nothing in each turn.
    /// The get in vain is in it.
    BesideNeed,
}

impl Step {
    const ALL: [Step; 3] = [Step::PutAway, Step::GetInVain, Step::BesideNeed];

    fn name(self) -> &'static str {
        match self {
            Step::PutAway => "put away from home",
            Step::GetInVain => "get in vain",
            Step::BesideNeed => "turn beside one in need",
        }
    }

    fn case(self, homes: u16) -> String {
        format!("{}, {homes} homes", self.name())
    }

    /// Seconds each.
    fn measure(self, homes: u16, window: Duration) -> anyhow::Result<f64> {
        let pool = pool(homes)?;
        match self {
            Step::PutAway => put_away(&pool, homes, window),
            Step::GetInVain => get_in_vain(&pool, window),
            Step::BesideNeed => beside_need(&pool, window),
        }
    }
}

/// All steps with all numbers of homes, by turns.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut order: Vec<_> =
        Step::ALL.iter().flat_map(|&step| HOMES.map(move |homes| (step, homes))).collect();
    for (step, homes) in &order {
        bench.series.expect(&step.case(*homes), "s");
    }
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for &(step, homes) in &order {
            let case = step.case(homes);
            bench.step(&case)?;
            bench.series.add(&case, "s", step.measure(homes, bench.plan.window)?);
        }
    }
    let [few, .., many] = HOMES;
    for step in Step::ALL {
        let name = format!("many homes: {many} / {few}, {}", step.name());
        let cases = (&*step.case(many), &*step.case(few));
        bench.series.ratio(&mut bench.output, &name, cases, Some(Bar::AtMost(1.5)))?;
    }
    Ok(())
}

fn pool(homes: u16) -> anyhow::Result<FramePool> {
    let area = FrameArea::new(&AreaOptions {
        frames: FRAMES_PER_HOME * u32::from(homes),
        frame_size: 64,
        huge_pages: HugePages::Never,
        ..AreaOptions::default()
    })?;
    let options = PoolOptions {
        homes: vec![0; usize::from(homes)],
        caches: homes + 1,
        alien_free: AlienFree::Defer,
        ..PoolOptions::default()
    };
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
    anyhow::ensure!(count > 0, "nothing was done");
    Ok(took.as_secs_f64() / count as f64)
}
