//! Steering's knob and counters, as `cachelane knob` shows them.

use std::sync::Arc;

use knobs::{Knob, Registry, Values};

use crate::counters::NAMED;
use crate::{Counters, Reason, Steering};

/// Adds the knob `steer.llc_affinity`, and every counter summed over the CPUs, to `registry`. The
/// registry holds on to the steering, which ends only after it.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(steering: &Arc<Steering>, registry: &Registry) -> Result<(), knobs::Error> {
    registry.register(llc_affinity(steering))?;
    for (name, unit, help, read) in NAMED {
        let from = Arc::clone(steering);
        registry.counter(&format!("steer.{name}"), unit, help, move || read(&counters(&from)))?;
    }
    for reason in Reason::ALL {
        let from = Arc::clone(steering);
        let name = format!("steer.kernel.{}", reason.name());
        let read = move || counters(&from).kernel(reason);
        registry.counter(&name, "packets", reason.help(), read)?;
    }
    let from = Arc::clone(steering);
    let help = "Times that a CPU's thread never slept, and shared its CPU for a while.";
    registry.counter("steer.rests", "times", help, move || from.rests())?;
    let from = Arc::clone(steering);
    let help = "CPUs that flows are sent to.";
    registry.gauge("steer.targets", "cpus", help, move || from.targets().len() as u64)
}

/// None yet if they cannot be read, which needs no more than an open descriptor.
fn counters(steering: &Steering) -> Counters {
    steering.counters().unwrap_or_default()
}

fn llc_affinity(steering: &Arc<Steering>) -> Knob {
    let (reader, writer) = (Arc::clone(steering), Arc::clone(steering));
    let set = move |value: &str| writer.set_llc_affinity(value == "on").map_err(|e| e.to_string());
    // What cannot be read was never changed either.
    let current =
        move || if reader.llc_affinity().unwrap_or(true) { "on" } else { "off" }.to_owned();
    let help = "rewrite a flow's record only when its consumer changed lanes";
    Knob::new("steer.llc_affinity", help, Values::off_on(), "on", current, set)
}
