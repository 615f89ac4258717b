//! The patterns by which pools are measured. `peers/patterns.h` is the same in C, with the same
//! batches, rings, waits and looks at the clock: once in [`BLOCK`] objects.
//!
//! A frame pool's `maintain` is called as its documentation asks: once a turn, which is a batch,
//! or where objects go one by one, a block.

use std::hint::black_box;
use std::time::Duration;

use frames::{FramePool, LaneCache};
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::pools::{BATCH, Batch, Handle, Pool};
use crate::bench::worker::{self, Run, Waiting, Work};

/// Objects between two looks at the clock.
const BLOCK: usize = 1024;
/// Room of the ring between a thread that gets and the one that puts.
pub(super) const ALIEN_RING: usize = 1024;
/// Room of each ring where every thread sends to every other.
pub(super) const ALL_RING: usize = 128;

/// Who gets, and who puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pattern {
    /// Each thread, one by one.
    Single,
    /// Each thread, a batch at a time.
    Bulk,
    /// Threads are pairs: one gets, the other puts.
    Alien,
    /// As alien, without a pool: the passing alone.
    Pass,
    /// Each thread gets, and sends to every other by turns, which puts.
    All,
}

impl Pattern {
    /// As cases name it, as the peers' programs take it, and the fewest threads that it needs.
    const fn traits(self) -> (&'static str, &'static str, usize) {
        match self {
            Pattern::Single => ("get+put single", "single", 1),
            Pattern::Bulk => ("get+put bulk 32", "bulk32", 1),
            Pattern::Alien => ("alien (get on A, put on B)", "alien", 2),
            Pattern::Pass => ("passing alone", "pass", 2),
            Pattern::All => ("all-to-all", "all", 2),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.traits().0
    }

    pub(super) fn request(self) -> &'static str {
        self.traits().1
    }

    pub(super) fn threads(self) -> usize {
        self.traits().2
    }
}

/// Measures a pattern on so many threads: seconds an object.
pub(super) fn measure<P: Pool>(
    pool: &P,
    pattern: Pattern,
    threads: usize,
    cpus: &[usize],
    window: Duration,
) -> anyhow::Result<f64> {
    let mut handles = (0..threads)
        .map(|thread| pool.handle(thread % cpus.len()))
        .collect::<Result<Vec<_>, _>>()?;
    let handles = handles.drain(..);
    let work: Vec<Work<'_>> = match pattern {
        Pattern::Single => handles.map(|handle| work(|run| single(handle, run))).collect(),
        Pattern::Bulk => handles.map(|handle| work(|run| bulk(handle, run))).collect(),
        Pattern::Alien => {
            let (mut handles, mut pairs) = (handles, Vec::new());
            while let (Some(getter), Some(putter)) = (handles.next(), handles.next()) {
                let (to, from) = RingBuffer::new(ALIEN_RING / BATCH);
                pairs.push(work(|run| alien_get(getter, to, run)));
                pairs.push(work(|run| alien_put(putter, from, run)));
            }
            pairs
        }
        Pattern::Pass => {
            let pair = |_| {
                let (to, from) = RingBuffer::new(ALIEN_RING / BATCH);
                [work(|run| pass_send(to, run)), work(|run| pass_receive(from, run))]
            };
            (0..threads / 2).flat_map(pair).collect()
        }
        Pattern::All => {
            let rings = all_rings(threads, ALL_RING / BATCH).into_iter();
            let each = handles.zip(rings).enumerate();
            each.map(|(me, (handle, rings))| work(move |run| all(handle, rings, me, run))).collect()
        }
    };
    worker::measure(work, cpus, window)
}

/// As [`Pattern::Alien`], with the pool's own batches: seconds an object.
pub(super) fn alien_batches(
    pool: &FramePool,
    threads: usize,
    cpus: &[usize],
    window: Duration,
) -> anyhow::Result<f64> {
    let mut work_of_each = Vec::new();
    for pair in 0..threads / 2 {
        let [getter, putter] =
            [2 * pair, 2 * pair + 1].map(|thread| pool.handle(thread % cpus.len()));
        let (getter, putter) = (getter?, putter?);
        let (to, from) = RingBuffer::new(ALIEN_RING.div_ceil(getter.batch_len()));
        work_of_each.push(work(|run| alien_get_batches(getter, to, run)));
        work_of_each.push(work(|run| alien_put_batches(putter, from, run)));
    }
    worker::measure(work_of_each, cpus, window)
}

fn work<'a>(work: impl FnOnce(&Run) -> u64 + Send + 'a) -> Work<'a> {
    Box::new(work)
}

fn single<H: Handle>(mut handle: H, run: &Run) -> u64 {
    let (mut count, mut waiting) = (0, Waiting::default());
    run.repeat(|| {
        for _ in 0..BLOCK {
            match handle.get() {
                None => waiting.turn(),
                Some(item) => {
                    handle.put(black_box(item));
                    count += 1;
                }
            }
        }
        handle.turn();
    });
    count
}

fn bulk<H: Handle>(mut handle: H, run: &Run) -> u64 {
    let (mut count, mut waiting) = (0, Waiting::default());
    let mut batch = Vec::with_capacity(BATCH);
    run.repeat(|| {
        for _ in 0..BLOCK / BATCH {
            if !handle.get_many(&mut batch) {
                waiting.turn();
                continue;
            }
            black_box(&mut batch);
            handle.put_many(&mut batch);
            handle.turn();
            count += BATCH as u64;
        }
    });
    count
}

