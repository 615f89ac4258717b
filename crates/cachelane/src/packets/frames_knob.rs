//! The knob and the counters of a frame pool, as `cachelane knob` shows them.

use frames::{AlienFree, Census, Counters, FramePool};
use knobs::{Knob, Registry, Values};

/// Adds the knob `frames.alien_free`, and where the pool's frames are, to `registry`. The registry
/// holds on to the pool.
///
/// # Errors
/// A name that the registry holds already.
pub(crate) fn register(pool: &FramePool, registry: &Registry) -> Result<(), knobs::Error> {
    registry.register(alien_free(pool))?;
    for (name, help, read) in PLACES {
        let pool = pool.clone();
        let read = move || u64::from(read(&pool.census()));
        registry.gauge(&format!("frames.{name}"), "frames", help, read)?;
    }
    for (name, unit, help, read) in COUNTERS {
        let pool = pool.clone();
        registry.counter(&format!("frames.{name}"), unit, help, move || read(&pool.counters()))?;
    }
    Ok(())
}

type Place = (&'static str, &'static str, fn(&Census) -> u32);

/// Where frames are: a name, what it means, and how many are there.
pub(crate) const PLACES: [Place; 6] = [
    ("cached", "Frames in threads' caches.", |c| c.cached),
    ("depot", "Frames in the depot that all threads share.", |c| c.depot),
    ("inboxes", "Frames waiting at their homes.", |c| c.inboxes),
    ("outboxes", "Frames on their way home, not yet sent.", |c| c.outboxes),
    ("released", "Frames with the kernel.", |c| c.released),
    ("held", "Frames in hand.", |c| c.held),
];

type Count = (&'static str, &'static str, &'static str, fn(&Counters) -> u64);

/// What happens in a pool: a name, its unit, what it means, and how often it happened.
pub(crate) const COUNTERS: [Count; 13] = [
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
