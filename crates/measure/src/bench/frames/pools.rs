//! The pools of this process that are measured, by what every pool can do.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use frames::{AreaOptions, Frame, FrameArea, FramePool, HugePages, LaneCache, PoolOptions};
use lanes::LaneMap;

/// Objects that go at a time where they go in bulk.
pub(super) const BATCH: usize = 32;
/// What is passed from thread to thread: a ring's slot holds a whole batch.
pub(super) type Batch<T> = [T; BATCH];
/// The most objects in a thread's cache: what DPDK's mempool has there at most with a cache of 256,
/// which it lets grow by half before it empties it.
pub(super) const CACHE: u32 = 384;
/// Bytes of an object.
pub(super) const FRAME_SIZE: u32 = 2048;

/// A pool that threads share.
pub(super) trait Pool {
    /// One thread's handle.
    type Handle: Handle;

    /// A handle for a thread on the `cpu`th of the CPUs that are used.
    fn handle(&self, cpu: usize) -> anyhow::Result<Self::Handle>;
}

/// One thread's way to get and put.
pub(super) trait Handle: Send {
    /// What it gives.
    type Item: Send;

    fn get(&mut self) -> Option<Self::Item>;
    fn put(&mut self, item: Self::Item);

    /// As many as a batch has, into an empty vector; or none, and false.
    fn get_many(&mut self, into: &mut Vec<Self::Item>) -> bool;
    /// Puts all of them.
    fn put_many(&mut self, items: &mut Vec<Self::Item>);

    /// As many as a batch has, or none.
    fn get_batch(&mut self) -> Option<Batch<Self::Item>>;
    fn put_batch(&mut self, batch: Batch<Self::Item>);

    /// A turn of the thread's loop is over.
    fn turn(&mut self) {}
}

/// A pool of so many frames with a home for each of these CPUs, in these lanes.
pub(crate) fn frame_pool(frames: u32, cpus: &[usize], lanes: &[u16]) -> anyhow::Result<FramePool> {
    let map = LaneMap::detect()?;
    // As the peers: ordinary pages.
    let options = AreaOptions::default().huge_pages(HugePages::Never);
    let nodes = cpus.iter().map(|&cpu| map.node_of(cpu)).collect();
    let area = FrameArea::new(&options.frames(frames).frame_size(FRAME_SIZE).nodes(nodes))?;
    let options = PoolOptions::default().homes(lanes.to_vec()).cache(CACHE);
    Ok(FramePool::new(area, &options)?)
}

/// A queue of as many numbers, as a pool that all threads share.
pub(super) fn queue_pool(objects: u32) -> QueuePool {
    let queue = ArrayQueue::new(objects as usize);
    for object in 0..objects {
        // It has room for all of them.
        let _ = queue.push(object);
    }
    QueuePool(Arc::new(queue))
}

/// crossbeam's `ArrayQueue` of objects' numbers, used as a pool.
#[derive(Clone, Debug)]
pub(super) struct QueuePool(Arc<ArrayQueue<u32>>);

impl Pool for FramePool {
    type Handle = LaneCache;

    fn handle(&self, cpu: usize) -> anyhow::Result<LaneCache> {
        Ok(self.cache(u16::try_from(cpu)?)?)
    }
}

impl Handle for LaneCache {
    type Item = Frame;

    #[inline]
    fn get(&mut self) -> Option<Frame> {
        LaneCache::get(self)
    }

    #[inline]
    fn put(&mut self, frame: Frame) {
        LaneCache::put(self, frame);
    }

    #[inline]
    fn get_many(&mut self, into: &mut Vec<Frame>) -> bool {
        match self.get_bulk(BATCH, into) {
            BATCH => true,
            _ => {
                self.put_bulk(into);
                false
            }
        }
    }

    #[inline]
    fn put_many(&mut self, items: &mut Vec<Frame>) {
        self.put_bulk(items);
    }

    #[inline]
    fn get_batch(&mut self) -> Option<Batch<Frame>> {
        self.get_array()
    }

    #[inline]
    fn put_batch(&mut self, batch: Batch<Frame>) {
        self.put_array(batch);
    }

    #[inline]
    fn turn(&mut self) {
        self.maintain();
    }
}

impl Pool for QueuePool {
    type Handle = QueuePool;

    fn handle(&self, _cpu: usize) -> anyhow::Result<QueuePool> {
        Ok(self.clone())
    }
}

impl Handle for QueuePool {
    type Item = u32;

    #[inline]
    fn get(&mut self) -> Option<u32> {
        self.0.pop()
    }

    #[inline]
    fn put(&mut self, object: u32) {
        // It has room for every object.
        let _ = self.0.push(object);
    }

    #[inline]
    fn get_many(&mut self, into: &mut Vec<u32>) -> bool {
        into.extend((0..BATCH).map_while(|_| self.0.pop()));
        let all = into.len() == BATCH;
        if !all {
            self.put_many(into);
        }
        all
    }

    #[inline]
    fn put_many(&mut self, items: &mut Vec<u32>) {
        items.drain(..).for_each(|object| self.put(object));
    }

    #[inline]
    fn get_batch(&mut self) -> Option<Batch<u32>> {
        let mut batch = [0; BATCH];
        for at in 0..BATCH {
            let Some(object) = self.0.pop() else {
                batch[..at].iter().for_each(|object| self.put(*object));
                return None;
            };
            batch[at] = object;
        }
        Some(batch)
    }

    #[inline]
    fn put_batch(&mut self, batch: Batch<u32>) {
        batch.into_iter().for_each(|object| self.put(object));
    }
}
