//! The fast path's knobs and counters, as `cachelane knob` shows them.

use std::convert::Infallible;
use std::sync::Arc;

use knobs::MeterKind::{Counter, Gauge};
use knobs::{Knob, Registry};

use crate::{Fleet, Reason, Stats, Table};

/// Adds the knobs `bridge.fastpath` and `bridge.fdb`, which are for all bridges at once, and every
/// counter, summed over the bridges, to `registry`. The registry holds on to the fleet.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(fleet: &Arc<Fleet>, registry: &Registry) -> Result<(), knobs::Error> {
    registry.register(fastpath_knob(fleet))?;
    registry.register(table_knob(fleet))?;
    let from = Arc::clone(fleet);
    let read = move || {
        let Stats { straight, redirected, bytes, copies, overruns, .. } = from.stats();
        Ok::<_, Infallible>([straight, redirected, bytes, copies, overruns])
    };
    let counters = &[
        ("straight", "packets", "Packets sent straight into the peer's namespace."),
        ("redirected", "packets", "Packets sent through the port's own queue."),
        ("bytes", "bytes", "Bytes forwarded by the fast path."),
        ("copies", "packets", "Copies that keep the kernel's entries fresh."),
        ("overruns", "times", "Times notifications were lost and the mirror rebuilt."),
    ];
    registry.meters(Counter, "bridge", counters, read)?;
    let from = Arc::clone(fleet);
    let read = move || Ok::<_, Infallible>(Reason::ALL.map(|reason| from.stats().kernel(reason)));
    registry.meters(Counter, "bridge.kernel", &Reason::FIELDS, read)?;
    let from = Arc::clone(fleet);
    let read = move || {
        let Stats { stations, left_out, .. } = from.stats();
        Ok::<_, Infallible>([from.len() as u64, stations, left_out])
    };
    let gauges = &[
        ("bridges", "bridges", "Bridges that are accelerated."),
        ("stations", "stations", "Stations that the fast path knows."),
        ("left_out", "stations", "Stations that the fast path has no room for."),
    ];
    registry.meters(Gauge, "bridge", gauges, read)
}

fn fastpath_knob(fleet: &Arc<Fleet>) -> Knob {
    let (reader, writer) = (Arc::clone(fleet), Arc::clone(fleet));
    let help = "forward known unicast in BPF; off, nothing of it is attached";
    let (get, set) = (move || Ok(reader.fastpath()), move |on| writer.set_fastpath(on));
    Knob::off_on("bridge.fastpath", help, true, get, set)
}

fn table_knob(fleet: &Arc<Fleet>) -> Knob {
    let (reader, writer) = (Arc::clone(fleet), Arc::clone(fleet));
    let help = "where the last-seen stamps live; shared is there to measure against";
    let (get, set) = (move || Ok(reader.table()), move |table| writer.set_table(table));
    Knob::choice("bridge.fdb", help, &Table::ALL, Table::Split, get, set)
}
