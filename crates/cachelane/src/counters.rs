//! Counters in tables: as the control socket shows them, and as reports do.

use knobs::{MeterKind, Registry};
use serde_json::{Map, Value};

/// A counter's name, its unit, what it means, and how to read it.
pub(crate) type Count<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

/// Adds counters called `PREFIX.NAME` to `registry`, all of which read what `state` gives.
///
/// # Errors
/// A name that the registry holds already.
pub(crate) fn register<T: 'static>(
    registry: &Registry,
    kind: MeterKind,
    prefix: &str,
    table: &[Count<T>],
    state: impl Fn() -> T + Clone + Send + Sync + 'static,
) -> Result<(), knobs::Error> {
    for (name, unit, help, read) in table {
        let (name, state, read) = (format!("{prefix}.{name}"), state.clone(), *read);
        let value = move || read(&state());
        match kind {
            MeterKind::Counter => registry.counter(&name, unit, help, value)?,
            MeterKind::Gauge => registry.gauge(&name, unit, help, value)?,
        }
    }
    Ok(())
}

/// Names and values.
pub(crate) fn values<T>(
    table: &[Count<T>],
    state: &T,
) -> impl Iterator<Item = (&'static str, u64)> {
    table.iter().map(|(name, _, _, read)| (*name, read(state)))
}

/// The same for programs.
pub(crate) fn object<T>(table: &[Count<T>], state: &T) -> Map<String, Value> {
    values(table, state).map(|(name, value)| (name.to_owned(), value.into())).collect()
}
