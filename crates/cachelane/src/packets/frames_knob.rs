//! The knob and the counters of a frame pool, as `cachelane knob` shows them.

use frames::{AlienFree, Census, Counters, FramePool};
use knobs::{Knob, MeterKind, Registry, Values};

use crate::counters::{self, Count};

/// Adds the knob `frames.alien_free`, and where the pool's frames are, to `registry`. The registry
/// holds on to the pool.
///
/// # Errors
/// A name that the registry holds already.
pub(crate) fn register(pool: &FramePool, registry: &Registry) -> Result<(), knobs::Error> {
    registry.register(alien_free(pool))?;
    let (here, there) = (pool.clone(), pool.clone());
    counters::register(registry, MeterKind::Gauge, "frames", &PLACES, move || here.census())?;
    counters::register(registry, MeterKind::Counter, "frames", &COUNTERS, move || there.counters())
}

/// Where frames are: a name, what it means, and how many are there.
pub(crate) const PLACES: [Count<Census>; 6] = [
    ("cached", "frames", "Frames in threads' caches.", |c| c.cached.into()),
    ("depot", "frames", "Frames in the depot that all threads share.", |c| c.depot.into()),
    ("inboxes", "frames", "Frames waiting at their homes.", |c| c.inboxes.into()),
    ("outboxes", "frames", "Frames on their way home, not yet sent.", |c| c.outboxes.into()),
    ("released", "frames", "Frames with the kernel.", |c| c.released.into()),
    ("held", "frames", "Frames in hand.", |c| c.held.into()),
];

/// What happens in a pool: a name, its unit, what it means, and how often it happened.
pub(crate) const COUNTERS: [Count<Counters>; 13] = [
    ("gets", "frames", "Taken from caches.", |c| c.gets),
    ("from_inbox", "frames", "That caches took from their home's inbox.", |c| c.from_inbox),
    ("from_depot", "frames", "That caches took from a depot.", |c| c.from_depot),
    ("from_others", "frames", "That caches took from other homes' inboxes.", |c| c.from_others),
    ("starved", "times", "Times that a cache found no frame anywhere.", |c| c.starved),
    ("spilled", "frames", "That caches had no room for.", |c| c.spilled),
    ("sent_home", "frames", "Sent to another home's inbox.", |c| c.sent_home),
    ("inbox_full", "frames", "Sent to a depot as an inbox had no room.", |c| c.inbox_full),
    ("given_back", "frames", "Given back by caches that were idle.", |c| c.given_back),
    ("foreign", "frames", "Put into a pool that they were not of.", |c| c.foreign),
    ("dropped", "frames", "Whose handle was dropped.", |c| c.dropped),
    ("withheld", "frames", "Left with a device that may still use them.", |c| c.withheld),
    ("refused", "frames", "Came back though they were not out.", |c| c.refused),
];

fn alien_free(pool: &FramePool) -> Knob {
    let (reader, writer) = (pool.clone(), pool.clone());
    let set = move |value: &str| {
        writer.set_alien_free(value.parse::<AlienFree>().map_err(|e| e.to_string())?);
        Ok(())
    };
    let names = Values::one_of(AlienFree::ALL.map(AlienFree::name));
    let help = "what happens to a frame that is freed away from its home";
    let current = move || reader.alien_free().to_string();
    Knob::new("frames.alien_free", help, names, AlienFree::default().name(), current, set)
}
