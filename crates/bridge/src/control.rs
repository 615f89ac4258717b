//! The fast path's knobs and counters, as `cachelane knob` shows them.

use std::sync::Arc;

use knobs::{Knob, Registry, Values};

use crate::{Fleet, Reason, Stats, Table};

/// Adds the knobs `bridge.fastpath` and `bridge.fdb`, which are for all bridges at once, and every
/// counter, summed over the bridges, to `registry`. The registry holds on to the fleet.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(fleet: &Arc<Fleet>, registry: &Registry) -> Result<(), knobs::Error> {
    registry.register(fastpath_knob(fleet))?;
    registry.register(table_knob(fleet))?;
    type Read = fn(&Stats) -> u64;
    let counters: [(&str, &str, &str, Read); 5] = [
        ("straight", "packets", "Packets sent straight into the peer's namespace.", |s| s.straight),
        ("redirected", "packets", "Packets sent through the port's own queue.", |s| s.redirected),
        ("bytes", "bytes", "Bytes forwarded by the fast path.", |s| s.bytes),
        ("copies", "packets", "Copies that keep the kernel's entries fresh.", |s| s.copies),
        ("overruns", "times", "Times notifications were lost and the mirror rebuilt.", |s| {
            s.overruns
        }),
    ];
    for (name, unit, help, read) in counters {
        let from = Arc::clone(fleet);
        registry.counter(&format!("bridge.{name}"), unit, help, move || read(&from.stats()))?;
    }
    for &reason in Reason::ALL {
        let from = Arc::clone(fleet);
        let name = format!("bridge.kernel.{}", reason.name());
        let read = move || from.stats().kernel(reason);
        registry.counter(&name, "packets", reason.help(), read)?;
    }
    let from = Arc::clone(fleet);
    let help = "Bridges that are accelerated.";
    registry.gauge("bridge.bridges", "bridges", help, move || from.len() as u64)?;
    let from = Arc::clone(fleet);
    let help = "Stations that the fast path knows.";
    registry.gauge("bridge.stations", "stations", help, move || from.stats().stations)?;
    let from = Arc::clone(fleet);
    let help = "Stations that the fast path has no room for.";
    registry.gauge("bridge.left_out", "stations", help, move || from.stats().left_out)
}

fn fastpath_knob(fleet: &Arc<Fleet>) -> Knob {
    let (reader, writer) = (Arc::clone(fleet), Arc::clone(fleet));
    let set = move |value: &str| writer.set_fastpath(value == "on").map_err(|e| e.to_string());
    let current = move || if reader.fastpath() { "on" } else { "off" }.to_owned();
    let help = "forward known unicast in BPF; off, nothing of it is attached";
    Knob::new("bridge.fastpath", help, Values::off_on(), "on", current, set)
}

fn table_knob(fleet: &Arc<Fleet>) -> Knob {
    let (reader, writer) = (Arc::clone(fleet), Arc::clone(fleet));
    let set = move |value: &str| {
        let table = value.parse::<Table>().map_err(|e| e.to_string())?;
        writer.set_table(table).map_err(|e| e.to_string())
    };
    let names = Values::one_of(Table::ALL.map(Table::name));
    let help = "where the last-seen stamps live; shared is there to measure against";
    let current = move || reader.table().to_string();
    Knob::new("bridge.fdb", help, names, Table::Split.name(), current, set)
}
