//! What it costs to keep account of a frame, from being taken to being returned: nothing else is
//! done with it.
//!
//! *One core*: a thread takes a batch and returns it. *Two cores*: one thread takes frames and
//! passes their tokens over a ring to another. With the ledger, the second thread returns them
//! itself, under the lock, as the system call of a kernel's worker does, and passes the frames
//! back over a second ring. With a table, it passes the tokens back over that ring, and the first
//! thread returns them. Rings and batches are the same.

use std::hint::black_box;
use std::time::Duration;

use frames::{Accounting, Frame, FramePool, LaneCache};
use rtrb::{Consumer, Producer, RingBuffer};
use trial::bench::Bar;

use super::Ground;
use super::books::{BATCH, Books, Frames, Ledger, Locking, Singly, Table, Tokens, all};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};
use crate::bench::frames::frame_pool;
use crate::bench::places::{self, Places};
use crate::bench::worker::{self, Run, Waiting, Work};

/// Frames of the pool, more than are in use.
const FRAMES: u32 = 8192;
/// Batches in use: frames come in the order in which they were returned, as from a fill ring.
const BATCHES: usize = 8;
/// Loans at a time.
const QUOTA: u32 = (BATCHES * BATCH) as u32;
/// Batches between two looks at the clock.
const BLOCK: usize = 16;

/// Who keeps account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Counters,
    /// With a call for each frame, not for each batch.
    Singly,
    OurLedger,
    Ledger(Locking),
}

const COUNTERS: &str = "counters";
const WHO: [(Who, &str); 6] = [
    (Who::Counters, COUNTERS),
    (Who::Singly, "counters, a call a frame"),
    (Who::OurLedger, "ledger of each borrower"),
    (Who::Ledger(Locking::Each), "ledger"),
    (Who::Ledger(Locking::Spinning), "ledger, spinning"),
    (Who::Ledger(Locking::Batch), "ledger, a lock a batch"),
];

/// On how many cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cores {
    One,
    Two,
}

/// And what counters may cost of the ledger.
const CORES: [(Cores, &str, f64); 2] =
    [(Cores::One, "take+return one core", 0.2), (Cores::Two, "take+return two cores", 0.1)];

pub(super) fn part() -> Part<Ground> {
    let claims = CORES.iter().flat_map(|(_, cores, most)| {
        WHO[1..].iter().map(move |(who, name)| {
            let bar = (*who == Who::Ledger(Locking::Each)).then_some(Bar::AtMost(*most));
            let [of, to] = [COUNTERS, name].map(|who| format!("{cores}, {who}"));
            Claim::ratio(format!("{cores}: counters / {name}"), of, to).bar(bar)
        })
    });
    let time = Time { once: 0.1, steps: 2 * WHO.len(), windows: 1.0, more: 0.01 };
    Part::new("accounting", "Keeping account of frames, memory only", time).claims(claims).stage(
        |ground: &Ground, _| {
            let cpus = ground.places.near();
            let pool = frame_pool(FRAMES, cpus, &vec![0; cpus.len()])?;
            let ways = CORES.into_iter().flat_map(|(cores, title, _)| {
                WHO.map(|(who, name)| (cores, who, format!("{title}, {name}")))
            });
            let step = |(.., case): &(Cores, Who, String)| Step::of(case, "s");
            Ok(Measure::new(ways, step, move |(cores, who, _), now| {
                Ok(vec![measure(&pool, *cores, *who, cpus, now.window)?])
            }))
        },
    )
}

/// The part of the experiment that the demo shows: measures frames a second that are taken and
/// returned on two cores, by counters or by an allocator of ids under a lock; and the CPUs, for
/// people.
pub(crate) fn keeping() -> anyhow::Result<(String, impl Fn(bool, Duration) -> anyhow::Result<f64>)>
{
    let cpus = Places::detect()?.near().to_vec();
    let pool = frame_pool(FRAMES, &cpus, &vec![0; cpus.len()])?;
    let text = places::text(&cpus);
    let rate = move |counters, window| {
        let who = if counters { Who::Counters } else { Who::Ledger(Locking::Each) };
        Ok(1.0 / measure(&pool, Cores::Two, who, &cpus, window)?)
    };
    Ok((text, rate))
}

/// Seconds a frame.
fn measure(
    pool: &FramePool,
    cores: Cores,
    who: Who,
    cpus: &[usize],
    window: Duration,
) -> anyhow::Result<f64> {
    let cache = pool.cache(0)?;
    let table = |accounting| Table::new(pool, accounting, QUOTA);
    let work = match (cores, who) {
        (Cores::One, Who::Counters) => one_core(cache, table(Accounting::Counters)),
        (Cores::One, Who::Singly) => one_core(cache, Singly(table(Accounting::Counters))),
        (Cores::One, Who::OurLedger) => one_core(cache, table(Accounting::Ledgers)),
        (Cores::One, Who::Ledger(locking)) => one_core(cache, Ledger::new(locking, QUOTA)),
        (Cores::Two, Who::Counters) => two_cores(cache, table(Accounting::Counters)),
        (Cores::Two, Who::Singly) => two_cores(cache, Singly(table(Accounting::Counters))),
        (Cores::Two, Who::OurLedger) => two_cores(cache, table(Accounting::Ledgers)),
        (Cores::Two, Who::Ledger(locking)) => two_cores_ledger(cache, Ledger::new(locking, QUOTA)),
    };
    worker::measure(work, cpus, window)
}

