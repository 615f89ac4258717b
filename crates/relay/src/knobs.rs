//! The relay's knobs and counters, as `cachelane knob` shows them.

use std::convert::Infallible;
use std::sync::Arc;

use knobs::MeterKind::{Counter, Gauge};
use knobs::{Knob, Reach, Registry};
use lanes::{CpuSpec, LaneMap};

use crate::{Engine, Relay, Stats};

/// Adds the knobs `relay.cpus` and `relay.engine`, and every counter as `relay.NAME`, to
/// `registry`. CPU sets are resolved against `map`. The registry holds on to the relay.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(relay: &Arc<Relay>, map: LaneMap, registry: &Registry) -> Result<(), knobs::Error> {
    registry.register(cpus_knob(relay, map))?;
    registry.register(engine_knob(relay))?;
    let from = Arc::clone(relay);
    let read = move || Ok::<_, Infallible>(from.stats().values());
    registry.meters(Counter, "relay", Stats::FIELDS, read)?;
    let from = Arc::clone(relay);
    let now = [
        ("connections", "connections", "Connections at this moment."),
        ("backends_up", "backends", "Backends that are not left alone after a refusal."),
    ];
    let read = move || Ok::<_, Infallible>([from.active() as u64, from.backends().1 as u64]);
    registry.meters(Gauge, "relay", now, read)
}

fn cpus_knob(relay: &Arc<Relay>, map: LaneMap) -> Knob {
    let (reader, writer) = (Arc::clone(relay), Arc::clone(relay));
    let set = move |spec: CpuSpec| {
        let cpus = spec.resolve(&map).map_err(|e| e.to_string())?;
        writer.set_cpus(&cpus).map_err(|e| e.to_string())
    };
    let form = "a CPU list such as 0-3,8, or lane:N, or all";
    let help = "where forwarding runs; workers move at once, with their connections";
    // A connection stays with its worker: a larger set adds workers, which get new connections only.
    Knob::parsed("relay.cpus", help, form, "all", move || Ok(reader.cpus()), set)
        .reaching(Reach::NewConnections)
        .exposed("relay.bytes_under_cpus", "relay.bytes")
}

fn engine_knob(relay: &Arc<Relay>) -> Knob {
    let (reader, writer) = (Arc::clone(relay), Arc::clone(relay));
    let help = "how bytes move, for new connections";
    let (get, set) = (move || Ok(reader.engine()), move |engine| writer.set_engine(engine));
    Knob::choice("relay.engine", help, &Engine::ALL, Engine::Auto, get, set)
        .reaching(Reach::NewConnections)
        .exposed("relay.bytes_under_engine", "relay.bytes")
}
