//! The knob and the counters of a frame pool, as `cachelane knob` shows them.

use std::convert::Infallible;

use knobs::MeterKind::{Counter, Gauge};
use knobs::{Knob, Registry};

use crate::{AlienFree, Census, Counters, FramePool};

/// Adds the knob `frames.alien_free`, what happened in the pool, and where its frames are, to
/// `registry`. The registry holds on to the pool.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(pool: &FramePool, registry: &Registry) -> Result<(), knobs::Error> {
    let (reader, writer) = (pool.clone(), pool.clone());
    registry.register(Knob::choice(
        "frames.alien_free",
        "what happens to a frame that is freed away from its home",
        &AlienFree::ALL,
        AlienFree::default(),
        move || Ok::<_, Infallible>(reader.alien_free()),
        move |value| {
            writer.set_alien_free(value);
            Ok(())
        },
    ))?;
    let from = pool.clone();
    let read = move || Ok::<_, Infallible>(from.census().values());
    registry.meters(Gauge, "frames", Census::FIELDS, read)?;
    let from = pool.clone();
    let read = move || Ok::<_, Infallible>(from.counters().values());
    registry.meters(Counter, "frames", Counters::FIELDS, read)
}
