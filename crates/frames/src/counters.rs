//! What happens in a pool, and where its frames are.

use crate::sync::AtomicU32;

kit::counters! {
    /// What has happened in a pool, as of each cache's last exchange with others.
    pub struct Counters of Counts {
        gets: "frames", "Frames taken from caches.";
        from_inbox: "frames", "Frames that caches took from their home's inbox.";
        from_depot: "frames", "Frames that caches took from a depot.";
        from_others: "frames", "Frames that caches took from other homes' inboxes.";
        starved: "times", "Times that a cache found no frame anywhere.";
        spilled: "frames", "Frames pushed out of full caches.";
        sent_home: "frames", "Frames sent to another home's inbox.";
        inbox_full: "frames", "Frames sent to a depot as an inbox had no room.";
        given_back: "frames", "Frames given back by idle caches.";
        foreign: "frames", "Frames put into another pool than theirs.";
        dropped: "frames", "Frames whose handle was dropped.";
        withheld: "frames", "Frames left with a device that may still use them.";
        refused: "frames", "Addresses that came back though no such frame was out.";
    }
}

kit::counters! {
    /// Where the frames of a pool are.
    pub struct Census {
        cached: "frames", "Frames in threads' caches.";
        depot: "frames", "Frames in the depots that threads share.";
        inboxes: "frames", "Frames waiting at their homes.";
        outboxes: "frames", "Frames on their way home, not yet sent.";
        released: "frames", "Frames with the kernel or another holder.";
        held: "frames", "Frames in the program's hands.";
    }
}

/// What one cache has done and has: written by its thread alone, read by whoever wants to know. A
/// cache that comes after another in the slot counts on.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Frames in the cache, as of its last exchange with others or its last `maintain`.
    pub(crate) cached: AtomicU32,
    /// Frames in its outboxes, likewise.
    pub(crate) outboxes: AtomicU32,
    pub(crate) counts: Counts,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { cached: AtomicU32::new(0), outboxes: AtomicU32::new(0), counts: Counts::default() }
    }
}
