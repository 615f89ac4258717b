//! Threads that pass frames to each other until they are told to stop.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use frames::{Frame, FramePool, LaneCache};
use rtrb::{Consumer, Producer, RingBuffer};

use super::{Pattern, Setting};
use crate::bench::frames::patterns::{ALIEN_RING, ALL_RING, Ends, all_rings};
use crate::bench::frames::pools::BATCH;
use crate::bench::worker::Waiting;

/// Frames of a burst: two caches full, and less than a ring.
const BURST: usize = 512;
/// Frames that are sent before the sender stops, and that the receiver then uses by itself.
const STRETCH: usize = 2048;
/// Frames that the receiver has in use meanwhile.
const OWN: usize = 256;
/// Bytes of a frame that are used: a cache line.
const TOUCHED: usize = 64;

/// One thread.
pub(super) type Work<'a> = Box<dyn FnOnce() -> anyhow::Result<()> + Send + 'a>;

/// What the threads of a setting share.
pub(super) struct Traffic<'a> {
    pool: &'a FramePool,
    setting: Setting,
    cpus: &'a [usize],
    stop: AtomicBool,
    /// Frames that each thread has put.
    counts: Vec<CachePadded<AtomicU64>>,
    /// Of each pair, how many times its receiver has let the sender go on.
    turns: Vec<CachePadded<AtomicU64>>,
}

/// One of the threads.
struct Thread<'a> {
    traffic: &'a Traffic<'a>,
    number: usize,
    cache: LaneCache,
    batch: Vec<Frame>,
    /// What it wrote last.
    byte: u8,
}

