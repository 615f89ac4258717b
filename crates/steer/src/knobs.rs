//! Steering's knob and counters, as `cachelane knob` shows them.

use std::convert::Infallible;
use std::sync::Arc;

use knobs::MeterKind::{Counter, Gauge};
use knobs::{Knob, Registry};

use crate::{Counters, Reason, Steering};

/// Adds the knob `steer.llc_affinity`, and every counter summed over the CPUs, to `registry`. The
/// registry holds on to the steering, which ends only after it.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(steering: &Arc<Steering>, registry: &Registry) -> Result<(), knobs::Error> {
    let (reader, writer) = (Arc::clone(steering), Arc::clone(steering));
    let help = "rewrite a flow's record only when its consumer changed lanes";
    let (get, set) = (move || reader.llc_affinity(), move |on| writer.set_llc_affinity(on));
    registry.register(Knob::off_on("steer.llc_affinity", help, true, get, set))?;
    let from = Arc::clone(steering);
    let read = move || from.counters().map(|counters| counters.values());
    registry.meters(Counter, "steer", Counters::FIELDS, read)?;
    let from = Arc::clone(steering);
    let read = move || from.counters().map(|counters| counters.kernel);
    registry.meters(Counter, "steer.kernel", Reason::FIELDS, read)?;
    let from = Arc::clone(steering);
    let rests = [("rests", "times", "Times that a CPU's thread never slept, and shared its CPU.")];
    registry.meters(Counter, "steer", rests, move || Ok::<_, Infallible>([from.rests()]))?;
    let from = Arc::clone(steering);
    let targets = [("targets", "cpus", "CPUs that flows are sent to.")];
    let read = move || Ok::<_, Infallible>([from.targets().len() as u64]);
    registry.meters(Gauge, "steer", targets, read)
}