fn alien_get<H: Handle>(mut handle: H, mut to: Producer<Batch<H::Item>>, run: &Run) -> u64 {
    let mut waiting = Waiting::default();
    run.repeat(|| {
        for _ in 0..BLOCK / BATCH {
            let batch = loop {
                match handle.get_batch() {
                    Some(batch) => break batch,
                    None => {
                        handle.turn();
                        waiting.turn();
                    }
                }
            };
            push(&mut to, batch, &mut waiting);
            handle.turn();
        }
    });
    run.end_sending();
    0
}

fn alien_put<H: Handle>(mut handle: H, mut from: Consumer<Batch<H::Item>>, run: &Run) -> u64 {
    receive(run, || {
        let batch = from.pop().ok();
        let count = if batch.is_some() { BATCH } else { 0 };
        batch.into_iter().for_each(|batch| handle.put_batch(batch));
        handle.turn();
        count
    })
}

fn alien_get_batches(mut cache: LaneCache, mut to: Producer<frames::Batch>, run: &Run) -> u64 {
    let mut waiting = Waiting::default();
    run.repeat(|| {
        for _ in 0..BLOCK.div_ceil(cache.batch_len()) {
            let batch = loop {
                match cache.get_batch() {
                    Some(batch) => break batch,
                    None => {
                        cache.maintain();
                        waiting.turn();
                    }
                }
            };
            push(&mut to, batch, &mut waiting);
            cache.maintain();
        }
    });
    run.end_sending();
    0
}

fn alien_put_batches(mut cache: LaneCache, mut from: Consumer<frames::Batch>, run: &Run) -> u64 {
    receive(run, || {
        let batch = from.pop().ok();
        let count = batch.map_or(0, |batch| {
            cache.put_batch(batch);
            cache.batch_len()
        });
        cache.maintain();
        count
    })
}

fn pass_send(mut to: Producer<Batch<u32>>, run: &Run) -> u64 {
    let mut waiting = Waiting::default();
    run.repeat(|| {
        for _ in 0..BLOCK / BATCH {
            push(&mut to, black_box([7; BATCH]), &mut waiting);
        }
    });
    run.end_sending();
    0
}

fn pass_receive(mut from: Consumer<Batch<u32>>, run: &Run) -> u64 {
    receive(run, || if black_box(from.pop()).is_ok() { BATCH } else { 0 })
}

/// Sends a batch as soon as there is room.
#[inline]
fn push<T>(to: &mut Producer<T>, mut batch: T, waiting: &mut Waiting) {
    while let Err(PushError::Full(unsent)) = to.push(batch) {
        batch = unsent;
        waiting.turn();
    }
}

/// Receives batches until all pairs' senders have ended and nothing is left; objects received.
fn receive(run: &Run, mut receive: impl FnMut() -> usize) -> u64 {
    let (mut count, mut waiting) = (0, Waiting::default());
    loop {
        // Asked before the look into the ring: what was sent before is seen there.
        let last = run.ended() == run.threads / 2;
        match receive() {
            0 if last => return count,
            0 => waiting.turn(),
            received => count += received as u64,
        }
    }
}

/// One thread's ends of the rings: to each thread and from each thread, itself left out.
pub(super) struct Ends<T> {
    pub(super) to: Vec<Option<Producer<T>>>,
    pub(super) from: Vec<Option<Consumer<T>>>,
}

/// A ring of so many slots from each thread to each other.
pub(super) fn all_rings<T>(threads: usize, slots: usize) -> Vec<Ends<T>> {
    let none = || Ends { to: Vec::new(), from: Vec::new() };
    let mut ends: Vec<Ends<T>> = (0..threads).map(|_| none()).collect();
    for from in 0..threads {
        for to in 0..threads {
            let (producer, consumer) = match from == to {
                true => (None, None),
                false => {
                    let (producer, consumer) = RingBuffer::new(slots);
                    (Some(producer), Some(consumer))
                }
            };
            ends[from].to.push(producer);
            ends[to].from.push(consumer);
        }
    }
    ends
}

fn all<H: Handle>(mut handle: H, mut ends: Ends<Batch<H::Item>>, me: usize, run: &Run) -> u64 {
    let next = |to: usize| match (to + 1) % run.threads {
        to if to == me => (to + 1) % run.threads,
        to => to,
    };
    let (mut count, mut waiting, mut to) = (0, Waiting::default(), next(me));
    let mut batch = None;
    run.repeat(|| {
        for _ in 0..BLOCK / BATCH {
            batch = batch.take().or_else(|| handle.get_batch());
            let mut sent = false;
            if let Some((batch_now, ring)) = batch.take().zip(ends.to[to].as_mut()) {
                match ring.push(batch_now) {
                    Ok(()) => (sent, to) = (true, next(to)),
                    Err(PushError::Full(unsent)) => batch = Some(unsent),
                }
            }
            let got = all_receive(&mut handle, &mut ends.from);
            count += got;
            handle.turn();
            if !sent && got == 0 {
                waiting.turn();
            }
        }
    });
    batch.into_iter().for_each(|batch| handle.put_batch(batch));
    run.end_sending();
    loop {
        let last = run.ended() == run.threads;
        let got = all_receive(&mut handle, &mut ends.from);
        count += got;
        handle.turn();
        match got {
            0 if last => return count,
            0 => waiting.turn(),
            _ => {}
        }
    }
}

/// Puts what has come from every other thread, at most a batch of each; how many objects.
fn all_receive<H: Handle>(handle: &mut H, from: &mut [Option<Consumer<Batch<H::Item>>>]) -> u64 {
    let mut count = 0;
    for ring in from.iter_mut().flatten() {
        if let Ok(batch) = ring.pop() {
            handle.put_batch(batch);
            count += BATCH as u64;
        }
    }
    count
}
