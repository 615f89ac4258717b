//! Frames that one thread takes and another gives back: the part of the experiment that the demo
//! shows.

use std::time::Duration;

use frames::FramePool;

use super::patterns::{self, Pattern};
use super::pools::{QueuePool, frame_pool, queue_pool};
use crate::bench::places::{self, Places};

/// Frames of each pool.
const FRAMES: u32 = 8192;

/// Two pools, and the CPUs of the two threads.
pub(crate) struct Passing {
    pool: FramePool,
    queue: QueuePool,
    cpus: Vec<usize>,
}

impl Passing {
    pub(crate) fn new() -> anyhow::Result<Passing> {
        let cpus = Places::detect()?.near().to_vec();
        let pool = frame_pool(FRAMES, &cpus, &vec![0; cpus.len()])?;
        Ok(Passing { pool, queue: queue_pool(FRAMES), cpus })
    }

    /// The CPUs, for people.
    pub(crate) fn place(&self) -> String {
        places::text(&self.cpus)
    }

    /// Seconds a frame, from our pool.
    pub(crate) fn by_pool(&self, window: Duration) -> anyhow::Result<f64> {
        patterns::measure(&self.pool, Pattern::Alien, 2, &self.cpus, window)
    }

    /// Seconds a frame, from crossbeam's queue.
    pub(crate) fn by_queue(&self, window: Duration) -> anyhow::Result<f64> {
        patterns::measure(&self.queue, Pattern::Alien, 2, &self.cpus, window)
    }
}
