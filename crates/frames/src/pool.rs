//! The pool that all threads share.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::shared::Shared;
use crate::sync::Ordering;
use crate::{AlienFree, Census, Counters, Frame, FrameArea, PoolOptions, Refused, Result};

/// A pool of all frames of an area, shared by threads that each have a
/// [`LaneCache`](crate::LaneCache).
///
/// Clones are the same pool.
#[derive(Clone, Debug)]
pub struct FramePool(Arc<Shared>);

impl FramePool {
    /// A pool of all frames of the area, each at its home.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options that cannot be met.
    pub fn new(area: FrameArea, options: &PoolOptions) -> Result<Self> {
        let shared = Arc::new(Shared::new(area, options)?);
        shared.adopt(Arc::downgrade(&shared));
        Ok(Self(shared))
    }

    /// The memory.
    #[inline]
    pub fn area(&self) -> &FrameArea {
        &self.0.area
    }

    /// What happens to frames freed away from home.
    pub fn alien_free(&self) -> AlienFree {
        self.0.alien_free()
    }

    /// Changes it, for every frame put after this.
    pub fn set_alien_free(&self, mode: AlienFree) {
        self.0.set_alien_free(mode);
    }

    /// A new holder.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there are 65,535 of them.
    pub fn holder(&self) -> Result<Holder> {
        Ok(Holder { id: self.0.take_holder()?, pool: self.0.clone() })
    }

    /// Hands a frame out to a holder; where it begins, in bytes from the start of the area.
    ///
    /// # Panics
    /// If the frame or the holder is of another pool.
    #[inline]
    pub fn release(&self, frame: Frame, holder: &Holder) -> u64 {
        assert!(Arc::ptr_eq(&self.0, &holder.pool), "a holder of another pool");
        self.0.release(frame, holder.id)
    }

    /// Takes a frame back that the holder has returned; the address may be anywhere in it.
    ///
    /// # Errors
    /// An address outside the area, and one of a frame that the holder does not have: a frame that
    /// comes back twice. Counted ([`Counters::refused`]), and fatal if `PoolOptions::fatal`.
    ///
    /// # Panics
    /// If the holder is of another pool.
    #[inline]
    pub fn claim(&self, address: u64, holder: &Holder) -> Result<Frame, Refused> {
        assert!(Arc::ptr_eq(&self.0, &holder.pool), "a holder of another pool");
        self.0.claim(address, holder.id)
    }

    /// Takes everything back that a holder has which will return nothing any more, such as a
    /// closed socket. Looks at every frame of the area.
    pub fn reclaim(&self, holder: &Holder) -> Vec<Frame> {
        self.0.reclaim(holder.id)
    }

    /// Leaves everything with a holder that it has, for good, and counts it; how many frames: they
    /// may still be written to, such as by a network card of which nobody knows whether it is done.
    /// Looks at every frame of the area.
    pub fn withhold(&self, holder: &Holder) -> u32 {
        let frames = holder.frames();
        self.0.withheld.fetch_add(u64::from(frames), Ordering::Relaxed);
        frames
    }

    /// Sends frames home without a cache: for the end of something, not for traffic.
    ///
    /// One of another pool goes to that one, as when it is put into a cache.
    pub fn send_home(&self, frames: impl IntoIterator<Item = Frame>) {
        for frame in frames {
            let number = frame.into_number();
            match self.0.has(number) {
                true => self.0.take_home(number),
                false => self.0.foreign(number),
            }
        }
    }

    /// Where the frames are. Looks at every frame of the area.
    ///
    /// With threads at work it is a little out of date: caches tell what they have when they
    /// exchange frames with others.
    pub fn census(&self) -> Census {
        let shared = &self.0;
        let sum =
            |places: &[crate::place::Place]| places.iter().map(|p| u64::from(p.frames())).sum();
        let mut census = Census {
            depot: sum(shared.places.depots()),
            inboxes: sum(shared.places.inboxes()),
            released: shared.released(None).into(),
            ..Census::default()
        };
        for tally in &shared.tallies {
            census.cached += u64::from(tally.cached.load(Ordering::Relaxed));
            census.outboxes += u64::from(tally.outboxes.load(Ordering::Relaxed));
        }
        let known = census.cached + census.outboxes + census.depot + census.inboxes;
        census.held = u64::from(shared.area.frames()).saturating_sub(known + census.released);
        census
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let shared = &self.0;
        let mut sum = Counters {
            refused: shared.refused.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
            withheld: shared.withheld.load(Ordering::Relaxed),
            ..Counters::default()
        };
        for tally in &shared.tallies {
            sum.add(&Counters::from(&tally.counts));
        }
        sum
    }

    /// Ends the pool, and says whether every frame came back.
    ///
    /// # Errors
    /// What is missing. Fatal if `PoolOptions::fatal`.
    pub fn close(self) -> Result<(), Leak> {
        let shared = &self.0;
        let caches = shared.live_caches();
        let mut free = shared.drain();
        free.sort_unstable();
        let twice = free.windows(2).filter(|pair| pair[0] == pair[1]).count() as u32;
        free.dedup();
        let first = shared.area.first();
        let missing: Vec<u32> = (first..first + shared.area.frames())
            .filter(|number| free.binary_search(number).is_err())
            .collect();
        // As they were: whoever has another clone may go on.
        free.iter().for_each(|&number| {
            shared.take_home(number);
        });
        if missing.is_empty() && twice == 0 {
            return Ok(());
        }
        let released = shared.released(None);
        let histories = missing.iter().take(LISTED).map(|number| {
            let index = number - first;
            format!("frame {index}: {}", shared.history.of(index))
        });
        let leak = Leak {
            frames: missing.len() as u32,
            released,
            twice,
            caches,
            histories: histories.collect(),
        };
        assert!(!shared.fatal, "{leak}");
        Err(leak)
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }
}

/// Somebody outside of this program's types who can have frames: the kernel, for one of its
/// sockets, or another process.
///
/// While it has frames it is not forgotten: its id is used again only if it has none when it is
/// dropped.
#[derive(Debug)]
pub struct Holder {
    id: NonZeroU16,
    pool: Arc<Shared>,
}

impl Holder {
    /// How many frames it has. Looks at every frame of the area.
    pub fn frames(&self) -> u32 {
        self.pool.released(Some(self.id))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.pool.return_holder(self.id);
    }
}

/// Frames that were missing when a pool was closed.
#[derive(Debug)]
pub struct Leak {
    /// How many.
    pub frames: u32,
    /// How many of them are with holders.
    pub released: u32,
    /// Frames that were there twice: a defect of this crate.
    pub twice: u32,
    /// Caches that were still there.
    pub caches: usize,
    histories: Vec<String>,
}

/// Frames whose history a message has.
const LISTED: usize = 8;

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} frames did not come back ({} of them with holders, {} caches still there)",
            self.frames, self.released, self.caches
        )?;
        if self.twice > 0 {
            write!(f, ", {} came back twice", self.twice)?;
        }
        self.histories.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

impl std::error::Error for Leak {}
