//! What has happened to each frame, for the message when something is wrong. Kept in debug builds.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The last events of each frame.
const KEPT: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Event {
    Got = 1,
    Put,
    Released,
    Claimed,
    Dropped,
}

/// The last events of every frame of a pool, in the order in which they were noted.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// By frame; none at all where no history is kept.
    frames: Box<[Events]>,
    next: AtomicU64,
}

/// Each event: when (a count) << 24 | by whom << 8 | what.
#[derive(Debug, Default)]
struct Events([AtomicU64; KEPT]);

impl History {
    /// A history of so many frames; in release builds, none.
    pub(crate) fn new(frames: u32) -> Self {
        let kept = if cfg!(debug_assertions) { frames } else { 0 };
        Self { frames: (0..kept).map(|_| Events::default()).collect(), next: AtomicU64::new(1) }
    }

    /// Notes an event of the frame of this index, by a cache or holder of this number.
    #[inline]
    pub(crate) fn note(&self, index: u32, event: Event, by: u16) {
        if !cfg!(debug_assertions) {
            return;
        }
        let Some(events) = self.frames.get(index as usize) else { return };
        // Relaxed: whoever has the frame writes; a reader gets a message for people.
        let when = self.next.fetch_add(1, Ordering::Relaxed);
        let oldest = events.0.iter().min_by_key(|slot| slot.load(Ordering::Relaxed));
        if let Some(slot) = oldest {
            slot.store(when << 24 | u64::from(by) << 8 | event as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn of(&self, index: u32) -> String {
        match self.frames.get(index as usize) {
            Some(events) => events.to_string(),
            None => "no history in a release build".into(),
        }
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events: Vec<u64> = self.0.iter().map(|e| e.load(Ordering::Relaxed)).collect();
        events.retain(|&event| event != 0);
        events.sort_unstable();
        if events.is_empty() {
            return f.write_str("never used");
        }
        for (number, event) in events.iter().enumerate() {
            let by = event >> 8 & 0xffff;
            let what = match *event as u8 {
                1 => format!("got by cache {by}"),
                2 => format!("put by cache {by}"),
                3 => format!("released to holder {by}"),
                4 => format!("claimed from holder {by}"),
                _ => "dropped".into(),
            };
            write!(f, "{}{what} (event {})", if number > 0 { ", " } else { "" }, event >> 24)?;
        }
        Ok(())
    }
}
