//! The relay's knobs and counters, as `cachelane knob` shows them, and its statistics, as
//! `cachelane relay --stats` does.

use std::convert::Infallible;
use std::sync::Arc;

use knobs::MeterKind::{Counter, Gauge};
use knobs::{Answer, Knob, Reach, Registry};
use lanes::{CpuSpec, LaneMap};
use serde_json::{Map, Value, json};

use crate::{BackendSettings, Cause, Engine, Relay, Statistics, Stats, Times, Traffic, succession};

/// The request that a relay answers with its [`Statistics`] as JSON.
pub const STATISTICS: &str = "relay.statistics";

/// Adds the knobs `relay.cpus`, `relay.engine` and `relay.backends`, and every counter as
/// `relay.NAME`, to `registry`, which answers [`STATISTICS`], and a successor
/// that wants the listeners. CPU sets are resolved against `map`.
/// The registry holds on to the relay.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(relay: &Arc<Relay>, map: LaneMap, registry: &Registry) -> Result<(), knobs::Error> {
    register_under("relay", relay, map, registry)?;
    succession::answer(relay, registry)
}

/// As [`register`], for a relay that is one service of several in this process: the names are
/// `relay.SERVICE.cpus` and so on, and that of the request `relay.SERVICE.statistics`. It has no
/// successor.
///
/// # Errors
/// A name that the registry holds already; a service that is not words of lowercase letters, digits
/// and `_`, each with a letter first, joined by dots.
pub fn register_service(
    service: &str,
    relay: &Arc<Relay>,
    map: LaneMap,
    registry: &Registry,
) -> Result<(), knobs::Error> {
    register_under(&format!("relay.{service}"), relay, map, registry)
}

fn register_under(
    prefix: &str,
    relay: &Arc<Relay>,
    map: LaneMap,
    registry: &Registry,
) -> Result<(), knobs::Error> {
    registry.register(cpus_knob(prefix, relay, map))?;
    registry.register(engine_knob(prefix, relay))?;
    registry.register(backends_knob(prefix, relay))?;
    let from = Arc::clone(relay);
    let read = move || Ok::<_, Infallible>(from.stats().values());
    registry.meters(Counter, prefix, Stats::FIELDS, read)?;
    let from = Arc::clone(relay);
    let now = [
        ("connections", "connections", "Connections at this moment."),
        ("backends_up", "addresses", "Addresses of backends that are up."),
        ("clients", "clients", "Clients with connections, where there is a limit for each."),
        ("clients_remembered", "clients", "Others that are remembered for their rate."),
    ];
    let read = move || {
        let [clients, remembered] = from.clients().map(|n| n as u64);
        let up = from.backends().1 as u64;
        Ok::<_, Infallible>([from.active() as u64, up, clients, remembered])
    };
    registry.meters(Gauge, prefix, now, read)?;
    let from = Arc::clone(relay);
    registry.on_request(&format!("{prefix}.statistics"), move |_, _| {
        Ok::<_, Infallible>(Answer { value: statistics(&from.statistics()), files: Vec::new() })
    })
}

fn statistics(all: &Statistics) -> Value {
    let list = |traffic: &[Traffic]| traffic.iter().map(object).collect::<Vec<_>>();
    json!({"listeners": list(&all.listeners), "backends": list(&all.backends)})
}

fn object(traffic: &Traffic) -> Value {
    let by_cause = |cause: Cause| (cause.name().to_owned(), traffic.ended(cause).into());
    json!({
        "addr": traffic.addr,
        "up": traffic.is_up,
        "active": traffic.active,
        "connections": traffic.connections,
        "connect_failed": traffic.connect_failed,
        "refused": traffic.refused,
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "ended": Cause::ALL.into_iter().map(by_cause).collect::<Map<_, _>>(),
        "connect_ms": distribution(&traffic.connect_time),
        "session_ms": distribution(&traffic.session_time),
    })
}

fn distribution(times: &Times) -> Value {
    let at = |share| times.quantile(share).map(|time| time.as_micros() as f64 / 1000.0);
    json!({"count": times.count(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0)})
}

fn cpus_knob(prefix: &str, relay: &Arc<Relay>, map: LaneMap) -> Knob {
    let (reader, writer) = (Arc::clone(relay), Arc::clone(relay));
    let set = move |spec: CpuSpec| {
        let cpus = spec.resolve(&map).map_err(|e| e.to_string())?;
        writer.set_cpus(&cpus).map_err(|e| e.to_string())
    };
    let form = "a CPU list such as 0-3,8, or lane:N, or all";
    let help = "where forwarding runs; workers move at once, with their connections";
    // A connection stays with its worker: a larger set adds workers, which get new connections only.
    Knob::parsed(&format!("{prefix}.cpus"), help, form, "all", move || Ok(reader.cpus()), set)
        .reaching(Reach::NewConnections)
        .exposed(&format!("{prefix}.bytes_under_cpus"), &format!("{prefix}.bytes"))
}

fn engine_knob(prefix: &str, relay: &Arc<Relay>) -> Knob {
    let (reader, writer) = (Arc::clone(relay), Arc::clone(relay));
    let help = "how bytes move, for new connections";
    let (get, set) = (move || Ok(reader.engine()), move |engine| writer.set_engine(engine));
    Knob::choice(&format!("{prefix}.engine"), help, &Engine::ALL, Engine::Auto, get, set)
        .reaching(Reach::NewConnections)
        .exposed(&format!("{prefix}.bytes_under_engine"), &format!("{prefix}.bytes"))
}

fn backends_knob(prefix: &str, relay: &Arc<Relay>) -> Knob {
    let (reader, writer) = (Arc::clone(relay), Arc::clone(relay));
    let default = relay.backend_settings().to_string();
    let set =
        move |settings: BackendSettings| writer.set_backends(&settings).map_err(|e| e.to_string());
    let form = "BACKEND=ready or BACKEND=drain, with or without ,weight=0-256; several with spaces between";
    let help = "which backends get new connections, and how many; those not named stay as they are";
    Knob::parsed(
        &format!("{prefix}.backends"),
        help,
        form,
        &default,
        move || Ok(reader.backend_settings()),
        set,
    )
    .reaching(Reach::NewConnections)
}
