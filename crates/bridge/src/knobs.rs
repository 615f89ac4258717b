//! The fast path's knobs and counters, as `cachelane knob` shows them.

use std::convert::Infallible;
use std::sync::Arc;

use knobs::MeterKind::{Counter, Gauge};
use knobs::{Knob, Registry};

use crate::{Accelerator, Counters, Fleet, Reason, Table};

/// Adds the knobs `bridge.fastpath` and `bridge.fdb`, which are for all bridges at once, and every
/// counter, summed over the bridges, to `registry`. The registry holds on to the fleet.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(fleet: &Arc<Fleet>, registry: &Registry) -> Result<(), knobs::Error> {
    let (reader, writer) = (Arc::clone(fleet), Arc::clone(fleet));
    let help = "forward known unicast in BPF; off, nothing of it is attached";
    let (get, set) = (move || Ok(reader.fastpath()), move |on| writer.set_fastpath(on));
    registry.register(Knob::off_on("bridge.fastpath", help, true, get, set))?;
    let (reader, writer) = (Arc::clone(fleet), Arc::clone(fleet));
    let help = "where the last-seen stamps live; shared is there to measure against";
    let (get, set) = (move || Ok(reader.table()), move |table| writer.set_table(table));
    registry.register(Knob::choice("bridge.fdb", help, &Table::ALL, Table::Split, get, set))?;
    let from = Arc::clone(fleet);
    let read = move || from.counters().map(|counters| counters.values());
    registry.meters(Counter, "bridge", Counters::FIELDS, read)?;
    let from = Arc::clone(fleet);
    let read = move || from.counters().map(|counters| counters.kernel);
    registry.meters(Counter, "bridge.kernel", Reason::FIELDS, read)?;
    let from = Arc::clone(fleet);
    let overruns = [("overruns", "times", "Times notifications were lost and the mirror rebuilt.")];
    registry.meters(Counter, "bridge", overruns, move || Ok::<_, Infallible>([from.overruns()]))?;
    let from = Arc::clone(fleet);
    let now = [
        ("bridges", "bridges", "Bridges that are accelerated."),
        ("stations", "stations", "Stations that the fast path knows."),
        ("left_out", "stations", "Stations that the fast path has no room for."),
    ];
    let read = move || {
        let each = from.each();
        let sum = |of: fn(&Accelerator) -> u64| each.iter().map(|(_, fast)| of(fast)).sum();
        let all = [each.len() as u64, sum(Accelerator::stations), sum(Accelerator::left_out)];
        Ok::<_, Infallible>(all)
    };
    registry.meters(Gauge, "bridge", now, read)
}