/// The frames in use.
fn batches(cache: &mut LaneCache) -> Vec<Frames> {
    (0..BATCHES).map(|_| std::array::from_fn(|_| cache.get())).collect()
}

/// Puts them back.
fn put(cache: &mut LaneCache, unused: Vec<Frames>) {
    unused.into_iter().flatten().flatten().for_each(|frame| cache.put(frame));
}

fn one_core<'a>(mut cache: LaneCache, mut books: impl Books + 'a) -> Vec<Work<'a>> {
    vec![Box::new(move |run: &Run| {
        let mut free = batches(&mut cache);
        let mut count = 0;
        while !run.is_over() {
            for frames in &mut free {
                let tokens = books.take(frames);
                books.give_back(black_box(&tokens), frames);
            }
            count += (BATCHES * BATCH) as u64;
        }
        put(&mut cache, free);
        count
    })]
}

/// The first thread keeps the whole account, and gets tokens back.
fn two_cores<'a, B: Books + 'a>(cache: LaneCache, table: B) -> Vec<Work<'a>> {
    let free = |table: &mut B, back: &mut Consumer<u32>, frames: &mut Frames| {
        let mut tokens = [0; BATCH];
        let there = back.pop_entire_slice(&mut tokens).is_ok();
        if there {
            table.give_back(&tokens, frames);
        }
        there
    };
    let second = |tokens: &Tokens, back: &mut Producer<u32>| {
        let sent = back.push_entire_slice(tokens);
        debug_assert!(sent.is_ok());
    };
    in_two(cache, table, free, second)
}

/// The first thread takes, and gets frames back that the other has returned.
fn two_cores_ledger<'a>(cache: LaneCache, ledger: Ledger<Frame>) -> Vec<Work<'a>> {
    let free = |_: &mut _, back: &mut Consumer<Frame>, frames: &mut Frames| {
        let Ok(chunk) = back.read_chunk(BATCH) else { return false };
        frames.iter_mut().zip(chunk).for_each(|(slot, frame)| *slot = Some(frame));
        true
    };
    let mut returning = ledger.clone();
    let mut returned = [const { None }; BATCH];
    let second = move |tokens: &Tokens, back: &mut Producer<Frame>| {
        returning.give_back(tokens, &mut returned);
        let chunk = back.write_chunk_uninit(BATCH);
        let sent = chunk.map(|chunk| chunk.fill_from_iter(all(&mut returned)));
        debug_assert!(sent.is_ok());
    };
    in_two(cache, ledger, free, second)
}

/// The two threads. The first makes batches that come back into frames by `free`, which says whether
/// there was one; the second passes on what `second` makes of tokens.
fn in_two<'a, B: Books + 'a, T: Send + 'a>(
    cache: LaneCache,
    books: B,
    free: impl FnMut(&mut B, &mut Consumer<T>, &mut Frames) -> bool + Send + 'a,
    second: impl FnMut(&Tokens, &mut Producer<T>) + Send + 'a,
) -> Vec<Work<'a>> {
    // Room for all, so that nobody waits for it.
    let (to, from) = RingBuffer::new(QUOTA as usize);
    let (back, returned) = RingBuffer::new(QUOTA as usize);
    vec![
        Box::new(move |run: &Run| take(cache, books, to, returned, free, run)),
        Box::new(move |run: &Run| pass(from, back, run, second)),
    ]
}

fn take<B: Books, T>(
    mut cache: LaneCache,
    mut books: B,
    mut to: Producer<u32>,
    mut returned: Consumer<T>,
    mut free: impl FnMut(&mut B, &mut Consumer<T>, &mut Frames) -> bool,
    run: &Run,
) -> u64 {
    let mut unused = batches(&mut cache);
    let (mut count, mut waiting) = (0, Waiting::default());
    let mut frames = [const { None }; BATCH];
    while !run.is_over() {
        for _ in 0..BLOCK {
            if !free(&mut books, &mut returned, &mut frames) {
                let Some(batch) = unused.pop() else {
                    waiting.turn();
                    continue;
                };
                frames = batch;
            }
            let sent = to.push_entire_slice(&books.take(&mut frames));
            debug_assert!(sent.is_ok());
            count += BATCH as u64;
        }
    }
    run.end_sending();
    while unused.len() < BATCHES {
        match free(&mut books, &mut returned, &mut frames) {
            true => unused.push(std::mem::replace(&mut frames, [const { None }; BATCH])),
            false => waiting.turn(),
        }
    }
    put(&mut cache, unused);
    count
}

/// Hands on what comes, until the other has ended and nothing is left; counts nothing.
fn pass<T>(
    mut from: Consumer<u32>,
    mut back: Producer<T>,
    run: &Run,
    mut second: impl FnMut(&Tokens, &mut Producer<T>),
) -> u64 {
    let (mut tokens, mut waiting) = ([0; BATCH], Waiting::default());
    loop {
        // Asked before the look into the ring: what was sent before is seen there.
        let last = run.ended() > 0;
        match from.pop_entire_slice(&mut tokens) {
            Ok(()) => second(&tokens, &mut back),
            Err(_) if last => return 0,
            Err(_) => waiting.turn(),
        }
    }
}