impl<'a> Traffic<'a> {
    pub(super) fn new(pool: &'a FramePool, setting: Setting, cpus: &'a [usize]) -> Traffic<'a> {
        let counts = (0..2 * setting.flows).map(|_| CachePadded::default()).collect();
        let turns = (0..setting.flows).map(|_| CachePadded::default()).collect();
        Traffic { pool, setting, cpus, stop: AtomicBool::new(false), counts, turns }
    }

    /// Frames that were put so far.
    pub(super) fn count(&self) -> u64 {
        // Relaxed: a count only.
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Has all threads end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Its threads, two for each flow.
    pub(super) fn work(&'a self) -> anyhow::Result<Vec<Work<'a>>> {
        let Setting { pattern, flows, .. } = self.setting;
        if pattern == Pattern::AllToAll {
            let rings = all_rings(2 * flows, ALL_RING).into_iter().enumerate();
            return rings
                .map(|(number, ends)| self.thread(number, |thread| thread.all_to_all(ends)))
                .collect();
        }
        let mut all = Vec::new();
        for pair in 0..flows {
            let [a, b] = [2 * pair, 2 * pair + 1];
            let (to, from) = RingBuffer::new(ALIEN_RING);
            let (back, returned) = RingBuffer::new(ALIEN_RING);
            all.extend(match pattern {
                Pattern::PingPong => [
                    self.thread(a, |thread| thread.ping(to, returned))?,
                    self.thread(b, |thread| thread.pong(from, back))?,
                ],
                Pattern::Bursts => [
                    self.thread(a, |thread| thread.send_by_turns(to, BURST, false))?,
                    self.thread(b, |thread| thread.receive_bursts(from))?,
                ],
                Pattern::Stop => [
                    self.thread(a, |thread| thread.send_by_turns(to, STRETCH, true))?,
                    self.thread(b, |thread| thread.receive_and_go_on(from))?,
                ],
                Pattern::OneWay | Pattern::AllToAll => [
                    self.thread(a, |thread| thread.send(to))?,
                    self.thread(b, |thread| thread.receive(from))?,
                ],
            });
        }
        Ok(all)
    }

    /// What a thread of this number does, on its CPU.
    fn thread(
        &'a self,
        number: usize,
        work: impl FnOnce(Thread<'a>) + Send + 'a,
    ) -> anyhow::Result<Work<'a>> {
        let home = number % self.cpus.len();
        let cache = self.pool.cache(u16::try_from(home)?)?;
        Ok(Box::new(move || {
            lanes::pin(self.cpus[home])?;
            let batch = Vec::with_capacity(BATCH);
            work(Thread { traffic: self, number, cache, batch, byte: 0 });
            Ok(())
        }))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Thread<'_> {
    /// Sends without end.
    fn send(mut self, mut to: Producer<Frame>) {
        while self.make() && self.deliver(&mut to) {}
    }

    fn receive(mut self, mut from: Consumer<Frame>) {
        while self.take(&mut from) {}
    }

    fn ping(mut self, mut to: Producer<Frame>, mut from: Consumer<Frame>) {
        while self.make() && self.deliver(&mut to) && self.take(&mut from) {}
    }

    fn pong(mut self, mut from: Consumer<Frame>, mut to: Producer<Frame>) {
        while self.take(&mut from) && self.make() && self.deliver(&mut to) {}
    }

    /// Sends so many frames, parks if it should, and waits for its next turn.
    fn send_by_turns(mut self, mut to: Producer<Frame>, frames: usize, parks: bool) {
        for turn in 1.. {
            for _ in 0..frames / BATCH {
                if !(self.make() && self.deliver(&mut to)) {
                    return;
                }
            }
            if parks {
                self.cache.park();
            }
            if !self.wait_for_turn(turn) {
                return;
            }
        }
    }

    /// Receives so many frames, unless the traffic stops.
    fn take_all(&mut self, from: &mut Consumer<Frame>, frames: usize) -> bool {
        (0..frames / BATCH).all(|_| self.take(from))
    }

    fn receive_bursts(mut self, mut from: Consumer<Frame>) {
        while self.take_all(&mut from, BURST) {
            self.give_turn();
        }
    }

    fn receive_and_go_on(mut self, mut from: Consumer<Frame>) {
        let mut own: std::collections::VecDeque<Vec<Frame>> = Default::default();
        while self.take_all(&mut from, STRETCH) {
            for _ in 0..STRETCH / BATCH {
                if own.len() == OWN / BATCH
                    && let Some(oldest) = own.pop_front()
                {
                    self.batch = oldest;
                    self.put();
                }
                if !self.make() {
                    return;
                }
                own.push_back(std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH)));
            }
            for oldest in own.drain(..) {
                self.batch = oldest;
                self.put();
            }
            self.give_turn();
        }
    }

    fn all_to_all(mut self, mut ends: Ends<Frame>) {
        let (threads, me) = (ends.to.len(), self.number);
        let (mut to, mut waiting) = (me, Waiting::default());
        let mut ready = Vec::with_capacity(BATCH);
        while !self.traffic.stopped() {
            if ready.len() < BATCH {
                self.cache.get_bulk(BATCH - ready.len(), &mut ready);
                if ready.len() == BATCH {
                    self.write(&mut ready);
                    to = (to + 1) % threads;
                    to = if to == me { (to + 1) % threads } else { to };
                }
            }
            let ring = ends.to[to].as_mut().filter(|_| ready.len() == BATCH);
            let mut worked = ring.is_some_and(|ring| push(ring, &mut ready));
            for ring in ends.from.iter_mut().flatten() {
                if pop(ring, &mut self.batch) {
                    self.read();
                    self.put();
                    worked = true;
                }
            }
            self.cache.maintain();
            if !worked {
                waiting.turn();
            }
        }
    }

    /// Waits until something is so; false if the traffic stops.
    #[inline]
    fn wait(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        let mut waiting = Waiting::default();
        while !is_so(self) {
            if self.traffic.stopped() {
                return false;
            }
            waiting.turn();
        }
        true
    }

    /// The same, by a thread that turns its loop meanwhile, as the pool asks for.
    #[inline]
    fn wait_in_turns(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        self.wait(|thread| {
            let so = is_so(thread);
            if !so {
                thread.cache.maintain();
            }
            so
        })
    }

    /// Gets a batch and writes into it; false if the traffic stops.
    fn make(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let full = self.wait_in_turns(|thread| {
            thread.cache.get_bulk(BATCH - batch.len(), &mut batch);
            batch.len() == BATCH
        });
        if full {
            self.write(&mut batch);
            self.batch = batch;
        }
        full
    }

    /// Sends the batch; false if the traffic stops.
    fn deliver(&mut self, to: &mut Producer<Frame>) -> bool {
        let sent = self.wait(|thread| push(to, &mut thread.batch));
        self.cache.maintain();
        sent
    }

    /// Receives a batch, reads it and puts it; false if the traffic stops.
    fn take(&mut self, from: &mut Consumer<Frame>) -> bool {
        let received = self.wait_in_turns(|thread| pop(from, &mut thread.batch));
        if received {
            self.read();
            self.put();
            self.cache.maintain();
        }
        received
    }

    fn put(&mut self) {
        let frames = self.batch.len() as u64;
        self.cache.put_bulk(&mut self.batch);
        let count = &self.traffic.counts[self.number];
        // No read-modify-write: it is this thread's own.
        count.store(count.load(Ordering::Relaxed) + frames, Ordering::Relaxed);
    }

    fn write(&mut self, batch: &mut [Frame]) {
        if !self.traffic.setting.touch {
            return;
        }
        self.byte = self.byte.wrapping_add(1);
        for frame in batch {
            self.traffic.pool.area().bytes_mut(frame)[..TOUCHED].fill(self.byte);
        }
    }

    fn read(&self) {
        if !self.traffic.setting.touch {
            return;
        }
        let area = self.traffic.pool.area();
        let sum = self.batch.iter().fold(0u64, |sum, frame| {
            area.bytes(frame)[..TOUCHED].iter().fold(sum, |sum, byte| sum + u64::from(*byte))
        });
        black_box(sum);
    }

    /// Waits until the receiver has given so many turns; false if the traffic stops.
    fn wait_for_turn(&mut self, number: u64) -> bool {
        // Acquire, with the release of `give_turn`: what the receiver put is there.
        self.wait(|thread| {
            thread.traffic.turns[thread.number / 2].load(Ordering::Acquire) >= number
        })
    }

    fn give_turn(&self) {
        self.traffic.turns[self.number / 2].fetch_add(1, Ordering::Release);
    }
}

/// Sends a whole batch, or nothing.
fn push(to: &mut Producer<Frame>, batch: &mut Vec<Frame>) -> bool {
    match to.write_chunk_uninit(BATCH) {
        Ok(chunk) => chunk.fill_from_iter(batch.drain(..)) == BATCH,
        Err(_) => false,
    }
}

/// Receives a whole batch, or nothing.
fn pop(from: &mut Consumer<Frame>, batch: &mut Vec<Frame>) -> bool {
    match from.read_chunk(BATCH) {
        Ok(chunk) => {
            batch.extend(chunk);
            true
        }
        Err(_) => false,
    }
}
