//! Frames that one thread takes and another gives back: the part of the experiment that the demo
//! shows.

use std::time::Duration;

use frames::FramePool;

use super::patterns::{self, Pattern};
use super::pools::{QueuePool, frame_pool, queue_pool};
use crate::bench::places::Places;

/// Frames of each pool.
const FRAMES: u32 = 8192;

/// Two pools, and the CPUs of the two threads.
pub(crate) struct Passing {
    pool: FramePool,
    queue: QueuePool,
    pub(crate) cpus: Vec<usize>,
}

impl Passing {
    pub(crate) fn new() -> anyhow::Result<Passing> {
        let cpus = Places::detect()?.near().to_vec();
        let pool = frame_pool(FRAMES, &cpus, &vec![0; cpus.len()])?;
        Ok(Passing { pool, queue: queue_pool(FRAMES), cpus })
    }

    /// Frames a second, from our pool or from crossbeam's queue.
    pub(crate) fn rate(&self, ours: bool, window: Duration) -> anyhow::Result<f64> {
        let seconds = match ours {
            true => patterns::measure(&self.pool, Pattern::Alien, 2, &self.cpus, window)?,
            false => patterns::measure(&self.queue, Pattern::Alien, 2, &self.cpus, window)?,
        };
        Ok(1.0 / seconds)
    }
}
