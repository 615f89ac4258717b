//! Pools for tests.

#![allow(dead_code)]

use cachelane_frames::{
    AlienFree, AreaOptions, Frame, FrameArea, FramePool, HugePages, LaneCache, PoolOptions,
};

/// A pool of small frames, with homes in these lanes. It refuses and counts rather than panics.
pub(crate) fn pool(frames: u32, lanes: &[u16], alien_free: AlienFree) -> FramePool {
    let options = PoolOptions::default().homes(lanes.to_vec()).alien_free(alien_free).fatal(false);
    pool_with(frames, &options)
}

/// A pool of small frames.
pub(crate) fn pool_with(frames: u32, options: &PoolOptions) -> FramePool {
    let area = AreaOptions::default().frames(frames).frame_size(64).huge_pages(HugePages::Never);
    FramePool::new(FrameArea::new(&area).unwrap(), options).unwrap()
}

/// Everything that the cache can get.
pub(crate) fn get_all(cache: &mut LaneCache) -> Vec<Frame> {
    std::iter::from_fn(|| cache.get()).collect()
}

/// The home of a frame, by where it is: as many equal ranges as homes.
pub(crate) fn address(pool: &FramePool, frame: &Frame) -> usize {
    pool.area().bytes(frame).as_ptr().addr() - pool.area().as_ptr().as_ptr().addr()
}
