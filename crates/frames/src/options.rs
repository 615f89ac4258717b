//! How a pool is made.

use crate::{AlienFree, Error, FrameArea, Result};
use derive_setters::Setters;

/// How a pool is made.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The lane of each home, by the home's number; as many homes as there are CPUs or threads
    /// that take frames. The lanes' numbers mean nothing but same or not.
    pub homes: Vec<u16>,
    /// The most frames that a cache keeps, in two magazines: from 2 to 508; more is taken as 508.
    /// In a small pool it is less: half of a home's share. More costs fewer exchanges with other
    /// threads, and memory that is out of their reach.
    pub cache: u32,
    /// The most frames that wait in a home's inbox; more go to the depot of its lane. At the
    /// start every home's frames are in its inbox, however many there are. None: as many as have
    /// their home there.
    pub inbox: Option<u32>,
    /// The most caches that exist at the same time.
    pub caches: u16,
    /// What happens to frames freed away from home, at first.
    pub alien_free: AlienFree,
    /// Whether a frame that comes back twice, or to a wrong pool, or not at all, ends the program
    /// with the frame's history. Else it is refused and counted. The default is true in debug
    /// builds, which keep the history, and false in release builds, which do not.
    pub fatal: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            homes: vec![0],
            cache: 384,
            inbox: None,
            caches: 64,
            alien_free: AlienFree::Auto,
            fatal: cfg!(debug_assertions),
        }
    }
}

impl PoolOptions {
    pub(crate) fn check(&self, area: &FrameArea) -> Result<()> {
        let (homes, frames, nodes) = (self.homes.len(), area.frames(), area.nodes());
        let wrong = if homes == 0 || homes > usize::from(u16::MAX) || homes > frames as usize {
            format!(
                "{homes} homes for {frames} frames: expected at least one, and a frame for each"
            )
        } else if nodes != 0 && nodes != homes {
            format!("{homes} homes in an area with nodes for {nodes}")
        } else if self.cache < 2 {
            format!("a cache of {} frames: expected at least 2", self.cache)
        } else if self.caches == 0 {
            "0 caches: expected at least one".into()
        } else {
            return Ok(());
        };
        Err(Error::invalid(wrong))
    }
}
