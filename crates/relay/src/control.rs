//! The relay's knobs and counters, as `cachelane knob` shows them.

use std::sync::Arc;

use knobs::{Knob, Registry, Values};
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
    for &(name, unit, help) in Stats::FIELDS {
        let relay = Arc::clone(relay);
        let read = move || relay.stats().by_name(name).unwrap_or_default();
        registry.counter(&format!("relay.{name}"), unit, help.trim(), read)?;
    }
    let active = Arc::clone(relay);
    let help = "Connections at this moment.";
    registry.gauge("relay.connections", "connections", help, move || active.active() as u64)?;
    let backends = Arc::clone(relay);
    let help = "Backends that are not left alone after a refusal.";
    registry.gauge("relay.backends_up", "backends", help, move || backends.backends().1 as u64)
}

fn cpus_knob(relay: &Arc<Relay>, map: LaneMap) -> Knob {
    let (reader, writer) = (Arc::clone(relay), Arc::clone(relay));
    let set = move |value: &str| {
        let spec: CpuSpec = value.parse().map_err(|e: lanes::Error| e.to_string())?;
        let cpus = spec.resolve(&map).map_err(|e| e.to_string())?;
        writer.set_cpus(&cpus).map_err(|e| e.to_string())
    };
    let form = Values::text("a CPU list such as 0-3,8, or lane:N, or all");
    let help = "where forwarding runs; workers move at once, with their connections";
    Knob::new("relay.cpus", help, form, "all", move || reader.cpus().to_string(), set)
}

fn engine_knob(relay: &Arc<Relay>) -> Knob {
    let (reader, writer) = (Arc::clone(relay), Arc::clone(relay));
    let set = move |value: &str| {
        let engine = value.parse::<Engine>().map_err(|e| e.to_string())?;
        writer.set_engine(engine).map_err(|e| e.to_string())
    };
    let names = Values::one_of(Engine::ALL.map(Engine::name));
    let help = "how bytes move, for new connections";
    let current = move || reader.engine().to_string();
    Knob::new("relay.engine", help, names, Engine::Auto.name(), current, set)
}
