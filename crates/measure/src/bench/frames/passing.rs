//! Frames that one thread takes and another gives back: the part of the experiment that the demo
//! shows.

use std::time::Duration;

use super::patterns::{self, Pattern};
use super::pools::{frame_pool, queue_pool};
use crate::bench::places::{self, Places};

/// Frames of each pool.
const FRAMES: u32 = 8192;

/// Measures frames a second, from our pool or from crossbeam's queue; and the CPUs of the two
/// threads, for people.
pub(crate) fn passing() -> anyhow::Result<(String, impl Fn(bool, Duration) -> anyhow::Result<f64>)>
{
    let cpus = Places::detect()?.near().to_vec();
    let pool = frame_pool(FRAMES, &cpus, &vec![0; cpus.len()])?;
    let queue = queue_pool(FRAMES);
    let text = places::text(&cpus);
    let rate = move |ours, window| {
        let seconds = match ours {
            true => patterns::measure(&pool, Pattern::Alien, 2, &cpus, window)?,
            false => patterns::measure(&queue, Pattern::Alien, 2, &cpus, window)?,
        };
        Ok(1.0 / seconds)
    };
    Ok((text, rate))
}
